/* bench_kernels.c: not a test. Prints what the cpu backend's kernels reach: for each weight format
 * GB/s of weights at one row and GOPS (2 a weight and row) for more, then a model of SmolLM2-135M's
 * shape with random weights: tokens/s of decoding 1 … 16 rows and of a prefill.
 *
 *   bench_kernels [threads [tier [format | model | rows,past]]] */
#include "host.h"
#include "memory.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static clockid_t which_clock = CLOCK_MONOTONIC;

static double now(void) {
    struct timespec t;
    clock_gettime(which_clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct bound_weight {
    kern_weight w; /* the first member, so that its address is the whole's */
    kern_store *store;
} bound_weight;

/* Random bytes whose 16-bit halves are small numbers in every float format. */
static kern_weight *weight_new(kern_device *d, int32_t format, int64_t n_rows, int64_t n_columns) {
    const kern_format *f = kern_format_find(format);
    size_t bytes = (size_t)n_rows * kern_format_bytes(f, n_columns);
    uint16_t *data = kern_alloc_aligned(64, bytes + 64);
    uint64_t x = 1;
    for (size_t i = 0; i < bytes / 2; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        data[i] = (uint16_t)(x >> 48 & 0xafff); /* f16 below 0.125 in size */
    }
    bound_weight *b = kern_alloc(sizeof *b);
    b->w = (kern_weight){.name = "w",
                         .format = f,
                         .data = data,
                         .n_rows = n_rows,
                         .n_columns = n_columns,
                         .product = n_rows > 1};
    kern_binding binding = {.weights = &b->w, .n_weights = 1};
    if (kern_cpu.bind(d, &binding, &b->store) != KERN_OK) exit(1);
    return &b->w;
}

static void weight_free(kern_device *d, kern_weight *w) {
    kern_cpu.unbind(d, ((bound_weight *)w)->store);
    kern_free_aligned((void *)(uintptr_t)w->data);
    kern_free(w);
}

static void bench_format(kern_device *d, const kern_format *f) {
    enum { K = 2048, MOST = 256 };
    const int64_t n = (int64_t)96e6 / (int64_t)kern_format_bytes(f, K) / 64 * 64;
    kern_weight *w = weight_new(d, f->id, n, K);
    plan_buffer buffers[2] = {{"x", K}, {"y", (int32_t)n}};
    plan_op op = {.kind = PLAN_MATMUL, .in = 0, .in2 = -1, .out = 1, .w = w};
    plan p = {
        .ops = &op, .n_ops = 1, .buffers = buffers, .n_buffers = 2, .residual = 0, .logits = -1};
    kern_work *work;
    if (kern_cpu.work_open(d, &p, NULL, MOST, &work) != KERN_OK) exit(1);
    float *x = kern_cpu.work_buffer(work, 0)->data;
    for (int i = 0; i < K * MOST; i++) x[i] = sinf((float)i);
    printf("%-7s", f->name);
    const int rows[] = {1, 2, 3, 4, 8, 16, 64, 256};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kern_batch batch = {.n_rows = rows[i]};
        double best = 1e9;
        for (int again = 0; again < (rows[i] < 16 ? 7 : rows[i] < 256 ? 2 : 1); again++) {
            double start = now();
            if (kern_cpu.run(d, work, &p, 0, 1, &batch) != KERN_OK) exit(1);
            best = fmin(best, now() - start);
        }
        double bytes = (double)n * (double)kern_format_bytes(f, K),
               ops = 2.0 * (double)n * K * rows[i];
        if (i == 0) printf("  %5.1f GB/s", bytes / best * 1e-9);
        printf("  %d: %.0f", rows[i], ops / best * 1e-9);
        fflush(stdout);
    }
    printf(" GOPS\n");
    kern_cpu.work_close(d, work);
    weight_free(d, w);
}

/* Bytes read a second by all threads, the best of a few. */
typedef struct reading {
    const uint64_t *data;
    size_t n;
    uint64_t sums[64];
} reading;

static void read_part(void *data, int i_thread, int n_threads) {
    reading *r = data;
    size_t n = r->n / (size_t)n_threads / 32 * 32;
    const uint64_t *p = r->data + n * (size_t)i_thread;
    uint64_t sums[32] = {0};
    for (size_t i = 0; i < n; i += 32)
        for (size_t j = 0; j < 32; j++) sums[j] |= p[i + j];
    for (int j = 1; j < 32; j++) sums[0] |= sums[j];
    r->sums[i_thread % 64] = sums[0];
}

static double bandwidth(kern_device *d) {
    reading r = {.n = 16 << 20};
    uint64_t *data = kern_alloc_aligned(1 << 21, r.n * 8);
    r.data = data;
    memset(data, 1, r.n * 8);
    double best = 1e9;
    for (int i = 0; i < 10; i++) {
        double start = now();
        kern_pool_run(d->pool, read_part, &r);
        best = fmin(best, now() - start);
    }
    kern_free_aligned(data);
    return (double)r.n * 8 / best;
}

enum {
    X,
    H,
    Q,
    K,
    V,
    A,
    G,
    U,
    Y,
    LOGITS,
    N_BUFFERS,
    LAYERS = 30,
    WIDTH = 576,
    INNER = 1536,
    VOCABULARY = 49152,
    ROWS = 256
};

static plan_op *op_add(plan *p, plan_kind kind, int layer, int in, int in2, int out,
                       kern_weight *w) {
    plan_op *op = &p->ops[p->n_ops++];
    *op = (plan_op){.kind = kind,
                    .layer = layer,
                    .in = in,
                    .in2 = in2,
                    .out = out,
                    .w = w,
                    .eps = 1e-5f,
                    .scale = 1.0f,
                    .n_heads = 9,
                    .n_heads_kv = 3,
                    .head_dim = 64,
                    .head_dim_v = 64};
    return op;
}

/* only_rows: 0, or one case alone, for a profiler */
static void bench_model(kern_device *d, int32_t format, int only_rows, int only_past) {
    plan_buffer buffers[N_BUFFERS] = {
        {"x", WIDTH}, {"h", WIDTH}, {"q", WIDTH}, {"k", 192},   {"v", 192},
        {"a", WIDTH}, {"g", INNER}, {"u", INNER}, {"y", WIDTH}, {"logits", VOCABULARY}};
    plan_op ops[LAYERS * 16 + 3];
    float freqs[32];
    for (int i = 0; i < 32; i++) freqs[i] = powf(10000.0f, -(float)i / 32);
    plan_rope rope = {.freqs = freqs, .n_rotary = 64, .magnitude = 1.0f};
    plan p = {.ops = ops,
              .n_layers = LAYERS,
              .buffers = buffers,
              .n_buffers = N_BUFFERS,
              .residual = X,
              .logits = LOGITS};
    kern_weight *norm = weight_new(d, KERN_F32, 1, WIDTH),
                *head = weight_new(d, KERN_Q8_0, VOCABULARY, WIDTH);
    double bytes = (double)VOCABULARY * WIDTH / 32 * 34;
    op_add(&p, PLAN_EMBED, 0, -1, -1, X, head);
    for (int l = 1; l <= LAYERS; l++) {
        const int n[7] = {WIDTH, 192, 192, WIDTH, INNER, INNER, WIDTH};
        kern_weight *w[7];
        for (int i = 0; i < 7; i++) {
            w[i] = weight_new(d, format, n[i], i == 6 ? INNER : WIDTH);
            bytes += (double)n[i] * (double)kern_format_bytes(w[i]->format, w[i]->n_columns);
        }
        op_add(&p, PLAN_NORM_RMS, l, X, -1, H, norm);
        op_add(&p, PLAN_MATMUL, l, H, -1, Q, w[0]);
        op_add(&p, PLAN_MATMUL, l, H, -1, K, w[1]);
        op_add(&p, PLAN_MATMUL, l, H, -1, V, w[2]);
        op_add(&p, PLAN_ROPE, l, Q, -1, Q, NULL)->rope = &rope;
        plan_op *rope_k = op_add(&p, PLAN_ROPE, l, K, -1, K, NULL);
        rope_k->rope = &rope;
        rope_k->n_heads = 3;
        op_add(&p, PLAN_KV_APPEND, l, K, V, -1, NULL);
        op_add(&p, PLAN_ATTEND, l, Q, -1, A, NULL)->scale = 0.125f;
        op_add(&p, PLAN_MATMUL, l, A, -1, Y, w[3]);
        op_add(&p, PLAN_ADD, l, Y, -1, X, NULL);
        op_add(&p, PLAN_NORM_RMS, l, X, -1, H, norm);
        op_add(&p, PLAN_MATMUL, l, H, -1, G, w[4]);
        op_add(&p, PLAN_MATMUL, l, H, -1, U, w[5]);
        op_add(&p, PLAN_SILU_MUL, l, G, U, G, NULL);
        op_add(&p, PLAN_MATMUL, l, G, -1, Y, w[6]);
        op_add(&p, PLAN_ADD, l, Y, -1, X, NULL);
    }
    int32_t body = p.n_ops;
    op_add(&p, PLAN_NORM_RMS, LAYERS + 1, X, -1, H, norm);
    op_add(&p, PLAN_MATMUL, LAYERS + 1, H, -1, LOGITS, head);

    kern_kv_shape shape = {LAYERS, 3, 64, 64, KERN_KV_F16};
    enum { N_PAGES = 16 * 8 + 128 };
    kern_pages *pages;
    kern_work *work;
    kern_buffer ids, logits;
    int32_t numbers[N_PAGES];
    kern_cpu.pages_open(d, &shape, N_PAGES, &pages);
    for (int32_t i = 0; i < N_PAGES; i++) numbers[i] = i, kern_cpu.page_reserve(d, pages, i);
    if (kern_cpu.work_open(d, &p, pages, ROWS, &work) != KERN_OK) exit(1);
    kern_cpu.alloc(d, ROWS * 4, &ids);
    kern_cpu.alloc(d, 16 * VOCABULARY * 4, &logits);
    double roof = bandwidth(d), one = 0;
    printf("%s model: %.1f MB a step, %.1f GB/s read: %.0f steps/s at most\n",
           kern_format_find(format)->name, bytes * 1e-6, roof * 1e-9, roof / bytes);
    const struct {
        int rows, past;
    } cases[] = {{1, 64}, {2, 64}, {4, 64}, {8, 64}, {16, 64}, {1, 1024}, {1, 4000}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        kern_sequence sequences[16];
        int rows = cases[c].rows;
        if (only_rows != 0 && (rows != only_rows || cases[c].past != only_past)) continue;
        for (int i = 0; i < rows; i++)
            sequences[i] = (kern_sequence){numbers + 8 * i, cases[c].past, 1, i};
        kern_batch batch = {.n_rows = rows,
                            .n_sequences = rows,
                            .sequences = sequences,
                            .ids = {&ids, 0, rows, 1},
                            .logits = {&logits, 0, rows, VOCABULARY}};
        double best = 1e9;
        for (int again = 0; again < (only_rows ? 200 : 25); again++) {
            double start = now();
            if (kern_cpu.run(d, work, &p, 0, p.n_ops, &batch) != KERN_OK)
                printf("%s\n", kern_cpu.last_error(d)), exit(1);
            best = fmin(best, now() - start);
        }
        if (c == 0) one = best;
        printf("  decode %2d rows after %d: %.2f ms, %.0f tokens/s, %.0f %% of the roof, %.2f of "
               "one row\n",
               rows, cases[c].past, best * 1e3, rows / best, 100 * bytes / best / roof, best / one);
    }
    kern_sequence sequence = {numbers, 0, ROWS, 0};
    kern_batch batch = {
        .n_rows = ROWS, .n_sequences = 1, .sequences = &sequence, .ids = {&ids, 0, ROWS, 1}};
    double best = 1e9;
    for (int again = 0; again < (only_rows == 0 ? 3 : only_rows == ROWS ? 10 : 0); again++) {
        double start = now();
        if (kern_cpu.run(d, work, &p, 0, body, &batch) != KERN_OK) exit(1);
        best = fmin(best, now() - start);
    }
    if (best < 1e9)
        printf("  prefill of %d: %.0f ms, %.0f tokens/s\n", ROWS, best * 1e3, ROWS / best);
    kern_cpu.free(d, &ids);
    kern_cpu.free(d, &logits);
    kern_cpu.work_close(d, work);
    kern_cpu.pages_close(d, pages);
    for (int i = 0; i < p.n_ops; i++)
        if (ops[i].kind == PLAN_MATMUL && ops[i].w != head)
            weight_free(d, (kern_weight *)(uintptr_t)ops[i].w);
    weight_free(d, head);
    weight_free(d, norm);
}

int main(int argc, char **argv) {
    char message[200] = "";
    /* One thread: what it ran, whatever else the machine does. */
    if (argc > 1 && atoi(argv[1]) == 1) which_clock = CLOCK_PROCESS_CPUTIME_ID;
    kern_device_options options = {.n_threads = argc > 1 ? atoi(argv[1]) : 0,
                                   .tier = argc > 2 ? argv[2] : NULL};
    const char *only = argc > 3 ? argv[3] : NULL;
    kern_device *d = kern_cpu.open(&options, message, sizeof message);
    if (d == NULL) return printf("%s\n", message), 1;
    printf("%s\n", kern_cpu.describe(d));
    for (const kern_format *f = kern_formats; f->name != NULL; f++)
        if (only == NULL || strcmp(only, f->name) == 0) bench_format(d, f);
    if (only == NULL || strcmp(only, "model") == 0) {
        bench_model(d, KERN_Q4_1, 0, 0);
        bench_model(d, KERN_Q8_0, 0, 0);
    }
    int rows, past;
    if (only != NULL && sscanf(only, "%d,%d", &rows, &past) == 2)
        bench_model(d, KERN_Q4_1, rows, past);
    kern_cpu.close(d);
    return 0;
}
