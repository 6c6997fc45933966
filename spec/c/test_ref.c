/* test_ref.c: the ref backend against the naive forward pass, and what must not change a result:
 * threads, pieces, neighbours, where pages lie. */
#include "check.h"
#include "host.h"
#include "naive.h"
#include "ref.h"
#include "tiny_run.h"

enum { N_IDS = 110 };
static float logits[8][N_IDS * N_VOCAB];

static void random_ids(uint64_t seed, int32_t *ids) {
    for (int i = 0; i < N_IDS; i++) ids[i] = (int32_t)(tiny_random(&seed) % N_VOCAB);
}

/* Largest difference, relative to the largest size. */
static double distance(const float *x, const double *y, int n) {
    double largest = 0, difference = 0;
    for (int i = 0; i < n; i++) {
        if (!(fabs((double)x[i] - y[i]) <= difference)) difference = fabs((double)x[i] - y[i]);
        largest = fmax(largest, fabs(y[i]));
    }
    return difference / largest;
}

static bool same(const float *x, const float *y) { return memcmp(x, y, sizeof logits[0]) == 0; }

static void check_naive(int32_t format, kern_kv type, double tolerance) {
    int32_t ids[N_IDS];
    const int n = format == KERN_F32 ? N_IDS : WINDOW + 8;
    double *want = malloc(sizeof(double) * N_IDS * N_VOCAB);
    tiny_plan *t = tiny_open(format, 5);
    tiny_run r = run_open(&kern_ref, t, 2, type);
    if (!want) abort();
    random_ids(1, ids);
    naive_forward(&t->plan, ids, n, want);
    run_sequence(&r, 3, ids, n, n, logits[0]);
    const double got = distance(logits[0], want, n * N_VOCAB);
    CHECK(got < tolerance, "%s, kv %d: differs by %.2e", kern_format_find(format)->name, type, got);
    run_close(&r);
    tiny_close(t);
    free(want);
}

/* Bit for bit: 1, 2 and 3 threads; whole and in pieces; alone and with neighbours. */
static void check_invariance(int32_t format, kern_kv type) {
    int32_t ids[3][N_IDS];
    tiny_plan *t = tiny_open(format, 6);
    tiny_run one = run_open(&kern_ref, t, 1, type), three = run_open(&kern_ref, t, 3, type);
    for (int s = 0; s < 3; s++) {
        random_ids(10 + (uint64_t)s, ids[s]);
        run_sequence(&one, 0, ids[s], N_IDS, N_IDS, logits[s]);
    }
    const char *name = kern_format_find(format)->name;
    static const int pieces[] = {N_IDS, 1, 7, 32, 33};
    for (int i = 0; i < 5; i++) {
        run_sequence(&three, 8, ids[0], N_IDS, pieces[i], logits[3]);
        CHECK(same(logits[0], logits[3]), "%s, kv %d: pieces of %d differ", name, type, pieces[i]);
    }
    run_together(&three, (int32_t *[]){ids[0], ids[1], ids[2]}, N_IDS,
                 (float *[]){logits[3], logits[4], logits[5]});
    for (int s = 0; s < 3; s++)
        CHECK(same(logits[s], logits[3 + s]), "%s, kv %d: sequence %d differs in a batch", name,
              type, s);
    CHECK(!same(logits[0], logits[1]), "different ids give the same logits");
    run_close(&one);
    run_close(&three);
    tiny_close(t);
}

/* Layer by layer, then the head alone on chosen rows of the residual: what core does. */
static void check_ranges(void) {
    int32_t ids[N_IDS], pages[] = {9, 8, 7, 6};
    tiny_plan *t = tiny_open(KERN_Q8_0, 7);
    tiny_run r = run_open(&kern_ref, t, 2, KERN_KV_F32);
    random_ids(3, ids);
    run_sequence(&r, 20, ids, N_IDS, N_IDS, logits[0]);
    const kern_sequence sequence = {pages, 0, N_IDS, 0};
    kern_batch batch = run_batch(&r, &sequence, 1, N_IDS);
    int code = 0;
    for (int layer = 0; layer <= 2; layer++)
        code |= kern_ref.run(r.device, r.work, &t->plan, t->first_op[layer],
                             t->first_op[layer + 1] - t->first_op[layer], &batch);
    kern_buffer *residual = kern_ref.work_buffer(r.work, B_RESIDUAL);
    code |= kern_ref.copy(r.device, residual, 0, residual, (N_IDS - 1) * WIDTH * 4, WIDTH * 4);
    code |= kern_ref.copy(r.device, residual, WIDTH * 4, residual, 4 * WIDTH * 4, WIDTH * 4);
    batch = run_batch(&r, NULL, 0, 2);
    batch.ids = (kern_tensor){0};
    batch.logits.offset = N_VOCAB * 4; /* into the middle of a buffer */
    code |= kern_ref.run(r.device, r.work, &t->plan, t->first_op[3],
                         t->first_op[4] - t->first_op[3], &batch);
    CHECK(code == KERN_OK, "code %d", code);
    const float *got = r.logits.data;
    CHECK(memcmp(got + N_VOCAB, logits[0] + (N_IDS - 1) * N_VOCAB, N_VOCAB * 4) == 0,
          "head of the last row");
    CHECK(memcmp(got + 2 * N_VOCAB, logits[0] + 4 * N_VOCAB, N_VOCAB * 4) == 0, "head of row 5");
    run_close(&r);
    tiny_close(t);
}

static void check_refusals(void) {
    int32_t ids[N_IDS], pages[] = {0, 1, 2, 3, 4, 5};
    volatile int stop = 1;
    tiny_plan *t = tiny_open(KERN_F32, 8);
    tiny_run r = run_open(&kern_ref, t, 2, KERN_KV_F32);
    random_ids(4, ids);
    kern_sequence sequence = {pages, 0, 2, 0};
    kern_batch batch = run_batch(&r, &sequence, 1, 2);
    kern_ref.write(r.device, &r.ids, 0, ids, 8);
    batch.stop = &stop;
    CHECK(kern_ref.run(r.device, r.work, &t->plan, 0, t->plan.n_ops, &batch) == KERN_INTERRUPTED,
          "stopped");
    stop = 0;
    CHECK(kern_ref.run(r.device, r.work, &t->plan, 0, t->plan.n_ops, &batch) == KERN_OK,
          "not stopped");
    batch.parents = (int32_t[]){0, 2};
    CHECK(kern_ref.run(r.device, r.work, &t->plan, 0, t->plan.n_ops, &batch) == KERN_DEVICE,
          "a row that follows itself");
    batch.parents = NULL;
    batch.n_rows = RUN_ROWS + 1;
    CHECK(kern_ref.run(r.device, r.work, &t->plan, 0, t->plan.n_ops, &batch) == KERN_DEVICE,
          "rows");
    CHECK(strstr(kern_ref.last_error(r.device), "161"), "message: %s",
          kern_ref.last_error(r.device));
    batch.n_rows = 2;
    pages[0] = RUN_PAGES;
    CHECK(kern_ref.run(r.device, r.work, &t->plan, 0, t->plan.n_ops, &batch) == KERN_DEVICE,
          "a page outside");
    run_close(&r);
    tiny_close(t);
}

/* A NaN weight reaches the logits of the rows that read it, and of no others before them. */
static void check_nan(kern_kv type) {
    int32_t ids[N_IDS];
    tiny_plan *t = tiny_open(KERN_F32, 9);
    random_ids(5, ids);
    for (int i = 0; i < N_IDS; i++) ids[i] = ids[i] == 3 ? 4 : ids[i];
    ids[60] = 3;
    const float nan = NAN;
    memcpy((char *)(uintptr_t)t->ops[0].w->data + 3 * WIDTH * 4, &nan, 4);
    tiny_run r = run_open(&kern_ref, t, 2, type);
    run_sequence(&r, 0, ids, N_IDS, N_IDS, logits[0]);
    int n_nan = 0, n_early = 0;
    for (int i = 0; i < N_IDS * N_VOCAB; i++) {
        n_nan += isnan(logits[0][i]) != 0;
        n_early += isnan(logits[0][i]) && i < 60 * N_VOCAB;
    }
    CHECK(n_early == 0, "kv %d: %d NaN before the row that reads one", type, n_early);
    CHECK(n_nan == (N_IDS - 60) * N_VOCAB, "kv %d: %d logits are NaN", type, n_nan);
    run_close(&r);
    tiny_close(t);
}

/* The order of a dot product is the one that ref.h states. */
static void check_dot(void) {
    float x[300], y[300];
    uint64_t seed = 11;
    for (int i = 0; i < 300; i++) x[i] = tiny_uniform(&seed) * 1e3f, y[i] = tiny_uniform(&seed);
    int n_wrong = 0;
    for (int n = 0; n <= 300; n++) {
        float s[16] = {0};
        for (int i = 0; i < n; i++) s[i % 16] += x[i] * y[i];
        for (int half = 8; half > 0; half /= 2)
            for (int j = 0; j < half; j++) s[j] += s[j + half];
        n_wrong += s[0] != ref_dot(x, y, n);
    }
    CHECK(n_wrong == 0, "%d dot products of 301 are summed in another order", n_wrong);
}

int main(void) {
    check_dot();
    for (const kern_format *f = kern_formats; f->name; f++) check_naive(f->id, KERN_KV_F32, 2e-5);
    check_naive(KERN_F32, KERN_KV_F16, 2e-3);
    check_naive(KERN_F32, KERN_KV_Q8_0, 3e-2);
    check_invariance(KERN_F32, KERN_KV_F32);
    check_invariance(KERN_Q4_K, KERN_KV_F16);
    check_invariance(KERN_Q5_0, KERN_KV_Q8_0);
    check_ranges();
    check_refusals();
    check_nan(KERN_KV_F32);
    check_nan(KERN_KV_Q8_0);
    return check_end();
}
