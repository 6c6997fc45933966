/* ref_matmul.c: the dot product whose order of additions defines ref, and the matrix product made
 * of it. Weights become f32 a few rows at a time. */
#include "ref.h"

#define LANES     16
#define QUADS     (LANES / 4)
#define UNIT_ROWS 8  /* weight rows a thread takes at once */
#define TILE_ROWS 32 /* activation rows that stay in its cache meanwhile */

/* Four neighbouring numbers, added and multiplied one by one. */
typedef float quad __attribute__((vector_size(16), aligned(4), may_alias));

/* y[r] = w[n] · x[r][n] for r < n_x ≤ 2: partial sum j of LANES holds elements j, j + LANES, …; the
 * sums are then halved in a fixed tree. Every row's additions are in this order for any n_x. */
static inline __attribute__((always_inline)) void
dots(const float *w, const float *x, int64_t x_stride, int64_t n, int n_x, float *y) {
    quad sums[2][QUADS] = {{{0}}};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int j = 0; j < QUADS; j++) {
            const quad a = *(const quad *)(w + i + 4 * j);
            for (int r = 0; r < n_x; r++)
                sums[r][j] += a * *(const quad *)(x + r * x_stride + i + 4 * j);
        }
    }
    for (int r = 0; r < n_x; r++) {
        float s[LANES];
        for (int j = 0; j < LANES; j++) s[j] = sums[r][j / 4][j % 4];
        for (int j = 0; i + j < n; j++) s[j] += w[i + j] * x[r * x_stride + i + j];
        for (int half = LANES / 2; half > 0; half /= 2)
            for (int j = 0; j < half; j++) s[j] += s[j + half];
        y[r] = s[0];
    }
}

float ref_dot(const float *x, const float *y, int64_t n) {
    float sum;
    dots(x, y, 0, n, 1, &sum);
    return sum;
}

static void dot_two(const float *w, const float *x, int64_t x_stride, int64_t n, float y[2]) {
    dots(w, x, x_stride, n, 2, y);
}

size_t ref_matmul_scratch(const plan_op *op) { return (size_t)op->w->n_columns * UNIT_ROWS; }

/* out[t, first + r] for weight rows r < n_rows, already f32 in w, and activation rows t0 … t1-1 */
static void multiply_tile(const ref_pass *pass, const float *w, int64_t first, int n_rows,
                          int64_t t0, int64_t t1) {
    const int64_t k = pass->op->w->n_columns, n = pass->op->w->n_rows;
    const float *bias = pass->op->bias ? pass->scratch->bias + first : NULL;
    for (int r = 0; r < n_rows; r++) {
        const float *row = w + r * k;
        for (int64_t t = t0; t < t1; t += 2) {
            float y[2];
            const int n_x = t + 1 < t1 ? 2 : 1;
            if (n_x == 2)
                dot_two(row, pass->in + t * k, k, k, y);
            else
                y[0] = ref_dot(row, pass->in + t * k, k);
            for (int i = 0; i < n_x; i++)
                pass->out[(t + i) * n + first + r] = bias ? y[i] + bias[r] : y[i];
        }
    }
}

/* out[T,N] = in[T,K] @ w[N,K]^T (+ bias[N]) */
void ref_matmul(const ref_pass *pass, int i_thread, int n_threads) {
    (void)n_threads;
    const kern_weight *w = pass->op->w;
    const int64_t n_units = (w->n_rows + UNIT_ROWS - 1) / UNIT_ROWS, n_t = pass->batch->n_rows;
    const size_t row_bytes = kern_format_bytes(w->format, w->n_columns);
    float *rows = ref_thread(pass, i_thread);
    int64_t unit;
    while ((unit = kern_pool_next(pass->pool, n_units)) >= 0 && !ref_stopped(pass->batch)) {
        const int64_t first = unit * UNIT_ROWS;
        const int n_rows = (int)(w->n_rows - first < UNIT_ROWS ? w->n_rows - first : UNIT_ROWS);
        for (int r = 0; r < n_rows; r++)
            w->format->dequantise((const char *)w->data + (size_t)(first + r) * row_bytes,
                                  rows + r * w->n_columns, w->n_columns);
        for (int64_t t = 0; t < n_t; t += TILE_ROWS)
            multiply_tile(pass, rows, first, n_rows, t, t + TILE_ROWS < n_t ? t + TILE_ROWS : n_t);
    }
}
