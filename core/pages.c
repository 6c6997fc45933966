/* pages.c: reference counts and the free list of a model's pages, and which of them the store of
 * prefixes holds. */
#include "pages.h"
#include "swap.h"

#include "../kernels/memory.h"
#include <assert.h>
#include <string.h>

const char *const kv_names[] = {"f32", "f16", "q8_0", NULL};

int pages_open(page_pool *pool, llm_device *device, llm_device *counts, const kern_kv_shape *shape,
               int32_t n_pages, llm_error *err) {
    pool->device = device;
    pool->n_used_in_all = &counts->pages_used;
    pool->shape = *shape;
    pool->n_pages = n_pages;
    pool->references = kern_alloc_array((size_t)n_pages, sizeof *pool->references);
    pool->free = kern_alloc_array((size_t)n_pages, sizeof *pool->free);
    if (!pool->references || !pool->free)
        return llm_fail_memory(err, (size_t)n_pages * 8, "the page table");
    for (int32_t i = 0; i < n_pages; i++) pool->free[i] = n_pages - 1 - i;
    pool->n_free = n_pages;
    int code = device->backend->pages_open(device->kern, shape, n_pages, &pool->kern);
    return device_check(device, code, "the cache's pages", err);
}

void pages_close(page_pool *pool) {
    if (pool->kern) pool->device->backend->pages_close(pool->device->kern, pool->kern);
    prefix_close(pool->store);
    swap_close(pool);
    kern_free(pool->references);
    kern_free(pool->free);
    memset(pool, 0, sizeof *pool);
}

/* A page begins or ends to be held by caches. */
static void count_used(page_pool *pool, int32_t n) {
    pool->n_used += n;
    if (pool->n_used > pool->n_most) pool->n_most = pool->n_used;
    *pool->n_used_in_all += n;
}

static void page_free(page_pool *pool, int32_t page) {
    swap_forget(pool, page);
    pool->references[page] = 0;
    pool->free[pool->n_lost + pool->n_free++] = page;
}

/* The page that has rested longest becomes free. */
static void drop_oldest(page_pool *pool) {
    int32_t page = prefix_oldest(pool->store);
    prefix_wake(pool->store, page);
    prefix_remove(pool->store, page);
    page_free(pool, page);
}

/* The device has no memory for the free pages: one that was used before would have its own. They
 * are asked for again when pages are short. */
static void lose_pages(page_pool *pool) {
    pool->n_lost += pool->n_free;
    pool->n_free = 0;
}

int pages_check(page_pool *pool, int64_t n, llm_error *err) {
    if (n > pages_available(pool)) {
        pool->n_free += pool->n_lost;
        pool->n_lost = 0;
    }
    if (n <= pages_available(pool)) return 0;
    return llm_fail(err, LLM_CACHE_FULL,
                    "cache full: %d of %d pages used, %lld more requested (--pages)", pool->n_used,
                    pool->n_pages, (long long)n);
}

int page_take(page_pool *pool, int32_t *page, llm_error *err) {
    if (pages_check(pool, 1, err)) return -1;
    if (pool->n_free == 0) drop_oldest(pool);
    int32_t taken = pool->free[pool->n_lost + pool->n_free - 1];
    llm_device *device = pool->device;
    int code = device->backend->page_reserve(device->kern, pool->kern, taken);
    if (code == KERN_NO_MEMORY && pool->n_used > 0) lose_pages(pool);
    if (code == KERN_NO_MEMORY && pool->store && pool->store->n_resting) {
        lose_pages(pool);
        drop_oldest(pool);
        taken = pool->free[pool->n_lost + pool->n_free - 1];
        code = device->backend->page_reserve(device->kern, pool->kern, taken);
    }
    if (device_check(device, code, "a cache page", err)) return -1;
    pool->n_free--;
    count_used(pool, 1);
    pool->references[taken] = 1;
    *page = taken;
    return 0;
}

static bool rests(const page_pool *pool, int32_t page) {
    return pool->store && pool->store->entries[page].rests;
}

void page_retain(page_pool *pool, int32_t page) {
    if (rests(pool, page)) {
        prefix_wake(pool->store, page);
        count_used(pool, 1);
    }
    pool->references[page]++;
}

void page_release(page_pool *pool, int32_t page) {
    assert(pool->references[page] > 0 && !rests(pool, page));
    int32_t n = --pool->references[page];
    bool stored = pool->store && prefix_has(pool->store, page);
    if (n > stored) return;
    count_used(pool, -1);
    if (!stored) {
        page_free(pool, page);
        return;
    }
    prefix_rest(pool->store, page);
    if (pool->store->n_resting > pool->store->most_resting) drop_oldest(pool);
}

/* ---- the store ---- */

void page_publish(page_pool *pool, uint64_t parent, const int32_t *ids, int32_t page) {
    page_withdraw(pool, page);
    prefix_add(pool->store, parent, ids, page);
    pool->references[page]++;
}

void page_withdraw(page_pool *pool, int32_t page) {
    if (!pool->store || !prefix_has(pool->store, page)) return;
    prefix_remove(pool->store, page);
    pool->references[page]--;
}

int pages_share(page_pool *pool, bool on, int32_t most_resting, llm_error *err) {
    if (on == (pool->store != NULL)) return 0;
    if (on) {
        pool->store = prefix_open(pool->n_pages, most_resting, pool->last_serial, err);
        return pool->store ? 0 : -1;
    }
    while (pool->store->n_resting) drop_oldest(pool);
    for (int32_t i = 0; i < pool->n_pages; i++) page_withdraw(pool, i);
    pool->last_serial = pool->store->last_serial;
    prefix_close(pool->store);
    pool->store = NULL;
    return 0;
}
