/* tensor_matrix.c: products, transposition, rows. Results never overlap the inputs, but for
 * normalize. */
#include "tensor_ops.h"
#include "tensor_row.h"

#include <string.h>

typedef struct job {
    const row_functions *f;
    kern_tensor a, b, out;
} job;

static void matmul_row(const void *data, int64_t i_row) {
    const job *j = data;
    const int64_t k = j->a.n_columns, m = j->b.n_columns;
    j->f->multiply(host_f32(j->a) + i_row * k, k, host_f32(j->b), m, host_f32(j->out) + i_row * m);
}

/* out[n,m] = a[n,k] · b[k,m] */
int tensor_matmul(kern_device *device, kern_tensor a, kern_tensor b, kern_tensor out) {
    const job j = {row_of(device), a, b, out};
    row_each(device, a.n_rows, (double)a.n_columns * (double)b.n_columns * 0.2, matmul_row, &j);
    return KERN_OK;
}

#define TILE 16

/* out[C,R] = x[R,C]ᵀ, entries of 4 bytes, tile by tile */
int tensor_transpose(kern_device *device, kern_tensor x, kern_tensor out) {
    (void)device;
    const int64_t n_rows = x.n_rows, n_columns = x.n_columns;
    const int32_t *from = host_i32(x);
    int32_t *to = host_i32(out);
    for (int64_t r0 = 0; r0 < n_rows; r0 += TILE) {
        const int64_t r1 = r0 + TILE < n_rows ? r0 + TILE : n_rows;
        for (int64_t c0 = 0; c0 < n_columns; c0 += TILE) {
            const int64_t c1 = c0 + TILE < n_columns ? c0 + TILE : n_columns;
            for (int64_t r = r0; r < r1; r++)
                for (int64_t c = c0; c < c1; c++) to[c * n_rows + r] = from[r * n_columns + c];
        }
    }
    return KERN_OK;
}

static void normalize_row(const void *data, int64_t i_row) {
    const job *j = data;
    const int64_t n = j->a.n_columns;
    const float *x = host_f32(j->a) + i_row * n;
    double sums[3];
    j->f->moments(x, n, 0, sums);
    const double length = sqrt(sums[2]);
    j->f->scale(x, n, length > 0 ? (float)(1 / length) : 1, host_f32(j->out) + i_row * n);
}

/* out[R,C] = x[R,C], each row divided by its length; rows of zeros stay */
int tensor_normalize(kern_device *device, kern_tensor x, kern_tensor out) {
    const job j = {row_of(device), x, x, out};
    row_each(device, x.n_rows, (double)x.n_columns, normalize_row, &j);
    return KERN_OK;
}

/* out[i,C] = x[rows[i],C], entries of 4 bytes */
int tensor_rows(kern_device *device, kern_tensor x, const int64_t *rows, kern_tensor out) {
    (void)device;
    const size_t bytes = (size_t)x.n_columns * 4;
    for (int64_t i = 0; i < out.n_rows && bytes; i++)
        memcpy(host_i32(out) + i * x.n_columns, host_i32(x) + rows[i] * x.n_columns, bytes);
    return KERN_OK;
}
