/* collective.cpp: what a warp's lanes do together. Each lane brings its operands on its own stack;
 * the last to come computes the results of all of them there. */
#include "inside.h"

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

typedef float eight __attribute__((vector_size(32), may_alias));

struct mma_args {
    float *d;
    const uint32_t *a, *b;
};
static inline float half_of(uint32_t pair, int high, bool bf16) {
    const uint16_t h = (uint16_t)(high ? pair >> 16 : pair);
    return bf16 ? __uint_as_float((uint32_t)h << 16) : emu_f16_to_f32(h);
}
/* Gathers the fragments into whole matrices (the layouts: gpu.h), multiplies, and hands out. */
template <bool bf16>
static inline __attribute__((always_inline)) void mma_compute(void *const args[32]) {
    uint32_t pairs_a[16][8], pairs_b[8][8]; /* [row][k / 2], [column][k / 2] */
    float a[16][16];
    alignas(32) float b[16][8], d[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane >> 2, c = lane & 3;
        const auto *x = (const mma_args *)args[lane];
        pairs_a[g][c] = x->a[0];
        pairs_a[g + 8][c] = x->a[1];
        pairs_a[g][c + 4] = x->a[2];
        pairs_a[g + 8][c + 4] = x->a[3];
        pairs_b[g][c] = x->b[0];
        pairs_b[g][c + 4] = x->b[1];
        for (int i = 0; i < 2; i++) {
            d[g][2 * c + i] = x->d[i];
            d[g + 8][2 * c + i] = x->d[i + 2];
        }
    }
    for (int row = 0; row < 16; row++) {
        for (int k = 0; k < 8; k++) {
            a[row][2 * k] = half_of(pairs_a[row][k], 0, bf16);
            a[row][2 * k + 1] = half_of(pairs_a[row][k], 1, bf16);
        }
    }
    for (int k = 0; k < 8; k++) {
        for (int column = 0; column < 8; column++) {
            b[2 * k][column] = half_of(pairs_b[column][k], 0, bf16);
            b[2 * k + 1][column] = half_of(pairs_b[column][k], 1, bf16);
        }
    }
    for (int row = 0; row < 16; row++) {
        eight sums = *(eight *)d[row];
        for (int k = 0; k < 16; k++) sums += a[row][k] * *(const eight *)b[k];
        *(eight *)d[row] = sums;
    }
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane >> 2, c = lane & 3;
        auto *x = (mma_args *)args[lane];
        for (int i = 0; i < 2; i++) {
            x->d[i] = d[g][2 * c + i];
            x->d[i + 2] = d[g + 8][2 * c + i];
        }
    }
}
#ifdef __x86_64__
__attribute__((target("avx2,fma"))) static void mma_f16_avx2(void *const args[32]) {
    mma_compute<false>(args);
}
__attribute__((target("avx2,fma"))) static void mma_bf16_avx2(void *const args[32]) {
    mma_compute<true>(args);
}
static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
static void mma_f16(uint32_t, void *const args[32]) {
#ifdef __x86_64__
    if (has_avx2) return mma_f16_avx2(args);
#endif
    mma_compute<false>(args);
}
static void mma_bf16(uint32_t, void *const args[32]) {
#ifdef __x86_64__
    if (has_avx2) return mma_bf16_avx2(args);
#endif
    mma_compute<true>(args);
}
void emu_mma(bool bf16, float d[4], const uint32_t a[4], const uint32_t b[2], int line) {
    mma_args args = {d, a, b};
    emu_collect(bf16 ? mma_bf16 : mma_f16, ~0u, line, &args);
}
