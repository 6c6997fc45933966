/* test_swap.c: caches that are evicted with copies in host memory come back by them, on a device
 * made of the cpu's, whose pages are saved and loaded as those of a GPU are, are counted, and fail
 * when they are told to. */
#include "host.h"
#include "model.h"
#include "requests.h"
#include "swap.h"

static kern_backend table;
static int n_saved, n_loaded, save_code, load_code;

static int pages_save(kern_device *d, kern_pages *p, const int32_t *pages, int32_t n,
                      void *const *to) {
    (void)d;
    for (int32_t i = 0; i < n && !save_code; i++) memcpy(to[i], p->pages[pages[i]], p->page_bytes);
    n_saved += save_code ? 0 : n;
    return save_code;
}

static int pages_load(kern_device *d, kern_pages *p, const int32_t *pages, int32_t n,
                      const void *const *from) {
    for (int32_t i = 0; i < n; i++) {
        const int code = host_page_reserve(d, p, pages[i]);
        if (code) return code;
        memcpy(p->pages[pages[i]], from[i], load_code ? p->page_bytes / 2 : p->page_bytes);
    }
    n_loaded += load_code ? 0 : n;
    return load_code;
}

static llm_model *swapping(int64_t n_pages, int64_t swap_pages) {
    llm_device *d = llm_device_open(&(llm_device_options){.name = "cpu", .n_threads = 1}, &err);
    if (!d) exit(1);
    table = *d->backend;
    table.pages_save = pages_save;
    table.pages_load = pages_load;
    d->backend = &table;
    llm_options o = {.n_pages = n_pages, .swap_pages = swap_pages, .ctx = 300, .n_eog = -1};
    llm_model *m = llm_load(TINY, d, &o, &err);
    llm_device_close(d);
    if (!m) exit(1);
    n_saved = n_loaded = save_code = load_code = 0;
    return m;
}

static void evict(llm_cache *c) { CHECK(llm_cache_evict(c, &err) == 0, "%s", err.message); }

static void check_refill(llm_cache *c, int n_runs, int64_t n_computed, const char *what) {
    int64_t n = 0;
    const int runs = refill(c, NULL, 0, &n);
    CHECK(runs == n_runs && n == n_computed, "%s: %d requests, %lld computed", what, runs,
          (long long)n);
}

static void check_counts(int saved, int loaded, const char *what) {
    CHECK(n_saved == saved && n_loaded == loaded, "%s: %d pages saved, %d loaded", what, n_saved,
          n_loaded);
    n_saved = n_loaded = 0;
}

/* Depths that differ, a fork of each, all evicted: no page is copied twice, none computed. */
static void test_shared(void) {
    llm_model *m = swapping(64, 0);
    const int32_t *a = ids_of(m, 8), *b = ids_of(m, 9);
    llm_cache *c[4];
    llm_tensor *before[4];
    fork_four(m, a, b, c, before);
    const int64_t pages = stats_of(m).pages_used;
    const uint64_t rows = stats_of(m).forward_rows;
    for (int i = 0; i < 4; i++) evict(c[i]);
    check_no_pages(m, "evicted");
    evict(c[2]);
    check_counts(6, 0, "four caches of 4, 4, 3 and 3 pages, six of them different");
    for (int i = 3; i >= 0; i--) check_refill(c[i], 1, 0, "in one request");
    check_counts(0, 6, "and back");
    CHECK(stats_of(m).forward_rows == rows && stats_of(m).pages_used == pages,
          "nothing is computed, and shared as before");
    for (int i = 0; i < 4; i++)
        CHECK(same(before[i], next_of(m, c[i], 3, depth_of_four(i))), "cache %d", i);
    for (int i = 0; i < 4; i++) {
        if (i == 3) evict(c[i]); /* closing an evicted one */
        llm_cache_close(c[i]);
    }
    check_no_pages(m, "shared");
    CHECK(m->pages.swap->n_pages == 0, "%lld copies are left", (long long)m->pages.swap->n_pages);
    llm_model_close(m);
}

/* What lives on with a page of an evicted cache lends it; once it has written there the copy is
 * what comes back. */
static void test_written(void) {
    llm_model *m = swapping(64, 0);
    const int32_t *a = ids_of(m, 8), *b = ids_of(m, 9);
    llm_cache *c = fed(m, a, 100), *fork = llm_cache_fork(c, 100, &err);
    llm_tensor *before = next_of(m, fork, 3, 0);
    evict(fork);
    check_refill(fork, 1, 0, "by reference");
    check_counts(4, 0, "every page is there still");
    evict(fork);
    check_counts(4, 0, "copies were given up");
    llm_cache_truncate(c, 98, &err);
    feed(m, c, b, 5, 0);
    llm_tensor *other = next_of(m, c, 3, 0);
    evict(c);
    check_counts(1, 0, "the page that was written");
    check_refill(fork, 1, 0, "the one");
    check_refill(c, 1, 0, "and the other");
    check_counts(0, 5, "and five come back");
    CHECK(same(before, next_of(m, fork, 3, 0)) && same(other, next_of(m, c, 3, 0)), "as they were");
    llm_cache_close(c), llm_cache_close(fork);
    check_no_pages(m, "written");
    llm_model_close(m);
}

static void test_tree(void) {
    llm_model *m = swapping(64, 0);
    const int32_t *a = ids_of(m, 10), parents[] = {0, 1, 1, 3, 0, 4};
    const int64_t n = 6, path[] = {46, 48, 49, 51};
    llm_cache *c = fed(m, a, 45);
    llm_tensor *none;
    llm_feed f = {.caches = &c, .n_caches = 1, .counts = &n, .ids = a, .parents = parents};
    CHECK(!llm_forward(m, &f, &none, NULL, &err), "%s", err.message);
    llm_cache *kept = llm_cache_fork(c, 51, &err);
    evict(c);
    llm_cache_keep(kept, path, 4, &err);
    check_refill(c, 1, 0, "a tree");
    CHECK(!llm_cache_keep(c, path, 4, &err), "%s", err.message);
    CHECK(same(next_of(m, kept, 9, 0), next_of(m, c, 9, 0)), "a tree that came back");
    llm_cache_close(c), llm_cache_close(kept);
    llm_model_close(m);
}

/* Full pages rest in the store of prefixes, and are as good as any. */
static void test_resting(void) {
    llm_model *m = swapping(64, 0);
    llm_model_share_prefixes(m, true, &err);
    llm_cache *c = fed(m, ids_of(m, 8), 100);
    llm_tensor *before = next_of(m, c, 3, 0);
    evict(c);
    check_no_pages(m, "resting");
    check_refill(c, 1, 0, "from the store");
    check_counts(4, 1, "three pages are there still");
    CHECK(same(before, next_of(m, c, 3, 0)), "with what rested");
    llm_cache_close(c);
    llm_model_close(m);
}

/* A refill without pages waits, keeps the copies, and is served when there are some. */
static void test_waiting(void) {
    llm_model *m = swapping(6, 0);
    const int32_t *a = ids_of(m, 8);
    llm_cache *c = fed(m, a, 100);
    llm_tensor *before = next_of(m, c, 3, 0);
    evict(c);
    llm_cache *other = fed(m, a + 100, 90);
    llm_request *r = llm_request_open_refill(c, NULL, 0, &err);
    for (int i = 0; i < 2; i++) {
        serve(&r, 1);
        const llm_request_info *info = llm_request_get_info(r);
        CHECK(!info->is_done && info->n_pages_missing == 1 && info->error.kind == LLM_CACHE_FULL,
              "%lld missing: %s", (long long)info->n_pages_missing, info->error.message);
    }
    CHECK(llm_cache_is_evicted(c) && stats_of(m).pages_used == 3, "nothing is taken");
    llm_request_close(r);
    evict(c); /* again, as it waits */
    evict(other);
    check_refill(c, 1, 0, "when others went");
    check_counts(4, 4, "the other's three were too many for six");
    CHECK(same(before, next_of(m, c, 3, 0)), "after a wait");
    llm_cache_close(c), llm_cache_close(other);
    llm_model_close(m);
}

static void test_budget(void) {
    llm_model *m = swapping(64, 5);
    const int32_t *a = ids_of(m, 8);
    llm_cache *c[3] = {fed(m, a, 100), fed(m, a + 100, 64), fed(m, a + 200, 20)};
    llm_tensor *before[3];
    for (int i = 0; i < 3; i++) before[i] = next_of(m, c[i], 3, 0);
    for (int i = 0; i < 3; i++) evict(c[i]);
    CHECK(m->pages.swap->n_pages == 5, "%lld copies", (long long)m->pages.swap->n_pages);
    check_refill(c[1], 1, 64, "two pages were too many");
    check_refill(c[0], 1, 0, "four of five");
    check_refill(c[2], 1, 0, "one more");
    check_counts(5, 5, "of the budget");
    for (int i = 0; i < 3; i++) CHECK(same(before[i], next_of(m, c[i], 3, 0)), "cache %d", i);
    for (int i = 0; i < 3; i++) llm_cache_close(c[i]);
    llm_model_close(m);
    m = swapping(64, -1);
    CHECK(m->pages.swap == NULL, "no budget, no copies");
    llm_model_close(m);
}

/* Copies that fail, either way, are as none; a device that fails is an error. */
static void test_failing(void) {
    llm_model *m = swapping(64, 0);
    llm_cache *c = fed(m, ids_of(m, 8), 100);
    llm_tensor *before = next_of(m, c, 3, 0), *again = next_of(m, c, 3, 0);
    save_code = KERN_NO_MEMORY;
    evict(c);
    check_refill(c, 1, 100, "without copies");
    CHECK(same(before, next_of(m, c, 3, 0)), "computed");
    save_code = KERN_OK;
    evict(c);
    load_code = KERN_NO_MEMORY;
    check_refill(c, 2, 100, "with copies that cannot be read");
    CHECK(same(again, next_of(m, c, 3, 0)), "computed too");
    evict(c);
    load_code = KERN_DEVICE;
    llm_request *r = llm_request_open_refill(c, NULL, 0, &err);
    CHECK(llm_serve(&r, 1, &err) && err.kind == LLM_DEVICE, "%s", err.message);
    llm_request_close(r);
    CHECK(m->pages.swap->n_pages == 0, "copies are left");
    llm_cache_close(c);
    check_no_pages(m, "failing");
    llm_model_close(m);
}

/* Evicts and refills with an allocation that fails: -1 with err. */
static int try_refill(llm_cache *c) {
    if (llm_cache_is_evicted(c) || !llm_cache_evict(c, &err))
        for (int i = 0; llm_cache_is_evicted(c) && i < 9; i++) {
            llm_request *r = llm_request_open_refill(c, NULL, 0, &err);
            const int failed = !r || llm_serve(&r, 1, &err);
            llm_request_close(r);
            if (failed) return -1;
        }
    return llm_cache_is_evicted(c) ? -1 : 0;
}

static void test_allocations(void) {
    if (!llm_faults_built()) return;
    llm_model *m = swapping(64, 0);
    llm_cache *c = fed(m, ids_of(m, 8), 100), *fork = llm_cache_fork(c, 90, &err);
    feed(m, fork, ids_of(m, 9), 3, 0);
    int n_failures = 0, n_computed = 0;
    for (int64_t i = 1;; i++) {
        const uint64_t rows = stats_of(m).forward_rows;
        llm_tensor *before = next_of(m, fork, 3, 0);
        evict(c);
        const int64_t n_before = llm_allocations();
        llm_fail_allocation(i);
        const int failed = try_refill(fork);
        const int64_t n_tried = llm_allocations() - n_before;
        llm_fail_allocation(0);
        n_failures += failed != 0;
        CHECK(!failed || err.kind == LLM_OUT_OF_MEMORY, "%s", err.message);
        if (failed) CHECK(!try_refill(fork), "and then it is refilled: %s", err.message);
        CHECK(!try_refill(c), "%s", err.message);
        n_computed += stats_of(m).forward_rows > rows + 1;
        CHECK(same(before, next_of(m, fork, 3, 0)), "allocation %lld", (long long)i);
        if (n_tried < i) break;
        CHECK(i < 1000, "never got through");
    }
    CHECK(n_failures > 2 && n_computed > 4, "%d failed, %d computed", n_failures, n_computed);
    llm_cache_close(c), llm_cache_close(fork);
    CHECK(m->pages.swap->n_pages == 0, "copies are left");
    check_no_pages(m, "allocations");
    llm_model_close(m);
}

int main(void) {
    test_shared();
    test_written();
    test_tree();
    test_resting();
    test_waiting();
    test_budget();
    test_failing();
    test_allocations();
    return check_end();
}
