/* test_cuda_blas.c: products of many rows by cuBLASLt against sums in f64 of the same rounded
 * numbers, for all that becomes of a product; large entries, and what the library is not asked. */
#include "cuda_device.h"
#include "formats.h"

#include <math.h>

typedef struct operand {
    unsigned char *file; /* as in the file */
    float *values;
    kern_buffer gpu;
    cuda_matrix matrix;
} operand;

static float random_float(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 8388608.0f - 1;
}

/* A matrix of that format; F32 rows are what others are made of by their own blocks of bytes. */
static operand operand_make(kern_device *d, int32_t format, int64_t n, int64_t k, bool tiled) {
    const kern_format *f = kern_format_find(format);
    const size_t bytes = kern_format_bytes(f, n * k);
    operand o = {.file = emulated_bytes(bytes, (unsigned)(n + k)),
                 .values = malloc((size_t)(n * k) * sizeof(float))};
    uint32_t state = (uint32_t)(n * 31 + k);
    if (!o.values) abort();
    if (format == KERN_F16 || format == KERN_BF16)
        for (int64_t i = 0; i < n * k; i++) {
            const float x = random_float(&state);
            const uint16_t h = format == KERN_F16 ? kern_f32_to_f16(x) : kern_f32_to_bf16(x);
            memcpy(o.file + 2 * i, &h, 2);
        }
    else /* Q8_0: the scales */
        for (int64_t i = 0; i < n * k / 32; i++)
            memcpy(o.file + 34 * i, &(uint16_t){kern_f32_to_f16(random_float(&state) / 100)}, 2);
    f->dequantise(o.file, o.values, n * k);
    kern_buffer plain;
    o.matrix = (cuda_matrix){.format = f, .n_rows = n, .n_columns = k, .bytes = bytes};
    if (cuda_alloc(d, bytes, &plain) || cuda_write(d, &plain, 0, o.file, bytes)) abort();
    o.gpu = plain;
    if (tiled) {
        const size_t tiles = cuda_tiled_bytes(f, n, k);
        if (cuda_alloc(d, tiles, &o.gpu) || cuda_tile(d, f, n, k, plain.data, o.gpu.data)) abort();
        cuda_free(d, &plain);
        o.matrix.layout = CUDA_TILED;
        o.matrix.bytes = tiles;
    }
    o.matrix.gpu = o.gpu.data;
    return o;
}

static void operand_free(kern_device *d, operand *o) {
    cuda_free(d, &o->gpu);
    free(o->file);
    free(o->values);
}

static double act(cuda_epilogue e, double x) {
    if (e == CUDA_SILU_MUL) return x / (1 + exp(-x));
    return 0.5 * x * (1 + tanh(0.797884560802865 * (x + 0.044715 * x * x * x)));
}

typedef struct trial {
    int32_t format, n_rows;
    int64_t n, k;
    bool tiled, has_bias;
    cuda_epilogue epilogue;
    float size; /* of the inputs of row 1 */
} trial;

static float *floats(int64_t n, uint32_t seed, float size) {
    float *x = malloc((size_t)n * sizeof *x);
    if (!x) abort();
    for (int64_t i = 0; i < n; i++) x[i] = random_float(&seed) * size;
    return x;
}

static kern_buffer sent(kern_device *d, const float *x, int64_t n) {
    kern_buffer b;
    if (cuda_alloc(d, (size_t)n * 4, &b) || cuda_write(d, &b, 0, x, (size_t)n * 4)) abort();
    return b;
}

/* x · w + bias of a row and column i, with both rounded as the product rounds them */
static double wanted(const operand *w, const float *x, const float *bias, int64_t i, bool bf16,
                     double *size) {
    const int64_t k = w->matrix.n_columns;
    double sum = bias ? bias[i] : 0;
    float most = 0;
    for (int64_t j = 0; j < k; j++) most = fmaxf(most, fabsf(x[j]));
    const float scale = most >= 32768 ? exp2f(floorf(log2f(most)) - 14) : 1;
    *size = fabs(sum);
    for (int64_t j = 0; j < k; j++) {
        const double a =
            bf16 ? (double)kern_bf16_to_f32(kern_f32_to_bf16(x[j]))
                 : (double)kern_f16_to_f32(kern_f32_to_f16(x[j] / scale)) * (double)scale;
        const float v = w->values[i * k + j];
        const double b = bf16 ? (double)v : (double)kern_f16_to_f32(kern_f32_to_f16(v));
        sum += a * b;
        *size += fabs(a * b);
    }
    return sum;
}

static void run(kern_device *d, const trial *t) {
    const bool pair = t->epilogue == CUDA_SILU_MUL || t->epilogue == CUDA_GELU_MUL;
    const bool bf16 = t->format == KERN_BF16;
    const int64_t n_out = t->n_rows * t->n;
    operand w[2] = {operand_make(d, t->format, t->n, t->k, t->tiled),
                    operand_make(d, t->format, t->n, t->k, t->tiled)};
    float *x = floats(t->n_rows * t->k, 3, 1), *bias = floats(t->n, 4, 1);
    float *before = floats(n_out, 5, 1), *got = floats(n_out, 6, 1);
    for (int64_t i = 0; i < t->k; i++) x[t->k + i] *= t->size;
    kern_buffer in = sent(d, x, t->n_rows * t->k), out = sent(d, before, n_out),
                up = sent(d, before, n_out), b = sent(d, bias, t->n);
    const cuda_product list[2] = {{&w[0].matrix, t->has_bias ? b.data : NULL, out.data},
                                  {&w[1].matrix, NULL, up.data}};
    CHECK(!cuda_blas_products(d, list, 1 + pair, in.data, t->n_rows, t->epilogue), "%s",
          d->message);
    CHECK(!cuda_read(d, &out, 0, got, (size_t)n_out * 4), "%s", d->message);
    double worst = 0;
    for (int64_t i = 0; i < n_out; i++) {
        double size, size_up = 0;
        const float *row = x + i / t->n * t->k;
        double y = wanted(&w[0], row, t->has_bias ? bias : NULL, i % t->n, bf16, &size);
        if (t->epilogue == CUDA_ADD) y += before[i], size += fabs((double)before[i]);
        if (t->epilogue == CUDA_GELU) y = act(t->epilogue, y);
        if (pair) {
            const double z = wanted(&w[1], row, NULL, i % t->n, bf16, &size_up);
            y = act(t->epilogue, y) * z;
            size = size * size_up + size + size_up;
        }
        const double off = fabs(got[i] - y) / (size + 1e-6);
        if (!(off <= worst)) worst = off;
    }
    CHECK(worst < 1e-6, "%s %d × %lld × %lld, epilogue %d: off by %g",
          kern_format_find(t->format)->name, t->n_rows, (long long)t->n, (long long)t->k,
          t->epilogue, worst);
    kern_buffer *all[] = {&in, &out, &up, &b};
    for (int i = 0; i < 4; i++) cuda_free(d, all[i]);
    for (int i = 0; i < 2; i++) operand_free(d, &w[i]);
    free(x), free(bias), free(before), free(got);
}

static void test_products(void) {
    kern_device *d = emulated_open(false);
    static const int32_t formats[] = {KERN_F16, KERN_BF16, KERN_Q8_0};
    for (int f = 0; f < 3; f++)
        for (int e = CUDA_STORE; e <= CUDA_GELU_MUL; e++)
            run(d, &(trial){formats[f], 17 + f, 33, 64, formats[f] == KERN_Q8_0, e != CUDA_SILU_MUL,
                            (cuda_epilogue)e, 1});
    run(d, &(trial){KERN_F16, 40, 48, 96, true, false, CUDA_STORE, 1});
    run(d, &(trial){KERN_BF16, 18, 16, 32, true, true, CUDA_ADD, 1});
    for (int e = CUDA_STORE; e <= CUDA_ADD; e++) { /* beyond f16's 65504 */
        run(d, &(trial){KERN_F16, 18, 32, 64, false, true, (cuda_epilogue)e, 1e6f});
        run(d, &(trial){KERN_BF16, 18, 32, 64, false, true, (cuda_epilogue)e, 1e6f});
    }
    emulated_close(d);
}

static void test_serves(void) {
    kern_device *d = emulated_open(false), *invariant = emulated_open(true);
    const cuda_matrix f16 = {.format = kern_format_find(KERN_F16), .n_rows = 64, .n_columns = 64};
    cuda_matrix q4 = f16, f32 = f16, odd = f16;
    q4.format = kern_format_find(KERN_Q4_0);
    q4.layout = CUDA_TILED;
    f32.format = kern_format_find(KERN_F32);
    odd.n_columns = 33;
    CHECK(!cuda_blas_serves(d, &f16, 16) && cuda_blas_serves(d, &f16, 17), "rows as they lie");
    CHECK(!cuda_blas_serves(d, &q4, 64) && cuda_blas_serves(d, &q4, 256),
          "quantised weights only where many rows are worth making them 16 bits");
    CHECK(!cuda_blas_serves(d, &f32, 512), "F32 weights keep their bits");
    CHECK(!cuda_blas_serves(d, &odd, 512), "rows that are not aligned");
    CHECK(!cuda_blas_serves(invariant, &f16, 512) && !invariant->blas, "never where invariant");
    CHECK(strstr(invariant->description, ", invariant") && strstr(d->description, "cuBLASLt"), "%s",
          d->description);
    emulated_close(invariant);
    emulated_close(d);
}

static bool has_library(void) {
    kern_device *d = emulated_open(false);
    const bool has = d->blas;
    if (!has) printf("%s\n", d->backend->last_error(d));
    emulated_close(d);
    CHECK(has || !EMULATED, "the emulation has the library");
    return has;
}

static void test_missing(void) {
    emulated_set("LLMLUA_EMULATION_BLAS", "off");
    const cuda_matrix f16 = {.format = kern_format_find(KERN_F16), .n_rows = 64, .n_columns = 64};
    kern_device *d = emulated_open(false);
    CHECK(!d->blas && !cuda_blas_serves(d, &f16, 512) &&
              strstr(d->backend->last_error(d), "cuBLASLt was not found"),
          "%s", d->backend->last_error(d));
    emulated_close(d);
    emulated_set("LLMLUA_EMULATION_BLAS", NULL);
}

int main(void) {
    if (has_library()) {
        test_products();
        test_serves();
    }
    if (EMULATED) test_missing();
    return check_end();
}
