/* test_cuda_rows.c: norms of rows and operations on numbers of the CUDA backend, against sums in
 * f64 (ref's arithmetic), on odd widths, and that a row's bits do not depend on the others. */
#include "cuda_device.h"

#include <math.h>

enum { MOST = 9000 };

static kern_device *device;

static float number(int32_t what, int64_t i) {
    uint64_t x = (uint64_t)what * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xd6e8feb86659fd93u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (float)((x ^ x >> 31) >> 40) / 8388608.0f - 1.0f;
}

static float *numbers(int32_t what, float size, float shift, int64_t n) {
    float *x = malloc(sizeof *x * (size_t)n);
    if (!x) abort();
    for (int64_t i = 0; i < n; i++) x[i] = size * number(what, i) + shift;
    return x;
}

static kern_buffer upload(const float *x, int64_t n) {
    kern_buffer b;
    if (device->backend->alloc(device, sizeof *x * (size_t)n, &b) ||
        device->backend->write(device, &b, 0, x, sizeof *x * (size_t)n))
        abort();
    return b;
}
static void download(const kern_buffer *b, float *x, int64_t n) {
    if (device->backend->read(device, b, 0, x, sizeof *x * (size_t)n)) abort();
}
static void release(kern_buffer *b) { device->backend->free(device, b); }

/* The largest difference relative to 1 + the size; a NaN is infinitely far. */
static double worst_of(const float *got, const double *want, int64_t n) {
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = fabs((double)got[i] - want[i]) / (1 + fabs(want[i]));
        if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
    }
    return worst;
}

static void norm_f64(const double *in, const float *w, const float *bias, int32_t n, double eps,
                     bool layer, double *out) {
    double mean = 0, squares = 0;
    for (int32_t i = 0; i < n && layer; i++) mean += in[i] / n;
    for (int32_t i = 0; i < n; i++) squares += (in[i] - mean) * (in[i] - mean);
    for (int32_t i = 0; i < n; i++)
        out[i] =
            (in[i] - mean) / sqrt(squares / n + eps) * (double)w[i] + (bias ? (double)bias[i] : 0);
}

/* Which form: layer (with or without bias), into a sum, with another norm of that. */
typedef struct form {
    bool layer, bias, add, then;
} form;

static void check_norm(int32_t width, int32_t n_rows, form f) {
    const int64_t n = (int64_t)width * n_rows;
    float *in = numbers(1, 3, f.layer ? 5.0f : 0, n), *sum = numbers(2, 2, 0, n);
    float *w = numbers(3, 1, 1, width), *bias = numbers(4, 1, 0, width);
    float *then_w = numbers(5, 1, 0, width), *out = numbers(6, 1, 0, n),
          *added = numbers(6, 1, 0, n);
    kern_buffer b[6] = {upload(in, n),       upload(sum, n),        upload(w, width),
                        upload(bias, width), upload(then_w, width), upload(out, n)};
    cuda_norm norm = {.in = b[0].data,
                      .w = b[2].data,
                      .bias = f.bias ? b[3].data : NULL,
                      .out = b[5].data,
                      .n_rows = n_rows,
                      .width = width,
                      .eps = 1e-2f,
                      .layer = f.layer,
                      .add = f.add ? b[1].data : NULL,
                      .then_w = f.then ? b[4].data : NULL,
                      .then_eps = 0.5f};
    CHECK(cuda_norm_rows(device, &norm) == KERN_OK, "%s", device->message);
    download(&b[5], out, n);
    download(&b[1], added, n);
    double *x = malloc(3 * sizeof *x * (size_t)width), *y = x + width, *z = y + width;
    if (!x) abort();
    double worst = 0;
    for (int32_t t = 0; t < n_rows; t++) {
        const int64_t at = (int64_t)t * width;
        for (int32_t i = 0; i < width; i++) x[i] = (double)in[at + i];
        norm_f64(x, w, f.bias ? bias : NULL, width, (double)norm.eps, f.layer, y);
        for (int32_t i = 0; i < width && f.add; i++) y[i] += (double)sum[at + i];
        if (f.then) norm_f64(y, then_w, NULL, width, (double)norm.then_eps, false, z);
        worst = fmax(worst, worst_of((f.add ? added : out) + at, y, width));
        if (f.then) worst = fmax(worst, worst_of(out + at, z, width));
    }
    CHECK(worst < 2e-6, "norm of %d rows of %d, form %d%d%d%d: off by %g", n_rows, width, f.layer,
          f.bias, f.add, f.then, worst);
    /* in place, the last row by itself: the same bits */
    if (!f.add) {
        norm.in = norm.out = (float *)b[0].data + n - width;
        norm.n_rows = 1;
        CHECK(cuda_norm_rows(device, &norm) == KERN_OK, "%s", device->message);
        download(&b[0], in, n);
        CHECK(memcmp(in + n - width, out + n - width, sizeof *in * (size_t)width) == 0,
              "norm of %d rows of %d: the last one alone differs", n_rows, width);
    }
    for (int i = 0; i < 6; i++) release(&b[i]);
    free(in), free(sum), free(w), free(bias), free(then_w), free(out), free(added), free(x);
}

static double act_f64(plan_kind kind, double x, double y) {
    const double gelu = 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    switch (kind) {
    case PLAN_ADD: return x + y;
    case PLAN_SILU_MUL: return x / (1 + exp(-x)) * y;
    case PLAN_GELU_MUL: return gelu * y;
    default: return gelu;
    }
}

static void check_each(plan_kind kind, int64_t n) {
    float *x = numbers(1, 12, 0, n), *y = numbers(2, 3, 0, n), *out = numbers(3, 1, 0, n);
    double *want = malloc(sizeof *want * (size_t)n);
    if (!want) abort();
    if (n > 2) x[2] = -200, x[1] = 200; /* far out: 0 and x */
    for (int64_t i = 0; i < n; i++) want[i] = act_f64(kind, (double)x[i], (double)y[i]);
    kern_buffer b[3] = {upload(x, n), upload(y, n), upload(out, n)};
    const float *second = kind == PLAN_GELU ? NULL : b[1].data;
    const int code = kind == PLAN_ADD ? cuda_add_rows(device, b[0].data, b[1].data, n)
                                      : cuda_act_mul(device, kind, b[0].data, second, b[2].data, n);
    CHECK(code == KERN_OK, "%s", device->message);
    download(&b[kind == PLAN_ADD ? 0 : 2], out, n);
    const double worst = worst_of(out, want, n);
    CHECK(worst < 1e-6, "operation %d on %lld numbers: off by %g", kind, (long long)n, worst);
    for (int i = 0; i < 3; i++) release(&b[i]);
    free(x), free(y), free(out), free(want);
}

/* A row that is not finite spoils itself alone; zeros stay zeros. */
static void check_special(void) {
    enum { WIDTH = 70 };
    float *in = numbers(1, 1, 0, 3 * WIDTH), w[WIDTH], out[3 * WIDTH];
    for (int i = 0; i < WIDTH; i++) w[i] = 1, in[2 * WIDTH + i] = 0;
    in[5] = NAN;
    kern_buffer b[2] = {upload(in, 3 * WIDTH), upload(w, WIDTH)};
    const cuda_norm norm = {.in = b[0].data,
                            .w = b[1].data,
                            .out = b[0].data,
                            .n_rows = 3,
                            .width = WIDTH,
                            .eps = 1e-6f};
    CHECK(cuda_norm_rows(device, &norm) == KERN_OK, "%s", device->message);
    download(&b[0], out, 3 * WIDTH);
    int n_nan = 0, n_zero = 0;
    for (int i = 0; i < 3 * WIDTH; i++) n_nan += isnan(out[i]) != 0, n_zero += out[i] == 0;
    CHECK(n_nan == WIDTH && isnan(out[0]), "%d numbers are NaN after a row with one", n_nan);
    CHECK(n_zero >= WIDTH && out[2 * WIDTH] == 0, "a row of zeros");
    release(&b[0]), release(&b[1]);
    free(in);
}

int main(void) {
    static const form forms[] = {{false, false, false, false}, {true, true, false, false},
                                 {true, false, false, false},  {false, false, true, false},
                                 {false, false, true, true},   {true, true, true, false}};
    static const int32_t widths[] = {1, 7, 32, 33, 128, 576, 1023, 4096, 8194};
    device = emulated_open(false);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (size_t j = 0; j < sizeof forms / sizeof *forms; j++)
            check_norm(widths[i], 1 + (int32_t)i % 3 * 2, forms[j]);
    for (int64_t n = 1; n < MOST; n = n * 3 + 1) {
        check_each(PLAN_ADD, n);
        check_each(PLAN_SILU_MUL, n);
        check_each(PLAN_GELU_MUL, n);
        check_each(PLAN_GELU, n);
    }
    check_special();
    emulated_close(device);
    return check_end();
}
