/* pages.c: reference counts and the free list of a model's pages. */
#include "pages.h"

#include "../kernels/memory.h"
#include <assert.h>
#include <string.h>

const char *const kv_names[] = {"f32", "f16", "q8_0", NULL};

int pages_open(page_pool *pool, llm_device *device, const kern_kv_shape *shape, int32_t n_pages,
               llm_error *err) {
    pool->device = device;
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
    kern_free(pool->references);
    kern_free(pool->free);
    memset(pool, 0, sizeof *pool);
}

int page_take(page_pool *pool, int32_t *page, llm_error *err) {
    if (pool->n_free == 0)
        return llm_fail(err, LLM_CACHE_FULL,
                        "cache full: %d of %d pages used, 1 more requested (--pages)", pool->n_used,
                        pool->n_pages);
    int32_t taken = pool->free[pool->n_free - 1];
    llm_device *device = pool->device;
    int code = device->backend->page_reserve(device->kern, pool->kern, taken);
    if (device_check(device, code, "a cache page", err)) return -1;
    pool->n_free--;
    pool->n_used++;
    device->pages_used++;
    pool->references[taken] = 1;
    *page = taken;
    return 0;
}

void page_retain(page_pool *pool, int32_t page) { pool->references[page]++; }

void page_release(page_pool *pool, int32_t page) {
    assert(pool->references[page] > 0);
    if (--pool->references[page] > 0) return;
    pool->free[pool->n_free++] = page;
    pool->n_used--;
    pool->device->pages_used--;
}
