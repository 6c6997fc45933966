/* test_product.c: matrix products of the cpu backend, every tier that the machine has and every
 * format, against sums in f64; a row's bits do not depend on the rows beside it. */
#include "random_weights.h"

/* max|x| of block b, 0 if nothing of it is left. */
static float block_most(const float *x, int64_t b) {
    float largest = 0;
    for (int64_t j = 32 * b; j < 32 * b + 32; j++)
        largest = fabsf(x[j]) > largest ? fabsf(x[j]) : largest;
    return largest < 1e-35f ? 0 : largest;
}

/* The value that a block format sees of x[i], `mean` being that of the blocks' d: where d is more
 * than twice the mean what rounding left is rounded again, 256 times as fine. */
static double rounded(const float *x, int64_t i, float mean) {
    const float most = block_most(x, i / 32), d = most / 127.0f, scale = 127.0f / most;
    if (most == 0) return 0;
    double q = nearbyintf(x[i] * scale);
    if (d > mean * 2) {
        const double rest = nearbyintf((float)((double)x[i] * (double)scale - q) * 256.0f);
        q += (rest > 127 ? 127 : rest < -127 ? -127 : rest) / 256;
    }
    return (double)d * q;
}

static void round_bf16(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = kern_bf16_to_f32(kern_f32_to_bf16(x[i]));
}

/* y[k] = what a weight of this format sees of x[k] */
static void see(const kern_format *f, const float *x, int64_t k, double *y) {
    float sum = 0;
    for (int64_t b = 0; b < k / 32; b++) sum += block_most(x, b) / 127.0f;
    for (int64_t i = 0; i < k; i++)
        y[i] = f->block_size > 1 ? rounded(x, i, sum / (float)(k / 32)) : (double)x[i];
    if (!rounds_bf16 || (f->id != KERN_BF16 && !(f->id == KERN_F16 && f16_as_bf16))) return;
    for (int64_t i = 0; i < k; i++) y[i] = (double)kern_bf16_to_f32(kern_f32_to_bf16(x[i]));
}

/* out[T,N] of one product op by a device */
static void product_run(kern_device *d, kern_weight *w, kern_weight *bias, const float *x,
                        int32_t n_rows, float *out) {
    const kern_backend *b = d->backend;
    plan_buffer buffers[2] = {{"x", (int32_t)w->n_columns}, {"y", (int32_t)w->n_rows}};
    plan_op op = {.kind = PLAN_MATMUL, .in = 0, .in2 = -1, .out = 1, .w = w, .bias = bias};
    plan p = {
        .ops = &op, .n_ops = 1, .buffers = buffers, .n_buffers = 2, .residual = 0, .logits = 1};
    kern_work *work;
    kern_buffer logits;
    kern_store *bound = bind(d, w, true), *bound_bias = bind(d, bias, false);
    if (b->work_open(d, &p, NULL, n_rows, &work) != KERN_OK) exit(1);
    size_t bytes = (size_t)n_rows * (size_t)w->n_rows * sizeof(float);
    b->alloc(d, bytes, &logits);
    b->write(d, b->work_buffer(work, 0), 0, x,
             (size_t)n_rows * (size_t)w->n_columns * sizeof(float));
    kern_batch batch = {.n_rows = n_rows, .logits = {&logits, 0, n_rows, w->n_rows}};
    int code = b->run(d, work, &p, 0, 1, &batch);
    CHECK(code == KERN_OK, "%s", b->last_error(d));
    b->read(d, &logits, 0, out, bytes);
    b->free(d, &logits);
    b->work_close(d, work);
    b->unbind(d, bound);
    b->unbind(d, bound_bias);
}

static void test_product(kern_device *d, int32_t format, int64_t n, int64_t k, int32_t max_rows) {
    kern_weight *w = weight_new(format, n, k), *bias = weight_new(KERN_F32, 1, n);
    float *x = kern_alloc_array((size_t)(max_rows * k), sizeof *x),
          *dense = kern_alloc_array((size_t)(n * k), sizeof *x);
    float *out = kern_alloc_array((size_t)(max_rows * n), sizeof *x),
          *solo = kern_alloc_array((size_t)n, sizeof *x);
    float *bias_f32 = kern_alloc_array((size_t)n, sizeof *x);
    double *seen = kern_alloc_array((size_t)k, sizeof *seen), worst = 0;
    for (int64_t i = 0; i < max_rows * k; i++)
        x[i] = random_float() * (i / 32 % 5 == 0 ? 30.0f : 1.0f);
    for (int64_t i = 0; i < 32 && i < k; i++) x[i] = i % 2 ? 1e-40f : 0.0f; /* denormal */
    for (int64_t i = 0; i < n; i++)
        w->format->dequantise((const char *)w->data + (size_t)i * kern_format_bytes(w->format, k),
                              dense + i * k, k);
    if (format == KERN_F16 && f16_as_bf16) round_bf16(dense, n * k);
    memcpy(bias_f32, bias->data, (size_t)n * sizeof(float));
    for (int32_t n_rows = max_rows; n_rows >= 1; n_rows--) {
        product_run(d, w, bias, x, n_rows, out);
        for (int32_t t = 0; t < n_rows && n_rows == max_rows; t++) {
            see(w->format, x + t * k, k, seen);
            for (int64_t i = 0; i < n; i++) {
                double sum = bias_f32[i], size = fabs(sum) + 1e-3;
                for (int64_t j = 0; j < k; j++) {
                    sum += seen[j] * (double)dense[i * k + j];
                    size += fabs(seen[j] * (double)dense[i * k + j]);
                }
                worst = fmax(worst, fabs(sum - (double)out[t * n + i]) / size);
            }
        }
        product_run(d, w, bias, x + (n_rows - 1) * k, 1, solo);
        CHECK(same_bits(solo, out + (n_rows - 1) * n, n),
              "%s %s: row %d of %d differs from itself alone, K %lld", kern_tier_name(d->tier),
              w->format->name, n_rows, n_rows, (long long)k);
    }
    CHECK(worst < 2e-6, "%s %s [%lld,%lld]: %g", kern_tier_name(d->tier), w->format->name,
          (long long)n, (long long)k, worst);
    /* not finite: that row and no other */
    for (int c = 0; c < 3; c++) {
        float bad[3] = {NAN, INFINITY, 3e38f}, kept = x[k];
        product_run(d, w, bias, x, max_rows, out);
        float *before = kern_alloc_array((size_t)(max_rows * n), sizeof *x);
        memcpy(before, out, (size_t)(max_rows * n) * sizeof *x);
        x[k] = bad[c];
        product_run(d, w, bias, x, max_rows, out);
        x[k] = kept;
        CHECK(same_bits(out, before, n) &&
                  same_bits(out + 2 * n, before + 2 * n, (max_rows - 2) * n),
              "%s: neighbours", w->format->name);
        int finite = 0;
        for (int64_t i = 0; i < n; i++) finite += isfinite(out[n + i]) != 0;
        CHECK(c == 2 || finite == 0, "%s %s: %d of %lld results are finite",
              kern_tier_name(d->tier), w->format->name, finite, (long long)n);
        kern_free(before);
    }
    weight_free(w);
    weight_free(bias);
    kern_free(x);
    kern_free(dense);
    kern_free(out);
    kern_free(solo);
    kern_free(bias_f32);
    kern_free(seen);
}

static void test_format(kern_device *d, const kern_format *f, int32_t n_rows) {
    const int64_t columns[] = {1, 7, 33, 32, 64, 288, 576, 1056, 256, 512, 2304};
    for (size_t j = 0; j < sizeof columns / sizeof *columns; j++)
        if (columns[j] % f->block_size == 0)
            test_product(d, f->id, j % 2 ? 13 : 27, columns[j], n_rows);
    test_product(d, f->id, 1, 512, 9);
    test_product(d, f->id, 7, 512, 41);
}

/* BF16 weights, and F16 rounded to them, where activations are rounded too and where not. */
static void test_bf16(kern_device *d) {
    const int was = d->rounds_bf16;
    f16_as_bf16 = true;
    test_format(d, kern_format_find(KERN_F16), 17);
    d->rounds_bf16 = rounds_bf16 = true;
    test_format(d, kern_format_find(KERN_F16), 17);
    f16_as_bf16 = false;
    test_format(d, kern_format_find(KERN_BF16), 17);
    test_product(d, KERN_BF16, 100, 513, 17);
    rounds_bf16 = false;
    d->rounds_bf16 = was;
}

int main(void) {
    static const char *const tiers[] = {"plain", "neon", "avx2", "avxvnni", "avx512"};
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++) {
        kern_device *d = device_new(&kern_cpu, tiers[i], 2);
        if (strcmp(kern_tier_name(d->tier), tiers[i]) == 0) { /* else the machine lacks it */
            for (const kern_format *f = kern_formats; f->name != NULL; f++) test_format(d, f, 9);
            test_bf16(d);
        }
        kern_cpu.close(d);
    }
    return check_end();
}
