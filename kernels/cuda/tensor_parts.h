/* tensor_parts.h: what the kernels of the tensor operations are made of: reading a row, numbers in
 * the order of the CPU's keys, exp with the CPU's bits, joining a block's threads, and telling the
 * last block of a row. A row is an array of n entries; a chunk of it is one block's. */
#ifndef CUDA_TENSOR_PARTS_H
#define CUDA_TENSOR_PARTS_H

#include "gpu.h"
#include "tensor.h"

typedef unsigned long long wide; /* the 64 bits that atomics know */

#define TENSOR_CHUNK 4096

/* ---- reading ---- */

GPU_INLINE bool is_aligned(const void *p) { return ((uintptr_t)p & 15) == 0; }

/* Entries i … i + 3 of a row of n, `fill` after its end; i is a multiple of 4. */
GPU_INLINE float4 load_4(const float *row, int64_t i, int64_t n, bool aligned, float fill) {
    if (aligned && i + 4 <= n) {
        const uint4 v = gpu_load(row + i);
        return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                           __uint_as_float(v.w));
    }
    float4 v = make_float4(fill, fill, fill, fill);
    if (i < n) v.x = row[i];
    if (i + 1 < n) v.y = row[i + 1];
    if (i + 2 < n) v.z = row[i + 2];
    if (i + 3 < n) v.w = row[i + 3];
    return v;
}

GPU_INLINE void store_4(float *row, int64_t i, int64_t n, bool aligned, float4 v) {
    if (aligned && i + 4 <= n) {
        *reinterpret_cast<float4 *>(row + i) = v;
        return;
    }
    if (i < n) row[i] = v.x;
    if (i + 1 < n) row[i + 1] = v.y;
    if (i + 2 < n) row[i + 2] = v.z;
    if (i + 3 < n) row[i + 3] = v.w;
}

/* A chunk, `parts` · 4 entries a thread: v[4 p + l] is entry chunk_entry(p) + l. */
GPU_INLINE int64_t chunk_entry(int part) {
    return (int64_t)blockIdx.x * TENSOR_CHUNK + (part * (int)blockDim.x + (int)threadIdx.x) * 4;
}
template <int parts>
GPU_INLINE void chunk_load(const float *row, int64_t n, float fill, float v[4 * parts]) {
    const bool aligned = is_aligned(row);
    GPU_UNROLL
    for (int p = 0; p < parts; p++) {
        const float4 u = load_4(row, chunk_entry(p), n, aligned, fill);
        v[4 * p] = u.x;
        v[4 * p + 1] = u.y;
        v[4 * p + 2] = u.z;
        v[4 * p + 3] = u.w;
    }
}
template <int parts> GPU_INLINE void chunk_store(float *row, int64_t n, const float v[4 * parts]) {
    const bool aligned = is_aligned(row);
    GPU_UNROLL
    for (int p = 0; p < parts; p++)
        store_4(row, chunk_entry(p), n, aligned,
                make_float4(v[4 * p], v[4 * p + 1], v[4 * p + 2], v[4 * p + 3]));
}

/* ---- order ---- */

/* A number as an integer of the same order: −0 equals +0, NaN comes last. */
GPU_INLINE uint32_t order_key(float x) {
    const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));
    if (x != x) return 0xFFFFFFFFu;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
GPU_INLINE float order_value(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key);
}

/* The larger of two of these is the larger number, or of equal ones the lower index. 0: none. */
GPU_INLINE wide best_of(float x, uint32_t index) {
    return (wide)order_key(x) << 32 | (0xFFFFFFFFu - index);
}
GPU_INLINE float best_value(wide best) {
    return best ? order_value((uint32_t)(best >> 32)) : -INFINITY;
}
GPU_INLINE uint32_t best_index(wide best) { return 0xFFFFFFFFu - (uint32_t)best; }

/* What kinds of entries a row has: the largest of their classes. */
enum { CLASS_NONE, CLASS_FINITE, CLASS_INF, CLASS_NAN };
GPU_INLINE uint32_t class_of(float x) {
    return x != x          ? CLASS_NAN
           : x == INFINITY ? CLASS_INF
           : x > -INFINITY ? CLASS_FINITE
                           : CLASS_NONE;
}
/* Why a row of that class cannot be chosen from, or 0. */
GPU_INLINE int32_t class_fault(uint32_t c) {
    return c == CLASS_FINITE ? 0
           : c == CLASS_NAN  ? KERN_ID_NAN
           : c == CLASS_INF  ? KERN_ID_INF
                             : KERN_ID_NO_FINITE;
}

/* ---- exp, step for step as in tensor_rows.inc; nothing is fused ---- */

GPU_INLINE float exp_small(float r) {
    float q = __fadd_rn(__fmul_rn(0.00138145406f, r), 0.00836874545f);
    q = __fadd_rn(__fmul_rn(q, r), 0.041668389f);
    q = __fadd_rn(__fmul_rn(q, r), 0.166665211f);
    q = __fadd_rn(__fmul_rn(q, r), 0.49999994f);
    return __fadd_rn(1.0f, __fadd_rn(r, __fmul_rn(__fmul_rn(r, r), q)));
}

GPU_INLINE float exp_reduce(float x, int32_t *bits) {
    const float magic = 12582912.0f;
    const float t = __fadd_rn(__fmul_rn(x, 1.44269504f), magic), n = __fsub_rn(t, magic);
    *bits = __float_as_int(t);
    return __fsub_rn(__fsub_rn(x, __fmul_rn(n, 0.693359375f)), __fmul_rn(n, -2.12194440e-4f));
}

/* exp(x − max), 0 below e^−87; and x − max, or 0 */
GPU_INLINE float exp_below(float x, float max, float *difference) {
    const float d = __fsub_rn(x, max), back = __fadd_rn(d, max);
    const float error = __fadd_rn(__fsub_rn(x, back), __fsub_rn(max, __fsub_rn(back, d)));
    const bool is_large = d >= -87.0f;
    int32_t bits;
    const float r = __fadd_rn(exp_reduce(d, &bits), error);
    *difference = is_large ? d : 0.0f;
    return is_large ? __uint_as_float(__float_as_uint(exp_small(r)) + ((uint32_t)bits << 23))
                    : 0.0f;
}

GPU_INLINE float exp_any(float x) {
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    int32_t bits;
    const float r = exp_reduce(x, &bits);
    const int32_t n = (int32_t)((uint32_t)bits - 0x4B400000u), half = n >> 1;
    const float a = __uint_as_float((uint32_t)(half + 127) << 23);
    const float b = __uint_as_float((uint32_t)(n - half + 127) << 23);
    return __fmul_rn(__fmul_rn(exp_small(r), a), b);
}

/* ---- a block's threads ---- */

/* All 32 lanes' values joined in a fixed tree; lane 0 has what counts. */
template <typename T, typename Join> GPU_INLINE T warp_join(T x, Join join) {
    GPU_UNROLL
    for (int step = 16; step > 0; step >>= 1) x = join(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

/* Of all threads, in a fixed order, to all threads; parts: one a warp, free again after the next
 * barrier. */
template <typename T, typename Join> GPU_INLINE T block_join(T x, gpu_shared<T> parts, Join join) {
    x = warp_join(x, join);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = x;
    __syncthreads();
    T all = parts[0];
    for (unsigned w = 1; w < blockDim.x >> 5; w++) all = join(all, (T)parts[w]);
    return all;
}
template <typename T> GPU_INLINE T block_sum(T x, gpu_shared<T> parts) {
    return block_join(x, parts, [](T a, T b) { return a + b; });
}
template <typename T> GPU_INLINE T block_max(T x, gpu_shared<T> parts) {
    return block_join(x, parts, [](T a, T b) { return b > a ? b : a; });
}

/* The sum of all threads before this one, and of all. */
template <typename T> GPU_INLINE T block_scan(T x, gpu_shared<T> parts, T *total) {
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    T sum = x;
    GPU_UNROLL
    for (unsigned step = 1; step < 32; step *= 2) {
        const T other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum = other + sum;
    }
    __syncthreads();
    if (lane == 31) parts[warp] = sum;
    T before = __shfl_up_sync(~0u, sum, 1);
    if (lane == 0) before = 0;
    __syncthreads();
    T all = 0, warps_before = 0;
    for (unsigned w = 0; w < blockDim.x >> 5; w++) {
        if (w == warp) warps_before = all;
        all = all + (T)parts[w];
    }
    *total = all;
    return warps_before + before;
}

/* Sorts n entries, a power of two, ascending; ends with a barrier. */
template <typename T> GPU_INLINE void block_sort(gpu_shared<T> a, uint32_t n) {
    for (uint32_t run = 2; run <= n; run *= 2) {
        for (uint32_t step = run / 2; step > 0; step /= 2) {
            for (uint32_t t = threadIdx.x; t < n / 2; t += blockDim.x) {
                const uint32_t i = (t & ~(step - 1)) << 1 | (t & (step - 1));
                const T x = a[i], y = a[i + step];
                if ((x > y) != ((i & run) == 0)) continue;
                a[i] = y;
                a[i + step] = x;
            }
            __syncthreads();
        }
    }
}

/* Whether this block is the last of n_blocks that come here; then it sees what the others wrote,
 * and the counter is 0 again. All threads call it. */
GPU_INLINE bool block_is_last(uint32_t *counter, uint32_t n_blocks, gpu_shared<uint32_t> flag) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        const bool is_last = atomicAdd(counter, 1u) == n_blocks - 1;
        if (is_last) *counter = 0;
        flag[0] = is_last;
    }
    __syncthreads();
    const bool is_last = flag[0] != 0;
    if (is_last) __threadfence();
    return is_last;
}

/* What is known of a row, or of a chunk of it (tensor_row.cu). */
typedef struct tensor_summary {
    wide best;      /* best_of the entries that are not NaN; of −x where the least is asked */
    double a, b, c; /* after tensor_sum_exps: Σ exp(x − max), ln Σ exp(x), 1 / a */
    uint32_t row_class;
} tensor_summary;

/* ---- launches ---- */

/* rows[n_rows] of x[n_rows,n]; scratch: so many bytes, if a row is more than a chunk. */
size_t tensor_sum_exps_bytes(int64_t n_rows, int64_t n);
void tensor_sum_exps(kern_device *, const float *x, int64_t n_rows, int64_t n, void *scratch,
                     tensor_summary *rows);

/* The names of all entries of x[n_lists,n], best first: key of −x, then the index in index_bits
 * bits (tensor_select.cu). a, b: n_lists · n each; returns the one that holds them. */
const wide *tensor_sort_names(kern_device *, const float *x, unsigned n_lists, int64_t n,
                              int32_t index_bits, wide *a, wide *b);

#define TENSOR_MOST_ROWS 32768 /* a launch; each may have a counter */

#define TENSOR_SORT_BYTES                                                                          \
    ((int64_t)64 << 20) /* of scratch for sorting, unless a row takes more                         \
                         */

static inline int64_t tensor_chunks(int64_t n) {
    return n <= TENSOR_CHUNK ? 1 : (n + TENSOR_CHUNK - 1) / TENSOR_CHUNK;
}
static inline int64_t tensor_least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline size_t tensor_padded(size_t bytes) { return (bytes + 255) & ~(size_t)255; }

#endif
