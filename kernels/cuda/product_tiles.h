/* product_tiles.h: products by weights in tiles, for the format that a .cu file instantiates it for
 * (one file for a few formats, so that they compile side by side).
 *
 * few: a block takes two strips of weights (neighbours, or one of gate and of up) and 8 or 16 rows
 * of input; its eight warps have a range of K each, and their sums meet in shared memory. Weights
 * go from memory into registers, as far ahead as registers allow, inputs from L1 likewise: a warp
 * is the only one that needs its columns.
 *
 * many: a block takes 4 · 2 strips and 32 rows of input, each warp all of K for two strips; inputs
 * are split once for the block and lie in shared memory as the lanes read them. */
#ifndef CUDA_PRODUCT_TILES_H
#define CUDA_PRODUCT_TILES_H

#include "product.h"

/* The same in all lanes, and the compiler sees that it is: loop counters need no registers then. */
GPU_INLINE int warp_of_block() { return __shfl_sync(~0u, (int)(threadIdx.x >> 5), 0); }

/* A warp's two strips. */
struct warp_strips {
    tile_strip strip[PRODUCT_STRIPS];
};

/* Where the results of a group go: its part (of a pair the first), and the first row of its strips:
 * this one, and 16 more but of a pair. */
struct group_results {
    product_part part;
    int first;
};
GPU_INLINE group_results results_of(const product_args &p, int group) {
    group_results to;
    to.part = product_part_of(p, group);
    to.first = (group - to.part.first_group) * (p.pair ? TILE_ROWS : PRODUCT_STRIPS * TILE_ROWS);
    return to;
}

/* The strips of a group; where a part ends with one strip that is taken twice. */
template <class F> GPU_INLINE warp_strips strips_of(const product_args &p, int group) {
    const group_results to = results_of(p, group);
    const int last = (to.part.n_rows + TILE_ROWS - 1) / TILE_ROWS - 1;
    warp_strips s;
    GPU_UNROLL
    for (int r = 0; r < PRODUCT_STRIPS; r++) {
        const int i_strip = to.first / TILE_ROWS + (p.pair ? 0 : r);
        const unsigned char *w = r > 0 && p.pair ? p.parts[1].w : to.part.w;
        s.strip[r] = tile_strip_at<F>(w, min(i_strip, last), p.strip_bytes, p.n_units);
    }
    return s;
}

/* Chunks in registers: as many as there are slots are loaded ahead, and a slot is loaded again as
 * soon as it was multiplied by. Of units of several chunks two are taken at a time, with the scales
 * of both. (More of them in one turn of a loop, and the compiler unpacks scales long before they
 * are needed, for which there are no registers.) */
template <class F, int slots_> struct weight_window {
    static constexpr int slots = slots_;
    static_assert(F::n_chunks == 1 || slots == 2 || slots == 4, "half a unit or a unit");
    typename F::chunk w[slots][PRODUCT_STRIPS];
    typename F::share share[PRODUCT_STRIPS];
    typename F::scales scales[PRODUCT_STRIPS];
};

/* Chunk c of the strips, if it is before `last`. */
template <class F, int slots>
GPU_INLINE void window_load(weight_window<F, slots> &x, const warp_strips &s, int i_slot, int c,
                            int last, int lane) {
    if (c >= last) return;
    GPU_UNROLL
    for (int r = 0; r < PRODUCT_STRIPS; r++)
        F::load(x.w[i_slot][r], s.strip[r], c / F::n_chunks, c % F::n_chunks, lane);
}

template <class F, int slots>
GPU_INLINE void window_load_scales(weight_window<F, slots> &x, const warp_strips &s, int c,
                                   int last, int lane) {
    if constexpr (F::unit_scales) {
        if (c >= last) return;
        GPU_UNROLL
        for (int r = 0; r < PRODUCT_STRIPS; r++)
            F::load_share(x.share[r], s.strip[r], c / F::n_chunks, lane);
    }
}

/* Fills the window from chunk c on. */
template <class F, int slots>
GPU_INLINE void window_open(weight_window<F, slots> &x, const warp_strips &s, int c, int last,
                            int lane) {
    GPU_UNROLL
    for (int i = 0; i < slots; i++) window_load(x, s, i, c + i, last, lane);
    window_load_scales(x, s, c, last, lane);
}

/* Calls multiply_chunk(slot, c) for chunks c … end - 1, the window full; loads behind it up to
 * `last`. */
template <class F, int slots, typename Multiply>
GPU_INLINE void window_run(weight_window<F, slots> &x, const warp_strips &s, int c, int end,
                           int last, int lane, Multiply multiply_chunk) {
    GPU_NO_UNROLL
    for (; c < end; c += slots) {
        GPU_UNROLL
        for (int i = 0; i < slots; i++) {
            if (F::n_chunks == 1 && c + i >= end) break;
            if (F::unit_scales && i % 2 == 0) {
                const int h = slots == 2 ? c / 2 % 2 : i / 2; /* of the unit */
                GPU_UNROLL
                for (int r = 0; r < PRODUCT_STRIPS; r++)
                    x.scales[r] = F::open(F::gather(x.share[r], lane), h);
                if (h) window_load_scales(x, s, c + i + 2, last, lane);
            }
            multiply_chunk(i, c + i);
            window_load(x, s, i, c + slots + i, last, lane);
        }
    }
}

/* Halves of a chunk that are one piece of code. Of integers more than one, and the compiler unpacks
 * scales long before they are needed, for which there are no registers. */
template <class F> constexpr int halves_at_once = F::kind == TILE_INTEGERS ? 1 : 2;

/* The first chunk of a range: ranges are whole units. */
template <class F> GPU_INLINE int range_begin(int n_units, int range) {
    return (int)((int64_t)n_units * range / SPLITS) * F::n_chunks;
}

/* ---- few rows ---- */

#define FEW_PITCH (PRODUCT_STRIPS * TILE_ROWS + 4) /* floats; keeps a warp's writes apart */

/* Inputs of two steps from a column on, of n groups of 8 rows. */
template <int n>
GPU_INLINE void inputs_read(const product_args &p, const float *const rows[n], int column, int lane,
                            float4 x[2][n]) {
    GPU_UNROLL
    for (int s = 0; s < 2; s++) {
        GPU_UNROLL
        for (int j = 0; j < n; j++) x[s][j] = input_read(p, rows[j], column + 16 * s, lane);
    }
}

/* A range's sums to partial[SPLITS][8 n][FEW_PITCH]. */
template <class F, int n>
GPU_INLINE void few_keep(const product_sums<F> sums[PRODUCT_STRIPS][n], gpu_shared<float> partial) {
    const int thread = gpu_anew((int)threadIdx.x), lane = thread & 31, warp = thread >> 5;
    GPU_UNROLL
    for (int r = 0; r < PRODUCT_STRIPS; r++) {
        GPU_UNROLL
        for (int j = 0; j < n; j++) {
            GPU_UNROLL
            for (int c = 0; c < 4; c++) {
                const int column = 8 * j + 2 * (lane & 3) + (c & 1);
                const int row = TILE_ROWS * r + (lane >> 2) + 8 * (c >> 1);
                partial[(warp * 8 * n + column) * FEW_PITCH + row] = product_sum<F>(sums[r][j], c);
            }
        }
    }
}

/* The block's results: ranges in order. */
template <int n> GPU_INLINE void few_finish(const product_args &p, gpu_shared<float> partial) {
    const product_place at = product_place_of(p, 8 * n);
    const group_results to = results_of(p, at.group);
    const int width = p.pair ? TILE_ROWS : PRODUCT_STRIPS * TILE_ROWS;
    for (int i = gpu_anew((int)threadIdx.x); i < 8 * n * width; i += 32 * SPLITS) {
        const int column = i / width, row = i % width;
        gpu_shared<float> from = partial + (column * FEW_PITCH + row);
        float x = from[0], up = p.pair ? from[TILE_ROWS] : 0.0f;
        GPU_UNROLL
        for (int range = 1; range < SPLITS; range++) {
            from += 8 * n * FEW_PITCH;
            x += from[0];
            if (p.pair) up += from[TILE_ROWS];
        }
        product_finish(p, to.part, at.t + column, to.first + row, x, up);
    }
}

/* The sums of a block, each warp's over its range, to partial[SPLITS][8 n][FEW_PITCH]: strips of
 * n_units units, rows of input from t on. */
template <int id, int n, int slots>
GPU_INLINE void few_sums(const product_args &p, int t, const warp_strips &s, int n_units,
                         gpu_shared<float> partial) {
    using F = tile<id>;
    constexpr int halves = halves_at_once<F>;
    const int lane = (int)(threadIdx.x & 31), warp = warp_of_block();
    const int begin = range_begin<F>(n_units, warp), end = range_begin<F>(n_units, warp + 1);
    weight_window<F, slots> window;
    product_sums<F> sums[PRODUCT_STRIPS][n] = {};
    const product_constants k = product_constants_new<F>();
    const float *rows[n];
    float4 x[2][n];
    window_open(window, s, begin, end, lane);
    GPU_UNROLL
    for (int j = 0; j < n; j++) rows[j] = input_row(p, t + 8 * j + (lane >> 2), lane);
    inputs_read<n>(p, rows, begin * TILE_COLUMNS, lane, x);
    window_run(window, s, begin, end, end, lane, [&](int slot, int c) {
        GPU_UNROLL_BY(halves)
        for (int h = 0; h < 2; h++) {
            input_four b[2][n];
            GPU_UNROLL
            for (int j = 0; j < 2 * n; j++) b[j / n][j % n] = input_split<F::kind>(x[j / n][j % n]);
            inputs_read<n>(p, rows, c * TILE_COLUMNS + 32 * (h + 1), lane, x);
            multiply<F, n>(k, window.w[slot], window.scales, slot, h, b, sums);
        }
    });
    few_keep<F, n>(sums, partial);
}

template <int id, int n, int slots>
GPU_KERNEL_BOUNDS(32 * SPLITS, n == 1 ? 2 : 1)
product_few(const product_args p) {
    GPU_SHARED(float, partial, SPLITS * 8 * n * FEW_PITCH);
    const product_place at = product_place_of(p, 8 * n);
    few_sums<id, n, slots>(p, at.t, strips_of<tile<id>>(p, at.group), p.n_units, partial);
    __syncthreads();
    few_finish<n>(p, partial);
}

/* ---- many rows ---- */

#define MANY_GROUPS 4 /* of 8 rows of input */

/* Inputs of a chunk in shared memory: a piece of 16 bytes for each step, group and lane; a warp
 * splits one group's, two steps from a column on at a time. */
template <class F>
GPU_INLINE void stage_write(gpu_shared<uint4> stage, int h, const float4 x[2][1], int group,
                            int lane) {
    GPU_UNROLL
    for (int s = 0; s < 2; s++) {
        const input_four b = input_split<F::kind>(x[s][0]);
        stage[((2 * h + s) * MANY_GROUPS + group) * 32 + lane] =
            make_uint4(b.pair[0], b.pair[1], b.rest[0], b.rest[1]);
    }
}

/* total[(strip, group, sum)][32 lanes] (+)= the sums of a range */
template <class F, int n>
GPU_INLINE void many_keep(const product_sums<F> sums[PRODUCT_STRIPS][n], bool first,
                          gpu_shared<float> total) {
    GPU_UNROLL
    for (int i = 0; i < PRODUCT_STRIPS * n * 4; i++) {
        const float sum = product_sum<F>(sums[i / (4 * n)][i / 4 % n], i % 4);
        gpu_shared<float> to = total + i * 32;
        to[0] = first ? sum : to[0] + sum;
    }
}

template <int n> GPU_INLINE void many_finish(const product_args &p, gpu_shared<float> total) {
    const int thread = gpu_anew((int)threadIdx.x), lane = thread & 31, warp = thread >> 5;
    const product_place at = product_place_of(p, 8 * n);
    const group_results to = results_of(p, at.group * PRODUCT_MANY_WARPS + warp);
    GPU_NO_UNROLL
    for (int i = 0; i < 4 * n; i++) {
        const int t = at.t + i / 4 * 8 + 2 * (lane & 3) + (i & 1);
        const int row = to.first + (lane >> 2) + 8 * (i >> 1 & 1);
        const float first = total[i * 32], second = total[(4 * n + i) * 32];
        product_finish(p, to.part, t, row, first, second);
        if (!p.pair) product_finish(p, to.part, t, row + TILE_ROWS, second, 0);
    }
}

template <int id, int slots>
GPU_KERNEL_BOUNDS(32 * PRODUCT_MANY_WARPS, 2)
product_many(const product_args p) {
    using F = tile<id>;
    constexpr int halves = halves_at_once<F>;
    constexpr int n = MANY_GROUPS, stage_size = 4 * n * 32, n_sums = PRODUCT_STRIPS * n * 4;
    /* A range of units of several chunks is whole turns: loads go on into the next range. */
    constexpr bool runs_on = F::n_chunks > 1;
    static_assert(n == PRODUCT_MANY_WARPS, "a warp stages a group");
    GPU_SHARED(uint4, stages, 2 * stage_size);
    GPU_SHARED(float, totals, PRODUCT_MANY_WARPS *n_sums * 32); /* of ranges */
    const int lane = (int)(threadIdx.x & 31), warp = warp_of_block();
    const product_place at = product_place_of(p, 8 * n);
    const warp_strips s = strips_of<F>(p, at.group * PRODUCT_MANY_WARPS + warp);
    const int all = range_begin<F>(p.n_units, SPLITS);
    const product_constants k = product_constants_new<F>();
    const float *const mine[1] = {input_row(p, at.t + 8 * warp + (lane >> 2), lane)};
    gpu_shared<float> total = totals + (warp * n_sums * 32 + lane);
    weight_window<F, slots> window;
    int i_stage = 0;
    window_open(window, s, 0, runs_on ? all : range_begin<F>(p.n_units, 1), lane);
    GPU_UNROLL
    for (int h = 0; h < 2; h++) {
        float4 x[2][1];
        inputs_read<1>(p, mine, 32 * h, lane, x);
        stage_write<F>(stages, h, x, warp, lane);
    }
    __syncthreads();
    for (int range = 0; range < SPLITS; range++) {
        const int from = range_begin<F>(p.n_units, range),
                  to = range_begin<F>(p.n_units, range + 1);
        product_sums<F> sums[PRODUCT_STRIPS][n] = {};
        if (!runs_on && range > 0) window_open(window, s, from, to, lane);
        window_run(window, s, from, to, runs_on ? all : to, lane, [&](int slot, int c) {
            gpu_shared<uint4> stage = stages + i_stage * stage_size;
            i_stage ^= 1;
            GPU_UNROLL_BY(halves)
            for (int h = 0; h < 2; h++) {
                float4 x[2][1];
                input_four b[2][n];
                inputs_read<1>(p, mine, (c + 1) * TILE_COLUMNS + 32 * h, lane, x);
                GPU_UNROLL
                for (int j = 0; j < 2 * n; j++) {
                    const uint4 piece = stage[(2 * h * n + j) * 32 + lane];
                    b[j / n][j % n] = {{piece.x, piece.y}, {piece.z, piece.w}};
                }
                multiply<F, n>(k, window.w[slot], window.scales, slot, h, b, sums);
                stage_write<F>(stages + i_stage * stage_size, h, x, warp, lane);
            }
            __syncthreads();
        });
        many_keep<F, n>(sums, range == 0, total);
    }
    many_finish<n>(p, total);
}

/* ---- launches ---- */

/* Chunks ahead: as many as registers hold without spilling. */
template <int id> constexpr int product_slots(product_kernel kernel) {
    using F = tile<id>;
    if (F::kind != TILE_INTEGERS) return kernel == PRODUCT_MANY ? 1 : 2;
    if (kernel == PRODUCT_MANY) return 2;
    if (id == KERN_Q8_0) return kernel == PRODUCT_FEW_8 ? 2 : 3;
    return kernel == PRODUCT_FEW_8 && (id == KERN_Q5_K || id == KERN_Q6_K) ? 2 : 4;
}

template <int id>
void product_tiles(kern_device *device, product_kernel kernel, const product_args *args) {
    constexpr int few_8 = product_slots<id>(PRODUCT_FEW_8);
    constexpr int few_16 = product_slots<id>(PRODUCT_FEW_16);
    constexpr int most = product_slots<id>(PRODUCT_MANY);
    const product_args p = *args;
    const int64_t groups = product_groups(args, product_group_rows(args)), t = p.n_inputs;
    const unsigned few = 32 * SPLITS, many = 32 * PRODUCT_MANY_WARPS;
    const auto grid = [&](int64_t rows, int64_t groups_per_block) {
        return dim3((unsigned)(product_blocks(t, rows) * product_blocks(groups, groups_per_block)));
    };
    if (kernel == PRODUCT_FEW_8)
        GPU_LAUNCH(device, (product_few<id, 1, few_8>), grid(8, 1), few, 0, p);
    else if (kernel == PRODUCT_FEW_16)
        GPU_LAUNCH(device, (product_few<id, 2, few_16>), grid(16, 1), few, 0, p);
    else
        GPU_LAUNCH(device, (product_many<id, most>), grid(32, PRODUCT_MANY_WARPS), many, 0, p);
}

#endif
