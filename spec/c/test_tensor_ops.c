/* test_tensor_ops.c: llm_op_*: shapes and broadcasting, types, in place, misuse and its messages,
 * rows that cannot be chosen from, the pool of tensor memory, allocations that fail. */
#include "check.h"
#include "llm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static llm_error err;
static llm_device *device;

#define N(value)       ((llm_operand){NULL, value, false})
#define I(value)       ((llm_operand){NULL, value, true})
#define OF(tensor)     ((llm_operand){.t = tensor})
#define F32(r, c, ...) tensor_of(LLM_F32, r, c, (const float[]){__VA_ARGS__})
#define I32(r, c, ...) tensor_of(LLM_I32, r, c, (const int32_t[]){__VA_ARGS__})

static llm_tensor *tensor_of(llm_dtype dtype, int64_t r, int64_t c, const void *data) {
    llm_tensor *t = llm_tensor_new(device, dtype, r, c, data, &err);
    if (!t) abort();
    return t;
}

/* A tensor that lives to the end of its test. */
static llm_tensor *temporaries[64];
static int n_temporaries;
static llm_tensor *once(llm_tensor *t) { return temporaries[n_temporaries++] = t; }
static void close_temporaries(void) {
    while (n_temporaries) llm_tensor_close(temporaries[--n_temporaries]);
}

static llm_tensor *logits_of(llm_tensor *t) {
    llm_tensor_set_logits(t, true);
    return t;
}

/* Compares a tensor with n values, closes it and empties the slot. */
static void expect(const char *what, int code, llm_tensor **slot, llm_dtype dtype, int64_t r,
                   int64_t c, const double *want) {
    CHECK(code == 0, "%s: %s", what, err.message);
    if (code) return;
    const llm_tensor_info *info = llm_tensor_get_info(*slot);
    float f[64];
    int32_t k[64];
    CHECK(info->n_rows == r && info->n_columns == c && info->dtype == dtype, "%s: %d × %d", what,
          (int)info->n_rows, (int)info->n_columns);
    const int64_t n = info->n_rows * info->n_columns;
    const int read = llm_tensor_read(*slot, 0, n, dtype == LLM_F32 ? (void *)f : (void *)k, &err);
    CHECK(read == 0, "%s: %s", what, err.message);
    for (int64_t i = 0; i < n && i < r * c && !read; i++) {
        const double got = dtype == LLM_F32 ? (double)f[i] : (double)k[i];
        CHECK(got == want[i] || fabs(got - want[i]) < 1e-5 || (isnan(got) && isnan(want[i])),
              "%s: entry %d is %g, not %g", what, (int)i + 1, got, want[i]);
    }
    llm_tensor_close(*slot);
    *slot = NULL;
}
#define EXPECT(call, slot, dtype, r, c, ...)                                                       \
    expect(#call, call, &slot, dtype, r, c, (const double[]){__VA_ARGS__})

/* A call must fail with this kind and message and leave *slot as it was. */
#define FAILS(call, slot, expected_kind, text)                                                     \
    do {                                                                                           \
        llm_tensor *before = slot;                                                                 \
        err = (llm_error){0};                                                                      \
        CHECK(call == -1, "%s did not fail", #call);                                               \
        CHECK(err.kind == expected_kind, "%s: kind %s", #call, llm_kind_name(err.kind));           \
        CHECK(strstr(err.message, text), "%s: '%s' is not '%s'", #call, err.message, text);        \
        CHECK(slot == before, "%s changed its result", #call);                                     \
    } while (0)

static void test_elementwise(void) {
    llm_tensor *x = F32(2, 3, 1, 2, 3, 4, 5, 6), *row = F32(1, 3, 10, 20, 30),
               *column = F32(2, 1, 1, 2);
    llm_tensor *k = I32(1, 3, 5, -6, INT32_MAX), *y = NULL;
    EXPECT(llm_op_binary(LLM_ADD, OF(x), OF(row), &y, &err), y, LLM_F32, 2, 3, 11, 22, 33, 14, 25,
           36);
    EXPECT(llm_op_binary(LLM_SUB, OF(column), OF(x), &y, &err), y, LLM_F32, 2, 3, 0, -1, -2, -2, -3,
           -4);
    EXPECT(llm_op_binary(LLM_MUL, OF(row), OF(column), &y, &err), y, LLM_F32, 2, 3, 10, 20, 30, 20,
           40, 60);
    EXPECT(llm_op_binary(LLM_DIV, N(12), OF(x), &y, &err), y, LLM_F32, 2, 3, 12, 6, 4, 3, 2.4, 2);
    EXPECT(llm_op_binary(LLM_POW, OF(column), N(2), &y, &err), y, LLM_F32, 2, 1, 1, 4);
    EXPECT(llm_op_binary(LLM_POW, N(2), OF(column), &y, &err), y, LLM_F32, 2, 1, 2, 4);
    EXPECT(llm_op_binary(LLM_POW, N(-2), OF(column), &y, &err), y, LLM_F32, 2, 1, -2, 4);
    EXPECT(llm_op_binary(LLM_GE, OF(x), N(3), &y, &err), y, LLM_F32, 2, 3, 0, 0, 1, 1, 1, 1);
    EXPECT(llm_op_binary(LLM_EQ, OF(column), OF(x), &y, &err), y, LLM_F32, 2, 3, 1, 0, 0, 0, 0, 0);
    EXPECT(llm_op_binary(LLM_ADD, OF(k), I(1), &y, &err), y, LLM_I32, 1, 3, 6, -5, INT32_MIN);
    EXPECT(llm_op_binary(LLM_MUL, OF(k), OF(k), &y, &err), y, LLM_I32, 1, 3, 25, 36, 1);
    EXPECT(llm_op_binary(LLM_ADD, OF(k), N(0.5), &y, &err), y, LLM_F32, 1, 3, 5.5, -5.5,
           2147483648.0);
    EXPECT(llm_op_binary(LLM_DIV, OF(k), I(2), &y, &err), y, LLM_F32, 1, 3, 2.5, -3, 1073741824);
    EXPECT(llm_op_binary(LLM_SUB, I(1), OF(k), &y, &err), y, LLM_I32, 1, 3, -4, 7, -2147483646.0);
    EXPECT(llm_op_unary(LLM_NEG, k, &y, &err), y, LLM_I32, 1, 3, -5, 6, -2147483647.0);
    EXPECT(llm_op_unary(LLM_SQRT, column, &y, &err), y, LLM_F32, 2, 1, 1, 1.414214);
    EXPECT(llm_op_unary(LLM_LOG, column, &y, &err), y, LLM_F32, 2, 1, 0, 0.693147);
    EXPECT(llm_op_clamp(x, 2, 4.5, &y, &err), y, LLM_F32, 2, 3, 2, 2, 3, 4, 4.5, 4.5);
    EXPECT(llm_op_where(x, OF(column), N(9), &y, &err), y, LLM_F32, 2, 3, 1, 2, 3, 4, 5, 6);
    EXPECT(llm_op_where(x, N(0), OF(row), &y, &err), y, LLM_F32, 2, 3, 10, 20, 30, 10, 20, 30);
    EXPECT(llm_op_sort(once(F32(1, 4, 3, -1, 2, -INFINITY)), &y, &err), y, LLM_F32, 1, 4, -INFINITY,
           -1, 2, 3);
    EXPECT(llm_op_cumsum(x, &y, &err), y, LLM_F32, 2, 3, 1, 3, 6, 4, 9, 15);
    y = x;
    CHECK(llm_op_binary(LLM_ADD, OF(x), OF(row), &y, &err) == 0 && y == x, "in place");
    y = row;
    FAILS(llm_op_binary(LLM_ADD, OF(row), OF(x), &y, &err), y, LLM_MISUSE,
          "in place: the result is 2 × 3");
    y = k;
    FAILS(llm_op_binary(LLM_DIV, OF(k), I(2), &y, &err), y, LLM_MISUSE,
          "the result is f32, the tensor i32");
    y = NULL;
    FAILS(llm_op_binary(LLM_ADD, OF(k),
                        OF(once(F32(2, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))), &y, &err),
          y, LLM_MISUSE, "cannot combine 1 × 3 with 2 × 7");
    FAILS(llm_op_clamp(x, 2, 1, &y, &err), y, LLM_MISUSE, "got 2 and 1");
    FAILS(llm_op_clamp(x, NAN, 1, &y, &err), y, LLM_MISUSE, "bounds must be in order");
    EXPECT(llm_op_copy(x, &y, &err), y, LLM_F32, 2, 3, 11, 22, 33, 14, 25, 36);
    llm_tensor_close(x);
    llm_tensor_close(row);
    llm_tensor_close(column);
    llm_tensor_close(k);
}

static void test_matrices(void) {
    llm_tensor *a = F32(2, 3, 1, 2, 3, 4, 5, 6), *b = F32(3, 2, 1, 0, 2, 1, 0, 3), *y = NULL;
    llm_tensor *k = I32(2, 1, 7, 8);
    EXPECT(llm_op_matmul(a, b, &y, &err), y, LLM_F32, 2, 2, 5, 11, 14, 23);
    EXPECT(llm_op_transpose(a, &y, &err), y, LLM_F32, 3, 2, 1, 4, 2, 5, 3, 6);
    EXPECT(llm_op_normalize(b, &y, &err), y, LLM_F32, 3, 2, 1, 0, 0.894427, 0.447214, 0, 1);
    EXPECT(llm_op_cat(a, a, 1, &y, &err), y, LLM_F32, 4, 3, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6);
    EXPECT(llm_op_cat(a, k, 2, &y, &err), y, LLM_F32, 2, 4, 1, 2, 3, 7, 4, 5, 6, 8);
    EXPECT(llm_op_cat(k, k, 2, &y, &err), y, LLM_I32, 2, 2, 7, 7, 8, 8);
    EXPECT(llm_op_rows(a, (const int64_t[]){1, 1, 0}, 3, &y, &err), y, LLM_F32, 3, 3, 4, 5, 6, 4, 5,
           6, 1, 2, 3);
    EXPECT(llm_op_narrow(a, 2, 1, 2, &y, &err), y, LLM_F32, 2, 2, 2, 3, 5, 6);
    EXPECT(llm_op_narrow(a, 1, 1, 1, &y, &err), y, LLM_F32, 1, 3, 4, 5, 6);
    FAILS(llm_op_matmul(a, a, &y, &err), y, LLM_MISUSE, "cannot multiply 2 × 3 with 2 × 3");
    FAILS(llm_op_rows(a, (const int64_t[]){2}, 1, &y, &err), y, LLM_MISUSE,
          "row 3 is outside 1 … 2");
    FAILS(llm_op_narrow(a, 2, 2, 2, &y, &err), y, LLM_MISUSE,
          "2 columns from 3 on are outside 1 … 3");
    FAILS(llm_op_cat(a, b, 1, &y, &err), y, LLM_MISUSE, "cannot join 2 × 3 and 3 × 2 along rows");
    FAILS(llm_op_cat(a, b, 3, &y, &err), y, LLM_MISUSE, "dim must be 1");
    y = a;
    CHECK(llm_op_rows(a, (const int64_t[]){1, 0}, 2, &y, &err) == 0 && y == a, "rows in place");
    EXPECT(0, a, LLM_F32, 2, 3, 4, 5, 6, 1, 2, 3);
    llm_tensor_close(b);
    llm_tensor_close(k);
}

static void test_columns(void) {
    llm_tensor *x = logits_of(F32(2, 4, 1, 2, 3, 4, 5, 6, 7, 8)), *y = NULL;
    llm_tensor *ids = I32(1, 2, 0, 3), *each = I32(2, 1, 1, 2), *outside = I32(1, 1, 4);
    const int64_t one[] = {0, 2}, two[] = {0, 1, 3};
    const int32_t list[] = {1, 3, 0}, wrong[] = {500, 0};
    const double gone = -INFINITY;
    EXPECT(llm_op_gather(x, ids, &y, &err), y, LLM_F32, 2, 2, 1, 4, 5, 8);
    EXPECT(llm_op_gather(x, each, &y, &err), y, LLM_F32, 2, 1, 2, 7);
    EXPECT(llm_op_mask(x, one, list, 1, false, &y, &err), y, LLM_F32, 2, 4, 1, gone, 3, gone, 5,
           gone, 7, gone);
    EXPECT(llm_op_mask(x, two, list, 2, true, &y, &err), y, LLM_F32, 2, 4, gone, 2, gone, gone, 5,
           gone, gone, 8);
    EXPECT(llm_op_add_at(x, once(I32(1, 3, 1, 1, 2)), N(10), &y, &err), y, LLM_F32, 2, 4, 1, 22, 13,
           4, 5, 26, 17, 8);
    EXPECT(llm_op_set_at(x, each, OF(once(F32(2, 1, 70, 80))), &y, &err), y, LLM_F32, 2, 4, 1, 70,
           3, 4, 5, 6, 80, 8);
    llm_tensor *row = F32(1, 3, 1, 2, 3);
    EXPECT(llm_op_set_at(row, once(I32(2, 1, 1, 3)), OF(once(F32(2, 1, 8, 9))), &y, &err), y,
           LLM_F32, 1, 3, 8, 2, 9);
    FAILS(llm_op_gather(x, outside, &y, &err), y, LLM_MISUSE, "id 4 is outside 0 … 3");
    FAILS(llm_op_gather(row, outside, &y, &err), y, LLM_MISUSE, "column 4 is outside 1 … 3");
    FAILS(llm_op_mask(x, one, wrong, 1, false, &y, &err), y, LLM_MISUSE, "id 500 is outside 0 … 3");
    FAILS(llm_op_mask(x, one, list, 3, false, &y, &err), y, LLM_MISUSE, "3 lists for 2 rows");
    FAILS(llm_op_set_at(x, row, N(1), &y, &err), y, LLM_MISUSE, "ids must be i32");
    FAILS(llm_op_add_at(x, ids, OF(once(F32(2, 3, 0, 0, 0, 0, 0, 0))), &y, &err), y, LLM_MISUSE,
          "values must be 2 × 2");
    y = x;
    CHECK(llm_op_mask(x, two, list, 2, true, &y, &err) == 0, "only in place");
    EXPECT(0, x, LLM_F32, 2, 4, gone, 2, gone, gone, 5, gone, gone, 8);
    llm_tensor_close(row);
    llm_tensor_close(ids);
    llm_tensor_close(each);
    llm_tensor_close(outside);
}

static void test_filters(void) {
    const double gone = -INFINITY;
    llm_tensor *x = logits_of(F32(2, 3, 3, 2, 1, 1, 1, 0)), *y = NULL;
    EXPECT(llm_op_top_k(x, OF(once(I32(2, 1, 0, 1))), &y, &err), y, LLM_F32, 2, 3, 3, 2, 1, 1, gone,
           gone);
    EXPECT(llm_op_top_k(x, N(2), &y, &err), y, LLM_F32, 2, 3, 3, 2, gone, 1, 1, gone);
    EXPECT(llm_op_top_p(x, OF(once(F32(2, 1, 0, 1))), &y, &err), y, LLM_F32, 2, 3, 3, gone, gone, 1,
           1, 0);
    EXPECT(llm_op_min_p(x, N(1), &y, &err), y, LLM_F32, 2, 3, 3, gone, gone, 1, 1, gone);
    EXPECT(llm_op_cut_below(x, N(2), &y, &err), y, LLM_F32, 2, 3, 3, 2, gone, 1, gone, gone);
    EXPECT(llm_op_cut_below(x, OF(once(F32(2, 1, NAN, 100))), &y, &err), y, LLM_F32, 2, 3, 3, 2, 1,
           1, gone, gone);
    EXPECT(llm_op_threshold_k(x, I(1), once(F32(1, 3, 5, 4, 4)), &y, &err), y, LLM_F32, 2, 3, gone,
           2, gone, gone, 1, gone);
    CHECK(llm_op_top_p(x, N(0.5), &y, &err) == 0 && llm_tensor_get_info(y)->is_logits,
          "filters keep Logits");
    llm_tensor_close(y);
    y = NULL;
    FAILS(llm_op_top_p(x, N(1.5), &y, &err), y, LLM_MISUSE,
          "top_p must be between 0 and 1, got 1.5");
    FAILS(llm_op_top_p(x, N(-NAN), &y, &err), y, LLM_MISUSE,
          "top_p must be between 0 and 1, got nan");
    FAILS(llm_op_min_p(x, OF(once(F32(2, 1, 0, -0.1f))), &y, &err), y, LLM_MISUSE,
          "min_p must be between 0 and 1, got -0.1");
    FAILS(llm_op_top_k(x, I(-1), &y, &err), y, LLM_MISUSE, "top_k must be at least 0, got -1");
    FAILS(llm_op_top_k(x, N(2.5), &y, &err), y, LLM_MISUSE, "top_k must be an integer, got 2.5");
    FAILS(llm_op_top_k(x, OF(once(I32(3, 1, 1, 1, 1))), &y, &err), y, LLM_MISUSE,
          "2 rows, got 3 × 1");
    FAILS(llm_op_cut_below(x, N(NAN), &y, &err), y, LLM_MISUSE, "got nan");
    FAILS(llm_op_threshold_mass(x, N(0.5), once(F32(1, 2, 0, 0)), &y, &err), y, LLM_MISUSE,
          "the key must be 2 × 3");
    llm_tensor_close(x);
}

/* Filters let bad rows pass, so that the choice names them. */
static void test_bad_rows(void) {
    const float inf = INFINITY;
    const float rows[][3] = {{1, NAN, 2}, {inf, 0, 1}, {-inf, -inf, -inf}};
    const char *messages[] = {"nan in row 2", "+inf in row 2", "no finite entry in row 2"};
    const llm_kind kinds[] = {LLM_NAN, LLM_NAN, LLM_NO_FINITE};
    const llm_key keys[2] = {{1, 1, 1}, {1, 2, 1}};
    for (int i = 0; i < 3; i++) {
        float data[6] = {1, 5, 5};
        memcpy(data + 3, rows[i], sizeof rows[i]);
        llm_tensor *x = logits_of(tensor_of(LLM_F32, 2, 3, data)), *y = x, *s = NULL, *ids[5] = {0},
                   *r = NULL;
        CHECK(!llm_op_top_k(x, I(1), &y, &err) && !llm_op_top_p(x, N(0.3), &y, &err) &&
                  !llm_op_min_p(x, N(0.3), &y, &err) && !llm_op_cut_below(x, N(4), &y, &err),
              "%s", err.message);
        float after[6];
        llm_tensor_read(x, 0, 6, after, &err);
        CHECK(memcmp(after + 3, rows[i], sizeof rows[i]) == 0, "a filter changed a bad row");
        llm_op_argmax(x, &ids[0], &err);
        llm_op_sample(x, keys, &ids[1], &err);
        llm_op_topk(x, 2, &s, &ids[2], &err);
        llm_tensor_close(s);
        s = NULL;
        for (int c = 0; c < 3; c++) {
            int32_t out[4];
            CHECK(llm_tensor_read(ids[c], 0, 1, out, &err) == 0 && out[0] == 1, "the good row");
            CHECK(llm_tensor_read(ids[c], 0, c == 2 ? 4 : 2, out, &err) == -1 &&
                      err.kind == kinds[i] && strstr(err.message, messages[i]),
                  "choice %d: %s", c, err.message);
            y = NULL;
            FAILS(llm_op_binary(LLM_ADD, OF(ids[c]), I(1), &y, &err), y, kinds[i], messages[i]);
            FAILS(llm_op_rows(ids[c], (const int64_t[]){1}, 1, &y, &err), y, kinds[i], messages[i]);
            FAILS(llm_op_gather(x, ids[c], &y, &err), y, kinds[i], messages[i]);
        }
        CHECK(llm_op_topk_joint(x, 2, 1, &s, &ids[3], &r, &err) == 0, "%s", err.message);
        int32_t out[2];
        const int code = llm_tensor_read(ids[3], 0, 2, out, &err);
        if (i == 2) /* a finite entry in the group suffices */
            CHECK(code == 0 && out[0] == 1, "topk_joint with an empty row: %s", err.message);
        else
            CHECK(code == -1 && err.kind == LLM_NAN && strstr(err.message, "in rows 1 … 2"), "%s",
                  err.message);
        llm_tensor_close(s);
        llm_tensor_close(r);
        for (int c = 0; c < 5; c++) llm_tensor_close(ids[c]);
        llm_tensor_close(x);
    }
}

static void test_topk_joint(void) {
    llm_tensor *x = logits_of(F32(4, 3, 1, 9, 2, 9, 0, 8, 5, 5, 5, 5, 7, -INFINITY));
    llm_tensor *s = NULL, *ids = NULL, *rows = NULL;
    CHECK(llm_op_topk_joint(x, 4, 2, &s, &ids, &rows, &err) == 0, "%s", err.message);
    EXPECT(0, s, LLM_F32, 8, 1, 9, 9, 8, 2, 7, 5, 5, 5);
    EXPECT(0, ids, LLM_I32, 8, 1, 1, 0, 2, 2, 1, 0, 1, 2);
    EXPECT(0, rows, LLM_I32, 8, 1, 1, 2, 2, 1, 4, 3, 3, 3);
    CHECK(llm_op_topk_joint(x, 100, 4, &s, &ids, &rows, &err) == 0, "%s", err.message);
    CHECK(llm_tensor_get_info(ids)->n_rows == 12, "min(k, rows · V) results");
    llm_tensor_close(s);
    llm_tensor_close(ids);
    llm_tensor_close(rows);
    s = ids = rows = NULL;
    FAILS(llm_op_topk_joint(x, 1, 3, &s, &ids, &rows, &err), ids, LLM_MISUSE,
          "4 rows do not make 3 groups");
    FAILS(llm_op_topk_joint(x, 0, 1, &s, &ids, &rows, &err), ids, LLM_MISUSE,
          "k must be at least 1, got 0");
    llm_tensor_close(x);
}

static void test_memory(void) {
    llm_stats stats;
    llm_tensor *t[40];
    CHECK(!llm_device_pressed(device), "nothing is live");
    for (int i = 0; i < 40; i++) t[i] = tensor_of(LLM_F32, 512, 1024, NULL); /* 80 MiB */
    CHECK(llm_device_pressed(device), "80 MiB are live");
    llm_tensor_close(tensor_of(LLM_F32, 1, 1, NULL));
    CHECK(!llm_device_pressed(device), "told, the budget grew");
    for (int i = 0; i < 40; i++) llm_tensor_close(t[i]);
    llm_device_stats(device, &stats);
    CHECK(stats.tensor_bytes <= 33 << 20, "%llu bytes are kept",
          (unsigned long long)stats.tensor_bytes);
    CHECK(!llm_tensor_new(device, LLM_F32, INT64_MAX / 2, 5, NULL, &err) &&
              err.kind == LLM_OUT_OF_MEMORY && strstr(err.message, "4611686018427387903 × 5"),
          "%s", err.message);
    CHECK(!llm_tensor_new(device, LLM_F32, -1, 5, NULL, &err) && err.kind == LLM_MISUSE, "%s",
          err.message);
    CHECK(!llm_device_open(&(llm_device_options){.name = "gpu", .n_threads = 1}, &err) &&
              strstr(err.message, "unknown device 'gpu': known are auto, cpu, ref"),
          "%s", err.message);
    setenv("LLMLUA_CPU", "sse9", 1);
    CHECK(!llm_device_open(&(llm_device_options){.name = "cpu", .n_threads = 1}, &err) &&
              strstr(err.message, "plain, neon, avx2"),
          "%s", err.message);
    unsetenv("LLMLUA_CPU");
    float x;
    t[0] = tensor_of(LLM_F32, 1, 1, NULL);
    CHECK(llm_tensor_read(t[0], 1, 1, &x, &err) == -1 &&
              strstr(err.message, "outside a tensor of 1"),
          "%s", err.message);
    llm_tensor_close(t[0]);
}

/* Every allocation of these calls fails once; nothing is lost and the input stays. */
static void test_failures(void) {
    const llm_key keys[2] = {{1, 1, 1}, {1, 2, 1}};
    const int64_t first[] = {0, 1};
    const int32_t list[] = {1};
    if (!llm_faults_built()) return;
    for (int i = 0; i < 8; i++)
        for (int64_t n = 1;; n++) {
            float after[6] = {0};
            llm_device *d =
                llm_device_open(&(llm_device_options){.name = "ref", .n_threads = 1}, &err);
            llm_tensor *x =
                llm_tensor_new(d, LLM_F32, 2, 3, (const float[]){1, 2, 3, 4, 5, 6}, &err);
            llm_tensor *k =
                llm_tensor_new(d, LLM_I32, 2, 3, (const int32_t[]){1, 2, 3, 1, 2, 3}, &err);
            llm_tensor *y = NULL, *s = NULL, *r = NULL, *in_place = x;
            int code = 0;
            llm_fail_allocation(n);
            switch (i) {
            case 0: code = llm_op_binary(LLM_ADD, OF(x), OF(k), &y, &err); break;
            case 1: code = llm_op_topk_joint(x, 2, 1, &s, &y, &r, &err); break;
            case 2: code = llm_op_sample(x, keys, &y, &err); break;
            case 3: code = llm_op_mask(x, first, list, 1, true, &y, &err); break;
            case 4: code = llm_op_add_at(k, k, N(1), &y, &err); break;
            case 5: code = llm_op_top_p(x, N(0.5), &y, &err); break;
            case 6: code = llm_op_sort(x, &in_place, &err); break;
            default: code = llm_op_cat(x, k, 2, &y, &err); break;
            }
            llm_fail_allocation(0);
            CHECK(code == 0 || (err.kind == LLM_OUT_OF_MEMORY && !y && !s && !r && in_place == x),
                  "operation %d, allocation %d: %s", i, (int)n, err.message);
            CHECK(llm_tensor_read(x, 0, 6, after, &err) == 0 && after[0] == 1 && after[5] == 6,
                  "the input changed");
            llm_tensor_close(x);
            llm_tensor_close(k);
            llm_tensor_close(y);
            llm_tensor_close(s);
            llm_tensor_close(r);
            llm_device_close(d);
            if (code == 0) break;
        }
}

int main(void) {
    device = llm_device_open(&(llm_device_options){.name = "ref", .n_threads = 1}, &err);
    if (!device) abort();
    test_memory();
    test_elementwise();
    close_temporaries();
    test_matrices();
    close_temporaries();
    test_columns();
    close_temporaries();
    test_filters();
    close_temporaries();
    test_bad_rows();
    test_topk_joint();
    test_failures();
    llm_device_close(device);
    return check_end();
}
