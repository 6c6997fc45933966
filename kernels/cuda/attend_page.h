/* attend_page.h: queries meet a page of keys, and weights a page of values: the two products of
 * attention, by the lanes of a warp, for each type of keys and values.
 *
 * Queries come in tiles of 16. With g = lane / 4 and j = lane % 4, a lane holds of queries g and
 * g + 8 the scores of positions 8 j + 2 t + x of the page (t < 4, x < 2), as s[t][x] and
 * s[t][2 + x], and of the sums the columns 8 i + 2 j + x of tile i, likewise: the layout of a
 * tensor core's result. f16 and q8_0 run on tensor cores; queries and weights go in as two 16-bit
 * numbers each (the number, and what rounding left), so little is lost against f32. The numbers of
 * a head and the positions of a page take part in an order of their own, the same in both factors,
 * such that what a lane needs of a key or of a column of values are 16 neighbouring bytes.
 *
 * No sum depends on what other queries are in the tile. */
#ifndef CUDA_ATTEND_PAGE_H
#define CUDA_ATTEND_PAGE_H

#include "heads.h"

enum {
    ATTEND_PAGES = 4,                                  /* of a chunk: a warp each */
    ATTEND_CHUNK = ATTEND_PAGES * KERN_PAGE_POSITIONS, /* positions */
    ATTEND_FRAGMENT = 512 /* words of 16 queries × 32 numbers, or positions */
};

/* Where the 32 positions of a page are: one page of the sequence, or (on a branch of a tree) each
 * in a slot of its own. */
template <bool TREE> struct attend_source {
    const unsigned char *page;   /* of these positions, where the layer begins; not read if apart */
    unsigned char *const *pages; /* of the sequence */
    gpu_shared<int32_t> slots;   /* if apart: [32] */
    size_t layer, keys, values;  /* offsets: of the layer; in it, of the head's keys and values */
    bool apart;

    __device__ __forceinline__ const unsigned char *page_at(int32_t position, int32_t *slot) const {
        *slot = position;
        if (!TREE || !apart) return page;
        const int32_t s = slots[position];
        *slot = s % KERN_PAGE_POSITIONS;
        return pages[s / KERN_PAGE_POSITIONS] + layer;
    }
};

/* The position of the page that column `column` of tile t of scores stands for. */
GPU_INLINE int32_t attend_position(int t, int column) {
    return 8 * (column >> 1) + 2 * t + (column & 1);
}

/* ---- pairs of 16-bit numbers ---- */

/* x and y as f16, and as f16 what that leaves of them. */
GPU_INLINE void attend_split_f16(float x, float y, uint32_t *whole, uint32_t *rest) {
    const uint32_t w = gpu_pack_f16(x, y);
    *whole = w;
    *rest = gpu_pack_f16(__fsub_rn(x, gpu_f16_to_f32((uint16_t)w)),
                         __fsub_rn(y, gpu_f16_to_f32((uint16_t)(w >> 16))));
}
GPU_INLINE void attend_split_bf16(float x, float y, uint32_t *whole, uint32_t *rest) {
    const uint32_t w = gpu_pack_bf16(x, y);
    *whole = w;
    *rest = gpu_pack_bf16(__fsub_rn(x, __uint_as_float(w << 16)),
                          __fsub_rn(y, __uint_as_float(w & 0xFFFF0000u)));
}

/* Four int8 as two pairs: f16 by way of 1024 + 128 + x, bf16 by way of f32. */
GPU_INLINE void attend_int8_f16(uint32_t x, uint32_t out[2]) {
    const uint32_t u = x ^ 0x80808080u, one = 0x3C003C00u, less = 0xE480E480u; /* -1152 */
    out[0] = gpu_fma_f16x2(__byte_perm(u, 0x64646464u, 0x4140), one, less);
    out[1] = gpu_fma_f16x2(__byte_perm(u, 0x64646464u, 0x4342), one, less);
}
GPU_INLINE uint32_t attend_int8_f32(uint32_t u, uint32_t selector) {
    return __float_as_uint(
        __fsub_rn(__uint_as_float(__byte_perm(u, 0x4B000000u, selector)), 8388736.0f));
}
GPU_INLINE void attend_int8_bf16(uint32_t x, uint32_t out[2]) {
    const uint32_t u = x ^ 0x80808080u;
    out[0] = __byte_perm(attend_int8_f32(u, 0x7440), attend_int8_f32(u, 0x7441), 0x7632);
    out[1] = __byte_perm(attend_int8_f32(u, 0x7442), attend_int8_f32(u, 0x7443), 0x7632);
}

/* ---- scores ---- */

/* Words of the queries' fragments: f16 and q8_0: [tile][dim / 32][2 steps][whole, rest][32 lanes]
 * [4], f32: [tile][16][dim]. A tile of 32 numbers takes ATTEND_FRAGMENT either way. */

/* Where the keys lie, from byte `first` of a row on, that lanes of group g meet in the four tiles
 * of eight positions. */
template <bool TREE>
GPU_INLINE void attend_key_rows(const cuda_head_place &at, const attend_source<TREE> &from, int g,
                                int first, const unsigned char *row[4]) {
    GPU_UNROLL
    for (int t = 0; t < 4; t++) {
        int32_t slot;
        const unsigned char *page = from.page_at(attend_position(t, g), &slot);
        row[t] = page + from.keys + slot * at.key_row + first;
    }
}

template <int MT, bool TREE>
GPU_INLINE void attend_scores_f16(const cuda_head_place &at, const attend_source<TREE> &from,
                                  gpu_shared<uint32_t> queries, int32_t n_blocks,
                                  float s[MT][4][4]) {
    const int lane = (int)(threadIdx.x & 31), g = lane >> 2, j = lane & 3;
    const unsigned char *row[4];
    attend_key_rows(at, from, g, 16 * j, row);
    const gpu_shared<uint4> fragments = gpu_shared_as<uint4>(queries);
    GPU_UNROLL_2
    for (int32_t b = 0; b < n_blocks; b++) {
        uint4 k[4];
        GPU_UNROLL
        for (int t = 0; t < 4; t++) k[t] = gpu_load(row[t] + 64 * b);
        GPU_UNROLL
        for (int step = 0; step < 2; step++) {
            GPU_UNROLL
            for (int i = 0; i < MT; i++) {
                const int32_t at_q = ((i * n_blocks + b) * 2 + step) * 64 + lane;
                const uint4 whole = fragments[at_q], rest = fragments[at_q + 32];
                const uint32_t a_whole[4] = {whole.x, whole.y, whole.z, whole.w};
                const uint32_t a_rest[4] = {rest.x, rest.y, rest.z, rest.w};
                GPU_UNROLL
                for (int t = 0; t < 4; t++) {
                    const uint32_t pair[2] = {step ? k[t].z : k[t].x, step ? k[t].w : k[t].y};
                    gpu_mma_f16(s[i][t], a_whole, pair);
                    gpu_mma_f16(s[i][t], a_rest, pair);
                }
            }
        }
    }
}

template <int MT, bool TREE>
GPU_INLINE void attend_scores_q8(const cuda_head_place &at, const attend_source<TREE> &from,
                                 gpu_shared<uint32_t> queries, int32_t n_blocks,
                                 float s[MT][4][4]) {
    const int lane = (int)(threadIdx.x & 31), g = lane >> 2, j = lane & 3;
    const unsigned char *row[4];
    attend_key_rows(at, from, g, 8 * j, row);
    const gpu_shared<uint4> fragments = gpu_shared_as<uint4>(queries);
    for (int32_t b = 0; b < n_blocks; b++) {
        uint2 k[4];
        GPU_UNROLL
        for (int t = 0; t < 4; t++) k[t] = *reinterpret_cast<const uint2 *>(row[t] + 32 * b);
        float scales[4][2]; /* of the positions of the lane's scores */
        if (TREE && from.apart) {
            GPU_UNROLL
            for (int t = 0; t < 8; t++) {
                int32_t slot;
                const unsigned char *page = from.page_at(8 * j + t, &slot);
                const unsigned char *scale = page + from.keys + at.key_scales + 64 * b + 2 * slot;
                scales[t >> 1][t & 1] = gpu_f16_to_f32(*reinterpret_cast<const uint16_t *>(scale));
            }
        } else {
            const uint4 x = gpu_load(from.page + from.keys + at.key_scales + 64 * b + 16 * j);
            const uint32_t words[4] = {x.x, x.y, x.z, x.w};
            GPU_UNROLL
            for (int t = 0; t < 4; t++) {
                scales[t][0] = gpu_f16_to_f32((uint16_t)words[t]);
                scales[t][1] = gpu_f16_to_f32((uint16_t)(words[t] >> 16));
            }
        }
        GPU_UNROLL
        for (int i = 0; i < MT; i++) {
            const int32_t at_q = (i * n_blocks + b) * 128 + lane;
            float d[4][4] = {};
            GPU_UNROLL
            for (int step = 0; step < 2; step++) {
                const uint4 whole = fragments[at_q + 64 * step],
                            rest = fragments[at_q + 64 * step + 32];
                const uint32_t a_whole[4] = {whole.x, whole.y, whole.z, whole.w};
                const uint32_t a_rest[4] = {rest.x, rest.y, rest.z, rest.w};
                GPU_UNROLL
                for (int t = 0; t < 4; t++) {
                    uint32_t pair[2];
                    attend_int8_f16(step ? k[t].y : k[t].x, pair);
                    gpu_mma_f16(d[t], a_whole, pair);
                    gpu_mma_f16(d[t], a_rest, pair);
                }
            }
            GPU_UNROLL
            for (int t = 0; t < 4; t++) {
                GPU_UNROLL
                for (int x = 0; x < 4; x++)
                    s[i][t][x] = __fmaf_rn(d[t][x], scales[t][x & 1], s[i][t][x]);
            }
        }
    }
}

GPU_INLINE float attend_dot4(const float4 &a, const float4 &b, float sum) {
    sum = __fmaf_rn(a.x, b.x, sum);
    sum = __fmaf_rn(a.y, b.y, sum);
    sum = __fmaf_rn(a.z, b.z, sum);
    return __fmaf_rn(a.w, b.w, sum);
}

template <int MT, bool TREE>
GPU_INLINE void attend_scores_f32(const cuda_head_place &at, const attend_source<TREE> &from,
                                  gpu_shared<uint32_t> queries, int32_t n_blocks,
                                  float s[MT][4][4]) {
    const int lane = (int)(threadIdx.x & 31), g = lane >> 2, j = lane & 3;
    const gpu_shared<float4> q = gpu_shared_as<float4>(queries);
    GPU_UNROLL
    for (int t = 0; t < 8; t++) {
        int32_t slot;
        const unsigned char *page = from.page_at(8 * j + t, &slot);
        const unsigned char *row = page + from.keys + slot * at.key_row;
        for (int32_t d = 0; d < 8 * n_blocks; d++) {
            const float4 k = *reinterpret_cast<const float4 *>(row + 16 * d);
            GPU_UNROLL
            for (int i = 0; i < MT; i++) {
                const float4 a = q[(16 * i + g) * 8 * n_blocks + d];
                const float4 b = q[(16 * i + g + 8) * 8 * n_blocks + d];
                s[i][t >> 1][t & 1] = attend_dot4(a, k, s[i][t >> 1][t & 1]);
                s[i][t >> 1][2 + (t & 1)] = attend_dot4(b, k, s[i][t >> 1][2 + (t & 1)]);
            }
        }
    }
}

/* s += queries · keys of the page's 32 positions, from which the caller takes those that are seen
 */
template <kern_kv KV, int MT, bool TREE>
GPU_INLINE void attend_scores(const cuda_head_place &at, const attend_source<TREE> &from,
                              gpu_shared<uint32_t> queries, int32_t n_blocks, float s[MT][4][4]) {
    if (KV == KERN_KV_F32) attend_scores_f32<MT, TREE>(at, from, queries, n_blocks, s);
    if (KV == KERN_KV_F16) attend_scores_f16<MT, TREE>(at, from, queries, n_blocks, s);
    if (KV == KERN_KV_Q8_0) attend_scores_q8<MT, TREE>(at, from, queries, n_blocks, s);
}

/* ---- weights ---- */

/* Words of the weights' fragments of a page: f16: [tile][2 steps][whole, rest][32 lanes][4 pairs];
 * else f32: [tile][2 steps][half][32 lanes][4], a lane's eight numbers of a step in two halves. */

template <kern_kv KV>
GPU_INLINE void attend_keep_weights(gpu_shared<uint32_t> fragments, const float p[4][4]) {
    const int lane = (int)(threadIdx.x & 31);
    GPU_UNROLL
    for (int step = 0; step < 2; step++) {
        const float *a = p[2 * step], *b = p[2 * step + 1];
        uint4 first, second;
        if (KV == KERN_KV_F16) {
            attend_split_f16(a[0], a[1], &first.x, &second.x);
            attend_split_f16(a[2], a[3], &first.y, &second.y);
            attend_split_f16(b[0], b[1], &first.z, &second.z);
            attend_split_f16(b[2], b[3], &first.w, &second.w);
        } else {
            first = make_uint4(__float_as_uint(a[0]), __float_as_uint(a[1]), __float_as_uint(a[2]),
                               __float_as_uint(a[3]));
            second = make_uint4(__float_as_uint(b[0]), __float_as_uint(b[1]), __float_as_uint(b[2]),
                                __float_as_uint(b[3]));
        }
        gpu_shared_as<uint4>(fragments)[step * 64 + lane] = first;
        gpu_shared_as<uint4>(fragments)[step * 64 + 32 + lane] = second;
    }
}

/* Which positions of a page some query sees (first … last), and whether not all that are there see
 * all of those. */
struct attend_seen {
    int32_t first, last;
    int32_t begin; /* the page's first position */
    bool ragged;
};

/* Of a query, in shared memory: the positions it sees, its row of the tile, and (as bits) what
 * makes powers of 2 of its scores. */
typedef int4 attend_query; /* first, last, row, factor */

/* ---- sums of values ---- */

/* The pairs of words that hold positions outside first … last are cut to 0. */
GPU_INLINE uint32_t attend_pair_mask(const attend_seen &seen, int32_t position) {
    return (position >= seen.first && position <= seen.last ? 0xFFFFu : 0u) |
           (position + 1 >= seen.first && position + 1 <= seen.last ? 0xFFFF0000u : 0u);
}

/* 8 values of a column, of positions 8 j …, as 16-bit words. */
template <bool TREE>
GPU_INLINE uint4 attend_values_f16(const cuda_head_place &at, const attend_source<TREE> &from,
                                   int32_t column, int j) {
    if (!TREE || !from.apart)
        return gpu_load(from.page + from.values + column * at.value_row + 16 * j);
    uint32_t w[4] = {};
    GPU_UNROLL
    for (int i = 0; i < 8; i++) {
        int32_t slot;
        const unsigned char *page = from.page_at(8 * j + i, &slot);
        const unsigned char *value = page + from.values + column * at.value_row + 2 * slot;
        w[i >> 1] |= (uint32_t) * reinterpret_cast<const uint16_t *>(value) << (16 * (i & 1));
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* Halves that are infinite or NaN. */
GPU_INLINE uint32_t attend_not_finite(uint32_t pair) {
    const uint32_t high = ((pair & 0x7C007C00u) + 0x04000400u) & 0x80008000u;
    return (high >> 15) * 0xFFFFu;
}

/* Adds what values that are not finite do to the queries that see them; a query that does not must
 * not meet them even with a weight of 0. */
template <int MT, bool TREE>
GPU_INLINE void attend_add_not_finite(const cuda_head_place &at, const attend_source<TREE> &from,
                                      gpu_shared<uint32_t> fragments, const attend_seen &seen,
                                      gpu_shared<attend_query> of, int32_t tile, float acc[MT][4],
                                      int i_of) {
    const int lane = (int)(threadIdx.x & 31), g = lane >> 2, j = lane & 3;
    const gpu_shared<uint16_t> halves = gpu_shared_as<uint16_t>(fragments);
    for (int32_t x = 0; x < 2; x++) {
        for (int32_t p = seen.first; p <= seen.last; p++) {
            int32_t slot;
            const unsigned char *page = from.page_at(p, &slot);
            const uint16_t h = *reinterpret_cast<const uint16_t *>(
                page + from.values + (8 * tile + 2 * j + x) * at.value_row + 2 * slot);
            if ((h & 0x7C00u) != 0x7C00u) continue;
            const int32_t step = p >> 2 & 1, pair = p & 2; /* the weight's word: [pair + half] */
            GPU_UNROLL
            for (int half = 0; half < 2; half++) {
                const attend_query query = of[16 * i_of + 8 * half + g];
                if (seen.begin + p < query.x || seen.begin + p > query.y) continue;
                const int32_t word = (step * 64 + 4 * g + (p >> 3)) * 4 + pair + half;
                const float weight = gpu_f16_to_f32(halves[2 * word + (p & 1)]);
                if (x == 0) acc[i_of][2 * half] += weight * gpu_f16_to_f32(h);
                if (x == 1) acc[i_of][2 * half + 1] += weight * gpu_f16_to_f32(h);
            }
        }
    }
}

template <int MT, int TPW, bool TREE>
GPU_INLINE void attend_sums_f16(const cuda_head_place &at, const attend_source<TREE> &from,
                                gpu_shared<uint32_t> weights, const attend_seen &seen,
                                gpu_shared<attend_query> of, int32_t tile, int32_t n_tiles,
                                float acc[TPW][MT][4]) {
    const int lane = (int)(threadIdx.x & 31), g = lane >> 2, j = lane & 3;
    uint4 v[TPW];
    GPU_UNROLL
    for (int i = 0; i < TPW; i++) {
        v[i] = make_uint4(0, 0, 0, 0);
        if (i < n_tiles) v[i] = attend_values_f16<TREE>(at, from, 8 * (tile + i) + g, j);
    }
    uint32_t whole[MT][2][4], rest[MT][2][4];
    GPU_UNROLL
    for (int m = 0; m < MT; m++) {
        GPU_UNROLL
        for (int step = 0; step < 2; step++) {
            const gpu_shared<uint4> f = gpu_shared_as<uint4>(weights) + (m * 2 + step) * 64 + lane;
            const uint4 a = f[0], b = f[32];
            whole[m][step][0] = a.x, whole[m][step][1] = a.y, whole[m][step][2] = a.z;
            whole[m][step][3] = a.w, rest[m][step][0] = b.x, rest[m][step][1] = b.y;
            rest[m][step][2] = b.z, rest[m][step][3] = b.w;
        }
    }
    const bool part = seen.first > 0 || seen.last < KERN_PAGE_POSITIONS - 1;
    uint32_t keep[4], bad = 0;
    GPU_UNROLL
    for (int i = 0; i < 4; i++) keep[i] = part ? attend_pair_mask(seen, 8 * j + 2 * i) : ~0u;
    GPU_UNROLL
    for (int i = 0; i < TPW; i++) {
        if (i >= n_tiles) break;
        uint32_t w[4] = {v[i].x & keep[0], v[i].y & keep[1], v[i].z & keep[2], v[i].w & keep[3]};
        if (seen.ragged) {
            GPU_UNROLL
            for (int k = 0; k < 4; k++) {
                const uint32_t cut = attend_not_finite(w[k]);
                w[k] &= ~cut;
                bad |= cut;
            }
        }
        GPU_UNROLL
        for (int step = 0; step < 2; step++) {
            const uint32_t pair[2] = {w[2 * step], w[2 * step + 1]};
            GPU_UNROLL
            for (int m = 0; m < MT; m++) {
                gpu_mma_f16(acc[i][m], whole[m][step], pair);
                gpu_mma_f16(acc[i][m], rest[m][step], pair);
            }
        }
    }
    if (!seen.ragged || !__any_sync(~0u, bad != 0)) return;
    GPU_UNROLL
    for (int i = 0; i < TPW; i++) {
        GPU_UNROLL
        for (int m = 0; m < MT; m++) {
            if (i < n_tiles)
                attend_add_not_finite<MT, TREE>(at, from, weights + m * ATTEND_FRAGMENT, seen, of,
                                                tile + i, acc[i], m);
        }
    }
}

/* The f16 scales of 32 columns' values at positions 8 j …, as f32. */
template <bool TREE>
GPU_INLINE void attend_value_scales(const cuda_head_place &at, const attend_source<TREE> &from,
                                    int32_t block, int j, float scales[8]) {
    if (TREE && from.apart) {
        GPU_UNROLL
        for (int i = 0; i < 8; i++) {
            int32_t slot;
            const unsigned char *page = from.page_at(8 * j + i, &slot);
            const unsigned char *scale =
                page + from.values + at.value_scales + 64 * block + 2 * slot;
            scales[i] = gpu_f16_to_f32(*reinterpret_cast<const uint16_t *>(scale));
        }
        return;
    }
    const uint4 x = gpu_load(from.page + from.values + at.value_scales + 64 * block + 16 * j);
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
    GPU_UNROLL
    for (int i = 0; i < 8; i++)
        scales[i] = gpu_f16_to_f32((uint16_t)(words[i >> 1] >> (16 * (i & 1))));
}

template <bool TREE>
GPU_INLINE uint2 attend_values_q8(const cuda_head_place &at, const attend_source<TREE> &from,
                                  int32_t column, int j) {
    if (!TREE || !from.apart)
        return *reinterpret_cast<const uint2 *>(from.page + from.values + column * at.value_row +
                                                8 * j);
    uint32_t w[2] = {};
    GPU_UNROLL
    for (int i = 0; i < 8; i++) {
        int32_t slot;
        const unsigned char *page = from.page_at(8 * j + i, &slot);
        w[i >> 2] |= (uint32_t)page[from.values + column * at.value_row + slot] << (8 * (i & 3));
    }
    return make_uint2(w[0], w[1]);
}

/* A weight of 0 meets no scale: that of a position which is not seen may be anything. */
GPU_INLINE float attend_scaled(float weight, float scale) {
    return weight != 0.0f ? __fmul_rn(weight, scale) : 0.0f;
}

template <int MT, int TPW, bool TREE>
GPU_INLINE void attend_sums_q8(const cuda_head_place &at, const attend_source<TREE> &from,
                               gpu_shared<uint32_t> weights, int32_t tile, int32_t n_tiles,
                               float acc[TPW][MT][4]) {
    const int lane = (int)(threadIdx.x & 31), g = lane >> 2, j = lane & 3;
    uint2 v[TPW];
    GPU_UNROLL
    for (int i = 0; i < TPW; i++) {
        v[i] = make_uint2(0, 0);
        if (i < n_tiles) v[i] = attend_values_q8<TREE>(at, from, 8 * (tile + i) + g, j);
    }
    uint32_t whole[MT][2][4], rest[MT][2][4];
    GPU_UNROLL
    for (int i = 0; i < TPW; i++) {
        if (i >= n_tiles) break;
        if (i == 0 || (tile + i) % 4 == 0) { /* another block of 32 columns, other scales */
            float scales[8];
            attend_value_scales<TREE>(at, from, (tile + i) / 4, j, scales);
            GPU_UNROLL
            for (int m = 0; m < MT; m++) {
                GPU_UNROLL
                for (int step = 0; step < 2; step++) {
                    const gpu_shared<float4> f =
                        gpu_shared_as<float4>(weights) + (m * 2 + step) * 64 + lane;
                    const float4 a = f[0], b = f[32];
                    const float *c = scales + 4 * step;
                    attend_split_bf16(attend_scaled(a.x, c[0]), attend_scaled(a.y, c[1]),
                                      &whole[m][step][0], &rest[m][step][0]);
                    attend_split_bf16(attend_scaled(a.z, c[0]), attend_scaled(a.w, c[1]),
                                      &whole[m][step][1], &rest[m][step][1]);
                    attend_split_bf16(attend_scaled(b.x, c[2]), attend_scaled(b.y, c[3]),
                                      &whole[m][step][2], &rest[m][step][2]);
                    attend_split_bf16(attend_scaled(b.z, c[2]), attend_scaled(b.w, c[3]),
                                      &whole[m][step][3], &rest[m][step][3]);
                }
            }
        }
        GPU_UNROLL
        for (int step = 0; step < 2; step++) {
            uint32_t pair[2];
            attend_int8_bf16(step ? v[i].y : v[i].x, pair);
            GPU_UNROLL
            for (int m = 0; m < MT; m++) {
                gpu_mma_bf16(acc[i][m], whole[m][step], pair);
                gpu_mma_bf16(acc[i][m], rest[m][step], pair);
            }
        }
    }
}

/* 4 values of a column, of positions 4 i …, as f32. */
template <bool TREE>
GPU_INLINE float4 attend_values_f32(const cuda_head_place &at, const attend_source<TREE> &from,
                                    int32_t column, int i) {
    if constexpr (TREE) {
        if (from.apart) {
            float x[4];
            GPU_UNROLL
            for (int k = 0; k < 4; k++) {
                int32_t slot;
                const unsigned char *page = from.page_at(4 * i + k, &slot);
                const unsigned char *value = page + from.values + column * at.value_row;
                x[k] = *reinterpret_cast<const float *>(value + 4 * slot);
            }
            return make_float4(x[0], x[1], x[2], x[3]);
        }
    }
    const unsigned char *values = from.page + from.values + column * at.value_row;
    return *reinterpret_cast<const float4 *>(values + 16 * i);
}

/* A weight of 0 meets no value. */
GPU_INLINE float attend_weigh(float weight, float value, float sum) {
    return weight != 0.0f ? __fmaf_rn(weight, value, sum) : sum;
}

template <int MT, int TPW, bool TREE>
GPU_INLINE void attend_sums_f32(const cuda_head_place &at, const attend_source<TREE> &from,
                                gpu_shared<uint32_t> weights, int32_t tile, int32_t n_tiles,
                                float acc[TPW][MT][4]) {
    const int lane = (int)(threadIdx.x & 31), g = lane >> 2, j = lane & 3;
    for (int q = 0; q < 8; q++) { /* four positions: of step q % 2, lane q / 2 of four */
        GPU_UNROLL
        for (int m = 0; m < MT; m++) {
            const gpu_shared<float4> f =
                gpu_shared_as<float4>(weights) + (m * 2 + (q & 1)) * 64 + 4 * g + (q >> 1);
            const float4 a = f[0], b = f[32];
            GPU_UNROLL
            for (int i = 0; i < TPW; i++) {
                if (i >= n_tiles) break;
                GPU_UNROLL
                for (int x = 0; x < 2; x++) {
                    const float4 v =
                        attend_values_f32<TREE>(at, from, 8 * (tile + i) + 2 * j + x, q);
                    float y = acc[i][m][x], z = acc[i][m][2 + x];
                    y = attend_weigh(a.x, v.x, y), y = attend_weigh(a.y, v.y, y);
                    y = attend_weigh(b.x, v.z, y), y = attend_weigh(b.y, v.w, y);
                    z = attend_weigh(a.z, v.x, z), z = attend_weigh(a.w, v.y, z);
                    z = attend_weigh(b.z, v.z, z), z = attend_weigh(b.w, v.w, z);
                    acc[i][m][x] = y;
                    acc[i][m][2 + x] = z;
                }
            }
        }
    }
}

/* acc[i] += weights · values, of columns 8 (tile + i) …, i < n_tiles ≤ TPW. `of`: the queries */
template <kern_kv KV, int MT, int TPW, bool TREE>
GPU_INLINE void attend_sums(const cuda_head_place &at, const attend_source<TREE> &from,
                            gpu_shared<uint32_t> weights, const attend_seen &seen,
                            gpu_shared<attend_query> of, int32_t tile, int32_t n_tiles,
                            float acc[TPW][MT][4]) {
    if (KV == KERN_KV_F32) attend_sums_f32<MT, TPW, TREE>(at, from, weights, tile, n_tiles, acc);
    if (KV == KERN_KV_F16)
        attend_sums_f16<MT, TPW, TREE>(at, from, weights, seen, of, tile, n_tiles, acc);
    if (KV == KERN_KV_Q8_0) attend_sums_q8<MT, TPW, TREE>(at, from, weights, tile, n_tiles, acc);
}

#endif
