/* requests.h: what the tests of requests share: models, caches, feeds, comparing results. A test
 * program includes it once; what cannot be opened ends the program. */
#ifndef SPEC_REQUESTS_H
#define SPEC_REQUESTS_H

#include "check.h"
#include "llm.h"

#include <stdlib.h>
#include <string.h>

#define MOST_IDS 512
#define BUILTIN  "models/builtin.gguf"
#define TINY     "spec/data/models/gemma3-f32.gguf" /* with a sliding window */

static llm_error err;

static inline llm_model *model_of(const char *path, const char *device, int64_t n_pages,
                                  int64_t piece) {
    llm_device *d =
        llm_device_open(&(llm_device_options){.name = check_device(device), .n_threads = 1}, &err);
    llm_options o = {.n_pages = n_pages, .swap_pages = -1, .piece = piece, .ctx = 300, .n_eog = -1};
    llm_model *m = d ? llm_load(path, d, &o, &err) : NULL;
    llm_device_close(d);
    if (!m) {
        printf("%s: %s\n", path, err.message);
        exit(1);
    }
    return m;
}

static inline llm_stats stats_of(llm_model *m) {
    llm_stats s;
    llm_device_stats(llm_model_device(m), &s);
    return s;
}

static inline const int32_t *ids_of(llm_model *m, uint32_t seed) {
    static int32_t lists[256][MOST_IDS];
    int32_t *ids = lists[seed % 256];
    for (int i = 0; i < MOST_IDS; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = (int32_t)((seed >> 8) % (uint32_t)llm_model_get_info(m)->vocab_size);
    }
    return ids;
}

static inline llm_cache *cache_of(llm_model *m) {
    llm_cache *c = llm_cache_new(m, &err);
    if (!c) exit(1);
    return c;
}

/* Feeds without asking for anything. */
static inline void feed(llm_model *m, llm_cache *c, const int32_t *ids, int64_t n, int32_t depth) {
    llm_feed f = {.caches = &c, .n_caches = 1, .counts = &n, .ids = ids, .exit = depth};
    llm_tensor *none;
    CHECK(llm_forward(m, &f, &none, NULL, &err) == 0, "%s", err.message);
}

static inline llm_cache *fed(llm_model *m, const int32_t *ids, int64_t n) {
    llm_cache *c = cache_of(m);
    feed(m, c, ids, n, 0);
    return c;
}

/* Closes both. */
static inline bool same(llm_tensor *a, llm_tensor *b) {
    if (!a || !b) {
        bool both = !a && !b;
        llm_tensor_close(a);
        llm_tensor_close(b);
        return both;
    }
    const llm_tensor_info *i = llm_tensor_get_info(a), *j = llm_tensor_get_info(b);
    bool equal =
        i->n_rows == j->n_rows && i->n_columns == j->n_columns && i->is_logits == j->is_logits;
    size_t n = (size_t)(i->n_rows * i->n_columns);
    float *x = malloc(4 * n + 1), *y = malloc(4 * n + 1);
    if (equal)
        equal = !llm_tensor_read(a, 0, (int64_t)n, x, &err) &&
                !llm_tensor_read(b, 0, (int64_t)n, y, &err) && memcmp(x, y, 4 * n) == 0;
    free(x);
    free(y);
    llm_tensor_close(a);
    llm_tensor_close(b);
    return equal;
}

/* What the cache answers to one more id. */
static inline llm_tensor *next_of(llm_model *m, llm_cache *c, int32_t id, int32_t depth) {
    int64_t n = 1;
    llm_tensor *logits = NULL;
    llm_cache *fork = llm_cache_fork(c, llm_cache_length(c), &err);
    CHECK(fork != NULL, "%s", err.message);
    if (!fork) return NULL;
    llm_feed f = {
        .caches = &fork, .n_caches = 1, .counts = &n, .ids = &id, .rows = 1, .exit = depth};
    CHECK(llm_forward(m, &f, &logits, NULL, &err) == 0, "%s", err.message);
    llm_cache_close(fork);
    return logits;
}

/* Four caches that share pages: 100 ids of a, of which one has 10 of b behind them, and 70 of them
 * with 5 of b, twice, which are fed to the first layer only (depth_of_four). before[i]: next_of. */
static inline int32_t depth_of_four(int i) { return i < 2 ? 0 : 1; }
static inline void fork_four(llm_model *m, const int32_t *a, const int32_t *b, llm_cache *c[4],
                             llm_tensor *before[4]) {
    c[0] = fed(m, a, 100);
    c[1] = llm_cache_fork(c[0], 100, &err);
    c[2] = llm_cache_fork(c[0], 70, &err);
    feed(m, c[1], b, 10, 0);
    feed(m, c[2], b, 5, 1);
    c[3] = llm_cache_fork(c[2], 75, &err);
    for (int i = 0; i < 4; i++) before[i] = next_of(m, c[i], 3, depth_of_four(i));
}

static inline bool is_misuse(int failed) {
    return failed && err.kind == LLM_MISUSE && strstr(err.message, "being fed");
}

static inline llm_request *open_feed(llm_model *m, llm_cache *const *c, const int64_t *n,
                                     const int32_t *ids, int64_t rows) {
    llm_feed f = {.caches = c, .n_caches = 1, .counts = n, .ids = ids, .rows = rows};
    llm_request *r = llm_request_open(m, &f, &err);
    CHECK(r != NULL, "%s", err.message);
    if (!r) exit(1);
    return r;
}

static inline bool is_done(const llm_request *r) { return llm_request_get_info(r)->is_done; }

static inline void serve(llm_request *const *r, size_t n) {
    CHECK(llm_serve(r, n, &err) == 0, "%s", err.message);
}

static inline int serve_all(llm_request *const *r, size_t n) {
    for (int steps = 1; steps < 100; steps++) {
        size_t n_done = 0;
        serve(r, n);
        for (size_t i = 0; i < n; i++) n_done += is_done(r[i]);
        if (n_done == n) return steps;
    }
    CHECK(false, "requests are never done");
    return -1;
}

/* Makes an evicted cache whole. Requests that it took, and (NULL: not asked) how many ids of them
 * were computed. */
static inline int refill(llm_cache *c, llm_cache *const *like, size_t n, int64_t *n_computed) {
    int n_runs = 0;
    if (n_computed) *n_computed = 0;
    for (; llm_cache_is_evicted(c) && n_runs < 20; n_runs++) {
        llm_request *r = llm_request_open_refill(c, like, n, &err);
        CHECK(r != NULL, "%s", err.message);
        if (!r) return -1;
        if (!is_done(r)) serve_all(&r, 1);
        const llm_request_info *info = llm_request_get_info(r);
        if (n_computed) *n_computed += info->n_fed - info->n_reused;
        llm_request_close(r);
    }
    return n_runs;
}

static inline void check_no_pages(llm_model *m, const char *when) {
    CHECK(stats_of(m).pages_used == 0, "%s: %lld pages used", when,
          (long long)stats_of(m).pages_used);
}

#endif
