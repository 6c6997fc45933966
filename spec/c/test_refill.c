/* test_refill.c: caches that are evicted and refilled, and requests whose allocations fail. */
#include "requests.h"

/* ---- evict and refill ---- */

static void check_refill(llm_model *m) {
    const int32_t *a = ids_of(m, 8), *b = ids_of(m, 9);
    llm_cache *c[4];
    llm_tensor *before[4];
    fork_four(m, a, b, c, before);
    int64_t pages = stats_of(m).pages_used;
    int64_t n = 60, length[4] = {100, 110, 75, 75};
    llm_request *waiting = open_feed(m, &c[0], &n, b, 1);
    serve(&waiting, 1);
    llm_request_rewind(waiting);
    for (int i = 0; i < 4; i++) {
        CHECK(llm_cache_evict(c[i], &err) == 0, "%s", err.message);
        CHECK(llm_cache_evict(c[i], &err) == 0, "evicted twice: %s", err.message);
        CHECK(llm_cache_is_evicted(c[i]) && llm_cache_length(c[i]) == length[i] &&
                  memcmp(llm_cache_tokens(c[i], &err), a, 70 * 4) == 0,
              "length and tokens stay");
    }
    check_no_pages(m, "evicted");
    CHECK(llm_cache_truncate(c[1], 0, &err) && strstr(err.message, "evicted"), "%s", err.message);
    CHECK(!llm_cache_fork(c[1], 1, &err) && strstr(err.message, "evicted"), "%s", err.message);
    CHECK(llm_serve(&waiting, 1, &err) && strstr(err.message, "evicted"), "%s", err.message);
    llm_request *r = llm_request_open_refill(c[0], NULL, 0, &err);
    serve(&r, 1);
    CHECK(!is_done(r) && llm_cache_length(c[0]) == 100, "a refill is cut too");
    CHECK(!llm_request_open_refill(c[0], NULL, 0, &err) && llm_cache_evict(c[0], &err),
          "one refill at a time");
    llm_request_close(r);
    check_no_pages(m, "a refill taken back");
    uint64_t rows = stats_of(m).forward_rows;
    for (int i = 0; i < 4; i++)
        CHECK(refill(c[i], c, (size_t)i, NULL) == (i == 2 ? 2 : 1), "runs of cache %d", i);
    CHECK(stats_of(m).forward_rows - rows == 100 + 14 + 11, "%llu rows to refill",
          (unsigned long long)(stats_of(m).forward_rows - rows));
    CHECK(stats_of(m).pages_used <= pages + 4, "%lld pages, were %lld",
          (long long)stats_of(m).pages_used, (long long)pages);
    CHECK(!llm_request_open_refill(c[0], NULL, 0, &err) && err.kind == LLM_MISUSE,
          "nothing to refill");
    serve_all(&waiting, 1);
    llm_tensor *got, *want;
    llm_request_take(waiting, &got, NULL);
    llm_request_close(waiting);
    llm_cache *whole = fed(m, a, 100);
    waiting = open_feed(m, &whole, &n, b, 1);
    serve_all(&waiting, 1);
    llm_request_take(waiting, &want, NULL);
    llm_request_close(waiting);
    CHECK(same(got, want), "the request that was set aside");
    llm_cache_close(whole);
    llm_cache_truncate(c[0], 100, &err);
    for (int i = 0; i < 4; i++)
        CHECK(same(before[i], next_of(m, c[i], 3, depth_of_four(i))), "refilled cache %d", i);
    for (int i = 0; i < 4; i++) {
        if (i == 3) llm_cache_evict(c[i], &err); /* closing an evicted one */
        llm_cache_close(c[i]);
    }
    check_no_pages(m, "refill");
}

static void check_refilled_tree(llm_model *m) {
    const int32_t *a = ids_of(m, 10);
    llm_cache *c = fed(m, a, 45);
    const int32_t parents[] = {0, 1, 1, 3, 0, 4};
    int64_t n = 6;
    llm_tensor *want, *got;
    llm_feed f = {
        .caches = &c, .n_caches = 1, .counts = &n, .ids = a, .rows = n, .parents = parents};
    if (llm_forward(m, &f, &want, NULL, &err)) {
        CHECK(strstr(err.message, "not supported") != NULL, "%s", err.message);
        llm_cache_close(c);
        return;
    }
    llm_tensor_close(want);
    llm_cache *kept = llm_cache_fork(c, 51, &err);
    llm_cache_evict(c, &err);
    CHECK(refill(c, NULL, 0, NULL) == 2, "the tree is a run of its own");
    for (int i = 0; i < 2; i++) {
        CHECK(llm_cache_keep(i ? c : kept, (int64_t[]){46, 48, 49, 51}, 4, &err) == 0, "%s",
              err.message);
    }
    want = next_of(m, kept, 9, 0);
    got = next_of(m, c, 9, 0);
    CHECK(same(want, got), "a refilled tree");
    /* beside others in one pass */
    llm_cache *d = fed(m, a, 20), *e = fed(m, a, 33);
    llm_cache *d2 = llm_cache_fork(d, 20, &err), *e2 = llm_cache_fork(e, 33, &err);
    llm_request *r[2];
    f.caches = &d;
    r[0] = llm_request_open(m, &f, &err);
    int64_t three = 3;
    r[1] = open_feed(m, &e, &three, a, LLM_ROWS_ALL);
    serve_all(r, 2);
    f.caches = &d2;
    llm_forward(m, &f, &want, NULL, &err);
    llm_request_take(r[0], &got, NULL);
    CHECK(same(got, want), "a tree beside a chain");
    f = (llm_feed){.caches = &e2, .n_caches = 1, .counts = &three, .ids = a, .rows = LLM_ROWS_ALL};
    llm_forward(m, &f, &want, NULL, &err);
    llm_request_take(r[1], &got, NULL);
    CHECK(same(got, want), "a chain beside a tree");
    llm_request_close(r[0]), llm_request_close(r[1]);
    llm_cache_close(c), llm_cache_close(kept), llm_cache_close(d), llm_cache_close(d2);
    llm_cache_close(e), llm_cache_close(e2);
}

/* ---- allocations that fail ---- */

static int try_everything(llm_model *m, const int32_t *a, llm_cache *kept) {
    int failed = -1;
    llm_request *r[3] = {NULL, NULL, NULL};
    llm_cache *c = llm_cache_new(m, &err), *f = c ? llm_cache_fork(kept, 40, &err) : NULL;
    int64_t n = 70, one = 1;
    int32_t layer = 1;
    if (f) {
        llm_feed feeds[2] = {{.caches = &c, .n_caches = 1, .counts = &n, .ids = a, .rows = 2},
                             {.caches = &f,
                              .n_caches = 1,
                              .counts = &one,
                              .ids = a,
                              .rows = 1,
                              .layers = &layer,
                              .n_layers = 1}};
        r[0] = llm_request_open(m, &feeds[0], &err);
        r[1] = r[0] ? llm_request_open(m, &feeds[1], &err) : NULL;
        r[2] = r[1] ? llm_request_open_score(m, kept, a, 9, &err) : NULL;
    }
    if (r[2]) {
        failed = 0;
        for (int i = 0; i < 6 && !failed; i++) failed = llm_serve(r, 3, &err);
        failed = failed || !is_done(r[0]) || !is_done(r[1]) || !is_done(r[2]);
    }
    for (int i = 0; i < 3; i++) llm_request_close(r[i]);
    if (!failed) {
        llm_request *again = NULL;
        failed = llm_cache_evict(c, &err) ||
                 !(again = llm_request_open_refill(c, &kept, 1, &err)) ||
                 llm_serve(&again, 1, &err);
        llm_request_close(again);
    }
    llm_cache_close(c);
    llm_cache_close(f);
    return failed;
}

static void check_faults(const char *path, bool share) {
    if (!llm_faults_built()) return;
    llm_model *m = model_of(path, "cpu", 24, 32);
    const int32_t *a = ids_of(m, 11);
    if (share) llm_model_share_prefixes(m, true, &err);
    llm_cache *kept = fed(m, a + 200, 50);
    llm_tensor *want = next_of(m, kept, 4, 0);
    int n_failures = 0;
    for (int64_t i = 1;; i++) {
        int64_t pages = stats_of(m).pages_used;
        llm_fail_allocation(i);
        int failed = try_everything(m, a, kept);
        llm_fail_allocation(0);
        if (llm_cache_length(kept) == 59) llm_cache_truncate(kept, 50, &err);
        CHECK(llm_cache_length(kept) == 50, "the cache is as it was");
        CHECK(stats_of(m).pages_used <= pages + 1, "%lld pages, were %lld",
              (long long)stats_of(m).pages_used, (long long)pages);
        if (!failed) break;
        CHECK(err.kind == LLM_OUT_OF_MEMORY, "%s", err.message);
        n_failures++;
    }
    CHECK(n_failures > 20, "%d failures", n_failures);
    CHECK(same(want, next_of(m, kept, 4, 0)), "the cache that was kept");
    llm_cache_close(kept);
    check_no_pages(m, "faults");
    llm_model_close(m);
}

int main(void) {
    llm_model *models[] = {model_of(BUILTIN, "cpu", 0, 32), model_of(TINY, "cpu", 0, 32),
                           model_of(TINY, "ref", 0, 32)};
    for (int i = 0; i < 3; i++) {
        check_refill(models[i]);
        check_refilled_tree(models[i]);
        llm_model_close(models[i]);
    }
    check_faults(TINY, false);
    check_faults(TINY, true);
    return check_end();
}
