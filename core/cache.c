/* cache.c: sequences as lists of copy-on-write pages. A page is written only by a cache that holds
 * its only reference; what several hold is copied by the first that writes into it. */
#include "cache.h"
#include "faults.h"
#include "request.h"
#include "swap.h"

#include "../kernels/memory.h"
#include <stdio.h>
#include <string.h>

llm_cache *llm_cache_new(llm_model *m, llm_error *err) {
    llm_cache *c = kern_alloc(sizeof *c);
    if (!c) {
        llm_fail_memory(err, sizeof *c, "a cache");
        return NULL;
    }
    c->model = model_retain(m);
    return c;
}

void llm_cache_close(llm_cache *c) {
    if (!c) return;
    if (c->refill) request_lose_cache(c->refill, c);
    if (c->feeding) request_lose_cache(c->feeding, c);
    c->n = 0;
    cache_trim(c);
    swap_drop(c);
    cache_drop_late(c, 0);
    kern_free(c->late);
    kern_free(c->pages);
    kern_free(c->ids);
    kern_free(c->depths);
    kern_free(c->tree);
    llm_model_close(c->model);
    kern_free(c);
}

llm_model *llm_cache_model(const llm_cache *c) { return c->model; }
int64_t llm_cache_length(const llm_cache *c) { return c->n + c->n_lost; }

const int32_t *llm_cache_tokens(llm_cache *c, llm_error *err) {
    return cache_settle(c, err) ? NULL : c->ids;
}

/* Room for n entries of 4 bytes, at least doubled. */
static int grow(int32_t **list, int64_t *capacity, int64_t n, const char *what, llm_error *err) {
    if (n <= *capacity) return 0;
    int64_t wanted = n > 2 * *capacity ? n : 2 * *capacity;
    if (wanted < 32) wanted = 32;
    int32_t *grown = kern_realloc(*list, (size_t)wanted * sizeof **list);
    if (!grown) return llm_fail_memory(err, (size_t)wanted * sizeof **list, what);
    *list = grown;
    *capacity = wanted;
    return 0;
}

int cache_reserve(llm_cache *c, int64_t n, llm_error *err) {
    int64_t capacity = c->pages_capacity;
    int failed = grow(&c->ids, &c->capacity, n, "the ids of a cache", err) ||
                 grow(&c->depths, &c->depths_capacity, n, "the depths of a cache", err) ||
                 grow(&c->pages, &capacity, pages_for(n), "the page table of a cache", err);
    c->pages_capacity = (int32_t)capacity;
    return failed ? -1 : 0;
}

void cache_trim(llm_cache *c) {
    int32_t kept = (int32_t)pages_for(c->n);
    while (c->n_pages > kept) page_release(&c->model->pages, c->pages[--c->n_pages]);
    if (c->n / KERN_PAGE_POSITIONS < c->n_chained) c->n_chained = 0;
}

typedef struct cache_name {
    char text[32];
} cache_name;

static cache_name name_of(int64_t i_cache) {
    cache_name name = {"the cache"};
    if (i_cache) snprintf(name.text, sizeof name.text, "cache %lld", (long long)i_cache);
    return name;
}

int cache_check_whole(const llm_cache *c, int64_t i_cache, llm_error *err) {
    if (!c->n_lost) return 0;
    return llm_fail(err, LLM_MISUSE, "%s is evicted: %lld of its %lld tokens are there",
                    name_of(i_cache).text, (long long)c->n, (long long)llm_cache_length(c));
}

int cache_check_free(const llm_cache *c, int64_t i_cache, llm_error *err) {
    if (c->feeding || c->refill)
        return llm_fail(err, LLM_MISUSE, "%s is being fed by a forward pass",
                        name_of(i_cache).text);
    return cache_check_whole(c, i_cache, err);
}

int cache_check_context(const llm_cache *c, int64_t n_more, llm_error *err) {
    int64_t ctx = c->model->info.ctx;
    if (n_more <= ctx - c->n) return 0;
    return llm_fail(err, LLM_CACHE_FULL, "cache full: %lld of %lld positions used, %lld requested",
                    (long long)c->n, (long long)ctx, (long long)n_more);
}

/* Page i_page, whose first n_positions are in use, becomes a copy unless it is ours alone. The
 * store would hold what is written next under other ids: it lets go. */
static int unshare_page(llm_cache *c, int64_t i_page, int32_t n_positions, llm_error *err) {
    page_pool *pool = &c->model->pages;
    int32_t *page = &c->pages[i_page], copy;
    if (!page_is_shared(pool, *page)) {
        page_withdraw(pool, *page);
        swap_forget(pool, *page);
        return 0;
    }
    if (page_take(pool, &copy, err)) return -1;
    const kern_backend *backend = pool->device->backend;
    int code = backend->page_copy(pool->device->kern, pool->kern, copy, *page, n_positions);
    if (device_check(pool->device, code, "copying a cache page", err)) {
        page_release(pool, copy);
        return -1;
    }
    page_release(pool, *page);
    *page = copy;
    return 0;
}

/* The last page, if it is partly filled: it is written next. */
static int unshare_tail(llm_cache *c, llm_error *err) {
    int32_t n_filled = (int32_t)(c->n % KERN_PAGE_POSITIONS);
    if (n_filled == 0 || faults_share_writes()) return 0;
    return unshare_page(c, c->n_pages - 1, n_filled, err);
}

int64_t cache_pages_needed(const llm_cache *c, int64_t n_more, bool copies) {
    int64_t n = pages_for(c->n + n_more) - c->n_pages;
    bool is_partial = c->n % KERN_PAGE_POSITIONS != 0;
    return n + (copies && is_partial && page_is_shared(&c->model->pages, c->pages[c->n_pages - 1]));
}

int cache_extend(llm_cache *c, int64_t n_more, llm_error *err) {
    page_pool *pool = &c->model->pages;
    if (cache_check_context(c, n_more, err)) return -1;
    if (pages_check(pool, cache_pages_needed(c, n_more, true), err)) return -1;
    if (cache_reserve(c, c->n + n_more, err) || unshare_tail(c, err)) return -1;
    while (c->n_pages < pages_for(c->n + n_more)) {
        if (page_take(pool, &c->pages[c->n_pages], err)) {
            cache_trim(c);
            return -1;
        }
        c->n_pages++;
    }
    return 0;
}

void cache_commit(llm_cache *c, const int32_t *ids, int64_t n, int32_t depth) {
    if (n) memcpy(c->ids + c->n, ids, (size_t)n * sizeof *ids);
    for (int64_t i = 0; i < n; i++) c->depths[c->n + i] = depth;
    c->n += n;
    if (c->n_lost) c->n_lost -= n;
}

void cache_undo(llm_cache *c, int64_t n, bool is_lost) {
    if (is_lost)
        c->n_lost += c->n - n;
    else
        cache_drop_late(c, n);
    c->n = n;
    cache_trim(c);
}

int32_t cache_depth(const llm_cache *c) {
    return c->n ? c->depths[c->n - 1] : (int32_t)c->model->info.n_layers;
}

int64_t cache_plain(const llm_cache *c) {
    return c->tree && c->n_before_tree < c->n ? c->n_before_tree : c->n;
}

void cache_swap(llm_cache *a, llm_cache *b) {
    llm_cache old = *a;
    *a = *b;
    *b = old;
    b->feeding = a->feeding;
    b->refill = a->refill;
    a->feeding = old.feeding;
    a->refill = old.refill;
}

/* What is left of a tree after truncation: nothing where each id follows the one before. */
static void prune_tree(llm_cache *c) {
    for (int64_t i = 0; c->tree && i < c->n - c->n_before_tree; i++)
        if (c->tree[i] != i) return;
    kern_free(c->tree);
    c->tree = NULL;
}

static int copy_tree(const int32_t *from, int64_t n, int32_t **to, llm_error *err) {
    if (n == 0) return 0;
    *to = kern_alloc_array((size_t)n, sizeof **to);
    if (!*to) return llm_fail_memory(err, (size_t)n * sizeof **to, "a tree of candidates");
    memcpy(*to, from, (size_t)n * sizeof **to);
    return 0;
}

llm_cache *cache_fork(llm_cache *c, int64_t n, llm_error *err) {
    llm_cache *fork = llm_cache_new(c->model, err);
    if (!fork) return NULL;
    int64_t n_tree = c->tree && n > c->n_before_tree ? n - c->n_before_tree : 0;
    if (cache_reserve(fork, n, err) || copy_tree(c->tree, n_tree, &fork->tree, err)) {
        llm_cache_close(fork);
        return NULL;
    }
    if (n) memcpy(fork->ids, c->ids, (size_t)n * sizeof *c->ids);
    if (n) memcpy(fork->depths, c->depths, (size_t)n * sizeof *c->depths);
    fork->n = n;
    fork->n_before_tree = c->n_before_tree;
    fork->n_passes = c->n_passes;
    fork->is_foreign = c->is_foreign;
    fork->n_pages = (int32_t)pages_for(n);
    for (int32_t i = 0; i < fork->n_pages; i++) {
        fork->pages[i] = c->pages[i];
        page_retain(&c->model->pages, fork->pages[i]);
    }
    if (c->n_chained <= n / KERN_PAGE_POSITIONS) {
        fork->n_chained = c->n_chained;
        fork->chain_page = c->chain_page;
        fork->chain_serial = c->chain_serial;
    }
    prune_tree(fork);
    if (cache_copy_late(fork, c, err)) {
        llm_cache_close(fork);
        return NULL;
    }
    return fork;
}

llm_cache *llm_cache_fork(llm_cache *c, int64_t n, llm_error *err) {
    if (cache_check_free(c, 0, err)) return NULL;
    if (n < 0 || n > c->n) {
        llm_fail(err, LLM_MISUSE, "fork of %lld tokens: the cache holds %lld", (long long)n,
                 (long long)c->n);
        return NULL;
    }
    return cache_fork(c, n, err);
}

void cache_truncate(llm_cache *c, int64_t n) {
    c->n = n;
    cache_drop_late(c, n);
    prune_tree(c);
    cache_trim(c);
}

int llm_cache_truncate(llm_cache *c, int64_t n, llm_error *err) {
    if (cache_check_free(c, 0, err)) return -1;
    if (n < 0 || n > c->n)
        return llm_fail(err, LLM_MISUSE, "truncate to %lld tokens: the cache holds %lld",
                        (long long)n, (long long)c->n);
    cache_truncate(c, n);
    return 0;
}

int llm_cache_sync(llm_cache *c, const int32_t *ids, size_t n, size_t least, size_t *n_kept,
                   llm_error *err) {
    if (cache_check_free(c, 0, err)) return -1;
    if (least > n)
        return llm_fail(err, LLM_MISUSE, "sync cannot leave %zu ids to feed of a list of %zu",
                        least, n);
    if (cache_settle(c, err)) return -1;
    size_t common = 0;
    while (common < n - least && (int64_t)common < c->n && c->ids[common] == ids[common]) common++;
    *n_kept = common;
    cache_truncate(c, (int64_t)common);
    c->model->device->prefix_tokens += common;
    return 0;
}

/* ---- keep ---- */

static int check_keep(const llm_cache *c, const int64_t *positions, size_t n, llm_error *err) {
    if (c->n <= c->n_before_tree)
        return llm_fail(err, LLM_MISUSE, "keep: nothing is left of the last pass");
    int64_t before = c->n_before_tree, parent = 0;
    for (size_t i = 0; i < n; i++) {
        if (positions[i] <= before || positions[i] > c->n)
            return llm_fail(err, LLM_MISUSE,
                            "keep: position %lld is outside the tree's %lld … %lld",
                            (long long)positions[i], (long long)before + 1, (long long)c->n);
        int64_t node = positions[i] - before, follows = c->tree ? c->tree[node - 1] : node - 1;
        if (follows != parent)
            return llm_fail(err, LLM_MISUSE, "keep: position %lld follows %lld, not %lld",
                            (long long)positions[i], (long long)(before + follows),
                            (long long)(before + parent));
        parent = node;
    }
    return 0;
}

/* Positions of a tree rise along a path, so a slot is never written before it was read. */
static int move_position(llm_cache *c, int64_t to, int64_t from, void *bytes, llm_error *err) {
    page_pool *pool = &c->model->pages;
    const kern_backend *backend = pool->device->backend;
    const int32_t size = KERN_PAGE_POSITIONS;
    int code = backend->page_read(pool->device->kern, pool->kern, c->pages[from / size],
                                  (int32_t)(from % size), bytes);
    if (!code)
        code = backend->page_write(pool->device->kern, pool->kern, c->pages[to / size],
                                   (int32_t)(to % size), bytes);
    return device_check(pool->device, code, "moving a position of the cache", err);
}

/* The pages that the kept positions move into must be ours alone: a fork made since shares them. */
static int unshare_tree(llm_cache *c, size_t n, llm_error *err) {
    int64_t first = c->n_before_tree / KERN_PAGE_POSITIONS;
    int64_t end = n ? pages_for(c->n_before_tree + (int64_t)n) : first;
    for (int64_t i = first; i < end; i++)
        if (unshare_page(c, i, KERN_PAGE_POSITIONS, err)) return -1;
    return 0;
}

int llm_cache_keep(llm_cache *c, const int64_t *positions, size_t n, llm_error *err) {
    size_t bytes = (size_t)c->model->info.position_bytes;
    if (cache_check_free(c, 0, err) || check_keep(c, positions, n, err)) return -1;
    void *position = kern_alloc(bytes);
    if (!position) return llm_fail_memory(err, bytes, "a position of the cache");
    int failed = unshare_tree(c, n, err);
    int64_t before = c->n_before_tree;
    for (size_t i = 0; i < n && !failed; i++) {
        int64_t to = before + (int64_t)i, from = positions[i] - 1;
        if (to == from) continue;
        failed = move_position(c, to, from, position, err);
        c->ids[to] = c->ids[from];
    }
    kern_free(position);
    if (failed) return -1;
    kern_free(c->tree);
    c->tree = NULL;
    c->n = before + (int64_t)n;
    cache_trim(c);
    return 0;
}

/* ---- reorder ---- */

static int check_reorder(llm_cache **caches, size_t n, const int32_t *parents, size_t n_out,
                         llm_error *err) {
    for (size_t i = 0; i < n; i++) {
        if (cache_check_free(caches[i], (int64_t)i + 1, err)) return -1;
        for (size_t j = 0; j < i; j++)
            if (caches[i] == caches[j])
                return llm_fail(err, LLM_MISUSE, "reorder: cache %zu is cache %zu again", i + 1,
                                j + 1);
    }
    for (size_t i = 0; i < n_out; i++)
        if (parents[i] < 0 || (size_t)parents[i] >= n)
            return llm_fail(err, LLM_MISUSE, "reorder: row %d is outside 1 … %zu", parents[i] + 1,
                            n);
    return 0;
}

int llm_cache_reorder(llm_cache **caches, size_t n, const int32_t *parents, size_t n_out,
                      llm_cache **out, llm_error *err) {
    if (check_reorder(caches, n, parents, n_out, err)) return -1;
    bool *moved = kern_alloc_array(n + 1, sizeof *moved);
    if (!moved) return llm_fail_memory(err, n + 1, "reorder");
    int failed = 0;
    size_t i = 0;
    for (; i < n_out && !failed;
         i++) { /* the first child takes the parent's place, the others fork it */
        llm_cache *parent = caches[parents[i]];
        out[i] = moved[parents[i]] ? cache_fork(parent, parent->n, err) : parent;
        moved[parents[i]] = true;
        failed = !out[i];
    }
    if (failed) {
        memset(moved, 0, n * sizeof *moved);
        for (size_t j = 0; j + 1 < i; j++) {
            if (moved[parents[j]]) llm_cache_close(out[j]);
            moved[parents[j]] = true;
        }
    } else {
        for (size_t j = 0; j < n; j++)
            if (!moved[j]) llm_cache_close(caches[j]);
    }
    kern_free(moved);
    return failed ? -1 : 0;
}
