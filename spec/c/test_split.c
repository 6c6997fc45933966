/* test_split.c: a plan that two backends run gives, bit for bit, what one gives that is both of
 * them; so do its pages and its profile. */
#include "check.h"
#include "split.h"
#include "tiny_run.h"

enum { N_IDS = 110 };
static float logits[6][N_IDS * N_VOCAB];

static void random_ids(uint64_t seed, int32_t *ids) {
    for (int i = 0; i < N_IDS; i++) ids[i] = (int32_t)(tiny_random(&seed) % N_VOCAB);
}

static bool same(const float *x, const float *y) { return memcmp(x, y, sizeof logits[0]) == 0; }

typedef struct split_run {
    tiny_run run;
    kern_device *host; /* of the first half */
} split_run;

static split_run split_open(const kern_backend *first, tiny_plan *t, int32_t n_first,
                            kern_kv type) {
    split_run s = {.run = {.backend = &kern_ref, .runner = &kern_split, .t = t}};
    s.host = run_device(first, 2);
    s.run.device = run_device(&kern_ref, 1);
    const kern_half halves[2] = {{first, s.host}, {&kern_ref, s.run.device}};
    s.run.on = kern_split_open(halves, &t->plan, n_first);
    if (!s.run.on) abort();
    run_begin(&s.run, type);
    return s;
}

static void split_close(split_run *s, const kern_backend *first) {
    run_end(&s->run);
    kern_split.close(s->run.on);
    kern_ref.close(s->run.device);
    first->close(s->host);
}

/* Passes of one sequence and of three, whole and in pieces; the bytes of every position. */
static void check_passes(int32_t n_first, kern_kv type) {
    int32_t ids[3][N_IDS];
    tiny_plan *t = tiny_open(KERN_F16, 6);
    tiny_run whole = run_open(&kern_ref, t, 1, type);
    for (int s = 0; s < 3; s++) {
        random_ids(10 + (uint64_t)s, ids[s]);
        run_sequence(&whole, 8 * s, ids[s], N_IDS, N_IDS, logits[s]);
    }
    split_run split = split_open(&kern_ref, t, n_first, type);
    static const int pieces[] = {N_IDS, 1, 33};
    for (int i = 0; i < 3; i++) {
        run_sequence(&split.run, 0, ids[0], N_IDS, pieces[i], logits[3]);
        CHECK(same(logits[0], logits[3]), "%d layers, kv %d: pieces of %d", n_first, type,
              pieces[i]);
    }
    unsigned char bytes[2][1 << 12];
    const kern_kv_shape shape = tiny_shape(type);
    const size_t n = kern_ref.position_bytes(&shape);
    CHECK(n == kern_split.position_bytes(&shape) && n < sizeof bytes[0], "bytes of a position");
    CHECK(kern_split.page_bytes(split.run.on, &shape) == kern_ref.page_bytes(NULL, &shape),
          "bytes of a page");
    for (int32_t i = 0; i < N_IDS; i++) {
        kern_ref.page_read(whole.device, whole.pages, i / 32, i % 32, bytes[0]);
        kern_split.page_read(split.run.on, split.run.pages, i / 32, i % 32, bytes[1]);
        CHECK(memcmp(bytes[0], bytes[1], n) == 0, "%d layers, kv %d: position %d", n_first, type,
              i);
        kern_split.page_write(split.run.on, split.run.pages, 9, i % 32, bytes[0]);
        kern_split.page_copy(split.run.on, split.run.pages, 10, 9, 32);
        kern_split.page_read(split.run.on, split.run.pages, 10, i % 32, bytes[1]);
        CHECK(memcmp(bytes[0], bytes[1], n) == 0, "%d layers: a position written, copied", n_first);
    }
    run_together(&split.run, (int32_t *[]){ids[0], ids[1], ids[2]}, N_IDS,
                 (float *[]){logits[3], logits[4], logits[5]});
    for (int s = 0; s < 3; s++)
        CHECK(same(logits[s], logits[3 + s]), "%d layers: sequence %d of three", n_first, s + 1);
    split_close(&split, &kern_ref);
    run_close(&whole);
    tiny_close(t);
}

/* Runs of some layers leave the residual stream on the second device. */
static void check_ranges(void) {
    int32_t ids[N_IDS], pages[] = {0, 1, 2, 3};
    float x[2][N_IDS * WIDTH];
    tiny_plan *t = tiny_open(KERN_F32, 7);
    tiny_run whole = run_open(&kern_ref, t, 1, KERN_KV_F32);
    random_ids(3, ids);
    const kern_sequence sequence = {pages, 0, N_IDS, 0};
    for (int32_t n_first = 1; n_first <= 2; n_first++) {
        for (int32_t layer = 0; layer <= 2; layer++) { /* the plan is run after, from there on */
            const int32_t end = t->first_op[layer + 1];
            kern_batch batch = run_batch(&whole, &sequence, 1, N_IDS);
            kern_ref.write(whole.device, &whole.ids, 0, ids, sizeof ids);
            kern_ref.run(whole.device, whole.work, &t->plan, 0, end, &batch);
            memcpy(x[0], kern_ref.work_buffer(whole.work, B_RESIDUAL)->data, sizeof x[0]);
            kern_ref.run(whole.device, whole.work, &t->plan, end, t->plan.n_ops - end, &batch);
            memcpy(logits[0], whole.logits.data, sizeof logits[0]);
            split_run split = split_open(&kern_ref, t, n_first, KERN_KV_F32);
            batch = run_batch(&split.run, &sequence, 1, N_IDS);
            batch.host_ids = ids;
            kern_split.run(split.run.on, split.run.work, &t->plan, 0, end, &batch);
            memcpy(x[1], kern_split.work_buffer(split.run.work, B_RESIDUAL)->data, sizeof x[1]);
            CHECK(memcmp(x[0], x[1], sizeof x[0]) == 0, "%d first, layer %d", n_first, layer);
            kern_split.run(split.run.on, split.run.work, &t->plan, end, t->plan.n_ops - end,
                           &batch);
            memcpy(logits[1], split.run.logits.data, sizeof logits[1]);
            CHECK(same(logits[0], logits[1]), "%d first, on from layer %d", n_first, layer);
            split_close(&split, &kern_ref);
        }
    }
    run_close(&whole);
    tiny_close(t);
}

static kern_profile counted(const tiny_run *r, const int32_t *ids, int *code,
                            const volatile int *stop) {
    int32_t pages[] = {0, 1, 2, 3};
    const kern_sequence sequence = {pages, 0, N_IDS, 0};
    kern_profile profile = {.ops = calloc(64, sizeof *profile.ops)};
    kern_batch batch = run_batch((tiny_run *)r, &sequence, 1, N_IDS);
    if (!profile.ops) abort();
    batch.host_ids = ids;
    batch.profile = &profile;
    batch.stop = stop;
    kern_ref.write(r->device, (kern_buffer *)&r->ids, 0, ids, N_IDS * sizeof *ids);
    *code = r->runner->run(r->on, r->work, &r->t->plan, 0, r->t->plan.n_ops, &batch);
    return profile;
}

/* Each operation has its own costs, in the order of the whole plan. */
static void check_profile(void) {
    int32_t ids[N_IDS];
    int codes[2];
    tiny_plan *t = tiny_open(KERN_F32, 8);
    tiny_run whole = run_open(&kern_ref, t, 1, KERN_KV_F32);
    random_ids(4, ids);
    kern_profile want = counted(&whole, ids, &codes[0], NULL);
    split_run split = split_open(&kern_ref, t, 1, KERN_KV_F32);
    kern_profile got = counted(&split.run, ids, &codes[1], NULL);
    double sum = 0;
    CHECK(codes[0] == 0 && codes[1] == 0, "both ran");
    for (int32_t i = 0; i < t->plan.n_ops; i++) {
        const kern_cost *a = &want.ops[i], *b = &got.ops[i];
        CHECK(a->calls == b->calls && a->rows == b->rows && a->bytes == b->bytes &&
                  a->operations == b->operations && b->seconds > 0,
              "costs of operation %d", i);
        sum += b->seconds;
    }
    CHECK(got.run_s >= sum && got.run_s < 2 * sum + 1, "a run of %g s, operations of %g s",
          got.run_s, sum);
    const volatile int stop = 1;
    free(counted(&split.run, ids, &codes[1], &stop).ops);
    CHECK(codes[1] == KERN_INTERRUPTED, "a run that is stopped");
    free(want.ops);
    free(got.ops);
    split_close(&split, &kern_ref);
    run_close(&whole);
    tiny_close(t);
}

/* Each half makes ready what it uses, and says what it holds. */
static void check_memory(void) {
    tiny_plan *t = tiny_open(KERN_Q8_0, 9);
    split_run split = split_open(&kern_cpu, t, 1, KERN_KV_F16);
    const kern_half_memory first = kern_split_memory(split.run.on, 0);
    const kern_half_memory second = kern_split_memory(split.run.on, 1);
    const kern_kv_shape shape = tiny_shape(KERN_KV_F16);
    CHECK(first.backend == &kern_cpu && second.backend == &kern_ref, "where they are");
    CHECK(first.first_layer == 1 && first.last_layer == 1 && second.first_layer == 2 &&
              second.last_layer == 2,
          "layers");
    CHECK(first.weight_bytes > 0 && second.weight_bytes == 0, "ref makes nothing of weights");
    CHECK(first.page_bytes + second.page_bytes == kern_split.page_bytes(split.run.on, &shape),
          "bytes of a page");
    CHECK(first.scratch_bytes > 0 && second.scratch_bytes > 0 &&
              first.scratch_bytes + second.scratch_bytes == kern_split.work_bytes(split.run.work),
          "scratch");
    CHECK(strstr(kern_split.describe(split.run.on), "layers 1 … 1 on cpu: "), "%s",
          kern_split.describe(split.run.on));
    CHECK(t->weights[3].bound == NULL, "the plan's own weights are not touched");
    split_close(&split, &kern_cpu);
    tiny_close(t);
}

int main(void) {
    for (int32_t n_first = 1; n_first <= 2; n_first++) {
        check_passes(n_first, KERN_KV_F32);
        check_passes(n_first, KERN_KV_Q8_0);
    }
    check_ranges();
    check_profile();
    check_memory();
    return check_end();
}
