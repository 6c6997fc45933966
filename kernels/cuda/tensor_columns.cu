/* tensor_columns.cu: operations on chosen columns and rows: mask, gather, scatter, blocks of
 * columns, lists of rows. Entries of 4 bytes. A block of mask and of scatter owns a chunk of a row
 * and looks through the whole list for what falls into it, so that nothing depends on who comes
 * first. */
#include "tensor_parts.h"

#define THREADS 512

/* ---- mask ---- */

/* Columns first[i] … first[i + 1] of the list, i = r · step, become −inf in row r; with `only`, all
 * others. grid: chunks × rows */
GPU_KERNEL_BOUNDS(THREADS, 2)
mask_rows(const float *x, int64_t n, const int64_t *first, const int32_t *columns, int32_t step,
          int32_t only, float *out) {
    GPU_SHARED(uint32_t, named, TENSOR_CHUNK / 32); /* a bit a column */
    const int64_t row = blockIdx.y, begin = (int64_t)blockIdx.x * TENSOR_CHUNK;
    const int64_t from = first[row * step] - first[0], to = first[row * step + 1] - first[0];
    for (uint32_t i = threadIdx.x; i < TENSOR_CHUNK / 32; i += THREADS) named[i] = 0;
    __syncthreads();
    for (int64_t i = from + threadIdx.x; i < to; i += THREADS) {
        const int64_t at = columns[i] - begin;
        if (at >= 0 && at < TENSOR_CHUNK) atomicOr(named + at / 32, 1u << (at & 31));
    }
    __syncthreads();
    float v[TENSOR_CHUNK / THREADS];
    chunk_load<TENSOR_CHUNK / THREADS / 4>(x + row * n, n, 0.0f, v);
    GPU_UNROLL
    for (int i = 0; i < TENSOR_CHUNK / THREADS; i++) {
        const int64_t at = chunk_entry(i / 4) + i % 4 - begin;
        const bool is_named = (uint32_t)named[at / 32] >> (at & 31) & 1;
        if (is_named != (only != 0)) v[i] = -INFINITY;
    }
    chunk_store<TENSOR_CHUNK / THREADS / 4>(out + row * n, n, v);
}

/* first, columns: of the host */
int cuda_tensor_mask(kern_device *device, kern_tensor x, const int64_t *first,
                     const int32_t *columns, int64_t n_lists, int only, kern_tensor out) {
    const int64_t n = x.n_columns, n_list = first[n_lists] - first[0];
    const void *gpu_first, *gpu_columns;
    if (x.n_rows == 0 || n == 0) return KERN_OK;
    int code = cuda_upload(device, first, (size_t)(n_lists + 1) * sizeof *first, &gpu_first);
    if (!code)
        code =
            cuda_upload(device, columns + first[0], (size_t)n_list * sizeof *columns, &gpu_columns);
    if (code) return code;
    for (int64_t r = 0; r < x.n_rows; r += TENSOR_MOST_ROWS) {
        /* what a list begins with counts from first[0] of the whole */
        const dim3 grid((unsigned)tensor_chunks(n),
                        (unsigned)tensor_least(TENSOR_MOST_ROWS, x.n_rows - r));
        const int64_t i = n_lists == 1 ? 0 : r;
        GPU_LAUNCH(device, mask_rows, grid, THREADS, 0, cuda_f32(x) + r * n, n,
                   (const int64_t *)gpu_first + i,
                   (const int32_t *)gpu_columns + (first[i] - first[0]), (int32_t)(n_lists != 1),
                   (int32_t)only, cuda_f32(out) + r * n);
    }
    return cuda_launched(device, "mask");
}

/* ---- copies ---- */

/* A result [R,n] whose entry [r,i] is x[row, column]: what names them is given, or they go on by
 * one. */
typedef struct copy_job {
    const int32_t *x;
    int64_t x_columns;   /* of a row of x */
    const int32_t *ids;  /* column + base of entry i, or NULL */
    int64_t ids_step;    /* from a row's list to the next's */
    const int64_t *rows; /* rows of x, or NULL: r */
    int64_t first;       /* column of x of entry 0 where there are no ids */
    int64_t base;
    int32_t *out;
    int64_t out_columns, out_first; /* of a row of out, the first that is written */
    int64_t n_rows, n;
} copy_job;

#define COPY_THREADS 256

GPU_KERNEL_BOUNDS(COPY_THREADS, 4) copy_entries(copy_job j) {
    const int64_t step = (int64_t)gridDim.x * COPY_THREADS;
    for (int64_t at = (int64_t)blockIdx.x * COPY_THREADS + threadIdx.x; at < j.n_rows * j.n;
         at += step) {
        const int64_t r = at >> 32 ? at / j.n : (int64_t)((uint32_t)at / (uint32_t)j.n);
        const int64_t i = at - r * j.n;
        const int64_t row = j.rows ? j.rows[r] : r;
        const int64_t column = j.ids ? j.ids[r * j.ids_step + i] - j.base : j.first + i;
        j.out[r * j.out_columns + j.out_first + i] = j.x[row * j.x_columns + column];
    }
}

static int copy(kern_device *device, const copy_job &j, const char *name) {
    const int64_t n_blocks = (j.n_rows * j.n + COPY_THREADS - 1) / COPY_THREADS;
    if (n_blocks == 0) return KERN_OK;
    GPU_LAUNCH(device, copy_entries, (unsigned)tensor_least(n_blocks, 65536), COPY_THREADS, 0, j);
    return cuda_launched(device, name);
}

static copy_job copy_of(kern_tensor x, kern_tensor out, int64_t n_rows, int64_t n) {
    copy_job j = {};
    j.x = cuda_i32(x);
    j.x_columns = x.n_columns;
    j.out = cuda_i32(out);
    j.out_columns = out.n_columns;
    j.n_rows = n_rows;
    j.n = n;
    return j;
}

/* out[R,n] = x[r, ids[1|R, n] − base] */
int cuda_tensor_gather(kern_device *device, kern_tensor x, kern_tensor ids, int32_t base,
                       kern_tensor out) {
    copy_job j = copy_of(x, out, out.n_rows, out.n_columns);
    j.ids = cuda_i32(ids);
    j.ids_step = ids.n_rows == 1 ? 0 : out.n_columns;
    j.base = base;
    return copy(device, j, "gather");
}

/* out[r, to + c] = x[r, from + c], c < count; never in place */
int cuda_tensor_columns(kern_device *device, kern_tensor x, int64_t from, int64_t count,
                        kern_tensor out, int64_t to) {
    copy_job j = copy_of(x, out, x.n_rows, count > 0 ? count : 0);
    j.first = from;
    j.out_first = to;
    return copy(device, j, "columns");
}

/* out[i,C] = x[rows[i],C]; rows: of the host */
int cuda_tensor_rows(kern_device *device, kern_tensor x, const int64_t *rows, kern_tensor out) {
    copy_job j = copy_of(x, out, out.n_rows, x.n_columns);
    if (j.n_rows == 0 || j.n == 0) return KERN_OK;
    const void *up;
    const int code = cuda_upload(device, rows, (size_t)out.n_rows * sizeof *rows, &up);
    if (code) return code;
    j.rows = (const int64_t *)up;
    return copy(device, j, "rows");
}

/* ---- scatter ---- */

typedef struct scatter_job {
    float *x; /* [R,C] */
    int64_t n_columns;
    const int32_t *ids;  /* column + base of entry i of the list */
    int64_t n, ids_step; /* from a row's list to the next's */
    int32_t base, add;
    const float *v;
    int64_t v_row, v_step; /* from a row's values to the next's; from a value to the next: 1 or 0 */
} scatter_job;

/* A block's list. */
typedef struct scatter_row {
    float *to;
    const int32_t *ids;
    const float *from;
} scatter_row;

GPU_INLINE scatter_row scatter_list(const scatter_job &j, int64_t row) {
    return {j.x + row * j.n_columns, j.ids + row * j.ids_step, j.v + row * j.v_row};
}

/* Entry i, the first of `count` that name its column, adds them all, in order. */
GPU_INLINE void add_all(const scatter_job &j, const scatter_row &r, int64_t i, uint32_t count) {
    const int32_t id = r.ids[i];
    float x = r.to[id - j.base];
    for (; count; i++) {
        if (r.ids[i] != id) continue;
        x = __fadd_rn(x, r.from[i * j.v_step]);
        count--;
    }
    r.to[id - j.base] = x;
}

/* grid: chunks of columns × rows */
GPU_KERNEL_BOUNDS(THREADS, 2) scatter_rows(scatter_job j) {
    GPU_SHARED(uint32_t, found, TENSOR_CHUNK); /* set: 1 + the last entry that names a column; add:
                                                  the first */
    GPU_SHARED(uint32_t, count, TENSOR_CHUNK);
    const scatter_row r = scatter_list(j, blockIdx.y);
    const int64_t begin = (int64_t)blockIdx.x * TENSOR_CHUNK + j.base;
    for (uint32_t i = threadIdx.x; i < TENSOR_CHUNK; i += THREADS) {
        found[i] = j.add ? 0xFFFFFFFFu : 0;
        count[i] = 0;
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < j.n; i += THREADS) {
        const int64_t at = r.ids[i] - begin;
        if (at < 0 || at >= TENSOR_CHUNK) continue;
        if (!j.add) {
            atomicMax(found + at, (uint32_t)i + 1);
        } else {
            atomicMin(found + at, (uint32_t)i);
            atomicAdd(count + at, 1u);
        }
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < j.n; i += THREADS) {
        const int64_t at = r.ids[i] - begin;
        if (at < 0 || at >= TENSOR_CHUNK) continue;
        if (j.add) {
            if (found[at] == (uint32_t)i) add_all(j, r, i, count[at]);
        } else if (found[at] == (uint32_t)i + 1) {
            r.to[at + begin - j.base] = r.from[i * j.v_step];
        }
    }
}

/* Where the values lie in x itself: one after the other. grid: 1 × rows */
GPU_KERNEL scatter_serially(scatter_job j) {
    const scatter_row r = scatter_list(j, blockIdx.y);
    for (int64_t i = 0; i < j.n && threadIdx.x == 0; i++) {
        float *to = r.to + (r.ids[i] - j.base);
        const float v = r.from[i * j.v_step];
        *to = j.add ? __fadd_rn(*to, v) : v;
    }
}

/* x[r, ids[1|R, n] − base] (+)= v[1|R, 1|n] */
int cuda_tensor_scatter(kern_device *device, kern_tensor x, kern_tensor ids, int32_t base,
                        kern_tensor v, int add) {
    scatter_job j = {};
    j.x = cuda_f32(x);
    j.n_columns = x.n_columns;
    j.ids = cuda_i32(ids);
    j.n = ids.n_columns;
    j.ids_step = ids.n_rows == 1 ? 0 : ids.n_columns;
    j.base = base;
    j.v = cuda_f32(v);
    j.v_row = v.n_rows == 1 ? 0 : v.n_columns;
    j.v_step = v.n_columns == 1 ? 0 : 1;
    j.add = add;
    const int64_t n_rows = x.n_rows;
    if (n_rows == 0 || j.n == 0 || j.n_columns == 0) return KERN_OK;
    const bool is_apart = j.v >= j.x + n_rows * j.n_columns || j.v + v.n_rows * v.n_columns <= j.x;
    for (int64_t first = 0; first < n_rows; first += TENSOR_MOST_ROWS) {
        const unsigned n = (unsigned)tensor_least(TENSOR_MOST_ROWS, n_rows - first);
        if (is_apart)
            GPU_LAUNCH(device, scatter_rows, dim3((unsigned)tensor_chunks(j.n_columns), n), THREADS,
                       0, j);
        else
            GPU_LAUNCH(device, scatter_serially, dim3(1, n), 32, 0, j);
        j.x += TENSOR_MOST_ROWS * j.n_columns;
        j.ids += TENSOR_MOST_ROWS * j.ids_step;
        j.v += TENSOR_MOST_ROWS * j.v_row;
    }
    return cuda_launched(device, "scatter");
}
