/* test_cuda_product.c: products by weights on the CUDA backend, in tiles and plain, of all formats:
 * against sums in f64 of the same weights, and that a row's bits depend neither on what else is in
 * the batch nor on the kernel. Weights in tiles and embeddings give their numbers back exactly. */
#include "cuda_device.h"
#include "memory.h"
#include "tiny_blocks.h"

#include <math.h>

enum { MOST_ROWS = 64 };
static int32_t most_rows; /* that are tested */

static kern_device *device;
static uint64_t state = 1;

/* ---- device memory ---- */

static kern_buffer buffers[1 << 14];
static int n_buffers;

/* Of n bytes, `from` copied there unless NULL; lives until gpu_free_all. */
static void *gpu_new(const void *from, size_t n) {
    kern_buffer *b = &buffers[n_buffers++];
    if (device->backend->alloc(device, n ? n : 1, b)) abort();
    if (from && device->backend->write(device, b, 0, from, n)) abort();
    return b->data;
}
static void gpu_free_all(void) {
    while (n_buffers) device->backend->free(device, &buffers[--n_buffers]);
}
static void gpu_read(const void *gpu, void *to, size_t n) {
    const kern_buffer b = {(void *)(uintptr_t)gpu, n};
    if (device->backend->read(device, &b, 0, to, n)) {
        printf("%s\n", device->backend->last_error(device));
        abort();
    }
}

static void *host_new(size_t n) {
    void *p = kern_alloc(n ? n : 1);
    if (!p) abort();
    return p;
}

/* ---- weights ---- */

typedef struct weight {
    cuda_matrix matrix; /* as it lies for products */
    unsigned char *data;
    float *numbers; /* [n_rows, n_columns] */
    size_t bytes;
} weight;

static weight weight_new(const kern_format *f, int64_t n_rows, int64_t n_columns, bool tiled) {
    weight w = {.matrix = {f, n_rows, n_columns, CUDA_PLAIN, NULL, 0, NULL}};
    const size_t n = (size_t)(n_rows * n_columns);
    w.bytes = kern_format_bytes(f, (int64_t)n);
    w.data = host_new(w.bytes);
    w.numbers = host_new(n * sizeof *w.numbers);
    tiny_blocks(&state, f, w.data, (int64_t)n, 1);
    f->dequantise(w.data, w.numbers, (int64_t)n);
    void *plain = gpu_new(w.data, w.bytes);
    w.matrix.gpu = plain;
    w.matrix.bytes = w.bytes;
    if (tiled) {
        w.matrix.layout = CUDA_TILED;
        w.matrix.bytes = cuda_tiled_bytes(f, n_rows, n_columns);
        void *tiles = gpu_new(NULL, w.matrix.bytes);
        CHECK(cuda_tile(device, f, n_rows, n_columns, plain, tiles) == KERN_OK, "%s: %s", f->name,
              device->backend->last_error(device));
        w.matrix.gpu = tiles;
    }
    return w;
}
static void weight_free(weight *w) {
    kern_free(w->data);
    kern_free(w->numbers);
}

/* ---- what is expected ---- */

/* How far a product may be from the exact one, in units of the sum of its terms' sizes: what an
 * input loses (2^-15 as two bf16, 2^-22 as two f16), and f32 sums: those of integers are of numbers
 * up to 128 / 4 times larger, the mean size of a 4-bit number. */
static double tolerance(const kern_format *f) {
    if (f->id == KERN_F16) return 0x1p-20;
    if (f->id == KERN_BF16) return 0x1p-15 + 0x1p-21;
    return cuda_tiled_bytes(f, 1, f->block_size) ? 0x1p-15 + 0x1p-22 * 32 : 0x1p-21;
}

/* The product of input row t and weight row n, and how far from it a result may be. With F16
 * weights inputs below 2^-10 are kept to 2^-32, whatever their size. */
static double product(const weight *w, const float *x, int64_t t, int64_t n, double *bound) {
    const int64_t k = w->matrix.n_columns;
    const double lost = w->matrix.format->id == KERN_F16 ? 0x1p-32 : 0;
    double sum = 0;
    *bound = 1e-30;
    for (int64_t i = 0; i < k; i++) {
        const double number = (double)w->numbers[n * k + i], term = number * (double)x[t * k + i];
        sum += term;
        *bound += fabs(term) * tolerance(w->matrix.format) + fabs(number) * lost;
    }
    return sum;
}

static double gelu(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}
static double silu(double x) { return x / (1 + exp(-x)); }

static bool same_bits(const float *a, const float *b, int64_t n) {
    return memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

/* ---- cases ---- */

typedef struct result {
    float *x[CUDA_MOST_PRODUCTS];
} result;

/* The products of the first n_rows rows; out before: 0.5. `busy`: as on a device so small that
 * several groups of strips share a block. */
static result run(const weight *w, int n, const float *const *bias, const float *in, int32_t n_rows,
                  cuda_epilogue finish, bool busy) {
    const size_t in_bytes = (size_t)(n_rows * w->matrix.n_columns) * sizeof(float);
    cuda_product list[CUDA_MOST_PRODUCTS];
    result r;
    for (int i = 0; i < n; i++) {
        const size_t bytes = (size_t)(n_rows * w[i].matrix.n_rows) * sizeof(float);
        r.x[i] = host_new(bytes);
        for (size_t j = 0; j < bytes / sizeof(float); j++) r.x[i][j] = 0.5f;
        list[i] = (cuda_product){&w[i].matrix,
                                 bias ? gpu_new(bias[i], (size_t)w[i].matrix.n_rows * sizeof(float))
                                      : NULL,
                                 gpu_new(r.x[i], bytes)};
    }
    device->n_multiprocessors = busy ? 1 : 100000;
    const int code = cuda_products(device, list, n, gpu_new(in, in_bytes), n_rows, finish);
    CHECK(code == KERN_OK, "%s", device->backend->last_error(device));
    for (int i = 0; i < n; i++)
        gpu_read(list[i].out, r.x[i], (size_t)(n_rows * w[i].matrix.n_rows) * sizeof(float));
    return r;
}
static void result_free(result *r, int n) {
    for (int i = 0; i < n; i++) kern_free(r->x[i]);
}

static float *inputs_new(int64_t k, float size) {
    float *x = host_new((size_t)(MOST_ROWS * k) * sizeof *x);
    for (int64_t i = 0; i < MOST_ROWS * k; i++) {
        x[i] = tiny_uniform(&state) * size;
        if (i % 7 == 0) x[i] *= 0.01f;
    }
    return x;
}

static void check_numbers(const weight *w, const float *x, const float *out, int32_t n_rows,
                          const char *what) {
    const int64_t n = w->matrix.n_rows;
    double worst = 0; /* in units of the bound */
    for (int64_t t = 0; t < n_rows; t++) {
        for (int64_t i = 0; i < n; i++) {
            double bound;
            const double exact = product(w, x, t, i, &bound);
            worst = fmax(worst, fabs((double)out[t * n + i] - exact) / bound);
            if (isnan(out[t * n + i])) worst = INFINITY;
        }
    }
    CHECK(worst <= 1, "%s [%lld,%lld] %s: %g times what they may be off", w->matrix.format->name,
          (long long)n, (long long)w->matrix.n_columns, what, worst);
}

/* Every number of rows: near the exact product, and each row's bits as alone. */
static void test_rows(const weight *w) {
    const int64_t n = w->matrix.n_rows, k = w->matrix.n_columns;
    float *x = inputs_new(k, 1);
    float *alone = host_new((size_t)(MOST_ROWS * n) * sizeof *alone);
    for (int t = 0; t < most_rows; t++) {
        result r = run(w, 1, NULL, x + t * k, 1, CUDA_STORE, false);
        memcpy(alone + t * n, r.x[0], (size_t)n * sizeof *alone);
        result_free(&r, 1);
    }
    check_numbers(w, x, alone, most_rows, "rows alone");
    static const int32_t counts[] = {2, 3,  8,  9,  16, 17, 4,  5,  6,
                                     7, 10, 11, 12, 13, 14, 15, 40, 64};
    for (int i = 0; i < (is_brief() ? 6 : 18); i++) {
        const int32_t n_rows = counts[i];
        for (int busy = 0; busy < 2; busy++) {
            result r = run(w, 1, NULL, x, n_rows, CUDA_STORE, busy);
            CHECK(same_bits(r.x[0], alone, n_rows * n),
                  "%s [%lld,%lld]: %d rows%s differ from themselves alone", w->matrix.format->name,
                  (long long)n, (long long)k, n_rows, busy ? " on a busy device" : "");
            result_free(&r, 1);
        }
    }
    kern_free(x);
    kern_free(alone);
}

/* Large and tiny inputs, and a NaN in one row. */
static void test_ranges(const weight *w) {
    const int64_t n = w->matrix.n_rows, k = w->matrix.n_columns;
    const int32_t n_rows = 20;
    for (int large = 0; large < 2; large++) {
        float *x = inputs_new(k, large ? 1e5f : 1e-6f);
        for (int busy = 0; busy < 2; busy++) {
            result r = run(w, 1, NULL, x, n_rows, CUDA_STORE, busy);
            check_numbers(w, x, r.x[0], n_rows, large ? "large inputs" : "tiny inputs");
            result_free(&r, 1);
        }
        kern_free(x);
    }
    float *x = inputs_new(k, 1);
    result clean = run(w, 1, NULL, x, n_rows, CUDA_STORE, false);
    x[3 * k + k / 2] = NAN;
    for (int busy = 0; busy < 2; busy++) {
        result r = run(w, 1, NULL, x, n_rows, CUDA_STORE, busy);
        int n_nan = 0;
        for (int64_t i = 0; i < n; i++) n_nan += isnan(r.x[0][3 * n + i]) != 0;
        CHECK(n_nan == n, "%s: %d of %lld results of a NaN are NaN", w->matrix.format->name, n_nan,
              (long long)n);
        CHECK(same_bits(r.x[0], clean.x[0], 3 * n) &&
                  same_bits(r.x[0] + 4 * n, clean.x[0] + 4 * n, (n_rows - 4) * n),
              "%s: a NaN changes other rows", w->matrix.format->name);
        result_free(&r, 1);
    }
    result_free(&clean, 1);
    kern_free(x);
}

/* What the epilogue should have made of exact products; *bound: how far off it may be. */
static double finished(cuda_epilogue finish, double x, double x_bound, double up, double up_bound,
                       double *bound) {
    double y = x;
    *bound = x_bound;
    switch (finish) {
    case CUDA_ADD: y = 0.5 + x; break;
    case CUDA_GELU:
        y = gelu(x);
        *bound = 1.2 * x_bound; /* its steepest slope is 1.13 */
        break;
    case CUDA_SILU_MUL:
    case CUDA_GELU_MUL: {
        const double act = finish == CUDA_SILU_MUL ? silu(x) : gelu(x);
        y = act * up;
        *bound = 1.2 * x_bound * (fabs(up) + up_bound) + fabs(act) * up_bound;
        break;
    }
    default: break;
    }
    *bound += 4e-7 * (fabs(y) + 0.5); /* f32 itself */
    return y;
}

static void check_finished(const weight *w, const float *const *bias, const float *x,
                           const float *out, int32_t n_rows, cuda_epilogue finish, bool pair,
                           const char *what) {
    const int64_t n = w->matrix.n_rows;
    int n_wrong = 0;
    for (int64_t t = 0; t < n_rows; t++) {
        for (int64_t i = 0; i < n; i++) {
            double x_bound, up_bound = 0, up = 0, bound;
            const double sum = product(w, x, t, i, &x_bound) + (bias ? (double)bias[0][i] : 0);
            if (pair) up = product(w + 1, x, t, i, &up_bound) + (bias ? (double)bias[1][i] : 0);
            const double y = finished(finish, sum, x_bound + 1e-7 * fabs(sum), up,
                                      up_bound + 1e-7 * fabs(up), &bound);
            n_wrong += !(fabs((double)out[t * n + i] - y) <= bound);
        }
    }
    CHECK(n_wrong == 0, "%s, epilogue %d, %s: %d of %lld wrong", w->matrix.format->name,
          (int)finish, what, n_wrong, (long long)(n_rows * n));
}

/* Several weights of one input in one launch, with every epilogue and with biases. */
static void test_lists(const kern_format *f, bool tiled) {
    const int64_t k = f->block_size == 1 ? 100 : 3 * f->block_size;
    const int64_t rows[] = {37, 5, 16};
    const int32_t n_rows[] = {3, 13, 40};
    weight list[3];
    float *bias[3], *x = inputs_new(k, 1);
    for (int i = 0; i < 3; i++) {
        list[i] = weight_new(f, rows[i], k, tiled);
        bias[i] = host_new((size_t)rows[i] * sizeof(float));
        for (int64_t j = 0; j < rows[i]; j++) bias[i][j] = tiny_uniform(&state);
    }
    const float *const biases[] = {bias[0], bias[1], bias[2]};
    for (int i = 0; i < 3; i++) {
        for (int finish = CUDA_STORE; finish <= CUDA_GELU; finish++) {
            const uint64_t launches = device->stats.launches;
            result r = run(list, 3, biases, x, n_rows[i], (cuda_epilogue)finish, i == 2);
            CHECK(device->stats.launches == launches + 1, "%s: three products are %d launches",
                  f->name, (int)(device->stats.launches - launches));
            for (int j = 0; j < 3; j++)
                check_finished(&list[j], biases + j, x, r.x[j], n_rows[i], (cuda_epilogue)finish,
                               false, "three");
            result_free(&r, 3);
        }
    }
    weight pair[2] = {weight_new(f, 37, k, tiled), weight_new(f, 37, k, tiled)};
    const float *const pair_biases[] = {bias[0], bias[0]};
    for (int i = 0; i < 3; i++) {
        for (int finish = CUDA_SILU_MUL; finish <= CUDA_GELU_MUL; finish++) {
            const float *const *b = i % 2 ? pair_biases : NULL;
            const uint64_t launches = device->stats.launches;
            result r = run(pair, 2, b, x, n_rows[i], (cuda_epilogue)finish, i == 2);
            CHECK(device->stats.launches == launches + 1, "%s: a pair is %d launches", f->name,
                  (int)(device->stats.launches - launches));
            check_finished(pair, b, x, r.x[0], n_rows[i], (cuda_epilogue)finish, true, "pair");
            result_free(&r, 2);
        }
    }
    for (int i = 0; i < 3; i++) weight_free(&list[i]), kern_free(bias[i]);
    for (int i = 0; i < 2; i++) weight_free(&pair[i]);
    kern_free(x);
}

/* Three weights of one input that lie differently: one launch up to 32 rows, and each as alone. */
static void check_mixed(const weight *w, const float *x, int32_t n_rows, bool busy) {
    const uint64_t launches = device->stats.launches;
    result r = run(w, 3, NULL, x, n_rows, CUDA_STORE, busy);
    const int n = (int)(device->stats.launches - launches);
    CHECK(n == 1 || (n == 3 && n_rows > 32), "%d rows of three formats: %d launches", n_rows, n);
    for (int i = 0; i < 3; i++) {
        result alone = run(w + i, 1, NULL, x, n_rows, CUDA_STORE, busy);
        CHECK(same_bits(r.x[i], alone.x[0], n_rows * w[i].matrix.n_rows),
              "%d rows of %s as number %d of a list: others than alone", n_rows,
              w[i].matrix.format->name, i + 1);
        result_free(&alone, 1);
    }
    result_free(&r, 3);
}

/* Gate and up that lie differently, with biases or without. */
static void check_mixed_pair(const weight *w, const float *x, int32_t n_rows) {
    float *bias = host_new((size_t)w->matrix.n_rows * sizeof *bias);
    for (int64_t i = 0; i < w->matrix.n_rows; i++) bias[i] = tiny_uniform(&state);
    const float *const biases[] = {bias, bias};
    for (int i = 0; i < 2; i++) {
        const cuda_epilogue finish = i ? CUDA_GELU_MUL : CUDA_SILU_MUL;
        const uint64_t launches = device->stats.launches;
        result r = run(w, 2, i ? biases : NULL, x, n_rows, finish, false);
        const int n = (int)(device->stats.launches - launches);
        CHECK(n == 1 || (n == 2 && n_rows > 32), "a pair of formats: %d launches", n);
        check_finished(w, i ? biases : NULL, x, r.x[0], n_rows, finish, true, "a mixed pair");
        result_free(&r, 2);
    }
    kern_free(bias);
}

/* Every format, in tiles and plain, beside its neighbours in a list of all. */
static void test_mixed(void) {
    enum { MOST = 64 };
    static const int32_t n_rows[] = {1, 8, 13, 32, 40};
    const int64_t k = 512;
    weight all[MOST];
    int n = 0;
    for (const kern_format *f = kern_formats; f->name; f++)
        for (int tiled = 0; tiled < 2; tiled++)
            if (n < MOST && (!tiled || cuda_tiled_bytes(f, 1, f->block_size)))
                all[n++] = weight_new(f, 37, k, tiled);
    float *x = inputs_new(k, 1);
    for (int i = 0; i < n; i++) {
        const weight list[] = {all[i], all[(i + 1) % n], all[(i + 2) % n]};
        check_mixed(list, x, n_rows[i % 5], i % 2);
        check_mixed_pair(list, x, n_rows[i % 5]);
    }
    for (int i = 0; i < n; i++) weight_free(&all[i]);
    kern_free(x);
}

/* Rows out of a weight, by dequantising and by looking up. */
static void test_numbers(const weight *w) {
    const int64_t n = w->matrix.n_rows, k = w->matrix.n_columns, first = n / 3, count = n - first;
    const char *name = w->matrix.format->name;
    uint16_t *halves = host_new((size_t)(count * k) * 2);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        uint16_t *gpu = gpu_new(NULL, (size_t)(count * k) * 2);
        CHECK(cuda_dequantise(device, &w->matrix, first, count, bf16, gpu) == KERN_OK, "%s", name);
        gpu_read(gpu, halves, (size_t)(count * k) * 2);
        int n_wrong = 0;
        for (int64_t i = 0; i < count * k; i++) {
            const float x = w->numbers[first * k + i];
            n_wrong += halves[i] != (bf16 ? kern_f32_to_bf16(x) : kern_f32_to_f16(x));
        }
        CHECK(n_wrong == 0, "%s [%lld,%lld] as %s: %d numbers differ", name, (long long)n,
              (long long)k, bf16 ? "bf16" : "f16", n_wrong);
    }
    const int32_t ids[4] = {(int32_t)n - 1, 0, (int32_t)n / 2, 0};
    const cuda_row rows[4] = {
        {0, (int32_t)n - 1, 0, -1}, {0, 0, 0, -1}, {0, (int32_t)n / 2, 0, -1}, {0, 0, 0, -1}};
    float *got = host_new((size_t)(4 * k) * sizeof *got), *gpu = gpu_new(got, (size_t)(4 * k) * 4);
    int n_wrong = 0;
    CHECK(cuda_embed(device, &w->matrix, gpu_new(ids, sizeof ids), 4, 1.7f, gpu) == KERN_OK, "%s",
          name);
    gpu_read(gpu, got, (size_t)(4 * k) * sizeof *got);
    for (int64_t i = 0; i < 4 * k; i++)
        n_wrong += got[i] != w->numbers[ids[i / k] * k + i % k] * 1.7f;
    CHECK(cuda_embed_at(device, &w->matrix, gpu_new(rows, sizeof rows), 4, gpu) == KERN_OK, "%s",
          name);
    gpu_read(gpu, got, (size_t)(4 * k) * sizeof *got);
    for (int64_t i = 0; i < 4 * k; i++) {
        const float x = w->numbers[ids[i / k] * k + i % k], scaled = x * 1.7f;
        n_wrong += got[i] != scaled + x;
    }
    CHECK(n_wrong == 0, "%s [%lld,%lld]: %d looked up numbers differ", name, (long long)n,
          (long long)k, n_wrong);
    kern_free(got);
    kern_free(halves);
}

static void test_format(const kern_format *f, bool tiled) {
    static const int64_t odd[][2] = {{17, 77}, {5, 3}, {33, 576}, {48, 132}};
    static const int64_t blocks_32[][2] = {{37, 32}, {1, 96}, {33, 576}, {48, 160}};
    static const int64_t blocks_256[][2] = {{37, 256}, {1, 768}, {17, 2304}};
    const bool single = f->block_size == 1, large = f->block_size == 256;
    const int n = is_brief() ? 1 : large ? 3 : 4;
    for (int i = 0; i < n; i++) {
        const int64_t *shape = single ? odd[i] : large ? blocks_256[i] : blocks_32[i];
        weight w = weight_new(f, shape[0], shape[1], tiled);
        test_numbers(&w);
        test_rows(&w);
        test_ranges(&w);
        weight_free(&w);
    }
    test_lists(f, tiled);
    gpu_free_all();
}

int main(void) {
    device = emulated_open(false);
    most_rows = is_brief() ? 17 : MOST_ROWS;
    for (const kern_format *f = kern_formats; f->name; f++) {
        test_format(f, false);
        if (cuda_tiled_bytes(f, 1, f->block_size)) test_format(f, true);
    }
    test_mixed();
    gpu_free_all();
    emulated_close(device);
    return check_end();
}
