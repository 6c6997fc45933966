/* cuda_tensors.h: tensors on the CPU and on an emulated GPU at once, rows of many characters to
 * fill them with, and what compares the two. */
#ifndef SPEC_CUDA_TENSORS_H
#define SPEC_CUDA_TENSORS_H

#include "cuda_device.h"

#include <math.h>

enum { CPU, GPU };
static const kern_backend *backends[2];
static kern_device *devices[2];

#define RUN(side, operation, ...) backends[side]->operation(devices[side], __VA_ARGS__)

static inline void both_open(void) {
    char message[256];
    backends[CPU] = &kern_cpu;
    devices[CPU] = kern_cpu.open(&(kern_device_options){.n_threads = 1}, message, sizeof message);
    devices[GPU] = emulated_open(false);
    backends[GPU] = devices[GPU]->backend;
    if (!devices[CPU]) abort();
}
static inline void both_close(void) {
    for (int side = 0; side < 2; side++) backends[side]->close(devices[side]);
}

/* ---- numbers ---- */

static uint64_t state = 1;
static inline double uniform(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(state >> 11) + 0.5) * 0x1p-53;
}
static inline float normal(void) {
    return (float)(sqrt(-2 * log(uniform())) * cos(2 * acos(-1) * uniform()));
}

typedef enum row_kind {
    SPREAD,
    FLAT,
    TIES,
    HOLES,
    PEAKED,
    TINY,  /* denormals and zeros of both signs */
    HUGE_, /* up to the largest numbers */
    ONE,   /* all −inf but for one */
    EMPTY, /* all −inf */
    WITH_NAN,
    WITH_INF,
    N_KINDS,
    N_FINITE_KINDS = EMPTY
} row_kind;

static inline void fill_row(float *x, int64_t n, row_kind kind) {
    const int64_t chosen = (int64_t)(uniform() * (double)n);
    for (int64_t i = 0; i < n; i++) {
        const float z = normal();
        switch (kind) {
        case FLAT: x[i] = 1.5f; break;
        case TIES: x[i] = floorf(2 * z) / 2; break;
        case HOLES: x[i] = uniform() < 0.4 && i != chosen ? -INFINITY : 2 * z; break;
        case PEAKED: x[i] = 30 * z; break;
        case TINY: x[i] = z * (uniform() < 0.2 ? 0.0f : 0x1p-140f); break;
        case HUGE_: x[i] = z > 0 ? 3.4e38f * (float)uniform() : -3e38f * (float)uniform(); break;
        case ONE: x[i] = i == chosen ? z : -INFINITY; break;
        case EMPTY: x[i] = -INFINITY; break;
        case WITH_NAN: x[i] = i == chosen ? NAN : i % 7 == 3 ? INFINITY : z; break;
        case WITH_INF: x[i] = i == chosen ? INFINITY : i % 5 == 2 ? -INFINITY : z; break;
        default: x[i] = 3 * z;
        }
    }
}

static inline void *array_new(int64_t n) {
    void *x = malloc((size_t)(n + 1) * 4);
    if (!x) abort();
    return x;
}

/* Rows of all kinds, one after the other. */
static inline float *rows_new(int64_t r, int64_t n, int n_kinds) {
    float *x = array_new(r * n);
    for (int64_t i = 0; i < r; i++) fill_row(x + i * n, n, (row_kind)(i % n_kinds));
    return x;
}

/* ---- tensors, on both sides ---- */

typedef struct both {
    kern_buffer buffers[2];
    kern_tensor on[2];
    int64_t n;
} both;

static both *tensors[64]; /* that live until release() */
static int n_tensors;

/* data NULL: what was never written. The tensor begins `skip` entries into its buffer. */
static inline kern_tensor *tensor_at(int64_t r, int64_t c, const void *data, int64_t skip) {
    both *t = calloc(1, sizeof *t);
    if (!t || n_tensors == 64) abort();
    tensors[n_tensors++] = t;
    t->n = r * c;
    for (int side = 0; side < 2; side++) {
        if (RUN(side, alloc, (size_t)(t->n + skip + 1) * 4, &t->buffers[side])) abort();
        t->on[side] = (kern_tensor){&t->buffers[side], (size_t)skip * 4, r, c};
        if (data && t->n &&
            RUN(side, write, &t->buffers[side], (size_t)skip * 4, data, (size_t)t->n * 4))
            abort();
    }
    return t->on;
}
static inline kern_tensor *tensor(int64_t r, int64_t c, const void *data) {
    return tensor_at(r, c, data, 0);
}

static inline void release(void) {
    while (n_tensors) {
        both *t = tensors[--n_tensors];
        for (int side = 0; side < 2; side++) backends[side]->free(devices[side], &t->buffers[side]);
        free(t);
    }
}

static inline void *fetch(int side, kern_tensor t) {
    void *x = array_new(t.n_rows * t.n_columns);
    const size_t bytes = (size_t)(t.n_rows * t.n_columns) * 4;
    if (bytes && RUN(side, read, t.buffer, t.offset, x, bytes)) {
        printf("read: %s\n", backends[side]->last_error(devices[side]));
        abort();
    }
    return x;
}

/* ---- comparing ---- */

static inline double ulp(double x) {
    const float a = fabsf((float)x);
    return isfinite(a) ? (double)nextafterf(a, INFINITY) - (double)a : 0;
}

/* Equal, both NaN, or within `ulps` of their own and `most` (of an entry's row, or one for all). */
static inline bool is_near(double got, double want, double ulps, double most) {
    if (got == want || (isnan(got) && isnan(want))) return true;
    return fabs(got - want) <= ulps * ulp(want) + most;
}

static inline void expect_f32(const char *what, const float *got, const float *want, int64_t r,
                              int64_t c, double ulps, const double *most) {
    int64_t n_wrong = 0, i_wrong = 0;
    for (int64_t i = r * c; i-- > 0;)
        if (!is_near((double)got[i], (double)want[i], ulps, most ? most[i / c] : 0))
            n_wrong++, i_wrong = i;
    CHECK(n_wrong == 0, "%s of %d × %d: %d entries differ, first row %d column %d: %.9g, not %.9g",
          what, (int)r, (int)c, (int)n_wrong, (int)(i_wrong / c), (int)(i_wrong % c),
          n_wrong ? (double)got[i_wrong] : 0, n_wrong ? (double)want[i_wrong] : 0);
}

/* The tensor on the GPU against that on the CPU. */
static inline void expect_near(const char *what, const kern_tensor t[2], double ulps,
                               const double *most) {
    float *got = fetch(GPU, t[GPU]), *want = fetch(CPU, t[CPU]);
    expect_f32(what, got, want, t[CPU].n_rows, t[CPU].n_columns, ulps, most);
    free(got);
    free(want);
}

static inline void expect_i32(const char *what, const kern_tensor t[2]) {
    int32_t *got = fetch(GPU, t[GPU]), *want = fetch(CPU, t[CPU]);
    int64_t i = 0;
    const int64_t n = t[CPU].n_rows * t[CPU].n_columns;
    while (i < n && got[i] == want[i]) i++;
    CHECK(i == n, "%s of %d × %d: entry %d is %d, not %d", what, (int)t[CPU].n_rows,
          (int)t[CPU].n_columns, (int)i, i < n ? got[i] : 0, i < n ? want[i] : 0);
    free(got);
    free(want);
}

/* What sums of a row may err by: for each row `scale` times the sum of its finite magnitudes. */
static inline double *magnitudes(const float *x, int64_t r, int64_t n, double scale) {
    double *most = calloc((size_t)r + 1, sizeof *most);
    if (!most) abort();
    for (int64_t i = 0; i < r * n; i++)
        if (isfinite(x[i])) most[i / n] += scale * fabs((double)x[i]);
    return most;
}
static inline double *same_for_all(int64_t r, double value) {
    double *most = calloc((size_t)r + 1, sizeof *most);
    if (!most) abort();
    for (int64_t i = 0; i < r; i++) most[i] = value;
    return most;
}

#endif
