/* test_cuda_tensor.c: the tensor operations of the CUDA backend against those of the CPU on the
 * same numbers: equal choices, equal bits where both do the same arithmetic, some ulp elsewhere; a
 * row alone against the row among others; in place against into a new tensor; how many launches. */
#include "cuda_tensors.h"

/* ---- operations x → out of the same shape ---- */

/* What an operation takes besides x. */
typedef struct extras {
    const kern_tensor *p, *k, *least, *key; /* columns; rows */
    kern_key keys[32];
    int64_t first[33];
    int32_t columns[64];
} extras;

enum {
    OP_EXP,
    OP_LOG,
    OP_ABS,
    OP_SQRT,
    OP_NEG,
    OP_CLAMP,
    OP_LOG_SOFTMAX,
    OP_SOFTMAX,
    OP_SORT,
    OP_CUMSUM,
    OP_NORMALIZE,
    OP_GUMBEL,
    OP_TOP_K,
    OP_TOP_P,
    OP_K_KEY,
    OP_P_KEY,
    OP_MIN_P,
    OP_CUT_BELOW,
    OP_MASK,
    OP_ONLY,
    N_OPERATIONS
};
static const char *const names[] = {"exp",
                                    "log",
                                    "abs",
                                    "sqrt",
                                    "neg",
                                    "clamp",
                                    "log_softmax",
                                    "softmax",
                                    "sort",
                                    "cumsum",
                                    "normalize",
                                    "gumbel",
                                    "threshold_k",
                                    "threshold_mass",
                                    "threshold_k by key",
                                    "threshold_mass by key",
                                    "min_p",
                                    "cut_below",
                                    "mask",
                                    "only"};

/* Rows first_row … of the extras. */
static int operate(int side, int op, const extras *e, int64_t first_row, kern_tensor x,
                   kern_tensor out) {
    kern_tensor p = e->p[side], k = e->k[side], least = e->least[side], key = e->key[side];
    kern_tensor *parts[] = {&p, &k, &least, &key};
    const kern_tensor none = {0};
    for (int i = 0; i < 4; i++) {
        parts[i]->offset += (size_t)(first_row * parts[i]->n_columns) * 4;
        parts[i]->n_rows = x.n_rows;
    }
    switch (op) {
    case OP_CLAMP: return RUN(side, unary, KERN_CLAMP, x, -1.5f, 2, out);
    case OP_LOG_SOFTMAX: return RUN(side, log_softmax, x, out);
    case OP_SOFTMAX: return RUN(side, softmax, x, out);
    case OP_SORT: return RUN(side, sort, x, out);
    case OP_CUMSUM: return RUN(side, cumsum, x, out);
    case OP_NORMALIZE: return RUN(side, normalize, x, out);
    case OP_GUMBEL: return RUN(side, gumbel, x, 1, e->keys + first_row, out);
    case OP_TOP_K: return RUN(side, threshold_k, x, k, none, out);
    case OP_TOP_P: return RUN(side, threshold_mass, x, p, none, out);
    case OP_K_KEY: return RUN(side, threshold_k, x, k, key, out);
    case OP_P_KEY: return RUN(side, threshold_mass, x, p, key, out);
    case OP_MIN_P: return RUN(side, min_p, x, p, out);
    case OP_CUT_BELOW: return RUN(side, cut_below, x, least, out);
    case OP_MASK: return RUN(side, mask, x, e->first + first_row, e->columns, x.n_rows, 0, out);
    case OP_ONLY: return RUN(side, mask, x, e->first + first_row, e->columns, x.n_rows, 1, out);
    default: return RUN(side, unary, (kern_unary)op, x, 0, 0, out);
    }
}

/* Up to 32 rows. */
static extras extras_new(int64_t r, int64_t n) {
    static const float ps[] = {0.9f, 0.5f, 0, 1, 1e-6f, 0.1f, 1e-30f, 0.75f, 0.999999f};
    static const float bounds[] = {0, -1, 100, -INFINITY, NAN, INFINITY, 1.5f};
    extras e;
    float p[32], least[32], *key = rows_new(r, n, TINY);
    int32_t k[32];
    const int32_t counts[] = {
        5, 1, 300, (int32_t)n, 0, INT32_MAX, (int32_t)(n / 2), (int32_t)n - 1};
    for (int i = 0; i < r; i++) {
        const int turn = i / N_KINDS;
        p[i] = ps[(i + turn) % 9];
        least[i] = bounds[(i + turn) % 7];
        k[i] = counts[(i + turn) % 8];
        e.keys[i] = (kern_key){(uint64_t)i << 40 | 7, UINT64_MAX - (uint64_t)i, (uint32_t)i * 77};
        e.first[i] = 3 + 2 * i; /* lists of two columns, the first not at the beginning */
    }
    e.first[r] = 3 + 2 * r;
    for (int i = 0; i < 64; i++) e.columns[i] = (int32_t)(uniform() * (double)n);
    for (int64_t i = 0; i < r * n; i += 97) key[i] = i % 2 ? NAN : -INFINITY;
    e.p = tensor(r, 1, p);
    e.k = tensor(r, 1, k);
    e.least = tensor(r, 1, least);
    e.key = tensor(r, n, key);
    free(key);
    return e;
}

static void check_operation(int op, const extras *e, const float *x, int64_t r, int64_t n,
                            int64_t skip) {
    const kern_tensor *from = tensor_at(r, n, x, skip), *to = tensor(r, n, NULL);
    double ulps = 0, *most = NULL;
    for (int side = 0; side < 2; side++)
        CHECK(operate(side, op, e, 0, from[side], to[side]) == 0, "%s: %s", names[op],
              backends[side]->last_error(devices[side]));
    switch (op) {
    case OP_LOG: ulps = 2; break;
    case OP_LOG_SOFTMAX: ulps = 1, most = same_for_all(r, 2e-7); break;
    case OP_SOFTMAX: ulps = 3; break;
    case OP_CUMSUM: ulps = 1, most = magnitudes(x, r, n, 1e-14); break;
    case OP_NORMALIZE: ulps = 2; break;
    }
    expect_near(names[op], to, ulps, most);
    free(most);
    /* in place */
    float *want = fetch(GPU, to[GPU]);
    CHECK(operate(GPU, op, e, 0, from[GPU], from[GPU]) == 0, "%s in place", names[op]);
    float *got = fetch(GPU, from[GPU]);
    expect_f32("in place", got, want, r, n, 0, NULL);
    free(got);
    free(want);
}

static void test_maps(void) {
    static const struct {
        int64_t r, n, skip;
    } shapes[] = {{1, 1, 0},    {11, 7, 1},    {22, 33, 0},    {11, 1000, 3},
                  {5, 4096, 0}, {11, 4099, 2}, {17, 50000, 0}, {2, 20000, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int64_t r = shapes[i].r, n = shapes[i].n;
        if (is_brief() && r * n > 45000) continue;
        float *x = rows_new(r, n, N_KINDS);
        for (int op = 0; op < N_OPERATIONS; op++) {
            const extras e = extras_new(r, n);
            check_operation(op, &e, x, r, n, shapes[i].skip);
            release();
        }
        free(x);
    }
}

/* A row alone, at another address, among others: the same bits. */
static void test_rows_alone(void) {
    enum { R = 8, N = 9001 };
    float *x = rows_new(R, N, N_FINITE_KINDS);
    for (int op = 0; op < N_OPERATIONS; op++) {
        const extras e = extras_new(R, N);
        const kern_tensor *from = tensor(R, N, x), *to = tensor(R, N, NULL),
                          *alone = tensor(1, N, NULL);
        CHECK(operate(GPU, op, &e, 0, from[GPU], to[GPU]) == 0, "%s", names[op]);
        uint32_t *all = fetch(GPU, to[GPU]);
        for (int64_t r = 0; r < R; r += 3) {
            kern_tensor row = from[GPU];
            row.offset += (size_t)(r * N) * 4;
            row.n_rows = 1;
            CHECK(operate(GPU, op, &e, r, row, alone[GPU]) == 0, "%s", names[op]);
            uint32_t *bits = fetch(GPU, alone[GPU]);
            CHECK(memcmp(bits, all + r * N, N * 4) == 0, "%s: row %d alone is another", names[op],
                  (int)r);
            free(bits);
        }
        free(all);
        release();
    }
    free(x);
}

/* ---- numbers a row ---- */

static void test_reductions(void) {
    static const int64_t columns[] = {1, 3, 31, 1000, 4097, 50000};
    static const char *const reductions[] = {"max", "min", "sum", "logsumexp", "entropy", "std"};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        const int64_t n = columns[i], r = 17;
        if (is_brief() && n > 40000) continue;
        float *x = rows_new(r, n, N_KINDS);
        const kern_tensor *from = tensor(r, n, x), *to = tensor(r, 1, NULL),
                          *ids = tensor(r, 1, NULL), *alone = tensor(1, 1, NULL);
        for (int op = 0; op < 6; op++) {
            for (int side = 0; side < 2; side++)
                CHECK(RUN(side, reduce, (kern_reduce)op, from[side], to[side]) == 0, "reduce");
            double *most = op == KERN_SUM   ? magnitudes(x, r, n, 1e-14)
                           : op == KERN_STD ? same_for_all(r, 0)
                                            : same_for_all(r, op == KERN_ENTROPY ? 2e-6 : 2e-7);
            expect_near(reductions[op], to,
                        op < KERN_SUM    ? 0
                        : op == KERN_STD ? 4
                                         : 1,
                        op < KERN_SUM ? NULL : most);
            free(most);
            float *all = fetch(GPU, to[GPU]);
            kern_tensor row = from[GPU];
            row.n_rows = 1;
            row.offset += (size_t)(5 * n) * 4;
            CHECK(RUN(GPU, reduce, (kern_reduce)op, row, alone[GPU]) == 0, "reduce");
            float *one = fetch(GPU, alone[GPU]);
            CHECK(memcmp(one, all + 5, 4) == 0, "%s: a row alone is another", reductions[op]);
            free(one);
            free(all);
        }
        for (int side = 0; side < 2; side++)
            CHECK(RUN(side, argmax, from[side], 1, ids[side]) == 0, "argmax");
        expect_i32("argmax", ids);
        release();
        free(x);
    }
}

/* ---- choices ---- */

static void check_topk(const float *x, int64_t r, int64_t n, int64_t k) {
    const kern_tensor *from = tensor(r, n, x), *scores = tensor(r, k, NULL),
                      *ids = tensor(r, k, NULL);
    for (int side = 0; side < 2; side++)
        CHECK(RUN(side, topk, from[side], k, 1, scores[side], ids[side]) == 0, "topk: %s",
              backends[side]->last_error(devices[side]));
    expect_near("topk's scores", scores, 0, NULL);
    expect_i32("topk's ids", ids);
}

static void check_joint(const float *x, int64_t r, int64_t n, int64_t k, int64_t groups) {
    const kern_tensor *from = tensor(r, n, x), *scores = tensor(groups * k, 1, NULL),
                      *ids = tensor(groups * k, 1, NULL), *rows = tensor(groups * k, 1, NULL);
    for (int side = 0; side < 2; side++)
        CHECK(RUN(side, topk_joint, from[side], k, groups, 0, scores[side], ids[side],
                  rows[side]) == 0,
              "topk_joint");
    expect_near("topk_joint's scores", scores, 0, NULL);
    expect_i32("topk_joint's ids", ids);
    expect_i32("topk_joint's rows", rows);
}

static void test_topk(void) {
    static const int64_t columns[] = {1, 5, 33, 1000, 4097, 50000};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        const int64_t n = columns[i], r = n > 40000 ? 11 : 22;
        if (is_brief() && n > 40000) continue;
        float *x = rows_new(r, n, N_KINDS), *finite = rows_new(r, n, N_FINITE_KINDS);
        static const int64_t counts[] = {1, 4, 64, 2048, 2049};
        for (size_t l = 0; l < sizeof counts / sizeof *counts; l++)
            if (counts[l] <= n) check_topk(x, r, n, counts[l]);
        check_topk(x, 2, n, n < 5000 ? n : 1500);
        release();
        for (int64_t groups = 1; groups <= r; groups += r / 11 * 5) {
            if (r % groups) continue;
            check_joint(finite, r, n, 1, groups);
            check_joint(finite, r, n, n < 8 ? n : 8, groups);
            check_joint(x, r, n, n < 8 ? n : 8, groups);
            check_joint(x + 9 * n, 2, n, 2 * n < 50 ? 2 * n : 50, 1);
            check_joint(x + 8 * n, 1, n, 1, 1);
            release();
        }
        if (n == 1000) check_joint(finite, 8, n, 3000, 2);
        release();
        free(x);
        free(finite);
    }
}

static void test_draws(void) {
    static const int64_t columns[] = {1, 2, 33, 1000, 4097, 50000};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        for (int32_t base = 0; base < 2; base++) {
            const int64_t n = columns[i], r = 22;
            if (is_brief() && n > 40000) continue;
            float *x = rows_new(r, n, N_KINDS);
            const extras e = extras_new(r, n);
            const kern_tensor *from = tensor(r, n, x), *ids = tensor(r, 1, NULL),
                              *noisy = tensor(r, n, NULL);
            for (int side = 0; side < 2; side++) {
                CHECK(RUN(side, sample, from[side], base, e.keys, ids[side]) == 0, "sample");
                CHECK(RUN(side, gumbel, from[side], base, e.keys, noisy[side]) == 0, "gumbel");
            }
            expect_i32("sample", ids);
            expect_near("gumbel", noisy, 0, NULL);
            release();
            free(x);
        }
}

int main(void) {
    both_open();
    test_maps();
    if (!is_brief()) test_rows_alone();
    test_reductions();
    test_topk();
    test_draws();
    both_close();
    return check_end();
}
