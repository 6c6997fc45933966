/* layout.h: how a weight lies for products, and how lanes read it: included by .cu files only.
 *
 * Sixteen rows of a weight are a strip; strips follow one another. Along a strip lie units of 64
 * columns (256 for the types that have blocks of 256), and a unit is chunks of 64 columns: what a
 * lane of a warp takes at a time. The pieces of 16 bytes that the 32 lanes read at once lie in the
 * lanes' order, and a lane's pieces hold exactly the weights of its registers in the matrix product
 * m16n8k16: neither shuffles nor shared memory stand between memory and the product. Missing rows
 * and columns are there, with values or scales of 0.
 *
 * Which columns a lane has is free, as long as the inputs agree. Lane l, with g = l / 4 and q = l %
 * 4, has in step s of a chunk (16 columns) the columns k … k + 3 with k = 16 s + 4 q, of rows g and
 * g + 8: so four neighbouring inputs are one read of 16 bytes. Register 0: row g, k and k + 1; 1:
 * row g + 8, those; 2: row g, k + 2 and k + 3; 3: row g + 8, those.
 *
 * Integers become 16-bit floats by or-ing them into the low bits of 128 (bf16; before sm_80, which
 * has no bf16, of 1024 as f16). The 128 is not subtracted from the weights, but at once from the
 * sum over a group: the inputs' product with constant "weights" of -128 is where the sum starts,
 * and that is made once for both strips of a warp. The scale of a group is applied to the f32 sum.
 *
 * A strip is its units' main parts one after the other, then their side parts, then up to a
 * multiple of 128 bytes:
 *
 * - F16, BF16: [4 steps][32 lanes] 16 bytes
 *
 * - Q8_0: [2 pairs of steps][32 lanes] 16 bytes: for each step rows g, g + 8, bytes + 128; side:
 *   [8 g] scales of 2 blocks of row g, of row g + 8
 *
 * - Q4_0, Q4_1: [32 lanes] 4 words, one for each step: register r of the step is bits 4 r (low
 *   half) and 16 + 4 r; side: [8 g] as in Q8_0; Q4_1: scale and minimum, twice for each row
 *
 * - Q4_K: 4 chunks as in Q4_0, then [16: 8 g, rows g and g + 8] the 16 bytes a block opens with
 *
 * - Q5_K: 4 chunks as in Q4_0, 4 chunks of [32 lanes] a word of fifth bits: register r of step s
 *   has bits 4 s + r and 16 + those; then as in Q4_K
 *
 * - Q6_K: 4 chunks as in Q4_0, 4 chunks of [32 lanes] two words of bits 4 and 5, for two steps
 *   each: register r of step s has bits 8 (s % 2) + 2 r and 16 + those; then [16 as above] 16
 *   scales + 128; side: [8 g] d of row g, of row g + 8 */
#ifndef CUDA_LAYOUT_H
#define CUDA_LAYOUT_H

#include "gpu.h"

#define TILE_ROWS    16 /* of a strip */
#define TILE_COLUMNS 64 /* of a chunk */

/* Formats with tiles of their own. */
#define TILE_FORMATS(X)                                                                            \
    X(KERN_F16)                                                                                    \
    X(KERN_BF16) X(KERN_Q8_0) X(KERN_Q4_0) X(KERN_Q4_1) X(KERN_Q4_K) X(KERN_Q5_K) X(KERN_Q6_K)

/* Small integers as 16-bit floats: TILE_ONES is a pair of TILE_BASE, whose lowest bit is 1. */
#if (defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800) || defined(LLMLUA_TILE_F16)
#define TILE_INTEGERS_F16 1
#define TILE_BASE         1024
#define TILE_ONES         0x64006400u
#else
#define TILE_INTEGERS_F16 0
#define TILE_BASE         128
#define TILE_ONES         0x43004300u
#endif

/* What a format's weights are in a product: f16, bf16, or integers with scales. */
enum tile_kind { TILE_F16, TILE_BF16, TILE_INTEGERS };

struct tile_strip {
    const unsigned char *main, *side;
};

/* Of rows g and g + 8. A group's weights are scale · integer - least · TILE_BASE. */
struct tile_factors {
    float scale[2], least[2];
};

/* What formats have in common: nothing but their parts' sizes. */
template <int unit_, int main_, int side_> struct tile_sizes {
    static constexpr int unit = unit_;       /* columns */
    static constexpr int main_bytes = main_; /* of a unit */
    static constexpr int side_bytes = side_;
    static constexpr int n_chunks = unit_ / TILE_COLUMNS;
};

/* Bytes of a strip of so many units. */
template <class F> static inline int64_t tile_strip_bytes(int64_t n_units) {
    return (n_units * (F::main_bytes + F::side_bytes) + 127) / 128 * 128;
}

template <class F>
GPU_INLINE tile_strip tile_strip_at(const unsigned char *weight, int64_t i_strip,
                                    int64_t strip_bytes, int n_units) {
    const unsigned char *strip = weight + i_strip * strip_bytes;
    return {strip, strip + (int64_t)n_units * F::main_bytes};
}

template <typename T> GPU_INLINE T tile_read(const unsigned char *p) {
    return __ldg(reinterpret_cast<const T *>(p));
}
GPU_INLINE float tile_low_f16(uint32_t pair) { return gpu_f16_to_f32((uint16_t)pair); }
GPU_INLINE float tile_high_f16(uint32_t pair) { return gpu_f16_to_f32((uint16_t)(pair >> 16)); }

/* Constants that lanes keep in registers: an instruction has room for one only. */
struct tile_constants {
    uint32_t ones, base; /* TILE_ONES; the bits of 32768 */
};
GPU_INLINE tile_constants tile_constants_new() { return {TILE_ONES, 0x47000000u}; }
/* A constant that the assembler cannot know to be one, and so does not load where it is used. All
 * lanes of the warp. */
GPU_INLINE uint32_t tile_kept(uint32_t x) { return __shfl_sync(~0u, x, 0); }

/* (byte i of the word - zero) · d, exactly: the byte is put into the bits of 32768 that count 1. */
GPU_INLINE float tile_byte_times(tile_constants k, uint32_t word, int i, float zero, float d) {
    const float byte = __uint_as_float(__byte_perm(word, k.base, 0x7404u | (uint32_t)i << 4));
    return __fmaf_rn(byte, d, -(32768.0f + zero) * d);
}

/* The four registers of a step from its word of 4-bit numbers. */
GPU_INLINE void tile_nibbles(tile_constants k, uint32_t word, uint32_t a[4]) {
    GPU_UNROLL
    for (int r = 0; r < 4; r++) a[r] = gpu_and_or(word >> (4 * r), 0x000F000Fu, k.ones);
}

/* Bits `at` … and 16 + at … of the word, masked, in bits 4 … and 20 … of a. */
GPU_INLINE void tile_high_bits(uint32_t word, int at, uint32_t mask, uint32_t *a) {
    *a = gpu_and_or(at < 4 ? word << (4 - at) : word >> (at - 4), mask, *a);
}

/* ---- the formats ----
 *
 * chunk: registers of 64 columns; load: of chunk i of unit u. fragment: the weights of a step.
 * Where a unit is several chunks its scales are loaded as a lane's share of them, or whole (raw);
 * gather makes one of the other. scales: those of chunks 2 h and 2 h + 1, ready for use. factors:
 * of the group that a step of the first or second of them is in. A step is the s-th of half h;
 * h of
 * integers may be known at run time only. */

template <int id> struct tile;

struct tile_no_scales {
    static constexpr bool unit_scales = false; /* has scales that are loaded once a unit */
    struct share {};
    struct raw {};
    struct scales {};
    GPU_INLINE void load_share(share &, tile_strip, int, int) {}
    GPU_INLINE raw gather(const share &, int) { return {}; }
    GPU_INLINE raw load_scales(tile_strip, int, int) { return {}; }
    GPU_INLINE scales open(const raw &, int) { return {}; }
};

template <int kind_> struct tile_16 : tile_sizes<64, 2048, 0>, tile_no_scales {
    static constexpr int kind = kind_, group = 64, zero = 0;
    static constexpr bool has_offset = false, has_least = false;
    struct chunk {
        uint4 q[4];
    };
    GPU_INLINE void load(chunk &w, tile_strip strip, int u, int, int lane) {
        const unsigned char *at = strip.main + (int64_t)u * 2048 + lane * 16;
        GPU_UNROLL
        for (int s = 0; s < 4; s++) w.q[s] = gpu_load_once(at + s * 512);
    }
    GPU_INLINE void fragment(tile_constants, const chunk &w, int h, int s, uint32_t a[4]) {
        const uint4 q = w.q[2 * h + s];
        a[0] = q.x;
        a[1] = q.y;
        a[2] = q.z;
        a[3] = q.w;
    }
    GPU_INLINE tile_factors factors(tile_constants, const chunk &, const scales &, int, int, int) {
        return {{1, 1}, {0, 0}};
    }
};
template <> struct tile<KERN_F16> : tile_16<TILE_F16> {};
template <> struct tile<KERN_BF16> : tile_16<TILE_BF16> {};

template <> struct tile<KERN_Q8_0> : tile_sizes<64, 1024, 64>, tile_no_scales {
    static constexpr int kind = TILE_INTEGERS, group = 32, zero = 0;
    static constexpr bool has_offset = false, has_least = false;
    struct chunk {
        uint4 q[2];
        uint2 d;
    };
    GPU_INLINE void load(chunk &w, tile_strip strip, int u, int, int lane) {
        const unsigned char *at = strip.main + (int64_t)u * 1024 + lane * 16;
        w.q[0] = gpu_load_once(at);
        w.q[1] = gpu_load_once(at + 512);
        w.d = tile_read<uint2>(strip.side + (int64_t)u * 64 + (lane >> 2) * 8);
    }
    /* Eight bits do not fit into the seven of a bf16 next to a 128: by way of f32, where they are
     * exact too; f16 has room. */
    GPU_INLINE void pairs(uint32_t word, uint32_t *low, uint32_t *high) {
#if TILE_INTEGERS_F16
        const uint32_t one = 0x3C003C00u, minus_1152 = 0xE480E480u;
        *low = gpu_fma_f16x2(__byte_perm(word, 0x64646464u, 0x4140), one, minus_1152);
        *high = gpu_fma_f16x2(__byte_perm(word, 0x64646464u, 0x4342), one, minus_1152);
#else
        uint32_t y[4];
        GPU_UNROLL
        for (int i = 0; i < 4; i++) {
            const uint32_t bits = __byte_perm(word, 0x4B000000u, 0x7440u | (uint32_t)i);
            y[i] = __float_as_uint(__uint_as_float(bits) - (8388608.0f + 128.0f));
        }
        *low = __byte_perm(y[0], y[1], 0x7632);
        *high = __byte_perm(y[2], y[3], 0x7632);
#endif
    }
    GPU_INLINE void fragment(tile_constants, const chunk &w, int h, int s, uint32_t a[4]) {
        const uint4 q = h == 0 ? w.q[0] : w.q[1];
        pairs(s ? q.z : q.x, &a[0], &a[2]);
        pairs(s ? q.w : q.y, &a[1], &a[3]);
    }
    GPU_INLINE tile_factors factors(tile_constants, const chunk &w, const scales &, int, int h,
                                    int) {
        return h == 0 ? tile_factors{{tile_low_f16(w.d.x), tile_low_f16(w.d.y)}, {0, 0}}
                      : tile_factors{{tile_high_f16(w.d.x), tile_high_f16(w.d.y)}, {0, 0}};
    }
};

/* The word of step 2 h + s. */
GPU_INLINE uint32_t tile_word(uint4 q, int h, int s) {
    return s == 0 ? (h == 0 ? q.x : q.z) : (h == 0 ? q.y : q.w);
}

template <> struct tile<KERN_Q4_0> : tile_sizes<64, 512, 64>, tile_no_scales {
    static constexpr int kind = TILE_INTEGERS, group = 32, zero = 8;
    static constexpr bool has_offset = true, has_least = false;
    struct chunk {
        uint4 q;
        uint2 d;
    };
    GPU_INLINE void load(chunk &w, tile_strip strip, int u, int, int lane) {
        w.q = gpu_load_once(strip.main + (int64_t)u * 512 + lane * 16);
        w.d = tile_read<uint2>(strip.side + (int64_t)u * 64 + (lane >> 2) * 8);
    }
    GPU_INLINE void fragment(tile_constants k, const chunk &w, int h, int s, uint32_t a[4]) {
        tile_nibbles(k, tile_word(w.q, h, s), a);
    }
    GPU_INLINE tile_factors factors(tile_constants, const chunk &w, const scales &, int, int h,
                                    int) {
        return h == 0 ? tile_factors{{tile_low_f16(w.d.x), tile_low_f16(w.d.y)}, {0, 0}}
                      : tile_factors{{tile_high_f16(w.d.x), tile_high_f16(w.d.y)}, {0, 0}};
    }
};

template <> struct tile<KERN_Q4_1> : tile_sizes<64, 512, 128>, tile_no_scales {
    static constexpr int kind = TILE_INTEGERS, group = 32, zero = 0;
    static constexpr bool has_offset = true, has_least = true;
    struct chunk {
        uint4 q, d; /* d: two pairs of scale and minimum of row g, of row g + 8 */
    };
    GPU_INLINE void load(chunk &w, tile_strip strip, int u, int, int lane) {
        w.q = gpu_load_once(strip.main + (int64_t)u * 512 + lane * 16);
        w.d = tile_read<uint4>(strip.side + (int64_t)u * 128 + (lane >> 2) * 16);
    }
    GPU_INLINE void fragment(tile_constants k, const chunk &w, int h, int s, uint32_t a[4]) {
        tile_nibbles(k, tile_word(w.q, h, s), a);
    }
    GPU_INLINE tile_factors factors(tile_constants, const chunk &w, const scales &, int, int h,
                                    int) {
        const uint32_t first = h == 0 ? w.d.x : w.d.y, second = h == 0 ? w.d.z : w.d.w;
        return {{tile_low_f16(first), tile_low_f16(second)},
                {tile_high_f16(first) * (-1.0f / TILE_BASE),
                 tile_high_f16(second) * (-1.0f / TILE_BASE)}};
    }
};

/* 16 bytes for each row of a strip, those of rows g and g + 8 next to each other: a lane loads 8
 * bytes of the 32 of its g, and gets the others from its three neighbours when they are needed.
 * (32 bytes in each lane would be loaded just as well, but far ahead there is no room for them.) */
struct tile_rows {
    uint4 row[2];
};
GPU_INLINE uint2 tile_share(const unsigned char *rows, int lane) {
    return tile_read<uint2>(rows + lane * 8);
}
GPU_INLINE tile_rows tile_gather(uint2 share, int lane) {
    uint32_t word[8];
    GPU_UNROLL
    for (int i = 0; i < 8; i++)
        word[i] = __shfl_sync(~0u, i % 2 ? share.y : share.x, (lane & 28) + i / 2);
    return {{make_uint4(word[0], word[1], word[2], word[3]),
             make_uint4(word[4], word[5], word[6], word[7])}};
}
GPU_INLINE tile_rows tile_rows_read(const unsigned char *rows, int lane) {
    const unsigned char *at = rows + (lane >> 2) * 32;
    return {{tile_read<uint4>(at), tile_read<uint4>(at + 16)}};
}

/* Scales of Q4_K and Q5_K: the 16 bytes that a block opens with: d and dmin, and three words s of
 * 6-bit numbers as the file has them. Four groups are unpacked at once: for groups 0 … 3 the low
 * six bits of the bytes of s[0] (scales) and s[1] (minima); for 4 … 7 the nibbles of s[2] and the
 * top pairs of bits of s[0] and s[1]. */
template <int main_> struct tile_k_scales {
    static constexpr bool unit_scales = true;
    struct share {
        uint2 x;
    };
    using raw = tile_rows;
    struct scales {
        uint32_t scale[2], least[2]; /* bytes: of four groups */
        float d[2], dmin[2];
    };
    GPU_INLINE const unsigned char *rows_of(tile_strip strip, int u) {
        return strip.main + (int64_t)u * main_ + main_ - 256;
    }
    GPU_INLINE void load_share(share &s, tile_strip strip, int u, int lane) {
        s.x = tile_share(rows_of(strip, u), lane);
    }
    GPU_INLINE raw gather(const share &s, int lane) { return tile_gather(s.x, lane); }
    GPU_INLINE raw load_scales(tile_strip strip, int u, int lane) {
        return tile_rows_read(rows_of(strip, u), lane);
    }
    GPU_INLINE scales open(const raw &from, int h) {
        scales to;
        GPU_UNROLL
        for (int r = 0; r < 2; r++) {
            const uint4 x = from.row[r];
            to.scale[r] =
                h == 0 ? x.y & 0x3F3F3F3Fu : (x.w & 0x0F0F0F0Fu) | (x.y >> 2 & 0x30303030u);
            to.least[r] =
                h == 0 ? x.z & 0x3F3F3F3Fu : (x.w >> 4 & 0x0F0F0F0Fu) | (x.z >> 2 & 0x30303030u);
            to.d[r] = tile_low_f16(x.x);
            to.dmin[r] = tile_high_f16(x.x) * (1.0f / TILE_BASE);
        }
        return to;
    }
    GPU_INLINE tile_factors factors_of(tile_constants k, const scales &x, int i) {
        return {{tile_byte_times(k, x.scale[0], i, 0, x.d[0]),
                 tile_byte_times(k, x.scale[1], i, 0, x.d[1])},
                {tile_byte_times(k, x.least[0], i, 0, x.dmin[0]),
                 tile_byte_times(k, x.least[1], i, 0, x.dmin[1])}};
    }
};

template <> struct tile<KERN_Q4_K> : tile_sizes<256, 2304, 0>, tile_k_scales<2304> {
    static constexpr int kind = TILE_INTEGERS, group = 32, zero = 0;
    static constexpr bool has_offset = true, has_least = true;
    struct chunk {
        uint4 q;
    };
    GPU_INLINE void load(chunk &w, tile_strip strip, int u, int i, int lane) {
        w.q = gpu_load_once(strip.main + (int64_t)u * main_bytes + i * 512 + lane * 16);
    }
    GPU_INLINE void fragment(tile_constants k, const chunk &w, int h, int s, uint32_t a[4]) {
        tile_nibbles(k, tile_word(w.q, h, s), a);
    }
    GPU_INLINE tile_factors factors(tile_constants k, const chunk &, const scales &x, int second,
                                    int h, int) {
        return factors_of(k, x, 2 * second + h);
    }
};

template <> struct tile<KERN_Q5_K> : tile_sizes<256, 2816, 0>, tile_k_scales<2816> {
    static constexpr int kind = TILE_INTEGERS, group = 32, zero = 0;
    static constexpr bool has_offset = true, has_least = true;
    struct chunk {
        uint4 q;
        uint32_t high;
    };
    GPU_INLINE void load(chunk &w, tile_strip strip, int u, int i, int lane) {
        const unsigned char *at = strip.main + (int64_t)u * main_bytes;
        w.q = gpu_load_once(at + i * 512 + lane * 16);
        w.high = tile_read<uint32_t>(at + 2048 + i * 128 + lane * 4);
    }
    GPU_INLINE void fragment(tile_constants k, const chunk &w, int h, int s, uint32_t a[4]) {
        const uint32_t high = w.high >> (8 * h);
        tile_nibbles(k, tile_word(w.q, h, s), a);
        GPU_UNROLL
        for (int r = 0; r < 4; r++) tile_high_bits(high, 4 * s + r, 0x00100010u, &a[r]);
    }
    GPU_INLINE tile_factors factors(tile_constants k, const chunk &, const scales &x, int second,
                                    int h, int) {
        return factors_of(k, x, 2 * second + h);
    }
};

template <> struct tile<KERN_Q6_K> : tile_sizes<256, 3328, 32> {
    static constexpr int kind = TILE_INTEGERS, group = 16, zero = 32;
    static constexpr bool has_offset = true, has_least = false, unit_scales = true;
    struct chunk {
        uint4 q;
        uint2 high;
    };
    struct share {
        uint2 x;
        uint32_t d;
    };
    struct raw {
        tile_rows rows;
        uint32_t d;
    };
    struct scales {
        uint32_t first[2], second[2]; /* bytes: of four groups of a chunk */
        float d[2];
    };
    GPU_INLINE void load(chunk &w, tile_strip strip, int u, int i, int lane) {
        const unsigned char *at = strip.main + (int64_t)u * main_bytes;
        w.q = gpu_load_once(at + i * 512 + lane * 16);
        w.high = tile_read<uint2>(at + 2048 + i * 256 + lane * 8);
    }
    GPU_INLINE const unsigned char *rows_of(tile_strip strip, int u) {
        return strip.main + (int64_t)u * main_bytes + 3072;
    }
    GPU_INLINE uint32_t read_d(tile_strip strip, int u, int lane) {
        return tile_read<uint32_t>(strip.side + (int64_t)u * 32 + (lane >> 2) * 4);
    }
    GPU_INLINE void load_share(share &s, tile_strip strip, int u, int lane) {
        s.x = tile_share(rows_of(strip, u), lane);
        s.d = read_d(strip, u, lane);
    }
    GPU_INLINE raw gather(const share &s, int lane) { return {tile_gather(s.x, lane), s.d}; }
    GPU_INLINE raw load_scales(tile_strip strip, int u, int lane) {
        return {tile_rows_read(rows_of(strip, u), lane), read_d(strip, u, lane)};
    }
    GPU_INLINE scales open(const raw &from, int h) {
        const uint4 a = from.rows.row[0], b = from.rows.row[1];
        return {{h == 0 ? a.x : a.z, h == 0 ? b.x : b.z},
                {h == 0 ? a.y : a.w, h == 0 ? b.y : b.w},
                {tile_low_f16(from.d), tile_high_f16(from.d)}};
    }
    GPU_INLINE void fragment(tile_constants k, const chunk &w, int h, int s, uint32_t a[4]) {
        const uint32_t high = h == 0 ? w.high.x : w.high.y;
        tile_nibbles(k, tile_word(w.q, h, s), a);
        GPU_UNROLL
        for (int r = 0; r < 4; r++) tile_high_bits(high, 8 * s + 2 * r, 0x00300030u, &a[r]);
    }
    GPU_INLINE tile_factors factors(tile_constants k, const chunk &, const scales &x, int second,
                                    int h, int s) {
        const uint32_t low = second ? x.second[0] : x.first[0];
        const uint32_t high = second ? x.second[1] : x.first[1];
        return {{tile_byte_times(k, low, 2 * h + s, 128, x.d[0]),
                 tile_byte_times(k, high, 2 * h + s, 128, x.d[1])},
                {0, 0}};
    }
};

/* ---- back to numbers ---- */

GPU_INLINE float tile_number(int kind, uint32_t bits) {
    const bool f16 = kind == TILE_F16 || (kind == TILE_INTEGERS && TILE_INTEGERS_F16);
    return f16 ? gpu_f16_to_f32((uint16_t)bits) : gpu_bf16_to_f32((uint16_t)bits);
}

/* y[4 s + j] = the weight at column 16 s + 4 (lane % 4) + j of chunk i of unit u, of row lane / 4
 * (+ 8 if `half`), with the same roundings as formats.c */
template <class F>
GPU_INLINE void tile_values(tile_strip strip, int u, int i, int lane, int half, float y[16]) {
    typename F::chunk w;
    F::load(w, strip, u, i, lane);
    const typename F::scales x = F::open(F::load_scales(strip, u, lane), i >> 1);
    const tile_constants k = tile_constants_new();
    const float base = F::has_offset ? TILE_BASE + F::zero : 0;
    GPU_UNROLL
    for (int step = 0; step < 4; step++) {
        uint32_t a[4];
        F::fragment(k, w, step >> 1, step & 1, a);
        const tile_factors f = F::factors(k, w, x, i & 1, step >> 1, step & 1);
        GPU_UNROLL
        for (int j = 0; j < 4; j++) {
            const uint32_t low = a[j & 2], high = a[(j & 2) + 1], pair = half ? high : low;
            const float q = tile_number(F::kind, j & 1 ? pair >> 16 : pair & 0xFFFFu) - base;
            const float v = __fmul_rn(half ? f.scale[1] : f.scale[0], q);
            const float least = (half ? f.least[1] : f.least[0]) * TILE_BASE;
            y[4 * step + j] = F::has_least ? __fsub_rn(v, least) : v;
        }
    }
}

#endif
