/* collective.cpp: what a warp's lanes do together. Each lane brings its operands on its own stack;
 * the last to come computes the results of all of them there. */
#include "inside.h"
#ifdef __x86_64__
#include <immintrin.h>
#endif

/* The lanes of a mask, one after the other. */
#define EMU_LANES(lane, mask)                                                                      \
    for (uint32_t left = (mask), lane = 0; left && (lane = (uint32_t)__builtin_ctz(left), true);   \
         left &= left - 1)

static void synced(uint32_t mask, void *const *) {
    if (emu_checking) emu_shared_sync(mask);
}
void emu_syncwarp(unsigned mask, int line) { emu_collect(synced, mask, line, nullptr); }

struct shuffle_args {
    uint64_t bits, result;
    unsigned from;
};
static void shuffled(uint32_t mask, void *const args[32]) {
    EMU_LANES(lane, mask) {
        auto *x = (shuffle_args *)args[lane];
        if (!(mask >> x->from & 1)) {
            emu_found(cudaErrorLaunchFailure,
                      "lane %u shuffles from lane %u, which mask %08x leaves out", lane, x->from,
                      mask);
            x->result = 0xDEADBEEFDEADBEEFu;
            continue;
        }
        x->result = ((const shuffle_args *)args[x->from])->bits;
    }
}
uint64_t emu_shuffle_bits(emu_shuffle kind, unsigned mask, uint64_t bits, int by, int width,
                          int line) {
    const int lane = (int)emu_now.lane, first = lane & ~(width - 1), end = first + width;
    int from = kind == EMU_INDEX  ? first + (by & (width - 1))
               : kind == EMU_UP   ? lane - by
               : kind == EMU_DOWN ? lane + by
                                  : lane ^ by;
    if ((kind == EMU_UP && from < first) || (kind >= EMU_DOWN && from >= end)) from = lane;
    shuffle_args args = {bits, 0, (unsigned)from & 31u};
    emu_collect(shuffled, mask, line, &args);
    return args.result;
}

struct vote_args {
    bool x;
    unsigned result;
};
static void balloted(uint32_t mask, void *const args[32]) {
    unsigned ballot = 0;
    EMU_LANES(lane, mask) ballot |= (unsigned)((const vote_args *)args[lane])->x << lane;
    EMU_LANES(lane, mask)((vote_args *)args[lane])->result = ballot;
}
unsigned emu_ballot(unsigned mask, bool x, int line) {
    vote_args args = {x, 0};
    emu_collect(balloted, mask, line, &args);
    return args.result;
}

struct ldmatrix_args {
    const uint32_t *row;
    uint32_t *r;
};
static void ldmatrix_done(uint32_t, void *const args[32]) {
    for (int lane = 0; lane < 32; lane++) {
        for (int m = 0; m < 4; m++) {
            const auto *source = (const ldmatrix_args *)args[8 * m + lane / 4];
            ((ldmatrix_args *)args[lane])->r[m] = source->row[lane % 4];
        }
    }
}
void emu_ldmatrix_x4(uint32_t r[4], const void *row, int line) {
    emu_shared_access(row, 16, EMU_READ);
    ldmatrix_args args = {(const uint32_t *)row, r};
    emu_collect(ldmatrix_done, ~0u, line, &args);
}

/* ---- mma ---- */

typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));

struct mma_args {
    float *d;
    const uint32_t *a, *b;
};
/* n (a multiple of 8) 16-bit floats to f32. */
template <bool bf16>
static inline __attribute__((always_inline)) void widen(const uint16_t *from, float *to, int n) {
    for (int i = 0; i < n; i++)
        to[i] = bf16 ? __uint_as_float((uint32_t)from[i] << 16) : emu_f16_to_f32(from[i]);
}
#ifdef __x86_64__
template <bool bf16>
__attribute__((target("avx2,f16c"))) static inline void widen_avx2(const uint16_t *from, float *to,
                                                                   int n) {
    if (bf16) return widen<bf16>(from, to, n);
    for (int i = 0; i < n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
}
#endif
/* Gathers the fragments (the layouts: gpu.h): their lanes one after the other are rows of 8 columns
 * of a, columns of 8 rows of b, and rows of d. */
template <typename Widen>
static inline __attribute__((always_inline)) void mma_compute(void *const args[32], Widen to_f32) {
    uint32_t pairs[6][32];
    float wide[6][8][8], b[16][8], d[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const auto *x = (const mma_args *)args[lane];
        for (int i = 0; i < 4; i++) pairs[i][lane] = x->a[i];
        for (int i = 0; i < 2; i++) pairs[i + 4][lane] = x->b[i];
        memcpy(&d[lane / 4][lane % 4 * 2], x->d, 8);
        memcpy(&d[lane / 4 + 8][lane % 4 * 2], x->d + 2, 8);
    }
    to_f32((const uint16_t *)pairs, &wide[0][0][0], 6 * 64);
    for (int k = 0; k < 16; k++)
        for (int column = 0; column < 8; column++) b[k][column] = wide[4 + k / 8][column][k % 8];
    for (int row = 0; row < 16; row++) {
        eight sums = *(eight *)d[row];
        for (int k = 0; k < 16; k++)
            sums += wide[row / 8 + k / 8 * 2][row % 8][k % 8] * *(const eight *)b[k];
        *(eight *)d[row] = sums;
    }
    for (int lane = 0; lane < 32; lane++) {
        auto *x = (mma_args *)args[lane];
        memcpy(x->d, &d[lane / 4][lane % 4 * 2], 8);
        memcpy(x->d + 2, &d[lane / 4 + 8][lane % 4 * 2], 8);
    }
}
#ifdef __x86_64__
template <bool bf16>
__attribute__((target("avx2,f16c"))) static void mma_avx2(void *const args[32]) {
    mma_compute(args, widen_avx2<bf16>);
}
static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
#endif
template <bool bf16> static void mma_done(uint32_t, void *const args[32]) {
#ifdef __x86_64__
    if (has_avx2) return mma_avx2<bf16>(args);
#endif
    mma_compute(args, widen<bf16>);
}
void emu_mma(bool bf16, float d[4], const uint32_t a[4], const uint32_t b[2], int line) {
    mma_args args = {d, a, b};
    emu_collect(bf16 ? mma_done<true> : mma_done<false>, ~0u, line, &args);
}
