/* tensor_reduce.c: a number a row, softmax, sorting and running sums. */
#include "memory.h"
#include "tensor_ops.h"
#include "tensor_row.h"

#include <string.h>

typedef struct job {
    const row_functions *f;
    kern_reduce kind;
    kern_tensor x, out;
} job;

static const float *x_row(const job *j, int64_t i_row) {
    return host_f32(j->x) + i_row * j->x.n_columns;
}
static float *out_row(const job *j, int64_t i_row) {
    return host_f32(j->out) + i_row * j->out.n_columns;
}

static void fill(float *out, int64_t n, float value) {
    for (int64_t i = 0; i < n; i++) out[i] = value;
}

/* ---- reductions ---- */

/* ln Σ exp(x), in double; max is the row's, finite */
static double log_sum_exp(const row_functions *f, const float *x, int64_t n, float max) {
    return (double)max + log(f->sum_exp(x, n, max));
}

/* Entropy of the softmax: ln Z − Σ e·d / Z, with e = exp(d), d = x − max. */
static float entropy(const row_functions *f, const float *x, int64_t n, float max) {
    double sums[2];
    f->sum_exp_times(x, n, max, sums);
    const double h = log(sums[0]) - sums[1] / sums[0];
    return (float)(h > 0 ? h : 0);
}

static float deviation(const row_functions *f, const float *x, int64_t n) {
    int64_t i = 0;
    while (i < n && !isfinite(x[i])) i++;
    if (i == n) return NAN;
    double sums[3];
    f->moments(x, n, x[i], sums);
    const double mean = sums[1] / sums[0], variance = sums[2] / sums[0] - mean * mean;
    return (float)sqrt(variance > 0 ? variance : 0);
}

static void reduce_row(const void *data, int64_t i_row) {
    const job *j = data;
    const float *x = x_row(j, i_row);
    const int64_t n = j->x.n_columns;
    float *out = host_f32(j->out) + i_row, max;
    bool has_nan;
    int32_t fault;
    switch (j->kind) {
    case KERN_MAX:
        max = j->f->max(x, n, &has_nan);
        *out = has_nan ? NAN : max;
        break;
    case KERN_MIN:
        max = j->f->min(x, n, &has_nan);
        *out = has_nan ? NAN : max;
        break;
    case KERN_SUM: *out = (float)j->f->sum(x, n); break;
    case KERN_LOGSUMEXP:
        fault = row_fault(j->f, x, n, &max);
        *out = fault == KERN_ID_NAN ? NAN : fault ? max : (float)log_sum_exp(j->f, x, n, max);
        break;
    case KERN_ENTROPY: *out = row_fault(j->f, x, n, &max) ? NAN : entropy(j->f, x, n, max); break;
    case KERN_STD: *out = deviation(j->f, x, n); break;
    }
}

/* out[R,1] = op(x[R,C]) */
int tensor_reduce(kern_device *device, kern_reduce op, kern_tensor x, kern_tensor out) {
    const job j = {row_of(device), op, x, out};
    row_each(device, x.n_rows, (double)x.n_columns, reduce_row, &j);
    return KERN_OK;
}

/* ---- softmax ---- */

/* A row with a NaN becomes NaN; one without a finite entry stays, so that a choice says so. */
static void log_softmax_row(const void *data, int64_t i_row) {
    const job *j = data;
    const float *x = x_row(j, i_row);
    float *out = out_row(j, i_row), max;
    const int64_t n = j->x.n_columns;
    switch (row_fault(j->f, x, n, &max)) {
    case 0: j->f->subtract(x, n, log_sum_exp(j->f, x, n, max), out); break;
    case KERN_ID_NAN: fill(out, n, NAN); break;
    case KERN_ID_INF: j->f->subtract(x, n, INFINITY, out); break;
    default: memmove(out, x, (size_t)n * sizeof *x);
    }
}

int tensor_log_softmax(kern_device *device, kern_tensor x, kern_tensor out) {
    const job j = {row_of(device), 0, x, out};
    row_each(device, x.n_rows, (double)x.n_columns * 1.5, log_softmax_row, &j);
    return KERN_OK;
}

/* A row with a NaN, +inf or no finite entry becomes NaN. */
static void softmax_row(const void *data, int64_t i_row) {
    const job *j = data;
    const float *x = x_row(j, i_row);
    float *out = out_row(j, i_row), max;
    const int64_t n = j->x.n_columns;
    if (row_fault(j->f, x, n, &max))
        fill(out, n, NAN);
    else
        j->f->softmax(x, n, max, (float)(1 / j->f->sum_exp(x, n, max)), out);
}

int tensor_softmax(kern_device *device, kern_tensor x, kern_tensor out) {
    const job j = {row_of(device), 0, x, out};
    row_each(device, x.n_rows, (double)x.n_columns * 2, softmax_row, &j);
    return KERN_OK;
}

/* ---- sort and running sums ---- */

/* Bits in the order of the values, and back; −0 before +0, any NaN last. */
static uint32_t sort_key(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return UINT32_MAX;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
static float sort_value(uint32_t key) {
    if (key == UINT32_MAX) return NAN;
    const uint32_t bits = key & 0x80000000u ? key & 0x7FFFFFFFu : ~key;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Radix sort, 11 bits a pass. a holds the keys and then, after three passes, b the result. */
static void radix_sort(uint32_t *a, uint32_t *b, int64_t n) {
    for (int shift = 0; shift < 32; shift += 11) {
        int64_t first[ROW_BINS] = {0}, sum = 0;
        for (int64_t i = 0; i < n; i++) first[a[i] >> shift & (ROW_BINS - 1)]++;
        for (int bin = 0; bin < ROW_BINS; bin++) {
            const int64_t count = first[bin];
            first[bin] = sum;
            sum += count;
        }
        for (int64_t i = 0; i < n; i++) b[first[a[i] >> shift & (ROW_BINS - 1)]++] = a[i];
        uint32_t *t = a;
        a = b;
        b = t;
    }
}

static void insertion_sort(uint32_t *a, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        const uint32_t key = a[i];
        int64_t at = i;
        for (; at > 0 && a[at - 1] > key; at--) a[at] = a[at - 1];
        a[at] = key;
    }
}

/* out[R,C] = rows of x[R,C], ascending */
int tensor_sort(kern_device *device, kern_tensor x, kern_tensor out) {
    const int64_t n = x.n_columns;
    const bool is_small = n <= 64;
    uint32_t *keys = kern_alloc_array((size_t)n, 2 * sizeof *keys);
    if (!keys)
        return host_fail(device, KERN_NO_MEMORY, "out of memory: %lld columns to sort",
                         (long long)n);
    for (int64_t i_row = 0; i_row < x.n_rows; i_row++) {
        const float *from = host_f32(x) + i_row * n;
        float *to = host_f32(out) + i_row * n;
        for (int64_t i = 0; i < n; i++) keys[i] = sort_key(from[i]);
        if (is_small)
            insertion_sort(keys, n);
        else
            radix_sort(keys, keys + n, n);
        const uint32_t *sorted = is_small ? keys : keys + n;
        for (int64_t i = 0; i < n; i++) to[i] = sort_value(sorted[i]);
    }
    kern_free(keys);
    return KERN_OK;
}

/* out[r,c] = x[r,0] + … + x[r,c], summed in double */
int tensor_cumsum(kern_device *device, kern_tensor x, kern_tensor out) {
    (void)device;
    const int64_t n = x.n_columns;
    for (int64_t i_row = 0; i_row < x.n_rows; i_row++) {
        const float *from = host_f32(x) + i_row * n;
        float *to = host_f32(out) + i_row * n;
        double sum = 0;
        for (int64_t i = 0; i < n; i++) to[i] = (float)(sum += (double)from[i]);
    }
    return KERN_OK;
}
