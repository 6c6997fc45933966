/* attend_join.h: the state of attention's sums in a block, and how streams of chunks are joined: in
 * shared memory by a block that has them all, by way of scratch by the last of several. Both do the
 * same arithmetic in the same order. */
#ifndef CUDA_ATTEND_JOIN_H
#define CUDA_ATTEND_JOIN_H

#include "attend_page.h"

enum { ATTEND_STREAMS = 32, ATTEND_QUERIES = 16 /* of a tile of a tensor core */ };

struct attend_args {
    cuda_head_place at;
    head_form form; /* of a pass of one row a sequence */
    const cuda_row *rows;
    const cuda_sequence *sequences;
    unsigned char *const *pages;
    const int32_t *n_shared_pages;
    const float *q, *k, *v;
    float *out;
    float *partials;   /* [row][head][stream][largest, sum, sums of values, even many] */
    int32_t *counters; /* [row][unit]; of a tile's first row */
    int32_t n_rows, n_sequences, n_heads, n_heads_kv, dim, dim_v, window;
    int32_t n_group, n_slices; /* query heads of a key head; slices of up to 16 of them */
    int32_t tile_rows, n_splits;
    float scale;
};

struct attend_tile {
    int32_t first_row, n_rows;
};

struct attend_shared {
    gpu_shared<uint32_t> queries, weights; /* fragments; weights: [page][MT · ATTEND_FRAGMENT] */
    gpu_shared<float> largest, sums;       /* [page][16 MT] */
    gpu_shared<attend_query> of;           /* [16 MT] */
    gpu_shared<float4> total;              /* [TPW][MT][128]: a thread's sums of values */
    gpu_shared<int32_t> slots;             /* [128]: of a branch */
};

/* A query head's softmax so far: the lane's queries g + 8 half of each tile, and its columns. */
template <int MT, int TPW> struct attend_state {
    float largest[MT][2], sum[MT][2];
    float acc[TPW][MT][4];
};

template <int MT, int TPW> GPU_INLINE void attend_clear(attend_state<MT, TPW> &s) {
    GPU_UNROLL
    for (int m = 0; m < MT; m++) {
        GPU_UNROLL
        for (int half = 0; half < 2; half++) s.largest[m][half] = -INFINITY, s.sum[m][half] = 0;
        GPU_UNROLL
        for (int i = 0; i < TPW; i++) {
            GPU_UNROLL
            for (int x = 0; x < 4; x++) s.acc[i][m][x] = 0;
        }
    }
}

/* Powers of 2 relative to the largest; of nothing seen so far, 0. */
GPU_INLINE float attend_power(float x, float largest) {
    return exp2f(__fsub_rn(x, largest == -INFINITY ? 0.0f : largest));
}

/* ---- joining streams ---- */

/* Takes (largest, sum) of another stream into a total; *keep and *take: what sums of values of each
 * are multiplied by. */
GPU_INLINE void attend_join(float *largest, float *sum, float other_largest, float other_sum,
                            float *keep, float *take) {
    const float both = fmaxf(*largest, other_largest);
    *keep = attend_power(*largest, both);
    *take = attend_power(other_largest, both);
    *largest = both;
    *sum = __fmaf_rn(*sum, *keep, __fmul_rn(other_sum, *take));
}

/* Whether query m of the tile is not there. */
GPU_INLINE bool attend_is_away(const attend_shared &sh, int32_t m) {
    const attend_query of = sh.of[m];
    return of.y < 0;
}

/* The number of query m of the tile among all rows' heads. */
GPU_INLINE int64_t attend_number(const attend_args &a, const attend_tile &tile, int32_t first_head,
                                 int32_t n_group, int32_t m) {
    return (int64_t)(tile.first_row + m / n_group) * a.n_heads + first_head + m % n_group;
}

/* What is joined: the softmax, and the thread's sums in shared memory. */
template <int MT> struct attend_total { float largest[MT][2], sum[MT][2]; };

template <int MT, int TPW>
GPU_INLINE void attend_clear_total(const attend_shared &sh, attend_total<MT> &total) {
    GPU_UNROLL
    for (int m = 0; m < MT; m++) {
        GPU_UNROLL
        for (int half = 0; half < 2; half++)
            total.largest[m][half] = -INFINITY, total.sum[m][half] = 0;
    }
    GPU_UNROLL
    for (int i = 0; i < TPW * MT; i++)
        sh.total[i * 32 * ATTEND_PAGES + threadIdx.x] = make_float4(0, 0, 0, 0);
}

GPU_INLINE float attend_mix(float x, float keep, float other, float take) {
    return __fmaf_rn(x, keep, __fmul_rn(other, take));
}

template <int MT, int TPW>
GPU_INLINE void attend_fold(const attend_shared &sh, attend_total<MT> &total,
                            const attend_state<MT, TPW> &s) {
    GPU_UNROLL
    for (int m = 0; m < MT; m++) {
        float keep[2], take[2];
        GPU_UNROLL
        for (int half = 0; half < 2; half++)
            attend_join(&total.largest[m][half], &total.sum[m][half], s.largest[m][half],
                        s.sum[m][half], &keep[half], &take[half]);
        GPU_UNROLL
        for (int i = 0; i < TPW; i++) {
            const gpu_shared<float4> at = sh.total + (i * MT + m) * 32 * ATTEND_PAGES + threadIdx.x;
            const float4 x = *at;
            const float *y = s.acc[i][m];
            *at = make_float4(
                attend_mix(x.x, keep[0], y[0], take[0]), attend_mix(x.y, keep[0], y[1], take[0]),
                attend_mix(x.z, keep[1], y[2], take[1]), attend_mix(x.w, keep[1], y[3], take[1]));
        }
    }
}

template <int MT, int TPW>
GPU_INLINE void attend_load_total(const attend_shared &sh, const attend_total<MT> &total,
                                  attend_state<MT, TPW> &s) {
    GPU_UNROLL
    for (int m = 0; m < MT; m++) {
        GPU_UNROLL
        for (int half = 0; half < 2; half++) s.sum[m][half] = total.sum[m][half];
        GPU_UNROLL
        for (int i = 0; i < TPW; i++) {
            const float4 x = sh.total[(i * MT + m) * 32 * ATTEND_PAGES + threadIdx.x];
            s.acc[i][m][0] = x.x, s.acc[i][m][1] = x.y, s.acc[i][m][2] = x.z, s.acc[i][m][3] = x.w;
        }
    }
}

/* Where a stream's state of a query lies in scratch. */
GPU_INLINE float *attend_partial(const attend_args &a, int64_t number, int32_t stream) {
    return a.partials + (number * ATTEND_STREAMS + stream) * (2 + (a.dim_v + 7) / 8 * 8);
}

/* Writes a stream's state to scratch. */
template <int MT, int TPW>
GPU_INLINE void attend_leave(const attend_args &a, const attend_tile &tile, int32_t first_head,
                             int32_t n_group, const attend_shared &sh, int32_t stream,
                             int32_t i_tile, int32_t n_tiles, const attend_state<MT, TPW> &s) {
    const int lane = (int)(threadIdx.x & 31), g = lane >> 2, j = lane & 3;
    GPU_UNROLL
    for (int m = 0; m < MT; m++) {
        GPU_UNROLL
        for (int half = 0; half < 2; half++) {
            if (attend_is_away(sh, 16 * m + 8 * half + g)) continue;
            const int64_t number =
                attend_number(a, tile, first_head, n_group, 16 * m + 8 * half + g);
            float2 *at = reinterpret_cast<float2 *>(attend_partial(a, number, stream));
            if (threadIdx.x < 32 && j == 0) *at = make_float2(s.largest[m][half], s.sum[m][half]);
            GPU_UNROLL
            for (int i = 0; i < TPW; i++)
                if (i < n_tiles)
                    at[1 + 4 * (i_tile + i) + j] =
                        make_float2(s.acc[i][m][2 * half], s.acc[i][m][2 * half + 1]);
        }
    }
}

/* Takes the states of a unit's streams, in rising order, into one. */
template <int MT, int TPW>
GPU_INLINE void attend_gather(const attend_args &a, const attend_tile &tile, int32_t first_head,
                              int32_t n_group, const attend_shared &sh, int32_t first_chunk,
                              int32_t n_chunks, int32_t i_tile, int32_t n_tiles,
                              attend_state<MT, TPW> &s) {
    const int lane = (int)(threadIdx.x & 31), g = lane >> 2, j = lane & 3;
    for (int32_t stream = 0; stream < ATTEND_STREAMS; stream++) {
        if (((stream - first_chunk) & (ATTEND_STREAMS - 1)) >= n_chunks) continue;
        GPU_UNROLL
        for (int m = 0; m < MT; m++) {
            GPU_UNROLL
            for (int half = 0; half < 2; half++) {
                if (attend_is_away(sh, 16 * m + 8 * half + g)) continue;
                const int64_t number =
                    attend_number(a, tile, first_head, n_group, 16 * m + 8 * half + g);
                const float2 *at =
                    reinterpret_cast<const float2 *>(attend_partial(a, number, stream));
                const float2 of = __ldcg(at);
                float2 x[TPW];
                GPU_UNROLL
                for (int i = 0; i < TPW; i++)
                    x[i] = i < n_tiles ? __ldcg(at + 1 + 4 * (i_tile + i) + j) : make_float2(0, 0);
                float keep, take;
                attend_join(&s.largest[m][half], &s.sum[m][half], of.x, of.y, &keep, &take);
                GPU_UNROLL
                for (int i = 0; i < TPW; i++) {
                    float &y = s.acc[i][m][2 * half], &z = s.acc[i][m][2 * half + 1];
                    y = attend_mix(y, keep, x[i].x, take);
                    z = attend_mix(z, keep, x[i].y, take);
                }
            }
        }
    }
}

template <int MT, int TPW>
GPU_INLINE void attend_finish(const attend_args &a, const attend_tile &tile, int32_t first_head,
                              int32_t n_group, const attend_shared &sh, int32_t i_tile,
                              int32_t n_tiles, const attend_state<MT, TPW> &s) {
    const int lane = (int)(threadIdx.x & 31), g = lane >> 2, j = lane & 3;
    GPU_UNROLL
    for (int m = 0; m < MT; m++) {
        GPU_UNROLL
        for (int half = 0; half < 2; half++) {
            if (attend_is_away(sh, 16 * m + 8 * half + g)) continue;
            float *out = a.out + a.dim_v * attend_number(a, tile, first_head, n_group,
                                                         16 * m + 8 * half + g);
            GPU_UNROLL
            for (int i = 0; i < TPW; i++) {
                if (i >= n_tiles) break;
                const int32_t column = 8 * (i_tile + i) + 2 * j;
                GPU_UNROLL
                for (int x = 0; x < 2; x++)
                    if (column + x < a.dim_v)
                        out[column + x] = __fdiv_rn(s.acc[i][m][2 * half + x], s.sum[m][half]);
            }
        }
    }
}

#endif
