/* test_cuda_tensor_shapes.c: the tensor operations of the CUDA backend whose operands have several
 * shapes (broadcast, lists of columns and rows, products) against those of the CPU; tensors without
 * entries; how many launches each takes, and that none waits. */
#include "cuda_tensors.h"

/* ---- entry by entry ---- */

static void check_binary(const kern_tensor *x, const kern_tensor *y, int64_t r, int64_t n) {
    const kern_tensor *to = tensor(r, n, NULL);
    static const char *const names[] = {"+", "-", "*", "/", "^", "lt", "le", "gt", "ge", "eq"};
    for (int op = KERN_ADD; op <= KERN_EQ; op++) {
        for (int side = 0; side < 2; side++)
            CHECK(RUN(side, binary, (kern_binary)op, x[side], y[side], to[side]) == 0, "binary");
        expect_near(names[op], to, op == KERN_POW ? 4 : 0, NULL);
        if (op > KERN_MUL) continue;
        for (int side = 0; side < 2; side++)
            CHECK(RUN(side, binary_i32, (kern_binary)op, x[side], y[side], to[side]) == 0, "i32");
        expect_i32(names[op], to);
    }
    CHECK(RUN(GPU, binary_i32, KERN_DIV, x[GPU], y[GPU], to[GPU]) == KERN_UNSUPPORTED, "i32 /");
    const int first[] = {1, 0}; /* in place of either operand */
    for (int i = 0; i < 2; i++) {
        const kern_tensor *place = first[i] ? x : y;
        if (place[GPU].n_rows != r || place[GPU].n_columns != n) continue;
        void *kept[2];
        for (int side = 0; side < 2; side++) {
            kept[side] = fetch(side, place[side]);
            CHECK(RUN(side, binary, KERN_SUB, x[side], y[side], place[side]) == 0, "in place");
        }
        expect_near("- in place", place, 0, NULL);
        for (int side = 0; side < 2; side++) {
            if (r * n > 0)
                RUN(side, write, place[side].buffer, place[side].offset, kept[side],
                    (size_t)(r * n) * 4);
            free(kept[side]);
        }
    }
}

/* Rows, columns and numbers spread over a tensor, each beginning at an odd place. */
static void test_elementwise(void) {
    static const struct {
        int64_t r, n;
    } shapes[] = {{1, 1}, {3, 5}, {17, 33}, {2, 1024}, {9, 1031}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int64_t r = shapes[i].r, n = shapes[i].n;
        float *a = rows_new(r, n, N_KINDS), *b = rows_new(r, n, N_FINITE_KINDS);
        for (int64_t at = 0; at < r * n; at += 3) b[at] = at % 2 ? 2 : a[at];
        const int64_t rows[] = {r, 1, r, 1}, columns[] = {n, n, 1, 1};
        for (int of_x = 0; of_x < 4; of_x++)
            for (int of_y = 0; of_y < 4; of_y++) {
                if ((of_x && of_y && of_x + of_y != 3) || (of_x > 2 && of_y)) continue;
                check_binary(tensor_at(rows[of_x], columns[of_x], a, of_x),
                             tensor_at(rows[of_y], columns[of_y], b, 4 * of_y), r, n);
            }
        release();
        for (int64_t at = 0; at < r * n; at += 2) b[at] = 0;
        for (int shape = 0; shape < 64; shape += 7) {
            const int sx = shape & 3, sc = shape >> 2 & 3, sy = shape >> 4;
            if (sx && sc && sy) continue;
            const kern_tensor *x = tensor(rows[sx], columns[sx], a), *to = tensor(r, n, NULL),
                              *c = tensor(rows[sc], columns[sc], b);
            const kern_tensor *z = tensor(rows[sy], columns[sy], a);
            for (int side = 0; side < 2; side++)
                CHECK(RUN(side, where, x[side], c[side], z[side], to[side]) == 0, "where");
            expect_near("where", to, 0, NULL);
            release();
        }
        const kern_tensor *k = tensor(r, n, a), *to = tensor(r, n, NULL);
        for (int side = 0; side < 2; side++)
            CHECK(RUN(side, to_f32, k[side], to[side]) == 0, "to_f32");
        expect_near("to_f32", to, 0, NULL);
        release();
        free(a);
        free(b);
    }
}

/* ---- columns and rows ---- */

/* n ids for r rows, some of them many times. */
static int32_t *ids_new(int64_t r, int64_t n, int64_t n_columns, int32_t base) {
    int32_t *ids = array_new(r * n);
    for (int64_t i = 0; i < r * n; i++)
        ids[i] = (int32_t)(uniform() * (double)(i % 3 ? n_columns : (n_columns + 3) / 4)) + base;
    return ids;
}

static void check_scatter(const float *x, int64_t r, int64_t c, const kern_tensor *ids,
                          int32_t base, const kern_tensor *v) {
    for (int add = 0; add < 2; add++) {
        const kern_tensor *to = tensor(r, c, x);
        for (int side = 0; side < 2; side++)
            CHECK(RUN(side, scatter, to[side], ids[side], base, v[side], add) == 0, "scatter");
        expect_near(add ? "add_at" : "set_at", to, 0, NULL);
    }
}

static void test_columns(void) {
    static const int64_t columns[] = {1, 3, 40, 4097, 9001};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        for (int32_t base = 0; base < 2; base++) {
            const int64_t c = columns[i], r = 4;
            const int64_t n = c < 100 ? 2 * c + 1 : 700;
            float *x = rows_new(r, c, TINY), *v = rows_new(r, n, 3);
            int32_t *list = ids_new(r, n, c, base);
            const kern_tensor *from = tensor(r, c, x), *ids = tensor(r, n, list),
                              *one = tensor(1, n, list), *to = tensor(r, n, NULL);
            const kern_tensor *values[] = {tensor(r, n, v), tensor(1, n, v), tensor(r, 1, v),
                                           tensor(1, 1, v)};
            for (int l = 0; l < 2; l++) {
                for (int side = 0; side < 2; side++)
                    CHECK(RUN(side, gather, from[side], l ? one[side] : ids[side], base,
                              to[side]) == 0,
                          "gather");
                expect_near("gather", to, 0, NULL);
                for (int w = 0; w < 4; w++) check_scatter(x, r, c, l ? one : ids, base, values[w]);
            }
            release();
            free(list);
            list = ids_new(r, c, c, base); /* values that lie in the tensor itself */
            for (int add = 0; add < 2; add++) {
                const kern_tensor *own = tensor(r, c, x), *to_own = tensor(r, c, list);
                for (int side = 0; side < 2; side++)
                    CHECK(RUN(side, scatter, own[side], to_own[side], base, own[side], add) == 0,
                          "scatter");
                expect_near("a tensor scattered into itself", own, 0, NULL);
            }
            release();
            free(x);
            free(v);
            free(list);
        }
}

static void test_blocks(void) {
    enum { R = 5, C = 1037 };
    float *x = rows_new(R, C, N_KINDS), *y = rows_new(R, 2 * C, 3);
    const int64_t list[] = {4, 0, 0, 2, 4, 1, 3};
    const kern_tensor *from = tensor_at(R, C, x, 1), *rows = tensor(7, C, NULL),
                      *to = tensor(R, 2 * C, y), *ids = tensor(3, C, NULL);
    for (int side = 0; side < 2; side++) {
        CHECK(RUN(side, rows, from[side], list, rows[side]) == 0, "rows");
        CHECK(RUN(side, columns, from[side], 3, C - 5, to[side], 17) == 0, "columns");
        CHECK(RUN(side, columns, from[side], 0, 0, to[side], 0) == 0, "no columns");
        CHECK(RUN(side, rows, rows[side], list + 2, ids[side]) == 0, "rows of rows");
    }
    expect_near("rows", rows, 0, NULL);
    expect_near("columns", to, 0, NULL);
    expect_near("rows of rows", ids, 0, NULL);
    release();
    free(x);
    free(y);
}

/* Long lists, for each row of another length, or one for all rows. */
static void test_masks(void) {
    enum { R = 4, C = 9001, N = 5000 };
    float *x = rows_new(R, C, N_KINDS);
    int32_t *list = ids_new(1, N, C, 0);
    const int64_t first[] = {10, 10, 11, 4000, N};
    for (int i = 0; i < 4; i++) {
        const int only = i % 2, one = i / 2;
        const kern_tensor *from = tensor(R, C, x), *to = tensor(R, C, NULL);
        for (int side = 0; side < 2; side++)
            CHECK(RUN(side, mask, from[side], first + 2 * one, list, one ? 1 : R, only, to[side]) ==
                      0,
                  "mask");
        expect_near(only ? "only" : "mask", to, 0, NULL);
    }
    release();
    free(x);
    free(list);
}

/* ---- matrices ---- */

static void check_product(int64_t n, int64_t k, int64_t m) {
    float *a = rows_new(n, k, 1), *b = rows_new(k, m, 1);
    const kern_tensor *ta = tensor_at(n, k, a, 1), *tb = tensor(k, m, b), *to = tensor(n, m, NULL),
                      *alone = tensor(1, m, NULL), *flipped = tensor(m, k, NULL);
    for (int side = 0; side < 2; side++) {
        CHECK(RUN(side, matmul, ta[side], tb[side], to[side]) == 0, "matmul");
        CHECK(RUN(side, transpose, tb[side], flipped[side]) == 0, "transpose");
    }
    double *most = same_for_all(n, 0);
    for (int64_t i = 0; i < n; i++) {
        double squares = 0;
        for (int64_t l = 0; l < k; l++) squares += (double)a[i * k + l] * (double)a[i * k + l];
        most[i] = 6e-7 * sqrt(squares) * 9 * sqrt((double)k);
    }
    expect_near("matmul", to, 0, most);
    expect_near("transpose", flipped, 0, NULL);
    float *all = fetch(GPU, to[GPU]);
    kern_tensor row = ta[GPU];
    row.offset += (size_t)((n - 1) * k) * 4;
    row.n_rows = 1;
    CHECK(RUN(GPU, matmul, row, tb[GPU], alone[GPU]) == 0, "matmul");
    float *one = fetch(GPU, alone[GPU]);
    CHECK(memcmp(one, all + (n - 1) * m, (size_t)m * 4) == 0,
          "%d × %d × %d: a row alone is another", (int)n, (int)k, (int)m);
    release();
    free(one);
    free(all);
    free(most);
    free(a);
    free(b);
}

static void test_matrices(void) {
    check_product(1, 1, 1);
    check_product(3, 65, 31);
    check_product(8, 600, 40);
    check_product(9, 600, 33);
    check_product(17, 64, 100);
    check_product(50, 131, 67);
}

/* ---- nothing, and how much work it is ---- */

static void test_empty(void) {
    const kern_tensor *x = tensor(3, 0, NULL), *to = tensor(3, 0, NULL), *one = tensor(3, 1, NULL),
                      *none = tensor(0, 5, NULL), *k = tensor(1, 1, (const float[]){1}),
                      *product = tensor(3, 5, NULL);
    const kern_key keys[3] = {{0}};
    const int64_t first[4] = {0};
    const kern_tensor key = {0};
    for (int op = KERN_MAX; op <= KERN_STD; op++) {
        for (int side = 0; side < 2; side++)
            CHECK(RUN(side, reduce, (kern_reduce)op, x[side], one[side]) == 0, "reduce");
        expect_near("a reduction of nothing", one, 0, NULL);
    }
    for (int side = 0; side < 2; side++) {
        kern_tensor y = one[side];
        CHECK(RUN(side, argmax, x[side], 0, one[side]) == 0, "argmax");
        CHECK(RUN(side, log_softmax, x[side], to[side]) == 0 &&
                  RUN(side, softmax, x[side], to[side]) == 0 &&
                  RUN(side, sort, x[side], to[side]) == 0 &&
                  RUN(side, cumsum, x[side], to[side]) == 0 &&
                  RUN(side, gumbel, x[side], 0, keys, to[side]) == 0 &&
                  RUN(side, threshold_k, x[side], k[side], key, to[side]) == 0 &&
                  RUN(side, threshold_mass, x[side], k[side], key, to[side]) == 0 &&
                  RUN(side, min_p, x[side], k[side], to[side]) == 0 &&
                  RUN(side, mask, x[side], first, NULL, x[side].n_rows, 0, to[side]) == 0 &&
                  RUN(side, transpose, x[side], none[side]) == 0 &&
                  RUN(side, topk, x[side], 0, 0, to[side], to[side]) == 0,
              "operations on nothing");
        CHECK(RUN(side, sample, none[side], 0, keys, none[side]) == 0 &&
                  RUN(side, argmax, none[side], 0, none[side]) == 0 &&
                  RUN(side, topk_joint, none[side], 0, 1, 0, none[side], none[side], none[side]) ==
                      0,
              "operations on no rows");
        kern_tensor five = none[side];
        CHECK(RUN(side, matmul, x[side], five, product[side]) == 0, "a product over nothing");
        (void)y;
    }
    expect_i32("argmax of nothing", one);
    expect_near("a product over nothing", product, 0, NULL);
    release();
}

/* Launches of one operation; it neither waits nor copies anything down. */
static void expect_launches(const char *what, uint64_t launches, int code) {
    static kern_stats before;
    kern_stats after;
    backends[GPU]->stats(devices[GPU], &after);
    CHECK(code == 0 && after.launches - before.launches == launches, "%s takes %d launches, not %d",
          what, (int)(after.launches - before.launches), (int)launches);
    CHECK(after.syncs == before.syncs && after.bytes_down == before.bytes_down, "%s waits", what);
    before = after;
}

static void test_launches(void) {
    enum { R = 2, N = 50000 };
    float *data = rows_new(R, N, 1);
    const float ps[] = {0.9f, 0.5f};
    const int32_t counts[] = {40, 3000};
    const kern_key keys[R] = {{1, 2, 3}, {4, 5, 6}};
    const kern_tensor none = {0}, x = tensor(R, N, data)[GPU], out = tensor(R, N, NULL)[GPU],
                      column = tensor(R, 1, NULL)[GPU], p = tensor(R, 1, ps)[GPU],
                      k = tensor(R, 1, counts)[GPU], best = tensor(R, 64, NULL)[GPU],
                      ids = tensor(R, 64, NULL)[GPU], rows = tensor(R, 64, NULL)[GPU];
    expect_launches("nothing", devices[GPU]->stats.launches, 0);
    expect_launches("argmax", 1, RUN(GPU, argmax, x, 0, column));
    expect_launches("sample", 1, RUN(GPU, sample, x, 0, keys, column));
    expect_launches("entropy", 1, RUN(GPU, reduce, KERN_ENTROPY, x, column));
    expect_launches("log_softmax", 2, RUN(GPU, log_softmax, x, out));
    expect_launches("softmax of short rows", 1, RUN(GPU, softmax, best, best));
    expect_launches("topk", 2, RUN(GPU, topk, x, 64, 0, best, ids));
    expect_launches("topk_joint", 2, RUN(GPU, topk_joint, x, 64, 2, 0, best, ids, rows));
    expect_launches("threshold_k", 3, RUN(GPU, threshold_k, x, k, none, out));
    expect_launches("threshold_mass", 4, RUN(GPU, threshold_mass, x, p, none, out));
    expect_launches("min_p", 2, RUN(GPU, min_p, x, p, out));
    expect_launches("binary", 1, RUN(GPU, binary, KERN_ADD, x, p, out));
    expect_launches("cumsum", 2, RUN(GPU, cumsum, x, out));
    release();
    free(data);
}

int main(void) {
    both_open();
    test_launches();
    test_elementwise();
    test_columns();
    test_blocks();
    test_masks();
    test_matrices();
    test_empty();
    both_close();
    return check_end();
}
