/* refill.c: caches that gave their pages back, and how they get them again: from those that hold
 * the same, by computing the rest. */
#include "request.h"
#include "swap.h"

#include "../kernels/memory.h"
#include <string.h>

int llm_cache_evict(llm_cache *c, llm_error *err) {
    if (c->refill || (c->feeding && c->feeding->info.n_fed))
        return llm_fail(err, LLM_MISUSE, "the cache is being fed by a forward pass");
    if (cache_settle(c, err)) return -1; /* what comes back is computed from the ids */
    swap_out(c);
    cache_undo(c, 0, true);
    if (!c->n_swapped) c->is_foreign = false; /* what comes back is computed */
    return 0;
}

bool llm_cache_is_evicted(const llm_cache *c) { return c->n_lost > 0; }

/* How many of the positions after c->n were made alike; *tree: they are the cache's tree. */
static int64_t next_run(const llm_cache *c, bool *tree) {
    int64_t end = c->n + c->n_lost, n = c->n;
    *tree = c->tree && n == c->n_before_tree;
    if (c->tree && !*tree) end = c->n_before_tree;
    while (n < end && c->depths[n] == c->depths[c->n]) n++;
    return n - c->n;
}

llm_request *llm_request_open_refill(llm_cache *c, llm_cache *const *like, size_t n_like,
                                     llm_error *err) {
    if (c->refill) {
        llm_fail(err, LLM_MISUSE, "the cache is being fed by a forward pass");
        return NULL;
    }
    if (!c->n_lost) {
        llm_fail(err, LLM_MISUSE, "refill: the cache is not evicted");
        return NULL;
    }
    for (size_t i = 0; i < n_like && c->n_lost; i++)
        if (cache_share(c, like[i], err)) return NULL;
    bool is_tree = false, is_swap = c->n_swapped > c->n;
    if (!is_swap) swap_drop(c);
    int64_t n = is_swap ? c->n_swapped - c->n : next_run(c, &is_tree);
    llm_request *r = request_new(c->model, REQUEST_REFILL, 1, n, err);
    if (!r) return NULL;
    if (n == 0) {
        r->info.is_done = true;
        return r;
    }
    r->is_swap = is_swap;
    r->depth = c->depths[c->n];
    memcpy(r->ids, c->ids + c->n, (size_t)n * sizeof *r->ids);
    if (is_tree) {
        r->parents = kern_alloc_array((size_t)n, sizeof *r->parents);
        if (!r->parents) {
            llm_fail_memory(err, (size_t)n * sizeof *r->parents, "a tree of candidates");
            llm_request_close(r);
            return NULL;
        }
        memcpy(r->parents, c->tree, (size_t)n * sizeof *r->parents);
    }
    r->parts[0] = (request_part){.cache = c, .fed = c, .count = n, .n_before = c->n};
    c->refill = r;
    return r;
}

int request_swap_in(llm_request *r, llm_error *err) {
    llm_cache *c = r->parts[0].cache;
    llm_error why = {LLM_OK, ""};
    int64_t n_missing = 0;
    if (swap_in(c, &n_missing, &why)) {
        if (err) *err = why;
        return -1;
    }
    if (n_missing) {
        r->info.n_pages_missing = n_missing;
        r->info.error = why;
    } else {
        r->parts[0].n_fed = c->n - r->parts[0].n_before;
        r->info.n_ids = r->info.n_fed = r->info.n_reused = r->parts[0].n_fed;
    }
    return 0;
}
