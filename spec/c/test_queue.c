/* test_queue.c: operations that are queued give what they give at once: random programs of several
 * jobs, with allocations that fail; equal ones of all jobs are one launch; what fails fails alone;
 * choices of a step arrive with one wait. Prints what queueing costs. */
#include "queue_device.h"
#include "tensor.h"

#include <math.h>
#include <time.h>

enum { MOST_JOBS = 8, N_SLOTS = 8, N_COLUMNS = 11, N_STATEMENTS = 12 };

static uint32_t state = 1;
static int64_t draw(int64_t n) {
    state = state * 1664525u + 1013904223u;
    return (int64_t)((state >> 8) % (uint32_t)n);
}

/* The same tensor where operations run at once and where they wait. */
typedef struct pair {
    llm_tensor *side[2];
} pair;

static void close_pair(pair *p) {
    for (int i = 0; i < 2; i++) llm_tensor_close(p->side[i]);
    *p = (pair){{NULL, NULL}};
}

static llm_device *device_of(int side) { return side ? apart : plain; }

/* ---- the logits of a pass ---- */

/* n_rows[j] rows for each job: of its own, or side by side in one block. */
static void pass(int n_jobs, const int64_t *n_rows, pair *logits) {
    float rows[MOST_JOBS * 4 * N_COLUMNS];
    int64_t n = 0, first = 0;
    for (int j = 0; j < n_jobs; j++) n += n_rows[j];
    for (int64_t i = 0; i < n * N_COLUMNS; i++) rows[i] = (float)draw(64) / 8 - 4;
    block *b = block_open(apart, n, N_COLUMNS, &err);
    if (!b || kern_ref.write(apart->kern, &b->buffer, 0, rows, (size_t)(n * N_COLUMNS) * 4))
        abort();
    for (int j = 0; j < n_jobs; j++) {
        logits[j].side[0] =
            llm_tensor_new(plain, LLM_F32, n_rows[j], N_COLUMNS, rows + first * N_COLUMNS, &err);
        logits[j].side[1] = tensor_alloc_later(apart, LLM_F32, n_rows[j], N_COLUMNS, &err);
        if (!logits[j].side[0] || !logits[j].side[1]) abort();
        cell_place(apart, logits[j].side[1]->cell, b, first * N_COLUMNS, n_rows[j] * N_COLUMNS);
        for (int i = 0; i < 2; i++) llm_tensor_set_logits(logits[j].side[i], true);
        first += n_rows[j];
    }
    block_close(apart, b);
}

/* ---- comparing ---- */

static int read_all(llm_tensor *t, int32_t *to) {
    const llm_tensor_info *info = llm_tensor_get_info(t);
    return llm_tensor_read(t, 0, info->n_rows * info->n_columns, to, &err);
}

static int64_t fail_at; /* the allocation of a program that fails once; its call is made again */

static void compare(const char *what, const pair *p) {
    enum { MOST = 4096 };
    static int32_t values[2][MOST];
    llm_error errors[2] = {{LLM_OK, ""}, {LLM_OK, ""}};
    const llm_tensor_info a = p->side[0]->info, b = p->side[1]->info;
    int codes[2];
    CHECK(a.n_rows == b.n_rows && a.n_columns == b.n_columns && a.dtype == b.dtype &&
              a.is_logits == b.is_logits && a.step == b.step,
          "%s: shapes differ", what);
    if (a.n_rows * a.n_columns > MOST) return;
    for (int i = 0; i < 2; i++) {
        codes[i] = read_all(p->side[i], values[i]);
        if (fail_at && codes[i] && err.kind == LLM_OUT_OF_MEMORY)
            codes[i] = read_all(p->side[i], values[i]);
        if (codes[i]) errors[i] = err;
    }
    CHECK(codes[0] == codes[1] && errors[0].kind == errors[1].kind &&
              strcmp(errors[0].message, errors[1].message) == 0,
          "%s: '%s' and '%s'", what, errors[0].message, errors[1].message);
    if (!codes[0] && !codes[1])
        CHECK(memcmp(values[0], values[1], (size_t)(a.n_rows * a.n_columns) * 4) == 0,
              "%s: results differ", what);
}

/* ---- random programs ---- */

typedef struct statement {
    int op, x, y, to; /* slots */
    bool in_place;
    int code;
    double number;
    int32_t ids[3];
} statement;

enum { N_OPS = 30 };

static statement random_statement(void) {
    statement s = {.op = (int)draw(N_OPS),
                   .x = (int)draw(N_SLOTS),
                   .y = (int)draw(N_SLOTS),
                   .to = 1 + (int)draw(N_SLOTS - 1),
                   .in_place = draw(4) == 0,
                   .code = (int)draw(10),
                   .number = (double)draw(9) / 4,
                   .ids = {(int32_t)draw(N_COLUMNS), (int32_t)draw(N_COLUMNS), 0}};
    s.ids[2] = s.ids[0];
    if (draw(3)) s.x = 0; /* chains from the logits on */
    return s;
}

static llm_operand number(double x) { return (llm_operand){.x = x, .is_integer = x == floor(x)}; }

/* ids for a gather, one list for all rows. */
static int with_ids(const statement *s, llm_tensor *x, llm_operand v, llm_tensor **out) {
    llm_tensor *ids = llm_tensor_new(llm_tensor_device(x), LLM_I32, 1, 3, s->ids, &err);
    int code = -1;
    if (ids && s->op == 22) code = llm_op_gather(x, ids, out, &err);
    if (ids && s->op == 23) code = llm_op_add_at(x, ids, v, out, &err);
    if (ids && s->op == 24) code = llm_op_set_at(x, ids, v, out, &err);
    llm_tensor_close(ids);
    return code;
}

static int mask(const statement *s, llm_tensor *x, llm_tensor **out) {
    int64_t first[5] = {0};
    int32_t ids[12];
    const int64_t n_rows = x->info.n_rows, n = s->code % 2 ? 1 : n_rows < 4 ? n_rows : 1;
    for (int64_t i = 0; i < n; i++) {
        first[i + 1] = first[i] + (i + s->code) % 3;
        for (int64_t j = first[i]; j < first[i + 1]; j++)
            ids[j] = (s->ids[j % 2] + (int32_t)i) % N_COLUMNS;
    }
    return llm_op_mask(x, first, ids, n, s->code > 4, out, &err);
}

static int run_statement(const statement *s, llm_tensor *x, llm_tensor *y, llm_tensor **out,
                         llm_tensor **more) {
    const llm_key keys[4] = {{3, 1, 7}, {3, 2, 7}, {3, 3, 7}, {4, 1, 7}};
    const int64_t rows[] = {0, 0};
    const llm_operand v = number(s->number), t = {.t = x}, u = {.t = y};
    const bool is_choice = x->is_choice; /* codes are found at once or later */
    switch (s->op) {
    case 0: return llm_op_unary((llm_unary)(s->code % 5), x, out, &err);
    case 1: return llm_op_clamp(x, -1, s->number, out, &err);
    case 2:
    case 3: return llm_op_binary((llm_binary)s->code, t, v, out, &err);
    case 4: return llm_op_binary((llm_binary)s->code, v, t, out, &err);
    case 5:
    case 6: return llm_op_binary((llm_binary)s->code, t, u, out, &err);
    case 7: return llm_op_where(x, u, v, out, &err);
    case 8: return llm_op_reduce((llm_reduce)(s->code % 6), x, out, &err);
    case 9: return llm_op_log_softmax(x, out, &err);
    case 10: return llm_op_softmax(x, out, &err);
    case 11: return (s->code % 2 ? llm_op_sort : llm_op_cumsum)(x, out, &err);
    case 12: return llm_op_normalize(x, out, &err);
    case 13: return llm_op_argmax(x, out, &err);
    case 14: return llm_op_topk(x, s->code, more, out, &err);
    case 15: return llm_op_gumbel(x, keys, out, &err);
    case 16: return llm_op_sample(x, keys, out, &err);
    case 17: return llm_op_top_k(x, number(floor(s->number)), out, &err);
    case 18: return llm_op_top_p(x, number(s->number / 2), out, &err);
    case 19: return llm_op_min_p(x, number(s->number / 2), out, &err);
    case 20: return llm_op_cut_below(x, s->code % 2 ? v : u, out, &err);
    case 21: return mask(s, x, out);
    case 22:
    case 23:
    case 24: return with_ids(s, x, v, out);
    case 25: return llm_op_copy(x, out, &err);
    case 26: return is_choice ? 0 : llm_op_rows(x, rows, 2, out, &err);
    case 27: return is_choice ? 0 : llm_op_narrow(x, 1 + s->code % 2, 0, 1, out, &err);
    case 28: return llm_op_cat(x, y, 1 + s->code % 2, out, &err);
    default: return llm_op_threshold_k(x, number(2), y, out, &err);
    }
}

/* On both sides of a job's slots. */
static void step(const statement *s, pair *slots) {
    const int i_x = slots[s->x].side[0] ? s->x : 0, i_y = slots[s->y].side[0] ? s->y : 0;
    pair out = {{NULL, NULL}}, more = {{NULL, NULL}};
    llm_error errors[2] = {{LLM_OK, ""}, {LLM_OK, ""}};
    int codes[2];
    for (int i = 0; i < 2; i++) {
        llm_tensor *x = slots[i_x].side[i], *y = slots[i_y].side[i];
        llm_tensor **to = s->in_place ? &slots[i_x].side[i] : &out.side[i];
        codes[i] = run_statement(s, x, y, to, &more.side[i]);
        if (fail_at && codes[i] && err.kind == LLM_OUT_OF_MEMORY)
            codes[i] = run_statement(s, x, y, to, &more.side[i]);
        if (codes[i]) errors[i] = err;
    }
    CHECK(codes[0] == codes[1] && errors[0].kind == errors[1].kind &&
              strcmp(errors[0].message, errors[1].message) == 0,
          "operation %d: '%s' and '%s'", s->op, errors[0].message, errors[1].message);
    if (more.side[0] && more.side[1]) compare("scores", &more);
    close_pair(&more);
    if (!out.side[0]) return;
    close_pair(&slots[s->to]);
    slots[s->to] = out;
}

/* Each job does the same, one after the other, some of it with results that are read between. */
static void run_program(uint32_t seed, int n_jobs) {
    static pair slots[MOST_JOBS][N_SLOTS];
    statement program[N_STATEMENTS];
    int64_t n_rows[MOST_JOBS];
    pair logits[MOST_JOBS];
    state = seed;
    const bool differ = draw(2);
    for (int j = 0; j < n_jobs; j++) n_rows[j] = differ ? 1 + draw(3) : 1;
    pass(n_jobs, n_rows, logits);
    if (fail_at) llm_fail_allocation(fail_at);
    for (int i = 0; i < N_STATEMENTS; i++) program[i] = random_statement();
    for (int j = 0; j < n_jobs; j++) {
        slots[j][0] = logits[j];
        for (int i = 0; i < N_STATEMENTS; i++) step(&program[i], slots[j]);
        if (draw(4) == 0) close_pair(&slots[j][1 + draw(N_SLOTS - 1)]); /* before it has run */
    }
    for (int i = 0; i < n_jobs * N_SLOTS; i++) {
        pair *p = &slots[i % n_jobs][i / n_jobs];
        if (p->side[0]) compare("a program's result", p);
        close_pair(p);
    }
    llm_fail_allocation(0);
}

static void test_programs(void) {
    for (uint32_t i = 0; i < 400; i++) run_program(i, 1 + (int)(i % MOST_JOBS));
}

/* Any one allocation fails: whoever meets it tries again, and results are as they would be. */
static void test_failures(void) {
    if (!llm_faults_built()) return;
    for (uint32_t i = 0; i < 12; i++)
        for (fail_at = 1; fail_at < 400; fail_at += 1 + (int64_t)(i % 3)) run_program(i, 3);
    fail_at = 0;
}

/* ---- launches ---- */

/* temperature, top_k, top_p, sample: of each job its own. */
static llm_tensor *chain(llm_tensor *logits, uint64_t seed) {
    const llm_key key = {seed, 1, 5};
    llm_tensor *x = NULL, *ids = NULL;
    const llm_operand t = {.t = logits};
    CHECK(llm_op_binary(LLM_DIV, t, number(0.8), &x, &err) == 0 &&
              llm_op_top_k(x, number(5), &x, &err) == 0 &&
              llm_op_top_p(x, number(0.9), &x, &err) == 0 &&
              llm_op_sample(x, &key, &ids, &err) == 0,
          "%s", err.message);
    llm_tensor_close(x);
    return ids;
}

/* The launches and waits of a step of n jobs; each gets what it gets alone. */
static void step_of(int n_jobs, int64_t *launches, int64_t *waits) {
    const int64_t n_rows[MOST_JOBS] = {1, 1, 1, 1, 1, 1, 1, 1};
    pair logits[MOST_JOBS];
    llm_tensor *ids[MOST_JOBS];
    llm_late *late[MOST_JOBS];
    pass(n_jobs, n_rows, logits);
    *launches = n_launches;
    *waits = n_waits;
    for (int j = 0; j < n_jobs; j++) {
        ids[j] = chain(logits[j].side[1], (uint64_t)j);
        late[j] = llm_late_of(ids[j], &err);
        CHECK(late[j] && llm_tensor_is_late(ids[j]), "nothing has run yet");
    }
    CHECK(n_launches == *launches, "%d launches before the flush", (int)(n_launches - *launches));
    CHECK(queue_flush(apart, &err) == 0, "%s", err.message);
    CHECK(n_waits == *waits, "a flush waits for nothing");
    for (int j = 0; j < n_jobs; j++) {
        int32_t want = -1;
        llm_tensor *alone = chain(logits[j].side[0], (uint64_t)j);
        const int32_t *got = llm_late_read(late[j], &err);
        CHECK(llm_tensor_read(alone, 0, 1, &want, &err) == 0 && got && *got == want, "job %d", j);
        llm_tensor_close(alone);
        llm_late_close(late[j]);
        llm_tensor_close(ids[j]);
        close_pair(&logits[j]);
    }
    *launches = n_launches - *launches;
    *waits = n_waits - *waits;
}

static void test_launches(void) {
    for (int n = 1; n <= MOST_JOBS; n++) {
        int64_t launches, waits;
        step_of(n, &launches, &waits);
        CHECK(launches == 4, "%d launches for %d jobs", (int)launches, n);
        CHECK(waits == 1, "%d waits for %d jobs", (int)waits, n);
    }
}

/* Choices of different kinds are different launches, and arrive together all the same. */
static void test_waits(void) {
    const int64_t n_rows[MOST_JOBS] = {1, 1, 1, 1};
    pair logits[MOST_JOBS];
    llm_late *late[4];
    pass(4, n_rows, logits);
    for (int j = 0; j < 4; j++) {
        llm_tensor *ids = NULL;
        const int code = j % 2 ? llm_op_argmax(logits[j].side[1], &ids, &err)
                               : (ids = chain(logits[j].side[1], 1)) == NULL;
        CHECK(code == 0, "%s", err.message);
        late[j] = llm_late_of(ids, &err);
        llm_tensor_close(ids);
    }
    CHECK(queue_flush(apart, &err) == 0, "%s", err.message);
    const int64_t before = n_waits;
    for (int j = 3; j >= 0; j--) {
        CHECK(llm_late_read(late[j], &err) != NULL, "%s", err.message);
        llm_late_close(late[j]);
        close_pair(&logits[j]);
    }
    CHECK(n_waits == before + 1, "%d waits", (int)(n_waits - before));
}

/* One list for all rows is sent once, whoever asks. */
static void test_masks(void) {
    const int64_t n_rows[MOST_JOBS] = {3, 1, 2}, first[] = {0, 2}, other[] = {0, 1};
    const int32_t ids[] = {4, 9};
    pair logits[MOST_JOBS], out[MOST_JOBS] = {{{NULL, NULL}}};
    for (int differ = 0; differ < 2; differ++) {
        pass(3, n_rows, logits);
        const int64_t before = n_launches;
        for (int j = 0; j < 3; j++)
            for (int i = 0; i < 2; i++)
                CHECK(llm_op_mask(logits[j].side[i], differ && j == 1 ? other : first, ids, 1,
                                  false, &out[j].side[i], &err) == 0,
                      "%s", err.message);
        for (int j = 0; j < 3; j++) compare("mask", &out[j]);
        CHECK(n_launches == before + 1 && n_rows_masked == 6, "one launch for all rows");
        CHECK(n_columns_masked == (differ ? 11 : 2), "%d ids went up", (int)n_columns_masked);
        for (int j = 0; j < 3; j++) {
            close_pair(&logits[j]);
            close_pair(&out[j]);
        }
    }
}

/* ---- what fails alone ---- */

static void test_device_failure(void) {
    const int64_t n_rows[MOST_JOBS] = {1, 1, 1};
    pair logits[MOST_JOBS];
    llm_tensor *ids[3], *more = NULL;
    int32_t id;
    pass(3, n_rows, logits);
    for (int j = 0; j < 3; j++) ids[j] = chain(logits[j].side[1], 1);
    CHECK(llm_op_binary(LLM_ADD, (llm_operand){.t = logits[0].side[1]},
                        (llm_operand){.t = logits[0].side[1]}, &more, &err) == 0,
          "%s", err.message);
    fail_draws = 2; /* of all together, then of the first alone */
    CHECK(llm_tensor_read(ids[1], 0, 1, &id, &err) == 0, "%s", err.message);
    CHECK(llm_tensor_read(ids[2], 0, 1, &id, &err) == 0, "%s", err.message);
    float sum;
    CHECK(llm_tensor_read(more, 0, 1, &sum, &err) == 0, "%s", err.message);
    CHECK(llm_tensor_read(ids[0], 0, 1, &id, &err) == -1 && err.kind == LLM_DEVICE &&
              strstr(err.message, "sample"),
          "%s", err.message);
    llm_late *late = llm_late_of(ids[0], &err);
    CHECK(late && !llm_late_read(late, &err) && err.kind == LLM_DEVICE, "%s", err.message);
    llm_late_close(late);
    CHECK(llm_op_binary(LLM_ADD, (llm_operand){.t = ids[0]}, number(1), &more, &err) == -1,
          "what needs it fails too");
    llm_tensor_close(more);
    for (int j = 0; j < 3; j++) {
        llm_tensor_close(ids[j]);
        close_pair(&logits[j]);
    }
}

/* A large result does not fit, in all tries; a small one of another job does. */
static void test_memory(void) {
    const int64_t n_rows[MOST_JOBS] = {1, 1};
    pair logits[MOST_JOBS];
    pass(2, n_rows, logits);
    llm_tensor *large = llm_tensor_new(apart, LLM_F32, 300, 300, NULL, &err);
    llm_tensor *y = NULL, *id = NULL;
    float x;
    int32_t k;
    CHECK(llm_op_softmax(large, &y, &err) == 0 && llm_op_argmax(logits[0].side[1], &id, &err) == 0,
          "%s", err.message);
    most_bytes = 4096;
    CHECK(queue_flush(apart, &err) == -1 && err.kind == LLM_OUT_OF_MEMORY, "told once");
    CHECK(queue_flush(apart, &err) == 0, "then it is given up: %s", err.message);
    CHECK(llm_tensor_read(id, 0, 1, &k, &err) == 0, "%s", err.message);
    CHECK(llm_tensor_read(y, 0, 1, &x, &err) == -1 && err.kind == LLM_OUT_OF_MEMORY &&
              strstr(err.message, "300 × 300"),
          "%s", err.message);
    llm_tensor_close(y);
    y = NULL;
    for (int i = 0; i < 3; i++)
        CHECK(llm_op_softmax(large, &y, &err) == -1 && err.kind == LLM_OUT_OF_MEMORY && !y,
              "while memory is short operations fail where they are asked for");
    most_bytes = 0;
    llm_tensor *first = NULL;
    CHECK(llm_op_softmax(large, &first, &err) == 0, "%s", err.message);
    CHECK(llm_op_softmax(large, &y, &err) == 0, "%s", err.message);
    most_bytes = 4096;
    CHECK(llm_tensor_read(y, 0, 1, &x, &err) == -1 && err.kind == LLM_OUT_OF_MEMORY, "told");
    most_bytes = 0;
    CHECK(llm_tensor_read(y, 0, 1, &x, &err) == 0, "memory was freed meanwhile: %s", err.message);
    llm_tensor_close(first);
    llm_tensor_close(y);
    llm_tensor_close(id);
    llm_tensor_close(large);
    close_pair(&logits[0]);
    close_pair(&logits[1]);
}

/* What waits counts before it is there, and pressure that was told of ends. */
static void test_pressure(void) {
    llm_tensor *x = llm_tensor_new(apart, LLM_F32, 1000, 1000, NULL, &err), *y[8] = {NULL};
    int n = 0;
    while (n < 7 && !llm_device_pressed(apart)) {
        CHECK(llm_op_softmax(x, &y[n], &err) == 0, "%s", err.message);
        n++;
    }
    CHECK(n > 2 && n < 7, "pressed after %d results of 4 MB", n);
    CHECK(llm_op_softmax(x, &y[n], &err) == 0, "%s", err.message);
    CHECK(!llm_device_pressed(apart), "told, the budget grew");
    for (int i = 0; i <= n; i++) llm_tensor_close(y[i]);
    llm_tensor_close(x);
    CHECK(queue_flush(apart, &err) == 0, "%s", err.message);
    CHECK(!llm_device_pressed(apart), "what nobody holds is needed no more");
}

/* A row of NaN is its own job's. */
static void test_nan(void) {
    const int64_t n_rows[MOST_JOBS] = {1, 1, 1};
    const int32_t bad = 3;
    pair logits[MOST_JOBS], ids[3] = {{{NULL, NULL}}};
    pass(3, n_rows, logits);
    for (int i = 0; i < 2; i++) {
        llm_tensor *at = llm_tensor_new(device_of(i), LLM_I32, 1, 1, &bad, &err);
        CHECK(llm_op_set_at(logits[1].side[i], at, number((double)NAN), &logits[1].side[i], &err) ==
                  0,
              "%s", err.message);
        llm_tensor_close(at);
        for (int j = 0; j < 3; j++)
            CHECK(llm_op_argmax(logits[j].side[i], &ids[j].side[i], &err) == 0, "%s", err.message);
    }
    for (int j = 0; j < 3; j++) {
        compare("argmax", &ids[j]);
        int32_t id;
        const int code = llm_tensor_read(ids[j].side[1], 0, 1, &id, &err);
        CHECK(j == 1 ? code == -1 && err.kind == LLM_NAN : code == 0, "job %d: %s", j, err.message);
        close_pair(&ids[j]);
        close_pair(&logits[j]);
    }
}

/* What waits when the device is closed is dropped, and what nobody holds never runs. */
static void test_dropped(void) {
    llm_device *d = apart_open();
    llm_tensor *x = llm_tensor_new(d, LLM_F32, 2, 3, NULL, &err), *y = NULL;
    const int64_t before = n_launches;
    CHECK(llm_op_log_softmax(x, &y, &err) == 0 && llm_op_log_softmax(y, &y, &err) == 0, "%s",
          err.message);
    llm_tensor_close(y);
    CHECK(queue_flush(d, &err) == 0 && n_launches == before, "it ran for nobody");
    y = NULL;
    CHECK(llm_op_log_softmax(x, &y, &err) == 0, "%s", err.message);
    llm_tensor_close(x);
    llm_tensor_close(y);
    llm_device_close(d);
    CHECK(n_launches == before, "it ran for nobody");
}

/* ---- what it costs ---- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A step of 64 jobs where operations compute nothing: four operations each, an id that leaves for
 * the host and is read. */
static void print_cost(void) {
    enum { N_JOBS = 64, N_STEPS = 200 };
    llm_tensor *logits[N_JOBS], *ids[N_JOBS];
    llm_late *late[N_JOBS];
    double best = INFINITY;
    block *b = block_open(apart, N_JOBS, N_COLUMNS, &err);
    if (!b) abort();
    memset(b->buffer.data, 0, b->buffer.bytes);
    for (int j = 0; j < N_JOBS; j++) {
        logits[j] = tensor_alloc_later(apart, LLM_F32, 1, N_COLUMNS, &err);
        if (!logits[j]) abort();
        cell_place(apart, logits[j]->cell, b, (int64_t)j * N_COLUMNS, N_COLUMNS);
    }
    block_close(apart, b);
    is_idle = true;
    for (int i = 0; i < N_STEPS; i++) {
        const double began = now();
        for (int j = 0; j < N_JOBS; j++) {
            ids[j] = chain(logits[j], (uint64_t)j);
            late[j] = llm_late_of(ids[j], &err);
        }
        (void)queue_flush(apart, &err);
        for (int j = 0; j < N_JOBS; j++) {
            (void)llm_late_read(late[j], &err);
            llm_late_close(late[j]);
            llm_tensor_close(ids[j]);
        }
        const double took = now() - began;
        best = took < best ? took : best;
    }
    is_idle = false;
    for (int j = 0; j < N_JOBS; j++) llm_tensor_close(logits[j]);
    printf("%d jobs, 4 operations each: %.2f us a job and step\n", N_JOBS, best * 1e6 / N_JOBS);
}

int main(void) {
    plain = device_open();
    apart = apart_open();
    test_programs();
    test_failures();
    test_launches();
    test_waits();
    test_masks();
    test_device_failure();
    test_memory();
    test_pressure();
    test_nan();
    test_dropped();
    print_cost();
    llm_device_close(apart);
    llm_device_close(plain);
    return check_end();
}
