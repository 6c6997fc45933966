/* test_cpu.c: the cpu backend, every tier that the machine has: row operations and attention
 * against ref, and that a row's bits depend on neither batch nor threads. Products by themselves
 * are in test_product.c. */
#include "random_weights.h"

/* A model of two layers with every kind of operation, by hand. */
enum {
    X,
    H,
    Q,
    K,
    V,
    A,
    G,
    U,
    LOGITS,
    N_BUFFERS,
    VOCABULARY = 37,
    WIDTH = 64,
    INNER = 96,
    N_OPS = 64
};

typedef struct model {
    int32_t n_heads, n_heads_kv, dim, dim_v, window;
    plan_op ops[N_OPS];
    plan_buffer buffers[N_BUFFERS];
    int32_t first_op[8];
    kern_weight *weights[N_OPS];
    kern_store *stores[N_OPS];
    int n_weights;
    plan_rope rope[2];
    plan p;
} model;

static kern_weight *model_weight(model *m, int32_t format, int64_t n_rows, int64_t n_columns) {
    return m->weights[m->n_weights++] = weight_new(format, n_rows, n_columns);
}

static plan_op *model_op(model *m, plan_kind kind, int32_t layer, int32_t in, int32_t in2,
                         int32_t out) {
    plan_op *op = &m->ops[m->p.n_ops++];
    *op = (plan_op){.kind = kind,
                    .layer = layer,
                    .in = in,
                    .in2 = in2,
                    .out = out,
                    .eps = 0.01f,
                    .scale = 1.0f,
                    .n_heads = m->n_heads,
                    .n_heads_kv = m->n_heads_kv,
                    .head_dim = m->dim,
                    .head_dim_v = m->dim_v};
    return op;
}

static void model_matmul(model *m, int32_t layer, int32_t in, int32_t out, int32_t format) {
    model_op(m, PLAN_MATMUL, layer, in, -1, out)->w =
        model_weight(m, format, m->buffers[out].width, m->buffers[in].width);
}

static void model_layer(model *m, int32_t l, int32_t format) {
    model_op(m, PLAN_NORM_RMS, l, X, -1, H)->w = model_weight(m, KERN_F32, 1, WIDTH);
    model_matmul(m, l, H, Q, format);
    m->ops[m->p.n_ops - 1].bias = model_weight(m, KERN_F32, 1, m->buffers[Q].width);
    model_matmul(m, l, H, K, format);
    model_matmul(m, l, H, V, format);
    model_op(m, PLAN_NORM_HEADS, l, Q, -1, Q)->w = model_weight(m, KERN_F32, 1, m->dim);
    plan_op *rope_q = model_op(m, PLAN_ROPE, l, Q, -1, Q);
    rope_q->rope = &m->rope[l - 1];
    plan_op *rope_k = model_op(m, PLAN_ROPE, l, K, -1, K);
    rope_k->rope = &m->rope[l - 1];
    rope_k->n_heads = m->n_heads_kv;
    model_op(m, PLAN_KV_APPEND, l, K, V, -1);
    plan_op *attend = model_op(m, PLAN_ATTEND, l, Q, -1, A);
    attend->scale = 1.0f / sqrtf((float)m->dim);
    attend->window = l == 2 ? m->window : 0;
    model_matmul(m, l, A, H, format == KERN_F32 || m->buffers[A].width % 32 ? KERN_F16 : format);
    model_op(m, PLAN_ADD, l, H, -1, X);
    plan_op *norm = model_op(m, PLAN_NORM_LAYER, l, X, -1, H);
    norm->w = model_weight(m, KERN_F32, 1, WIDTH);
    norm->bias = model_weight(m, KERN_F32, 1, WIDTH);
    model_matmul(m, l, H, G, format);
    model_matmul(m, l, H, U, format);
    if (l == 2) model_op(m, PLAN_GELU, l, U, -1, U);
    model_op(m, l == 1 ? PLAN_SILU_MUL : PLAN_GELU_MUL, l, G, U, G);
    model_matmul(m, l, G, H, format);
    model_op(m, PLAN_ADD, l, H, -1, X);
}

static model *model_new(int32_t format, int32_t n_heads, int32_t n_heads_kv, int32_t dim,
                        int32_t dim_v, int32_t window) {
    model *m = kern_alloc(sizeof *m);
    *m = (model){
        .n_heads = n_heads, .n_heads_kv = n_heads_kv, .dim = dim, .dim_v = dim_v, .window = window};
    const int32_t widths[N_BUFFERS] = {
        WIDTH,           WIDTH, n_heads * dim, n_heads_kv * dim, n_heads_kv * dim_v,
        n_heads * dim_v, INNER, INNER,         VOCABULARY};
    for (int i = 0; i < N_BUFFERS; i++) m->buffers[i] = (plan_buffer){"b", widths[i]};
    for (int l = 0; l < 2; l++) {
        m->rope[l] = (plan_rope){.n_rotary = l == 0 ? dim / 2 * 2 : dim / 4 * 2,
                                 .magnitude = 1.1f,
                                 .interleaved = l == 1};
        m->rope[l].freqs = kern_alloc_array((size_t)dim, sizeof(float));
        for (int i = 0; i < dim; i++) m->rope[l].freqs[i] = powf(10000.0f, -(float)i / (float)dim);
    }
    plan_op *embed = model_op(m, PLAN_EMBED, 0, -1, -1, X);
    embed->w = model_weight(m, format, VOCABULARY, WIDTH);
    embed->scale = 1.7f;
    model_op(m, PLAN_EMBED_AT, 0, -1, -1, X)->w = model_weight(m, KERN_F16, 2048, WIDTH);
    model_layer(m, 1, format);
    model_layer(m, 2, format);
    model_op(m, PLAN_NORM_RMS, 3, X, -1, H)->w = model_weight(m, KERN_F32, 1, WIDTH);
    model_matmul(m, 3, H, LOGITS, format);
    m->p = (plan){.ops = m->ops,
                  .n_ops = m->p.n_ops,
                  .n_layers = 2,
                  .first_op = m->first_op,
                  .buffers = m->buffers,
                  .n_buffers = N_BUFFERS,
                  .residual = X,
                  .logits = LOGITS};
    return m;
}

static void model_free(model *m) {
    for (int i = 0; i < m->n_weights; i++) weight_free(m->weights[i]);
    for (int l = 0; l < 2; l++) kern_free(m->rope[l].freqs);
    kern_free(m);
}

static void model_bind(kern_device *d, model *m) {
    for (int i = 0; i < m->n_weights; i++) {
        bool product = false;
        for (int32_t j = 0; j < m->p.n_ops; j++)
            product |= m->p.ops[j].kind == PLAN_MATMUL && m->p.ops[j].w == m->weights[i];
        m->stores[i] = bind(d, m->weights[i], product);
    }
}
static void model_unbind(kern_device *d, model *m) {
    for (int i = 0; i < m->n_weights; i++) d->backend->unbind(d, m->stores[i]);
}

/* Feeds n_sequences copies of a text of n tokens (the i-th begins with token i) in passes of
 * `piece` rows each; logits of all rows of the first: out[n, VOCABULARY]. */
static void model_run(kern_device *d, model *m, kern_kv kv, int32_t n, int32_t piece,
                      int32_t n_sequences, float *out) {
    const kern_backend *b = d->backend;
    kern_kv_shape shape = {2, m->n_heads_kv, m->dim, m->dim_v, kv};
    int32_t n_each = (n + 31) / 32, n_pages = n_each * n_sequences, max_rows = piece * n_sequences;
    int32_t *pages = kern_alloc_array((size_t)n_pages, sizeof *pages);
    int32_t *ids = kern_alloc_array((size_t)max_rows, sizeof *ids);
    kern_sequence *sequences = kern_alloc_array((size_t)n_sequences, sizeof *sequences);
    kern_pages *cache;
    kern_work *work;
    kern_buffer id_buffer, logits;
    model_bind(d, m);
    if (b->pages_open(d, &shape, n_pages, &cache) != KERN_OK) exit(1);
    for (int32_t i = 0; i < n_pages; i++) {
        pages[i] = n_pages - 1 - i;
        b->page_reserve(d, cache, i);
        for (size_t j = 0; j < cache->page_bytes / 4; j++)
            ((uint32_t *)(void *)cache->pages[i])[j] = 0xffffffff; /* NaN */
    }
    if (b->work_open(d, &m->p, cache, max_rows, &work) != KERN_OK) exit(1);
    b->alloc(d, (size_t)max_rows * 4, &id_buffer);
    b->alloc(d, (size_t)max_rows * VOCABULARY * sizeof(float), &logits);
    for (int32_t past = 0; past < n; past += piece) {
        int32_t rows = n - past < piece ? n - past : piece;
        for (int32_t s = 0; s < n_sequences; s++) {
            sequences[s] = (kern_sequence){pages + s * n_each, past, rows, s * rows};
            for (int32_t i = 0; i < rows; i++)
                ids[s * rows + i] = past + i == 0 ? s : (past + i) * 7 % VOCABULARY;
        }
        b->write(d, &id_buffer, 0, ids, (size_t)(rows * n_sequences) * 4);
        kern_batch batch = {.n_rows = rows * n_sequences,
                            .n_sequences = n_sequences,
                            .sequences = sequences,
                            .ids = {&id_buffer, 0, rows * n_sequences, 1},
                            .logits = {&logits, 0, rows * n_sequences, VOCABULARY}};
        int code = b->run(d, work, &m->p, 0, m->p.n_ops, &batch);
        CHECK(code == KERN_OK, "%s", b->last_error(d));
        b->read(d, &logits, 0, out + (int64_t)past * VOCABULARY,
                (size_t)rows * VOCABULARY * sizeof(float));
    }
    b->free(d, &id_buffer);
    b->free(d, &logits);
    b->work_close(d, work);
    b->pages_close(d, cache);
    model_unbind(d, m);
    kern_free(pages);
    kern_free(ids);
    kern_free(sequences);
}

static double largest_difference(const float *a, const float *b, int64_t n) {
    double worst = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        worst = isfinite(d) ? fmax(worst, d) : INFINITY;
        size = fmax(size, fabs((double)b[i]));
    }
    return worst / size;
}

static void test_model(const char *tier, int32_t format, int32_t n_heads, int32_t n_heads_kv,
                       int32_t dim, int32_t dim_v, int32_t window, int32_t n) {
    model *m = model_new(format, n_heads, n_heads_kv, dim, dim_v, window);
    kern_device *ref = device_new(&kern_ref, NULL, 2), *one = device_new(&kern_cpu, tier, 1);
    kern_device *two = device_new(&kern_cpu, tier, 2), *five = device_new(&kern_cpu, tier, 5);
    int64_t size = (int64_t)n * VOCABULARY;
    float *expected = kern_alloc_array((size_t)size, sizeof *expected),
          *whole = kern_alloc_array((size_t)size, sizeof *whole);
    float *other = kern_alloc_array((size_t)size, sizeof *other);
    model_run(ref, m, KERN_KV_F32, n, n, 1, expected);
    model_run(two, m, KERN_KV_F32, n, n, 1, whole);
    double worst = largest_difference(whole, expected, size);
    CHECK(worst < (format == KERN_F32 ? 2e-5 : 0.2),
          "%s, %s, heads %d/%d of %d, window %d: %g of ref", tier, kern_format_find(format)->name,
          n_heads, n_heads_kv, dim, window, worst);
    for (int kv = 0; kv < 3; kv++) {
        if (kv == KERN_KV_Q8_0 && (dim % 32 != 0 || dim_v % 32 != 0)) continue;
        const struct {
            kern_device *device;
            int32_t piece, n_sequences;
        } ways[] = {{one, n, 1},   {two, 1, 1},  {two, 67, 1},
                    {five, 19, 2}, {two, 33, 3}, {one, 2, 5}};
        model_run(two, m, (kern_kv)kv, n, n, 1, whole);
        worst = largest_difference(whole, expected, size);
        CHECK(worst < (format == KERN_F32 ? (kv == 0   ? 2e-5
                                             : kv == 1 ? 5e-3
                                                       : 5e-2)
                                          : 0.2),
              "%s, kv %d: %g of ref", tier, kv, worst);
        for (size_t i = 0; i < (n > 100 ? 4 : sizeof ways / sizeof *ways); i++) {
            model_run(ways[i].device, m, (kern_kv)kv, n, ways[i].piece, ways[i].n_sequences, other);
            CHECK(same_bits(whole, other, size),
                  "%s, %s, heads %d/%d of %d, kv %d: %d sequences, pieces of %d, way %d", tier,
                  kern_format_find(format)->name, n_heads, n_heads_kv, dim, kv, ways[i].n_sequences,
                  ways[i].piece, (int)i);
        }
    }
    kern_cpu.close(one);
    kern_cpu.close(two);
    kern_cpu.close(five);
    kern_ref.close(ref);
    kern_free(expected);
    kern_free(whole);
    kern_free(other);
    model_free(m);
}

/* silu(x) · 1 and gelu(x) against f64 */
static void test_activations(kern_device *d) {
    enum { N = 4099 };
    plan_buffer buffers[3] = {{"x", N}, {"y", N}, {"z", N}};
    const plan_kind kinds[3] = {PLAN_SILU_MUL, PLAN_GELU_MUL, PLAN_GELU};
    for (int i = 0; i < 3; i++) {
        plan_op op = {.kind = kinds[i], .in = 0, .in2 = i < 2 ? 2 : -1, .out = 1};
        plan p = {.ops = &op, .n_ops = 1, .buffers = buffers, .n_buffers = 3, .logits = -1};
        kern_work *work;
        if (kern_cpu.work_open(d, &p, NULL, 1, &work) != KERN_OK) exit(1);
        float *x = kern_cpu.work_buffer(work, 0)->data, *y = kern_cpu.work_buffer(work, 1)->data;
        float *z = kern_cpu.work_buffer(work, 2)->data;
        for (int j = 0; j < N; j++) x[j] = (float)(j - N / 2) * 0.005f, z[j] = 1.0f;
        x[0] = -1e30f, x[1] = 1e30f, x[2] = NAN;
        kern_batch batch = {.n_rows = 1};
        CHECK(kern_cpu.run(d, work, &p, 0, 1, &batch) == KERN_OK, "%s", kern_cpu.last_error(d));
        double worst = 0;
        for (int j = 3; j < N; j++) {
            double v = x[j], u = sqrt(2 / 3.14159265358979323846) * (v + 0.044715 * v * v * v);
            double e = i == 0 ? v / (1 + exp(-v)) : v / (1 + exp(-2 * u));
            worst = fmax(worst, fabs(e - (double)y[j]) / (fabs(e) + 1e-6));
        }
        CHECK(worst < 3e-6, "%s, activation %d: %g", kern_tier_name(d->tier), i, worst);
        CHECK(fabsf(y[0]) < 1e-6f && y[1] == 1e30f && isnan(y[2]), "%g %g %g", (double)y[0],
              (double)y[1], (double)y[2]);
        kern_cpu.work_close(d, work);
    }
}

/* Bytes of a work for products with weights of these formats of one input. */
static size_t scratch_of(kern_device *d, const int32_t *formats, int n) {
    enum { COLUMNS = 1024, ROWS = 200 };
    plan_buffer buffers[2] = {{"x", COLUMNS}, {"y", 16}};
    plan_op ops[3];
    kern_weight *weights[3];
    for (int i = 0; i < n; i++) {
        weights[i] = weight_new(formats[i], 16, COLUMNS);
        ops[i] = (plan_op){.kind = PLAN_MATMUL, .in2 = -1, .out = 1, .w = weights[i]};
    }
    const plan p = {.ops = ops, .n_ops = n, .buffers = buffers, .n_buffers = 2, .logits = -1};
    kern_work *work;
    if (kern_cpu.work_open(d, &p, NULL, ROWS, &work) != KERN_OK) exit(1);
    const size_t bytes = kern_cpu.work_bytes(work);
    kern_cpu.work_close(d, work);
    for (int i = 0; i < n; i++) weight_free(weights[i]);
    return bytes;
}

static void test_scratch(void) {
    kern_device *d = device_new(&kern_cpu, NULL, 1);
    const int32_t formats[] = {KERN_Q8_0, KERN_F16, KERN_BF16};
    size_t before = scratch_of(d, formats, 0);
    d->rounds_bf16 = 1;
    for (int n = 1; n <= 3; n++) {
        const size_t all = scratch_of(d, formats, n), one = scratch_of(d, formats + n - 1, 1);
        CHECK(n == 1 || (all > one && all > before), "%d forms: %zu, %zu bytes", n, all, one);
        CHECK(one - scratch_of(d, formats, 0) >= (size_t)200 * 1024, "%s: %zu bytes",
              kern_format_find(formats[n - 1])->name, one);
        before = all;
    }
    d->rounds_bf16 = 0;
    CHECK(scratch_of(d, formats + 1, 2) == scratch_of(d, formats + 1, 1),
          "F16 and BF16 share a form where nothing is rounded");
    kern_cpu.close(d);
}

static void test_refusals(const char *tier) {
    model *m = model_new(KERN_Q8_0, 3, 1, 32, 32, 0);
    kern_device *d = device_new(&kern_cpu, tier, 2);
    kern_kv_shape shape = {2, 1, 32, 32, KERN_KV_F16};
    kern_pages *cache;
    kern_work *work;
    kern_buffer ids, logits;
    int32_t pages[1] = {0}, parents[1] = {1};
    int stop = 1;
    model_bind(d, m);
    kern_cpu.pages_open(d, &shape, 1, &cache);
    kern_cpu.work_open(d, &m->p, cache, 4, &work);
    kern_cpu.alloc(d, 64, &ids);
    memset(ids.data, 0, 64);
    kern_cpu.alloc(d, 4 * VOCABULARY * 4, &logits);
    kern_sequence sequence = {pages, 0, 1, 0};
    kern_batch batch = {.n_rows = 1,
                        .n_sequences = 1,
                        .sequences = &sequence,
                        .ids = {&ids, 0, 1, 1},
                        .logits = {&logits, 0, 1, VOCABULARY}};
    CHECK(kern_cpu.run(d, work, &m->p, 0, m->p.n_ops, &batch) == KERN_DEVICE,
          "a page without memory");
    kern_cpu.page_reserve(d, cache, 0);
    CHECK(kern_cpu.run(d, work, &m->p, 0, m->p.n_ops, &batch) == KERN_OK, "%s",
          kern_cpu.last_error(d));
    batch.stop = &stop;
    CHECK(kern_cpu.run(d, work, &m->p, 0, m->p.n_ops, &batch) == KERN_INTERRUPTED, "stop");
    batch.stop = NULL;
    batch.parents = parents;
    CHECK(kern_cpu.run(d, work, &m->p, 0, m->p.n_ops, &batch) == KERN_DEVICE,
          "a row that follows itself");
    batch.parents = NULL;
    sequence.n_rows = 2;
    CHECK(kern_cpu.run(d, work, &m->p, 0, m->p.n_ops, &batch) == KERN_DEVICE,
          "more rows than the batch");
    sequence.n_rows = 1;
    batch.n_rows = 5;
    CHECK(kern_cpu.run(d, work, &m->p, 0, m->p.n_ops, &batch) == KERN_DEVICE,
          "more rows than opened");
    kern_cpu.free(d, &ids);
    kern_cpu.free(d, &logits);
    kern_cpu.work_close(d, work);
    kern_cpu.pages_close(d, cache);
    model_unbind(d, m);
    kern_cpu.close(d);
    model_free(m);
}

static void test_open(void) {
    char message[200] = "";
    CHECK(kern_cpu.open(&(kern_device_options){.n_threads = 1, .tier = "sse"}, message,
                        sizeof message) == NULL,
          "sse");
    CHECK(strstr(message, "sse") != NULL && strstr(message, "plain") != NULL, "%s", message);
    kern_device *d = device_new(&kern_cpu, "avx512", 1);
    CHECK(d->tier <= kern_tier_best(), "%s", kern_cpu.describe(d));
    kern_cpu.close(d);
}

int main(void) {
    static const char *const tiers[] = {"plain", "neon", "avx2", "avxvnni", "avx512"};
    test_open();
    test_scratch();
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++) {
        kern_device *d = device_new(&kern_cpu, tiers[i], 2);
        if (strcmp(kern_tier_name(d->tier), tiers[i]) != 0) { /* the machine lacks it */
            kern_cpu.close(d);
            continue;
        }
        test_activations(d);
        kern_cpu.close(d);
        test_refusals(tiers[i]);
        test_model(tiers[i], KERN_F32, 3, 1, 64, 64, 0, 70);
        test_model(tiers[i], KERN_F32, 4, 2, 24, 24, 40, 300);
        test_model(tiers[i], KERN_F32, 4, 4, 13, 21, 5, 45);
        test_model(tiers[i], KERN_F32, 20, 1, 32, 32, 27, 60);
        test_model(tiers[i], KERN_F32, 2, 1, 32, 32, 270, 530);
        test_model(tiers[i], KERN_Q4_1, 9, 3, 32, 32, 0, 70);
        test_model(tiers[i], KERN_Q8_0, 2, 1, 256, 256, 33, 66);
        for (rounds_bf16 = false;; rounds_bf16 = true) {
            test_model(tiers[i], KERN_BF16, 2, 2, 80, 128, 20, 40);
            if (rounds_bf16) break;
        }
        f16_as_bf16 = true;
        test_model(tiers[i], KERN_F16, 4, 2, 24, 24, 40, 70);
        rounds_bf16 = f16_as_bf16 = false;
    }
    return check_end();
}
