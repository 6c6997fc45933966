/* attend_kernel.h: attention of a tile of rows over pages: the one kernel for decode, prefill and
 * trees, and its launch.
 *
 * A chunk is 128 neighbouring positions, four pages, a warp for each. Chunk c belongs to stream
 * c % 32. A stream's chunks are taken in rising order into one running softmax, and the streams are
 * joined in rising order; so a row's bits depend on what it sees alone. Blocks (x) share a unit's
 * streams; where there are several, each leaves its streams' sums in scratch and the last to finish
 * joins them. A unit (y, z) is up to 16 MT queries: the query heads of one key head, of rows of one
 * tile. Rows of a tile meet a chunk that they have in common together, so it is read once; the rest
 * each by itself, while the others wait with a weight of 0.
 *
 * In a pass of one row a sequence the kernel also does what place.cu does: a query is made ready by
 * each block that needs it, keys and values are put into their page by the one block that reads
 * that chunk. */
#ifndef CUDA_ATTEND_KERNEL_H
#define CUDA_ATTEND_KERNEL_H

#include "attend_join.h"

/* What each lane knows of a row of the tile (lane i: row i; no row: i_sequence is -1). */
struct attend_row {
    cuda_row row;
    int32_t first, last; /* positions seen */
};

/* ---- rows ---- */

/* Tile i of rows of one sequence: all sequences' rows are cut into tiles, in order. */
GPU_INLINE attend_tile attend_find_tile(const attend_args &a, int32_t i) {
    const int lane = (int)(threadIdx.x & 31);
    for (int32_t base = 0; base < a.n_sequences; base += 32) {
        const int32_t n_rows = base + lane < a.n_sequences ? a.sequences[base + lane].n_rows : 0;
        const int32_t n_tiles = (n_rows + a.tile_rows - 1) / a.tile_rows;
        int32_t end = n_tiles;
        for (int step = 1; step < 32; step <<= 1) {
            const int32_t before = __shfl_up_sync(~0u, end, (unsigned)step);
            if (lane >= step) end += before;
        }
        const unsigned found = __ballot_sync(~0u, i < end);
        if (found) {
            const int at = __ffs((int)found) - 1;
            const int32_t done = (i - __shfl_sync(~0u, end - n_tiles, at)) * a.tile_rows;
            const int32_t left = __shfl_sync(~0u, n_rows, at) - done;
            return {a.sequences[base + at].first_row + done, min(left, a.tile_rows)};
        }
        i -= __shfl_sync(~0u, end, 31);
    }
    return {0, 0};
}

/* The first position that a row at `position` sees. */
GPU_INLINE int32_t attend_first(const attend_args &a, int32_t position) {
    return a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
}

GPU_INLINE attend_row attend_find_row(const attend_args &a, const attend_tile &tile) {
    const int lane = (int)(threadIdx.x & 31);
    attend_row r = {{-1, 0, 0, -1}, INT32_MAX, -1};
    if (lane >= tile.n_rows) return r;
    r.row = a.rows[tile.first_row + lane];
    if (r.row.i_sequence < 0) return r;
    r.last = r.row.position;
    r.first = attend_first(a, r.last);
    return r;
}

GPU_INLINE int32_t attend_warp_min(int32_t x) {
    for (int step = 16; step > 0; step >>= 1) x = min(x, __shfl_xor_sync(~0u, x, step));
    return x;
}
GPU_INLINE int32_t attend_warp_max(int32_t x) {
    for (int step = 16; step > 0; step >>= 1) x = max(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

/* The chunks from here on each row meets by itself. */
template <bool FUSED, bool TREE>
GPU_INLINE int32_t attend_common_end(const attend_args &a, const attend_row &r) {
    if (FUSED) return a.tile_rows == 1 ? INT32_MAX : *a.n_shared_pages / ATTEND_PAGES;
    const bool branches = r.row.i_sequence >= 0 && r.row.slot != r.row.position;
    if (!TREE || !__any_sync(~0u, branches)) return INT32_MAX;
    return a.sequences[__shfl_sync(~0u, r.row.i_sequence, 0)].n_past / ATTEND_CHUNK;
}

/* ---- getting ready ---- */

/* Query m of the tile, dim numbers in `stage` with zeros behind, to its fragments; f16 and q8_0: as
 * 16-bit pairs, brought near the top of f16's range by a power of two. Returns what scores are to
 * be multiplied by for that. */
template <kern_kv KV>
GPU_INLINE float attend_keep_query(gpu_shared<float> stage, int32_t n_blocks, int32_t m,
                                   gpu_shared<uint32_t> queries) {
    const int lane = (int)(threadIdx.x & 31);
    if (KV == KERN_KV_F32) {
        const gpu_shared<float> q = gpu_shared_as<float>(queries) + m * 32 * n_blocks;
        for (int32_t d = lane; d < 32 * n_blocks; d += 32) q[d] = stage[d];
        return 1;
    }
    float largest = 0;
    for (int32_t d = lane; d < 32 * n_blocks; d += 32) largest = fmaxf(largest, fabsf(stage[d]));
    largest = gpu_warp_max(largest);
    const int32_t exponent = (int32_t)(__float_as_uint(largest) >> 23); /* biased */
    const int32_t up = min(max(127 + 14 - exponent, -126), 126);
    const float factor = __uint_as_float((uint32_t)(127 + up) << 23);
    for (int32_t i = lane; i < 8 * n_blocks; i += 32) { /* four numbers: of lane j, a step */
        const float4 x = gpu_shared_as<float4>(stage)[i];
        const int32_t block = i >> 3, j = i >> 1 & 3, step = i & 1;
        const int32_t at =
            (((m >> 4) * n_blocks + block) * 2 + step) * 256 + 4 * (4 * (m & 7) + j) + (m >> 3 & 1);
        uint32_t whole, rest;
        attend_split_f16(__fmul_rn(x.x, factor), __fmul_rn(x.y, factor), &whole, &rest);
        queries[at] = whole, queries[at + 128] = rest;
        attend_split_f16(__fmul_rn(x.z, factor), __fmul_rn(x.w, factor), &whole, &rest);
        queries[at + 2] = whole, queries[at + 130] = rest;
    }
    return __uint_as_float((uint32_t)(127 - up) << 23);
}

/* All queries of the tile, a warp each in turn; those that are not there are 0 and see nothing. */
template <kern_kv KV, int MT, bool FUSED>
GPU_INLINE void attend_prepare(const attend_args &a, const attend_tile &tile, const attend_row &r,
                               int32_t first_head, int32_t n_group, gpu_shared<uint32_t> queries,
                               gpu_shared<attend_query> of, gpu_shared<float> stage) {
    const int lane = (int)(threadIdx.x & 31), warp = (int)(threadIdx.x >> 5);
    const int32_t n_blocks = (a.dim + 31) / 32;
    for (int32_t m = warp; m < ATTEND_QUERIES * MT; m += ATTEND_PAGES) {
        const int32_t i_row = m / n_group, head = first_head + m % n_group;
        const bool there =
            i_row < tile.n_rows && __shfl_sync(~0u, r.row.i_sequence, i_row & 31) >= 0;
        const float *q =
            a.q + ((int64_t)(tile.first_row + (there ? i_row : 0)) * a.n_heads + head) * a.dim;
        const int32_t position = __shfl_sync(~0u, r.row.position, i_row & 31);
        head_form form = a.form;
        if (!FUSED || !there) form.freqs = NULL;
        head_ready(form, q, FUSED && there ? form.q_norm : NULL, there ? a.dim : 0, 32 * n_blocks,
                   position, stage);
        const float factor = attend_keep_query<KV>(stage, n_blocks, m, queries);
        const int32_t first = __shfl_sync(~0u, r.first, i_row & 31);
        const float scale = __fmul_rn(factor, __fmul_rn(a.scale, 1.44269504f)); /* log2 e */
        if (lane == 0)
            of[m] = make_int4(there ? first : INT32_MAX, there ? position : -1, i_row,
                              __float_as_int(scale));
    }
}

/* Keys and values of the tile's rows whose last chunk this block reads. */
template <kern_kv KV>
GPU_INLINE void attend_place(const attend_args &a, const attend_tile &tile, const attend_row &r,
                             int32_t h, gpu_shared<float> stage) {
    const int warp = (int)(threadIdx.x >> 5);
    for (int32_t i = 0; i < tile.n_rows; i++) {
        const int32_t i_sequence = __shfl_sync(~0u, r.row.i_sequence, i);
        const int32_t position = __shfl_sync(~0u, r.row.position, i);
        if (i_sequence < 0) continue;
        if ((position / ATTEND_CHUNK & (a.n_splits - 1)) != (int32_t)blockIdx.x) continue;
        const int32_t i_page = a.sequences[i_sequence].first_page + position / KERN_PAGE_POSITIONS;
        unsigned char *layer = a.pages[i_page] + a.at.layer;
        const int32_t slot = position % KERN_PAGE_POSITIONS;
        const int64_t head = (int64_t)(tile.first_row + i) * a.n_heads_kv + h;
        if (warp == (2 * i) % ATTEND_PAGES) {
            const int32_t padded = (a.dim + 31) / 32 * 32;
            head_ready(a.form, a.k + head * a.dim, a.form.k_norm, a.dim, padded, position, stage);
            head_store_key<KV>(a.at, stage, padded, layer + (size_t)h * (size_t)a.at.key_head,
                               slot);
        }
        if (warp == (2 * i + 1) % ATTEND_PAGES)
            head_store_value<KV>(a.at, a.v + head * a.dim_v, a.dim_v,
                                 layer + a.at.values + (size_t)h * (size_t)a.at.value_head, slot);
    }
}

/* ---- a chunk ---- */

/* Where a row on a branch finds the positions of chunk c. */
GPU_INLINE void attend_find_slots(const attend_args &a, const cuda_row &row, int32_t c,
                                  gpu_shared<int32_t> slots) {
    const int32_t begin = c * ATTEND_CHUNK, position = begin + (int32_t)threadIdx.x;
    const int32_t n_past = a.sequences[row.i_sequence].n_past;
    __syncthreads(); /* of the chunk before */
    slots[threadIdx.x] = position < n_past ? position : row.slot;
    __syncthreads();
    if (threadIdx.x == 0) {
        cuda_row at = row;
        while (at.position >= begin) {
            if (at.position < begin + ATTEND_CHUNK) slots[at.position - begin] = at.slot;
            if (at.parent < 0) break;
            at = a.rows[at.parent];
        }
    }
    __syncthreads();
}

/* Takes a chunk into the state. `seen`: positions, from the chunk's first, that some query sees;
 * all_first … all_last: that all see which are there. */
template <kern_kv KV, int MT, int TPW, bool TREE>
GPU_INLINE void attend_take_chunk(const attend_args &a, const attend_shared &sh,
                                  attend_source<TREE> from, unsigned char *const *pages, int32_t c,
                                  int32_t only, int32_t seen_first, int32_t seen_last,
                                  int32_t all_first, int32_t all_last,
                                  attend_state<MT, TPW> &state) {
    const int lane = (int)(threadIdx.x & 31), warp = (int)(threadIdx.x >> 5);
    const int g = lane >> 2, j = lane & 3;
    const int32_t n_tiles = (a.dim_v + 7) / 8, each = (n_tiles + ATTEND_PAGES - 1) / ATTEND_PAGES;
    const int32_t tile = warp * each, n_mine = max(0, min(each, n_tiles - tile));
    const int32_t begin = c * ATTEND_CHUNK;
    const int32_t first_page = max(0, (seen_first - begin) / KERN_PAGE_POSITIONS);
    const int32_t last_page = min(ATTEND_PAGES - 1, (seen_last - begin) / KERN_PAGE_POSITIONS);
    /* lane i: where page i begins */
    const bool there = lane >= first_page && lane <= last_page;
    const unsigned long long addresses =
        there ? (unsigned long long)(uintptr_t)(pages[c * ATTEND_PAGES + lane] + a.at.layer) : 0;
    float s[MT][4][4] = {};
    if (warp >= first_page && warp <= last_page) {
        from.page = (const unsigned char *)(uintptr_t)__shfl_sync(~0u, addresses, warp);
        from.slots = sh.slots + warp * KERN_PAGE_POSITIONS;
        attend_scores<KV, MT, TREE>(a.at, from, sh.queries, (a.dim + 31) / 32, s);
    }
    const int32_t page_begin = begin + warp * KERN_PAGE_POSITIONS + 8 * j;
    GPU_UNROLL
    for (int m = 0; m < MT; m++) {
        GPU_UNROLL
        for (int half = 0; half < 2; half++) {
            const attend_query of = sh.of[16 * m + 8 * half + g];
            const int32_t of_first = only < 0 || only == of.z ? of.x : INT32_MAX;
            float largest = -INFINITY;
            GPU_UNROLL
            for (int i = 0; i < 8; i++) {
                const int32_t position = page_begin + i;
                float &x = s[m][i >> 1][2 * half + (i & 1)];
                const bool sees = position >= of_first && position <= of.y;
                x = sees ? __fmul_rn(x, __int_as_float(of.w)) : -INFINITY;
                largest = fmaxf(largest, x);
            }
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
            if (j == 0) sh.largest[(warp * MT + m) * 16 + 8 * half + g] = largest;
        }
    }
    __syncthreads();
    float shrink[MT][2];
    GPU_UNROLL
    for (int m = 0; m < MT; m++) {
        GPU_UNROLL
        for (int half = 0; half < 2; half++) {
            float largest = state.largest[m][half];
            GPU_UNROLL
            for (int w = 0; w < ATTEND_PAGES; w++)
                largest = fmaxf(largest, sh.largest[(w * MT + m) * 16 + 8 * half + g]);
            shrink[m][half] = attend_power(state.largest[m][half], largest);
            state.largest[m][half] = largest;
            float sum = 0;
            GPU_UNROLL
            for (int i = 0; i < 8; i++) {
                float &x = s[m][i >> 1][2 * half + (i & 1)];
                x = __fmul_rn(attend_power(x, largest), 32768.0f); /* to the top of f16's range */
                sum = __fadd_rn(sum, x);
            }
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
            if (j == 0) sh.sums[(warp * MT + m) * 16 + 8 * half + g] = sum;
        }
        attend_keep_weights<KV>(sh.weights + (warp * MT + m) * ATTEND_FRAGMENT, s[m]);
    }
    __syncthreads();
    GPU_UNROLL
    for (int m = 0; m < MT; m++) {
        GPU_UNROLL
        for (int half = 0; half < 2; half++) {
            float sum = __fmul_rn(state.sum[m][half], shrink[m][half]);
            GPU_UNROLL
            for (int w = 0; w < ATTEND_PAGES; w++)
                sum = __fadd_rn(sum, sh.sums[(w * MT + m) * 16 + 8 * half + g]);
            state.sum[m][half] = sum;
            GPU_UNROLL
            for (int i = 0; i < TPW; i++) {
                state.acc[i][m][2 * half] = __fmul_rn(state.acc[i][m][2 * half], shrink[m][half]);
                state.acc[i][m][2 * half + 1] =
                    __fmul_rn(state.acc[i][m][2 * half + 1], shrink[m][half]);
            }
        }
    }
    for (int32_t p = first_page; p <= last_page; p++) {
        const int32_t at = begin + p * KERN_PAGE_POSITIONS;
        from.page = (const unsigned char *)(uintptr_t)__shfl_sync(~0u, addresses, p);
        from.slots = sh.slots + p * KERN_PAGE_POSITIONS;
        const attend_seen seen = {max(0, seen_first - at),
                                  min(KERN_PAGE_POSITIONS - 1, seen_last - at), at,
                                  max(seen_first, at) < all_first ||
                                      min(seen_last, at + KERN_PAGE_POSITIONS - 1) > all_last};
        attend_sums<KV, MT, TPW, TREE>(a.at, from, sh.weights + p * MT * ATTEND_FRAGMENT, seen,
                                       sh.of, tile, n_mine, state.acc);
    }
}

/* ---- the kernel ---- */

/* The first chunk from c on that belongs to the stream. */
GPU_INLINE int32_t attend_next(int32_t c, int32_t stream) {
    return c + ((stream - c) & (ATTEND_STREAMS - 1));
}

template <kern_kv KV, int MT, int TPW, bool FUSED, bool TREE>
GPU_KERNEL_BOUNDS(32 * ATTEND_PAGES, MT == 1 && !TREE ? 3 : 2)
attend(const attend_args a) {
    GPU_DYNAMIC_SHARED(uint32_t, memory);
    GPU_SHARED(float, largest, ATTEND_PAGES *ATTEND_QUERIES *MT);
    GPU_SHARED(float, sums, ATTEND_PAGES *ATTEND_QUERIES *MT);
    GPU_SHARED(attend_query, of_queries, ATTEND_QUERIES * MT);
    GPU_SHARED(cuda_row, rows, ATTEND_QUERIES * MT);
    GPU_SHARED(int32_t, slots, TREE ? ATTEND_CHUNK : 1);
    GPU_SHARED(int32_t, is_last, 1);
    const int lane = (int)(threadIdx.x & 31), warp = (int)(threadIdx.x >> 5);
    const int32_t split = (int32_t)blockIdx.x, h = (int32_t)blockIdx.y / a.n_slices;
    const int32_t slice = (int32_t)blockIdx.y % a.n_slices, all = a.n_group;
    const int32_t n_group = min(ATTEND_QUERIES, all - slice * ATTEND_QUERIES);
    const int32_t first_head = h * all + slice * ATTEND_QUERIES;

    attend_tile tile;
    if (FUSED)
        tile = {(int32_t)blockIdx.z * a.tile_rows,
                min(a.tile_rows, a.n_rows - (int32_t)blockIdx.z * a.tile_rows)};
    else /* the last rows have most to do: they come first */
        tile = attend_find_tile(a, (int32_t)(gridDim.z - 1 - blockIdx.z));
    const attend_row r = attend_find_row(a, tile);
    const bool is_there = r.row.i_sequence >= 0;
    const int32_t seen_first = attend_warp_min(r.first), seen_last = attend_warp_max(r.last);
    if (seen_last < 0) return;
    const int32_t first_chunk = seen_first / ATTEND_CHUNK;
    const int32_t n_chunks = seen_last / ATTEND_CHUNK - first_chunk + 1;
    if (((split - first_chunk) & (a.n_splits - 1)) >= n_chunks) return;
    const int32_t all_first = attend_warp_max(is_there ? r.first : -1);
    const int32_t all_last = attend_warp_min(is_there ? r.last : INT32_MAX);
    const int32_t common_end = attend_common_end<FUSED, TREE>(a, r);
    const int a_row = __ffs((int)__ballot_sync(~0u, is_there)) - 1;

    attend_shared sh;
    sh.queries = memory;
    sh.weights = memory + MT * ((a.dim + 31) / 32) * ATTEND_FRAGMENT;
    sh.largest = largest, sh.sums = sums, sh.of = of_queries, sh.slots = slots;
    const gpu_shared<float> stage =
        gpu_shared_as<float>(sh.weights) + warp * (MT * ATTEND_FRAGMENT); /* not in use yet */
    attend_prepare<KV, MT, FUSED>(a, tile, r, first_head, n_group, sh.queries, of_queries, stage);
    if (FUSED) attend_place<KV>(a, tile, r, h, stage);
    if (threadIdx.x < (unsigned)tile.n_rows) rows[lane] = r.row;
    __syncthreads();

    const int32_t n_tiles = (a.dim_v + 7) / 8, each = (n_tiles + ATTEND_PAGES - 1) / ATTEND_PAGES;
    const int32_t i_tile = warp * each, n_mine = max(0, min(each, n_tiles - i_tile));
    const bool alone = min(a.n_splits, n_chunks) == 1;

    sh.total = gpu_shared_as<float4>(sh.weights + ATTEND_PAGES * MT * ATTEND_FRAGMENT);
    attend_state<MT, TPW> state;
    attend_total<MT> total;
    if (alone) attend_clear_total<MT, TPW>(sh, total);
    for (int32_t stream = split; stream < ATTEND_STREAMS; stream += a.n_splits) {
        if (((stream - first_chunk) & (ATTEND_STREAMS - 1)) >= n_chunks) continue;
        attend_clear(state);
        for (int32_t only = -1; only < tile.n_rows; only++) { /* -1: what rows have in common */
            if (only >= 0 && common_end == INT32_MAX) break;
            const cuda_row row = rows[only < 0 ? a_row : only];
            if (row.i_sequence < 0) continue;
            const int32_t first = only < 0 ? seen_first : attend_first(a, row.position);
            const int32_t last = only < 0 ? seen_last : row.position;
            int32_t c = max(first / ATTEND_CHUNK, only < 0 ? 0 : common_end);
            const int32_t end = min(last / ATTEND_CHUNK + 1, only < 0 ? common_end : INT32_MAX);
            if (c >= end) continue;
            attend_source<TREE> from;
            from.pages = a.pages + a.sequences[row.i_sequence].first_page;
            from.layer = a.at.layer;
            from.keys = (size_t)h * (size_t)a.at.key_head;
            from.values = a.at.values + (size_t)h * (size_t)a.at.value_head;
            from.apart = TREE && only >= 0;
            for (c = attend_next(c, stream); c < end; c += ATTEND_STREAMS) {
                if (TREE && from.apart) attend_find_slots(a, row, c, slots);
                attend_take_chunk<KV, MT, TPW, TREE>(a, sh, from, from.pages, c, only, first, last,
                                                     only < 0 ? all_first : first,
                                                     only < 0 ? all_last : last, state);
            }
        }
        if (alone)
            attend_fold(sh, total, state);
        else
            attend_leave(a, tile, first_head, n_group, sh, stream, i_tile, n_mine, state);
    }
    if (!alone) {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            int32_t *counter =
                a.counters + (int64_t)tile.first_row * a.n_heads_kv * a.n_slices + blockIdx.y;
            const bool last = atomicAdd(counter, 1) == min(a.n_splits, n_chunks) - 1;
            if (last) *counter = 0; /* for the next launch */
            is_last[0] = last;
        }
        __syncthreads();
        if (!is_last[0]) return;
        __threadfence();
        attend_clear(state);
        attend_gather(a, tile, first_head, n_group, sh, first_chunk, n_chunks, i_tile, n_mine,
                      state);
    } else {
        attend_load_total(sh, total, state);
    }
    attend_finish(a, tile, first_head, n_group, sh, i_tile, n_mine, state);
}

template <kern_kv KV, int MT, int TPW, bool FUSED, bool TREE>
static void attend_launch(kern_device *device, const attend_args &a, int32_t n_tiles) {
    const size_t bytes = (size_t)(MT * ((a.dim + 31) / 32 + ATTEND_PAGES + TPW) * ATTEND_FRAGMENT) *
                         sizeof(uint32_t);
    const dim3 grid((unsigned)a.n_splits, (unsigned)(a.n_heads_kv * a.n_slices), (unsigned)n_tiles);
    if (bytes > (size_t)44 << 10) /* and what is static, 48 */
        GPU_ALLOW_SHARED((attend<KV, MT, TPW, FUSED, TREE>), bytes);
    GPU_LAUNCH(device, (attend<KV, MT, TPW, FUSED, TREE>), grid, 32 * ATTEND_PAGES, bytes, a);
}

/* Values of more numbers than these take more registers: tiles of 16 queries only. */
enum { ATTEND_NARROW = 128 };

/* Of 16-bit and 8-bit numbers: narrow heads in tiles of 16 MT. */
template <kern_kv KV, int MT, bool FUSED, bool TREE>
static void attend_launch_wide(kern_device *device, const attend_args &a, int32_t n_tiles) {
    if (a.dim_v > ATTEND_NARROW)
        attend_launch<KV, 1, 8, FUSED, TREE>(device, a, n_tiles);
    else
        attend_launch<KV, MT, 4, FUSED, TREE>(device, a, n_tiles);
}

/* For each of the types. */
template <int MT, bool FUSED, bool TREE>
static void attend_launch_any(kern_device *device, kern_kv type, const attend_args &a,
                              int32_t n_tiles) {
    switch (type) {
    case KERN_KV_F32: attend_launch<KERN_KV_F32, 1, 8, FUSED, TREE>(device, a, n_tiles); break;
    case KERN_KV_F16: attend_launch_wide<KERN_KV_F16, MT, FUSED, TREE>(device, a, n_tiles); break;
    case KERN_KV_Q8_0: attend_launch_wide<KERN_KV_Q8_0, MT, FUSED, TREE>(device, a, n_tiles); break;
    }
}

/* attend.cu, attend_rows.cu */
void attend_decode(kern_device *, kern_kv, const attend_args &, int32_t n_tiles);
void attend_prefill(kern_device *, kern_kv, const attend_args &, int32_t n_tiles);
void attend_tree(kern_device *, kern_kv, const attend_args &, int32_t n_tiles);

#endif
