/* tensor_order.cu: rows sorted, and running sums. A chunk is sorted in shared memory; sorted runs
 * are then merged by twos, each block making one piece of a result: where its entries begin in the
 * two runs is found by bisection. */
#include "tensor_parts.h"

/* ---- numbers that sort ---- */

/* Bits in the order of the values, and back; −0 before +0, any NaN last. */
GPU_INLINE uint32_t sort_key(float x) {
    const uint32_t bits = __float_as_uint(x);
    if (x != x) return 0xFFFFFFFFu;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
GPU_INLINE float sort_value(uint32_t key) {
    if (key == 0xFFFFFFFFu) return __int_as_float(0x7FC00000);
    return __uint_as_float(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key);
}

/* What entry i of a row is sorted by. */
GPU_INLINE void make_key(float x, int64_t i, int64_t index_bits, uint32_t *key) {
    (void)i, (void)index_bits;
    *key = sort_key(x);
}
GPU_INLINE void make_key(float x, int64_t i, int64_t index_bits, wide *key) {
    *key = (wide)order_key(-x) << index_bits | (wide)i;
}

template <typename T> struct sort_job {
    const float *x;   /* [rows,n] */
    int64_t n, width; /* width: of the runs to merge */
    int64_t index_bits;
    const T *from; /* [rows,n] */
    T *to;
    float *out; /* instead of `to`, in the last launch of sort; or NULL */
};

template <typename T> GPU_INLINE void put(const sort_job<T> &j, int64_t at, T key) {
    if (sizeof(T) == sizeof(uint32_t) && j.out)
        j.out[at] = sort_value((uint32_t)key);
    else
        j.to[at] = key;
}

/* ---- chunks ---- */

#define SORT_THREADS 512

/* grid: chunks × rows */
template <typename T> GPU_KERNEL_BOUNDS(SORT_THREADS, 2) sort_chunks(sort_job<T> j) {
    GPU_SHARED(T, keys, TENSOR_CHUNK);
    const int64_t row = blockIdx.y, first = (int64_t)blockIdx.x * TENSOR_CHUNK;
    const float *x = j.x + row * j.n;
    const uint32_t n = (uint32_t)(j.n - first < TENSOR_CHUNK ? j.n - first : TENSOR_CHUNK);
    uint32_t power = 2;
    while (power < n) power *= 2;
    for (uint32_t i = threadIdx.x; i < power; i += SORT_THREADS) {
        T key = (T) ~(T)0;
        if (i < n) make_key(x[first + i], first + i, j.index_bits, &key);
        keys[i] = key;
    }
    __syncthreads();
    block_sort(keys, power);
    for (uint32_t i = threadIdx.x; i < n; i += SORT_THREADS)
        put(j, row * j.n + first + i, (T)keys[i]);
}

/* ---- merging ---- */

#define MERGE_THREADS 256
#define MERGE_EACH    8
#define MERGE_PIECE   (MERGE_THREADS * MERGE_EACH)

/* How many of the first `at` entries of the merged a[n_a] and b[n_b] are of a; of equal ones a's
 * come first. */
template <typename T, typename P>
GPU_INLINE int64_t split(P a, int64_t n_a, P b, int64_t n_b, int64_t at) {
    int64_t low = at > n_b ? at - n_b : 0, high = at < n_a ? at : n_a;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if ((T)a[middle] <= (T)b[at - 1 - middle])
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Runs of `width` become runs of twice that; grid: pieces × rows */
template <typename T> GPU_KERNEL_BOUNDS(MERGE_THREADS, 4) merge_runs(sort_job<T> j) {
    GPU_SHARED(T, keys, MERGE_PIECE);
    GPU_SHARED(int64_t, begins, 2);
    const int64_t row = blockIdx.y, first = (int64_t)blockIdx.x * MERGE_PIECE;
    const int64_t pair = first / (2 * j.width) * (2 * j.width);
    const int64_t middle = pair + j.width < j.n ? pair + j.width : j.n;
    const int64_t end = pair + 2 * j.width < j.n ? pair + 2 * j.width : j.n;
    const T *a = j.from + row * j.n + pair, *b = j.from + row * j.n + middle;
    const int64_t n_a = middle - pair, n_b = end - middle;
    const int64_t from = first - pair, n = end - first < MERGE_PIECE ? end - first : MERGE_PIECE;
    if (threadIdx.x < 2)
        begins[threadIdx.x] = split<T>(a, n_a, b, n_b, from + (threadIdx.x ? n : 0));
    __syncthreads();
    const int64_t from_a = begins[0], from_b = from - from_a;
    const int64_t own_a = begins[1] - from_a, own_b = n - own_a;
    for (int64_t i = threadIdx.x; i < n; i += MERGE_THREADS)
        keys[i] = i < own_a ? a[from_a + i] : b[from_b + i - own_a];
    __syncthreads();
    const int64_t at = (int64_t)threadIdx.x * MERGE_EACH;
    T merged[MERGE_EACH];
    if (at < n) {
        int64_t i = split<T>(keys, own_a, keys + own_a, own_b, at), k = at - i;
        GPU_UNROLL
        for (int e = 0; e < MERGE_EACH; e++) {
            if (at + e >= n) continue;
            const bool is_a = k >= own_b || (i < own_a && (T)keys[i] <= (T)keys[own_a + k]);
            merged[e] = is_a ? (T)keys[i] : (T)keys[own_a + k];
            i += is_a;
            k += !is_a;
        }
    }
    __syncthreads();
    GPU_UNROLL
    for (int e = 0; e < MERGE_EACH; e++)
        if (at + e < n) keys[at + e] = merged[e];
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += MERGE_THREADS)
        put(j, row * j.n + first + i, (T)keys[i]);
}

/* Sorts by way of a and b, n_rows · n each; a row of one chunk needs neither where there is an out.
 * Returns where the keys are. */
template <typename T>
static const T *sort_rows(kern_device *device, sort_job<T> j, unsigned n_rows, T *a, T *b) {
    float *out = j.out;
    j.width = TENSOR_CHUNK;
    j.out = j.n <= j.width ? out : NULL;
    j.to = a;
    GPU_LAUNCH(device, (sort_chunks<T>), dim3((unsigned)tensor_chunks(j.n), n_rows), SORT_THREADS,
               0, j);
    const int64_t n_pieces = (j.n + MERGE_PIECE - 1) / MERGE_PIECE;
    for (; j.width < j.n; j.width *= 2) {
        j.from = j.to;
        j.to = j.from == a ? b : a;
        j.out = 2 * j.width < j.n ? NULL : out;
        GPU_LAUNCH(device, (merge_runs<T>), dim3((unsigned)n_pieces, n_rows), MERGE_THREADS, 0, j);
    }
    return j.to;
}

const wide *tensor_sort_names(kern_device *device, const float *x, unsigned n_lists, int64_t n,
                              int32_t index_bits, wide *a, wide *b) {
    sort_job<wide> j = {};
    j.x = x;
    j.n = n;
    j.index_bits = index_bits;
    return sort_rows(device, j, n_lists, a, b);
}

/* out[R,C] = rows of x[R,C], ascending */
int cuda_tensor_sort(kern_device *device, kern_tensor x, kern_tensor out) {
    const int64_t n = x.n_columns, row_bytes = 2 * n * (int64_t)sizeof(uint32_t);
    if (n == 0 || x.n_rows == 0) return KERN_OK;
    int64_t batch = n <= TENSOR_CHUNK ? TENSOR_MOST_ROWS : TENSOR_SORT_BYTES / row_bytes;
    batch = tensor_least(batch < 1 ? 1 : batch, x.n_rows);
    void *scratch = NULL;
    if (n > TENSOR_CHUNK) {
        const int code = cuda_scratch(device, (size_t)(batch * row_bytes), &scratch);
        if (code) return code;
    }
    uint32_t *a = (uint32_t *)scratch, *b = a ? a + batch * n : NULL;
    for (int64_t first = 0; first < x.n_rows; first += batch) {
        sort_job<uint32_t> j = {};
        j.x = cuda_f32(x) + first * n;
        j.n = n;
        j.out = cuda_f32(out) + first * n;
        (void)sort_rows(device, j, (unsigned)tensor_least(batch, x.n_rows - first), a, b);
    }
    return cuda_launched(device, "sort");
}

/* ---- running sums ---- */

#define SUM_THREADS 256
#define SUM_PARTS   (TENSOR_CHUNK / SUM_THREADS / 4)

/* The sums v[0] … v[i] of a chunk, after `before`, in f64; returns the last of them. */
GPU_INLINE double sum_chunk(const float v[4 * SUM_PARTS], double before, gpu_shared<double> parts,
                            float sums[4 * SUM_PARTS]) {
    GPU_UNROLL
    for (int p = 0; p < SUM_PARTS; p++) {
        double own = 0, all;
        GPU_UNROLL
        for (int l = 0; l < 4; l++) own += (double)v[4 * p + l];
        double sum = before + block_scan(own, parts, &all);
        GPU_UNROLL
        for (int l = 0; l < 4; l++) {
            sum += (double)v[4 * p + l];
            sums[4 * p + l] = __double2float_rn(sum);
        }
        before += all;
    }
    return before;
}

/* totals[row, chunk] = the chunk's sum; grid: chunks × rows */
GPU_KERNEL_BOUNDS(SUM_THREADS, 3) total_chunks(const float *x, int64_t n, double *totals) {
    GPU_SHARED(double, parts, SUM_THREADS / 32);
    float v[4 * SUM_PARTS], sums[4 * SUM_PARTS];
    chunk_load<SUM_PARTS>(x + blockIdx.y * n, n, 0.0f, v);
    const double total = sum_chunk(v, 0, parts, sums);
    if (threadIdx.x == 0) totals[blockIdx.y * (int64_t)gridDim.x + blockIdx.x] = total;
}

/* totals: of all chunks; unused where there is one. grid: chunks × rows */
GPU_KERNEL_BOUNDS(SUM_THREADS, 3)
sum_rows(const float *x, int64_t n, const double *totals, float *out) {
    GPU_SHARED(double, parts, SUM_THREADS / 32);
    GPU_SHARED(double, before, 1);
    const int64_t row = blockIdx.y;
    float v[4 * SUM_PARTS], sums[4 * SUM_PARTS];
    chunk_load<SUM_PARTS>(x + row * n, n, 0.0f, v);
    if (threadIdx.x == 0) {
        double sum = 0;
        for (uint32_t i = 0; i < blockIdx.x; i++) sum += totals[row * gridDim.x + i];
        before[0] = sum;
    }
    __syncthreads();
    (void)sum_chunk(v, before[0], parts, sums);
    chunk_store<SUM_PARTS>(out + row * n, n, sums);
}

/* out[r,c] = x[r,0] + … + x[r,c], summed in double */
int cuda_tensor_cumsum(kern_device *device, kern_tensor x, kern_tensor out) {
    const int64_t n = x.n_columns, n_chunks = tensor_chunks(n);
    if (n == 0) return KERN_OK;
    void *scratch = NULL;
    if (n_chunks > 1) {
        const int64_t rows = tensor_least(x.n_rows, TENSOR_MOST_ROWS);
        const int code = cuda_scratch(device, (size_t)(rows * n_chunks) * sizeof(double), &scratch);
        if (code) return code;
    }
    double *totals = (double *)scratch;
    for (int64_t first = 0; first < x.n_rows; first += TENSOR_MOST_ROWS) {
        const dim3 grid((unsigned)n_chunks,
                        (unsigned)tensor_least(TENSOR_MOST_ROWS, x.n_rows - first));
        const float *from = cuda_f32(x) + first * n;
        if (n_chunks > 1) GPU_LAUNCH(device, total_chunks, grid, SUM_THREADS, 0, from, n, totals);
        GPU_LAUNCH(device, sum_rows, grid, SUM_THREADS, 0, from, n, (const double *)totals,
                   cuda_f32(out) + first * n);
    }
    return cuda_launched(device, "cumsum");
}
