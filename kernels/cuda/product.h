/* product.h: what the kernels of products share: their arguments, the inputs as pairs of 16-bit
 * numbers, the product of a chunk of weights, and the epilogues. Included by .cu files only.
 *
 * out[T,N] = in[T,K] @ w[N,K]^T. The weights are the first operand of the warp's product m16n8k16
 * (16 of their rows, a strip), eight rows of the input the second: so a result's bits are the same
 * whatever the other rows are. They depend on T in no other way either: K is split into SPLITS
 * ranges, the units of each range are added up in order, then the ranges, whichever kernel does it.
 *
 * Precision: integers and 16-bit weights are exact, sums and scales are f32. An input is the sum of
 * two bf16, x = hi + lo to 2^-16 of itself, over the whole range of f32; with F16 weights of two
 * f16, x / 16 = hi + lo / 2048 to 2^-22 (between 2^-10 and 2^20; smaller ones to 2^-32 at least,
 * larger ones are cut off there). An infinite input makes NaNs. One f16 instead of two would save a
 * third of the instructions, which matter only for 4-bit weights on the fastest memory; greedy
 * texts as of f32 matter more. Before sm_80 integers are multiplied by two f16, both of x / 16. */
#ifndef CUDA_PRODUCT_H
#define CUDA_PRODUCT_H

#include "act.h"
#include "layout.h"

#define SPLITS 8 /* ranges of K */

struct product_part {
    const unsigned char *w;
    const float *bias; /* or NULL */
    float *out;
    int32_t n_rows;      /* N */
    int32_t first_group; /* of the grid's groups of strips (rows, of plain weights) */
};

struct product_args {
    product_part parts[CUDA_MOST_PRODUCTS];
    int32_t n_parts;
    int32_t n_inputs, n_columns; /* T, K */
    int32_t stride;              /* of inputs; in tiles a multiple of 4, zeros beyond K */
    int32_t n_units;
    int64_t strip_bytes; /* plain weights: of a row */
    const float *in;
    const float *other; /* of products with `up` that is there already: device [T,N] */
    bool pair;          /* parts 0 and 1 are gate and up */
    int32_t finish;     /* cuda_epilogue */
};

/* What the parts of a product differ in where their formats do. */
struct product_mix {
    int32_t kind; /* the format; + PRODUCT_MIX_TILED: in tiles */
    int32_t n_units;
    int64_t strip_bytes;
};
struct product_mixes {
    product_mix of[CUDA_MOST_PRODUCTS];
};
#define PRODUCT_MIX_TILED  64 /* more than there are formats */
#define PRODUCT_MIXED_ROWS 32 /* of input that one launch for different formats is made for */

#define PRODUCT_STRIPS     2 /* of a warp: neighbours, or gate and up */
#define PRODUCT_MANY_WARPS 4

/* The kernels of a format; product.cu chooses. */
enum product_kernel {
    PRODUCT_FEW_8,  /* up to 8 rows of input a block, one group of strips */
    PRODUCT_FEW_16, /* up to 16 */
    PRODUCT_MANY    /* up to 32, a group of strips for each warp */
};
template <int id> void product_tiles(kern_device *, product_kernel, const product_args *);
template <int id> void product_plain(kern_device *, const product_args *);
/* Parts of any formats; n_units and strip_bytes of the arguments are not used, and groups are of
 * two strips. */
void product_mixed_launch(kern_device *, const product_args *, const product_mixes *);

/* Groups of so many weight rows of all parts. A pair's is that of gate and of up. */
static inline int64_t product_groups(const product_args *p, int rows_per_group) {
    const product_part *last = &p->parts[p->pair ? 0 : p->n_parts - 1];
    return last->first_group + ((int64_t)last->n_rows + rows_per_group - 1) / rows_per_group;
}
static inline int product_group_rows(const product_args *p) {
    return p->pair ? TILE_ROWS : PRODUCT_STRIPS * TILE_ROWS;
}
static inline int64_t product_blocks(int64_t n, int64_t per_block) {
    return (n + per_block - 1) / per_block;
}

/* The blocks of a grid: those of the same weights and other inputs are neighbours, so that they
 * find the weights in L2. */
struct product_place {
    int t, group; /* first row of input; group of weight rows, or of several groups */
};
GPU_INLINE product_place product_place_of(const product_args &p, int rows) {
    const unsigned n = (unsigned)(p.n_inputs + rows - 1) / (unsigned)rows;
    const unsigned block = (unsigned)gpu_anew((int)blockIdx.x);
    return {(int)(block % n) * rows, (int)(block / n)};
}

/* ---- inputs ---- */

/* Four columns of a row, ready for a product: two pairs, and what rounding left of them. */
struct input_four {
    uint32_t pair[2], rest[2];
};

/* The upper half is the number's bf16, cut off; what is left has 16 bits, and bf16 rounds them to
 * 8. NaN stays: it is in one of the two. */
GPU_INLINE void split_bf16(float x, float y, uint32_t *pair, uint32_t *rest) {
    const uint32_t a = __float_as_uint(x), b = __float_as_uint(y);
    *pair = __byte_perm(a, b, 0x7632);
    *rest =
        gpu_pack_bf16(x - __uint_as_float(a & 0xFFFF0000u), y - __uint_as_float(b & 0xFFFF0000u));
}

GPU_INLINE float input_cut(float x) { /* x / 16 within f16; NaN stays */
    x *= 0.0625f;
    return fabsf(x) > 65504.0f ? copysignf(65504.0f, x) : x;
}
GPU_INLINE void split_f16(float x, float y, float rest_scale, uint32_t *pair, uint32_t *rest) {
    x = input_cut(x);
    y = input_cut(y);
    *pair = gpu_pack_f16(x, y);
    *rest = gpu_pack_f16((x - tile_low_f16(*pair)) * rest_scale,
                         (y - tile_high_f16(*pair)) * rest_scale);
}

template <int kind> GPU_INLINE input_four input_split(float4 x) {
    input_four b;
    if constexpr (kind == TILE_F16) {
        split_f16(x.x, x.y, 2048, &b.pair[0], &b.rest[0]);
        split_f16(x.z, x.w, 2048, &b.pair[1], &b.rest[1]);
    } else if constexpr (kind == TILE_INTEGERS && TILE_INTEGERS_F16) {
        split_f16(x.x, x.y, 1, &b.pair[0], &b.rest[0]);
        split_f16(x.z, x.w, 1, &b.pair[1], &b.rest[1]);
    } else {
        split_bf16(x.x, x.y, &b.pair[0], &b.rest[0]);
        split_bf16(x.z, x.w, &b.pair[1], &b.rest[1]);
    }
    return b;
}

/* Where a lane's inputs are: columns 4 (lane % 4) on of row t, or of the last one: what is made of
 * rows that are not there is never kept. */
GPU_INLINE const float *input_row(const product_args &p, int t, int lane) {
    return p.in + (int64_t)min(t, p.n_inputs - 1) * p.stride + 4 * (lane & 3);
}
/* Columns k … k + 3 from there on. Beyond the row: others of the row, which meet weights of 0. */
GPU_INLINE float4 input_read(const product_args &p, const float *row, int k, int lane) {
    k = min(k, p.stride - 4 - 4 * (lane & 3));
    return __ldg(reinterpret_cast<const float4 *>(row + k));
}

/* ---- products ---- */

/* Sums that a lane has of a strip and eight rows of input: 4, or for F16 4 of the pairs and 4 of
 * the rests. */
template <class F> struct product_sums {
    static constexpr int n = F::kind == TILE_F16 ? 8 : 4;
    float x[n];
};

/* d += a · b, the rests after the pairs; for F16 their sums are apart. */
template <int kind> GPU_INLINE void multiply_step(float *d, const uint32_t a[4], input_four b) {
    if constexpr (kind == TILE_F16) {
        gpu_mma_f16(d, a, b.pair);
        gpu_mma_f16(d + 4, a, b.rest);
    } else if constexpr (kind == TILE_INTEGERS && TILE_INTEGERS_F16) {
        gpu_mma_f16(d, a, b.pair);
        gpu_mma_f16(d, a, b.rest);
    } else {
        gpu_mma_bf16(d, a, b.pair);
        gpu_mma_bf16(d, a, b.rest);
    }
}

/* Constants of a product: those of tiles, and what sums of integers start with. */
struct product_constants {
    tile_constants tile;
    uint32_t minus[4]; /* pairs of - (base + zero) */
};
template <class F> GPU_INLINE product_constants product_constants_new() {
    product_constants k = {{tile_kept(TILE_ONES), tile_kept(0x47000000u)}, {}};
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        k.minus[i] = tile_kept(TILE_ONES | 0x80008000u | (uint32_t)F::zero * 0x00010001u);
    return k;
}

/* sums += strips · 32 inputs: steps 2 h and 2 h + 1 of the chunk in a slot, n groups of 8 rows */
template <class F, int n>
GPU_INLINE void multiply_16(const product_constants &k, const typename F::chunk w[PRODUCT_STRIPS],
                            int h, const input_four b[2][n],
                            product_sums<F> sums[PRODUCT_STRIPS][n]) {
    GPU_UNROLL
    for (int s = 0; s < 2; s++) {
        GPU_UNROLL
        for (int r = 0; r < PRODUCT_STRIPS; r++) {
            uint32_t a[4];
            F::fragment(k.tile, w[r], h, s, a);
            GPU_UNROLL
            for (int j = 0; j < n; j++) { multiply_step<F::kind>(sums[r][j].x, a, b[s][j]); }
        }
    }
}

template <class F, int n>
GPU_INLINE void
multiply_integers(const product_constants &k, const typename F::chunk w[PRODUCT_STRIPS],
                  const typename F::scales x[PRODUCT_STRIPS], int slot, int h,
                  const input_four b[2][n], product_sums<F> sums[PRODUCT_STRIPS][n]) {
    constexpr int n_steps = F::group / 16; /* of a group: 1 or 2 */
    GPU_UNROLL
    for (int first = 0; first < 2; first += n_steps) {
        uint32_t a[PRODUCT_STRIPS][n_steps][4];
        tile_factors f[PRODUCT_STRIPS];
        GPU_UNROLL
        for (int r = 0; r < PRODUCT_STRIPS; r++) {
            GPU_UNROLL
            for (int s = 0; s < n_steps; s++) F::fragment(k.tile, w[r], h, first + s, a[r][s]);
            f[r] = F::factors(k.tile, w[r], x[r], slot & 1, h, first);
        }
        GPU_UNROLL
        for (int j = 0; j < n; j++) {
            /* - (base + zero) · the group's inputs added up, the same in each row */
            float start[4] = {0, 0, 0, 0};
            GPU_UNROLL
            for (int s = 0; s < n_steps && F::has_offset; s++)
                multiply_step<F::kind>(start, k.minus, b[first + s][j]);
            GPU_UNROLL
            for (int r = 0; r < PRODUCT_STRIPS; r++) {
                float d[4] = {start[0], start[1], start[2], start[3]};
                GPU_UNROLL
                for (int s = 0; s < n_steps; s++)
                    multiply_step<F::kind>(d, a[r][s], b[first + s][j]);
                GPU_UNROLL
                for (int c = 0; c < 4; c++) {
                    float *sum = &sums[r][j].x[c];
                    *sum = __fmaf_rn(f[r].scale[c >> 1], d[c], *sum);
                    if (F::has_least) *sum = __fmaf_rn(f[r].least[c >> 1], start[c], *sum);
                }
            }
        }
    }
}

template <class F, int n>
GPU_INLINE void multiply(const product_constants &k, const typename F::chunk w[PRODUCT_STRIPS],
                         const typename F::scales x[PRODUCT_STRIPS], int slot, int h,
                         const input_four b[2][n], product_sums<F> sums[PRODUCT_STRIPS][n]) {
    if constexpr (F::kind == TILE_INTEGERS)
        multiply_integers<F, n>(k, w, x, slot, h, b, sums);
    else
        multiply_16<F, n>(k, w, h, b, sums);
}

/* A range's sum as a number. */
template <class F> GPU_INLINE float product_sum(const product_sums<F> &sums, int c) {
    if constexpr (F::kind == TILE_F16) return (sums.x[c] + sums.x[c + 4] * 0x1p-11f) * 16.0f;
    if constexpr (F::kind == TILE_INTEGERS && TILE_INTEGERS_F16) return sums.x[c] * 16.0f;
    return sums.x[c];
}

/* ---- results ---- */

GPU_INLINE float product_biased(const float *bias, int n, float x) {
    return bias ? x + bias[n] : x;
}

/* The result of input row t and weight row n of a part; `up`: of the second part of a pair. */
GPU_INLINE void product_finish(const product_args &p, const product_part &part, int t, int n,
                               float x, float up) {
    if (t >= p.n_inputs || n >= part.n_rows) return;
    const int64_t at = (int64_t)t * part.n_rows + n;
    float *out = part.out + at;
    x = product_biased(part.bias, n, x);
    if (p.other) up = p.other[at];
    if (p.pair) up = product_biased(p.parts[1].bias, n, up);
    switch (p.finish) {
    case CUDA_ADD: *out += x; break;
    case CUDA_GELU: *out = act_gelu(x); break;
    case CUDA_SILU_MUL: *out = act_silu(x) * up; break;
    case CUDA_GELU_MUL: *out = act_gelu(x) * up; break;
    default: *out = x;
    }
}

/* The part that a group belongs to; groups beyond all are the last one's. (Indexing arguments by a
 * variable would copy them to local memory.) */
GPU_INLINE product_part product_part_of(const product_args &p, int group) {
    if (p.pair || p.n_parts < 2 || group < p.parts[1].first_group) return p.parts[0];
    return p.n_parts < 3 || group < p.parts[2].first_group ? p.parts[1] : p.parts[2];
}

#endif
