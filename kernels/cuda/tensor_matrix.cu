/* tensor_matrix.cu: products of tensors and transposition. Results never overlap the inputs.
 *
 * A product sums over k in slices of SLICE: fused multiply-adds in order within a slice, then
 * slices in order, each by an addition. Both kernels do, so that a row's result does not depend on
 * the number of rows. */
#include "tensor_parts.h"

#define SLICE 64
#define TILE  32

/* ---- many rows ---- */

#define TILE_THREADS 256
#define TILE_ROWS    (TILE * TILE / TILE_THREADS) /* rows a thread sums */

/* A tile of out[n,m] = a[n,k] · b[k,m]; grid: tiles of m × tiles of n */
GPU_KERNEL_BOUNDS(TILE_THREADS, 3)
multiply_tiles(const float *a, const float *b, float *out, int64_t n, int64_t k, int64_t m,
               int64_t first_row) {
    GPU_SHARED(float, left, TILE *(SLICE + 1));
    GPU_SHARED(float, right, SLICE *TILE);
    const int lane = (int)(threadIdx.x % TILE), group = (int)(threadIdx.x / TILE);
    const int64_t row = first_row + (int64_t)blockIdx.y * TILE;
    const int64_t column = (int64_t)blockIdx.x * TILE;
    float sums[TILE_ROWS] = {};
    for (int64_t at = 0; at < k; at += SLICE) {
        for (int i = (int)threadIdx.x; i < TILE * SLICE; i += TILE_THREADS) {
            const int64_t r = row + i / SLICE, c = at + i % SLICE;
            left[i / SLICE * (SLICE + 1) + i % SLICE] = r < n && c < k ? a[r * k + c] : 0.0f;
            const int64_t d = at + i / TILE, e = column + i % TILE;
            right[i] = d < k && e < m ? b[d * m + e] : 0.0f;
        }
        __syncthreads();
        const int n_slice = (int)(k - at < SLICE ? k - at : SLICE);
        float parts[TILE_ROWS] = {};
        for (int i = 0; i < n_slice; i++) {
            const float v = right[i * TILE + lane];
            GPU_UNROLL
            for (int r = 0; r < TILE_ROWS; r++)
                parts[r] = __fmaf_rn(left[(group * TILE_ROWS + r) * (SLICE + 1) + i], v, parts[r]);
        }
        GPU_UNROLL
        for (int r = 0; r < TILE_ROWS; r++) sums[r] = __fadd_rn(sums[r], parts[r]);
        __syncthreads();
    }
    GPU_UNROLL
    for (int r = 0; r < TILE_ROWS; r++) {
        const int64_t to = row + group * TILE_ROWS + r;
        if (to < n && column + lane < m) out[to * m + column + lane] = sums[r];
    }
}

/* ---- few rows ---- */

#define FEW_ROWS    8
#define FEW_WARPS   8 /* each sums every eighth slice */
#define FEW_THREADS (32 * FEW_WARPS)

/* 32 columns of one row; the sums of up to FEW_WARPS slices at a time are added in order. grid:
 * pieces of m × rows */
GPU_KERNEL_BOUNDS(FEW_THREADS, 4)
multiply_rows(const float *a, const float *b, float *out, int64_t k, int64_t m) {
    GPU_SHARED(float, slices, FEW_THREADS);
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int64_t column = (int64_t)blockIdx.x * 32 + lane;
    const float *left = a + (int64_t)blockIdx.y * k;
    float sum = 0;
    for (int64_t first = 0; first < k; first += FEW_WARPS * SLICE) {
        const int64_t begin = first + warp * SLICE;
        float part = 0;
        if (column < m && begin + SLICE <= k) {
            GPU_UNROLL
            for (int i = 0; i < SLICE; i++)
                part = __fmaf_rn(left[begin + i], b[(begin + i) * m + column], part);
        } else if (column < m) {
            for (int64_t i = begin; i < k; i++) part = __fmaf_rn(left[i], b[i * m + column], part);
        }
        slices[threadIdx.x] = part;
        __syncthreads();
        for (uint32_t w = 0; w < FEW_WARPS && first + w * SLICE < k; w++)
            sum = __fadd_rn(sum, slices[w * 32 + lane]);
        __syncthreads();
    }
    if (warp == 0 && column < m) out[blockIdx.y * m + column] = sum;
}

/* out[n,m] = a[n,k] · b[k,m] */
int cuda_tensor_matmul(kern_device *device, kern_tensor a, kern_tensor b, kern_tensor out) {
    const int64_t n = a.n_rows, k = a.n_columns, m = b.n_columns, most = 65535 * (int64_t)TILE;
    if (n == 0 || m == 0) return KERN_OK;
    const unsigned pieces = (unsigned)((m + TILE - 1) / TILE);
    if (n <= FEW_ROWS) {
        GPU_LAUNCH(device, multiply_rows, dim3(pieces, (unsigned)n), FEW_THREADS, 0, cuda_f32(a),
                   cuda_f32(b), cuda_f32(out), k, m);
        return cuda_launched(device, "matmul");
    }
    for (int64_t first = 0; first < n; first += most) {
        const int64_t n_tiles = (tensor_least(most, n - first) + TILE - 1) / TILE;
        GPU_LAUNCH(device, multiply_tiles, dim3(pieces, (unsigned)n_tiles), TILE_THREADS, 0,
                   cuda_f32(a), cuda_f32(b), cuda_f32(out), n, k, m, first);
    }
    return cuda_launched(device, "matmul");
}

/* ---- transposition ---- */

#define FLIP_GROUPS 8 /* rows of a tile that a block moves at a time */

/* out[C,R] = x[R,C]ᵀ, entries of 4 bytes; grid: tiles of C × tiles of R */
GPU_KERNEL_BOUNDS(TILE *FLIP_GROUPS, 4)
flip_tiles(const uint32_t *x, uint32_t *out, int64_t n_rows, int64_t n_columns, int64_t first_row) {
    GPU_SHARED(uint32_t, tile, TILE * (TILE + 1));
    const int lane = (int)(threadIdx.x % TILE), group = (int)(threadIdx.x / TILE);
    const int64_t row = first_row + (int64_t)blockIdx.y * TILE;
    const int64_t column = (int64_t)blockIdx.x * TILE;
    for (int i = group; i < TILE; i += FLIP_GROUPS)
        if (row + i < n_rows && column + lane < n_columns)
            tile[i * (TILE + 1) + lane] = x[(row + i) * n_columns + column + lane];
    __syncthreads();
    for (int i = group; i < TILE; i += FLIP_GROUPS)
        if (column + i < n_columns && row + lane < n_rows)
            out[(column + i) * n_rows + row + lane] = tile[lane * (TILE + 1) + i];
}

int cuda_tensor_transpose(kern_device *device, kern_tensor x, kern_tensor out) {
    const int64_t n_rows = x.n_rows, n_columns = x.n_columns, most = 65535 * (int64_t)TILE;
    if (n_columns == 0) return KERN_OK;
    const unsigned pieces = (unsigned)((n_columns + TILE - 1) / TILE);
    for (int64_t first = 0; first < n_rows; first += most) {
        const int64_t n_tiles = (tensor_least(most, n_rows - first) + TILE - 1) / TILE;
        GPU_LAUNCH(device, flip_tiles, dim3(pieces, (unsigned)n_tiles), TILE * FLIP_GROUPS, 0,
                   (const uint32_t *)cuda_i32(x), (uint32_t *)cuda_i32(out), n_rows, n_columns,
                   first);
    }
    return cuda_launched(device, "transpose");
}
