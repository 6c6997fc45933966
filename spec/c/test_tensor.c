/* test_tensor.c: the tensor operations of the kernels against plain definitions in double, on odd
 * shapes; the plain tier against the best one bit for bit; one thread against two; a row alone
 * against the row among others. */
#include "check.h"
#include "llm.h"
#include "noise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static llm_error err;
static llm_device *devices[3]; /* plain on one thread, the best tier on one and on two */

static uint64_t state = 1;
static double uniform(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(state >> 11) + 0.5) * 0x1p-53;
}
static float normal(void) {
    return (float)(sqrt(-2 * log(uniform())) * cos(2 * acos(-1) * uniform()));
}

typedef enum shape_kind { SPREAD, FLAT, TIES, HOLES, PEAKED, N_KINDS } shape_kind;

/* Rows of logits of several characters. */
static float *rows_new(int64_t n_rows, int64_t n, shape_kind kind) {
    float *x = malloc((size_t)(n_rows * n + 1) * sizeof *x);
    if (!x) abort();
    for (int64_t i = 0; i < n_rows * n; i++) {
        const float z = normal();
        switch (kind) {
        case SPREAD: x[i] = 3 * z; break;
        case FLAT: x[i] = 1.5f; break;
        case TIES: x[i] = floorf(2 * z) / 2; break;
        case HOLES: x[i] = uniform() < 0.4 && i % n ? -INFINITY : 2 * z; break;
        case PEAKED: x[i] = 30 * z; break;
        default: x[i] = 0;
        }
    }
    return x;
}

static const int64_t columns[] = {1, 2, 7, 8, 9, 31, 33, 100, 1023, 3001};
#define N_COLUMNS ((int)(sizeof columns / sizeof *columns))

static llm_tensor *tensor_of(llm_device *d, llm_dtype dtype, int64_t r, int64_t c, const void *x) {
    llm_tensor *t = llm_tensor_new(d, dtype, r, c, x, &err);
    if (!t) abort();
    return t;
}

static float *read_f32(llm_tensor *t) {
    const llm_tensor_info *i = llm_tensor_get_info(t);
    float *x = malloc((size_t)(i->n_rows * i->n_columns + 1) * 4);
    if (!x || llm_tensor_read(t, 0, i->n_rows * i->n_columns, x, &err)) abort();
    llm_tensor_close(t);
    return x;
}

/* ---- every device gives the same bits, and a row does not see its neighbours ---- */

static const llm_key keys[] = {{1, 2, 3}, {9, 1, 0}, {UINT64_MAX, UINT64_MAX, UINT32_MAX}};
enum { N_OPERATIONS = 18 };

/* Operation i of 3 rows x; the key of the thresholds is |x|. */
static llm_tensor *operate(int i, llm_tensor *x, llm_tensor *key, const llm_key *row_keys) {
    llm_tensor *out = NULL, *ids = NULL, *scores = NULL;
    const llm_operand k = {NULL, 5, true}, many = {NULL, 300, true}, p = {NULL, 0.7, false};
    int code = -1;
    switch (i) {
    case 0: code = llm_op_log_softmax(x, &out, &err); break;
    case 1: code = llm_op_softmax(x, &out, &err); break;
    case 2: code = llm_op_unary(LLM_EXP, x, &out, &err); break;
    case 3: code = llm_op_reduce(LLM_MAX, x, &out, &err); break;
    case 4: code = llm_op_reduce(LLM_SUM, x, &out, &err); break;
    case 5: code = llm_op_reduce(LLM_LOGSUMEXP, x, &out, &err); break;
    case 6: code = llm_op_reduce(LLM_ENTROPY, x, &out, &err); break;
    case 7: code = llm_op_reduce(LLM_STD, x, &out, &err); break;
    case 8: code = llm_op_top_k(x, k, &out, &err); break;
    case 9: code = llm_op_top_k(x, many, &out, &err); break;
    case 10: code = llm_op_top_p(x, p, &out, &err); break;
    case 11: code = llm_op_threshold_k(x, k, key, &out, &err); break;
    case 12: code = llm_op_threshold_mass(x, p, key, &out, &err); break;
    case 13: code = llm_op_min_p(x, p, &out, &err); break;
    case 14: code = llm_op_topk(x, 5, &out, &ids, &err); break;
    case 15: code = llm_op_sample(x, row_keys, &ids, &err); break;
    case 16: code = llm_op_gumbel(x, row_keys, &out, &err); break;
    case 17: code = llm_op_topk(x, 1, &scores, &ids, &err); break;
    default: break;
    }
    CHECK(code == 0, "operation %d: %s", i, err.message);
    if (out) {
        llm_tensor_close(ids);
        return out;
    }
    llm_tensor_close(scores);
    return ids;
}

static float *operate_on(llm_device *d, int i, const float *x, const float *key, int64_t r,
                         int64_t n, const llm_key *row_keys) {
    llm_tensor *t = tensor_of(d, LLM_F32, r, n, x), *k = tensor_of(d, LLM_F32, r, n, key);
    float *out = read_f32(operate(i, t, k, row_keys));
    llm_tensor_close(t);
    llm_tensor_close(k);
    return out;
}

static void test_same_bits(void) {
    for (int i = 0; i < N_OPERATIONS; i++)
        for (int c = 0; c < N_COLUMNS; c++)
            for (shape_kind kind = 0; kind < N_KINDS; kind++) {
                const int64_t n = columns[c];
                float *x = rows_new(3, n, kind), *key = rows_new(3, n, TIES);
                float *y = operate_on(devices[0], i, x, key, 3, n, keys);
                const int64_t width = i >= 3 && i <= 7     ? 1
                                      : i == 14            ? (n < 5 ? n : 5)
                                      : i == 15 || i == 17 ? 1
                                                           : n;
                for (int d = 1; d < 3; d++) {
                    float *z = operate_on(devices[d], i, x, key, 3, n, keys);
                    CHECK(memcmp(y, z, (size_t)(3 * width) * 4) == 0,
                          "operation %d, %d columns, kind %d, device %d", i, (int)n, (int)kind, d);
                    free(z);
                }
                float *alone = operate_on(devices[1], i, x + n, key + n, 1, n, keys + 1);
                CHECK(memcmp(y + width, alone, (size_t)width * 4) == 0, "operation %d: a row alone",
                      i);
                free(alone);
                free(x);
                free(key);
                free(y);
            }
}

/* Many rows, so that threads share them. */
static void test_threads(void) {
    const int64_t n_rows = 5, n = 30001;
    float *x = rows_new(n_rows, n, SPREAD);
    llm_key row_keys[5];
    for (int i = 0; i < 5; i++) row_keys[i] = (llm_key){7, (uint64_t)i, 1};
    for (int i = 0; i < N_OPERATIONS; i++) {
        float *y = operate_on(devices[1], i, x, x, n_rows, n, row_keys);
        float *z = operate_on(devices[2], i, x, x, n_rows, n, row_keys);
        const int64_t width = i >= 3 && i <= 7 ? 1 : i == 14 ? 5 : i == 15 || i == 17 ? 1 : n;
        CHECK(memcmp(y, z, (size_t)(n_rows * width) * 4) == 0, "operation %d on two threads", i);
        free(y);
        free(z);
    }
    free(x);
}

/* ---- definitions ---- */

static double log_sum_exp(const float *x, int64_t n) {
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) max = (double)x[i] > max ? (double)x[i] : max;
    for (int64_t i = 0; i < n; i++) sum += exp((double)x[i] - max);
    return max + log(sum);
}

static bool is_near(double got, double want, double tolerance) {
    return got == want || fabs(got - want) <= tolerance * (fabs(want) > 1 ? fabs(want) : 1);
}

static void check_softmax(const float *x, int64_t n) {
    llm_tensor *t = tensor_of(devices[1], LLM_F32, 1, n, x);
    const double lse = log_sum_exp(x, n);
    llm_tensor *a = NULL, *b = NULL, *h = NULL;
    llm_op_softmax(t, &a, &err);
    llm_op_log_softmax(t, &b, &err);
    llm_op_reduce(LLM_ENTROPY, t, &h, &err);
    float *p = read_f32(a), *lp = read_f32(b), *entropy = read_f32(h);
    double want_entropy = 0;
    for (int64_t i = 0; i < n; i++) {
        const double want = exp((double)x[i] - lse);
        if (want > 0) want_entropy -= want * log(want);
        CHECK(want < 1e-37 || fabs((double)p[i] - want) <= 1e-6 * want, "softmax %g, not %g",
              (double)p[i], want);
        CHECK(is_near((double)lp[i], (double)x[i] - lse, 1e-6), "log_softmax");
        CHECK(lp[i] <= 0, "a log-probability above 0: %g", (double)lp[i]);
    }
    CHECK(is_near((double)*entropy, want_entropy, 2e-6), "entropy %g, not %g", (double)*entropy,
          want_entropy);
    free(p);
    free(lp);
    free(entropy);
    llm_tensor_close(t);
}

static void check_reduce(const float *x, int64_t n) {
    llm_tensor *t = tensor_of(devices[1], LLM_F32, 1, n, x);
    double max = -INFINITY, min = INFINITY, sum = 0, count = 0, mean = 0, square = 0;
    for (int64_t i = 0; i < n; i++) {
        max = fmax(max, (double)x[i]);
        min = fmin(min, (double)x[i]);
        sum += (double)x[i];
        if (isfinite(x[i])) count++, mean += (double)x[i];
    }
    mean /= count;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(x[i])) square += ((double)x[i] - mean) * ((double)x[i] - mean);
    const double want[] = {max, min, sum, log_sum_exp(x, n), 0, sqrt(square / count)};
    for (int op = LLM_MAX; op <= LLM_STD; op++) {
        llm_tensor *y = NULL;
        if (op == LLM_ENTROPY) continue;
        llm_op_reduce((llm_reduce)op, t, &y, &err);
        float *got = read_f32(y);
        CHECK(is_near((double)*got, want[op], 2e-6), "reduction %d: %g, not %g", op, (double)*got,
              want[op]);
        free(got);
    }
    llm_tensor_close(t);
}

static const float *sort_x, *sort_key;
static int by_key(const void *a, const void *b) {
    const int64_t i = *(const int64_t *)a, j = *(const int64_t *)b;
    const float x = sort_key ? sort_key[i] : -sort_x[i], y = sort_key ? sort_key[j] : -sort_x[j];
    return x < y ? -1 : x > y ? 1 : i < j ? -1 : i > j;
}

/* Present entries in ascending key; returns how many. */
static int64_t order_of(const float *x, const float *key, int64_t n, int64_t *order) {
    int64_t m = 0;
    for (int64_t i = 0; i < n; i++)
        if (x[i] > -INFINITY) order[m++] = i;
    sort_x = x;
    sort_key = key;
    qsort(order, (size_t)m, sizeof *order, by_key);
    return m;
}

static void check_kept(llm_tensor *y, const float *x, int64_t n, const int64_t *order,
                       int64_t n_kept, const char *what) {
    float *got = read_f32(y);
    int64_t n_wrong = 0;
    for (int64_t i = 0; i < n_kept; i++) n_wrong += got[order[i]] != x[order[i]];
    for (int64_t i = 0; i < n; i++) n_kept -= got[i] > -INFINITY;
    CHECK(n_wrong == 0 && n_kept == 0, "%s: %d wrong, %d missing of %d columns", what, (int)n_wrong,
          (int)n_kept, (int)n);
    free(got);
}

static void check_thresholds(const float *x, const float *key, int64_t n) {
    llm_tensor *t = tensor_of(devices[1], LLM_F32, 1, n, x);
    llm_tensor *keys_given = key ? tensor_of(devices[1], LLM_F32, 1, n, key) : NULL;
    int64_t *order = malloc((size_t)n * sizeof *order);
    if (!order) abort();
    const int64_t m = order_of(x, key, n, order);
    const int64_t counts[] = {1, 2, 3, 40, 128, 129, n - 1, n, n + 1};
    for (int i = 0; i < (int)(sizeof counts / sizeof *counts); i++) {
        if (counts[i] < 1) continue;
        llm_tensor *y = NULL;
        CHECK(llm_op_threshold_k(t, (llm_operand){NULL, (double)counts[i], true}, keys_given, &y,
                                 &err) == 0,
              "%s", err.message);
        check_kept(y, x, n, order, counts[i] < m ? counts[i] : m, "threshold_k");
    }
    const double lse = log_sum_exp(x, n), masses[] = {0, 1e-8, 0.1, 0.5, 0.8, 0.95, 0.99, 1};
    for (int i = 0; i < (int)(sizeof masses / sizeof *masses); i++) {
        double mass = 0;
        int64_t kept = 0;
        while (kept < m && (kept == 0 || mass < masses[i] * (1 - 5e-7)))
            mass += exp((double)x[order[kept++]] - lse);
        if (masses[i] == 1) kept = m;
        const double last = kept ? exp((double)x[order[kept - 1]] - lse) : 0;
        const double want = masses[i] * (1 - 5e-7);
        if (kept < m && (fabs(mass - want) < 1e-6 || fabs(mass - last - want) < 1e-6)) continue;
        llm_tensor *y = NULL;
        CHECK(llm_op_threshold_mass(t, (llm_operand){NULL, masses[i], false}, keys_given, &y,
                                    &err) == 0,
              "%s", err.message);
        check_kept(y, x, n, order, kept, "threshold_mass");
    }
    free(order);
    llm_tensor_close(t);
    llm_tensor_close(keys_given);
}

static void check_topk(const float *x, int64_t n) {
    llm_tensor *t = tensor_of(devices[1], LLM_F32, 1, n, x), *s = NULL, *ids = NULL;
    int64_t *order = malloc((size_t)n * sizeof *order);
    int32_t *got = malloc((size_t)n * sizeof *got);
    if (!order || !got) abort();
    const int64_t m = order_of(x, NULL, n, order);
    llm_tensor_set_logits(t, true);
    CHECK(llm_op_topk(t, n + 3, &s, &ids, &err) == 0, "%s", err.message);
    CHECK(llm_tensor_get_info(ids)->n_columns == n, "k is clamped");
    llm_tensor_read(ids, 0, n, got, &err);
    float *scores = read_f32(s);
    for (int64_t i = 0; i < m; i++)
        CHECK(got[i] == order[i] && scores[i] == x[order[i]], "topk at %d", (int)i);
    for (int64_t i = m; i < n; i++)
        CHECK(scores[i] == -INFINITY && x[got[i]] == -INFINITY && (i == m || got[i] > got[i - 1]),
              "-inf last");
    free(scores);
    free(got);
    free(order);
    llm_tensor_close(ids);
    llm_tensor_close(t);
}

static void test_definitions(void) {
    for (int c = 0; c < N_COLUMNS; c++)
        for (shape_kind kind = 0; kind < N_KINDS; kind++) {
            float *x = rows_new(1, columns[c], kind), *key = rows_new(1, columns[c], TIES);
            check_softmax(x, columns[c]);
            check_reduce(x, columns[c]);
            check_thresholds(x, NULL, columns[c]);
            check_thresholds(x, key, columns[c]);
            check_topk(x, columns[c]);
            free(x);
            free(key);
        }
}

static void test_exp(void) {
    const int n = 4001;
    float *x = malloc((size_t)n * sizeof *x);
    if (!x) abort();
    for (int i = 0; i < n; i++) x[i] = -110 + 0.05f * (float)i;
    x[1] = NAN, x[2] = INFINITY, x[3] = -INFINITY, x[4] = 3e38f;
    llm_tensor *t = tensor_of(devices[1], LLM_F32, 1, n, x), *y = NULL;
    llm_op_unary(LLM_EXP, t, &y, &err);
    float *got = read_f32(y);
    for (int i = 0; i < n; i++) {
        const double want = exp((double)x[i]);
        if (isnan(x[i]))
            CHECK(isnan(got[i]), "exp(nan)");
        else
            CHECK((double)got[i] == want ||
                      fabs((double)got[i] - want) <= 1.5e-7 * want + 1.5e-45 ||
                      (want > 3.4e38 && isinf(got[i])),
                  "exp(%g) = %g, not %g", (double)x[i], (double)got[i], want);
    }
    free(got);
    free(x);
    llm_tensor_close(t);
}

/* ---- noise ---- */

static void test_noise(void) {
    const uint32_t counters[3][4] = {{0, 0, 0, 0},
                                     {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX},
                                     {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}};
    const uint64_t seeds[3] = {0, UINT64_MAX, 0x299f31d0a4093822};
    const uint32_t want[3][4] = {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
                                 {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
                                 {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (int i = 0; i < 3; i++) {
        uint32_t words[4];
        kern_philox(seeds[i], counters[i], words);
        CHECK(memcmp(words, want[i], sizeof words) == 0, "the paper's known answer %d", i);
    }
    CHECK(isfinite(kern_word_gumbel(0)) && isfinite(kern_word_gumbel(UINT32_MAX)),
          "noise is finite");
    CHECK(kern_word_gumbel(0) < 22.9f && kern_word_gumbel(UINT32_MAX) > -2.9f,
          "the ends of the noise");
    for (uint64_t word = 0; word <= UINT32_MAX; word += 9973) {
        const double u = ((double)word + 0.5) * 0x1p-32, most = 1 - 0x1p-24;
        const double want_noise = -log(-log1p(u < most ? -u : -most));
        const double got = (double)kern_word_gumbel((uint32_t)word);
        CHECK(fabs(got - want_noise) <= 0x1p-24 * fabs(want_noise) * (1 + 1e-6),
              "noise of word %u is %.9g, not %.9g", (unsigned)word, got, want_noise);
    }
    const kern_key key = {3, 5, 7};
    CHECK(llm_uniform((llm_key){3, 5, 7}) == kern_uniform(key, 0), "llm_uniform is that of id 0");
    double sum = 0;
    for (uint32_t v = 0; v < 20000; v++) sum += (double)kern_gumbel(key, v);
    CHECK(fabs(sum / 20000 - 0.5772) < 0.04, "the mean of the noise is %g", sum / 20000);
}

/* sample is the argmax of gumbel, for ids from 0 and from 1. */
static void test_sample(void) {
    for (int c = 0; c < N_COLUMNS; c++)
        for (shape_kind kind = 0; kind < N_KINDS; kind++)
            for (uint32_t position = 0; position < 8; position++) {
                const int64_t n = columns[c];
                const llm_key key = {42, 1, position};
                float *x = rows_new(1, n, kind);
                llm_tensor *t = tensor_of(devices[1], LLM_F32, 1, n, x), *g = NULL, *a = NULL,
                           *b = NULL;
                int32_t want, got;
                llm_tensor_set_logits(t, position % 2);
                llm_op_gumbel(t, &key, &g, &err);
                llm_op_argmax(g, &a, &err);
                llm_op_sample(t, &key, &b, &err);
                CHECK(llm_tensor_read(a, 0, 1, &want, &err) == 0 &&
                          llm_tensor_read(b, 0, 1, &got, &err) == 0,
                      "%s", err.message);
                CHECK(want == got, "sample %d, argmax %d of %d", got, want, (int)n);
                const float *noisy = read_f32(g);
                for (int64_t i = 0; i < n; i += 5) {
                    const uint32_t id = (uint32_t)i + (position % 2 ? 0 : 1);
                    const float y = x[i] == -INFINITY
                                        ? -INFINITY
                                        : x[i] + kern_gumbel((kern_key){42, 1, position}, id);
                    CHECK(noisy[i] == y, "noise of id %d", (int)id);
                }
                free((void *)noisy);
                free(x);
                llm_tensor_close(t);
                llm_tensor_close(a);
                llm_tensor_close(b);
            }
}

static llm_device *open_device(const char *name, int n_threads) {
    llm_device *d =
        llm_device_open(&(llm_device_options){.name = check_device(name), .n_threads = n_threads}, &err);
    if (!d) {
        printf("%s\n", err.message);
        exit(1);
    }
    return d;
}

int main(void) {
    devices[0] = open_device("ref", 1);
    devices[1] = open_device("cpu", 1);
    devices[2] = open_device("cpu", 2);
    test_noise();
    test_exp();
    test_definitions();
    test_sample();
    test_same_bits();
    test_threads();
    for (int i = 0; i < 3; i++) llm_device_close(devices[i]);
    return check_end();
}
