/* pages.h: the pages of a model: which are free, and how many caches hold each. Contents and layout
 * are the backend's. */
#ifndef LLM_CORE_PAGES_H
#define LLM_CORE_PAGES_H

#include "device.h"
#include "prefix.h"

typedef struct page_pool {
    llm_device *device;     /* borrowed */
    int64_t *n_used_in_all; /* what stats say of all models */
    kern_pages *kern;
    kern_kv_shape shape;
    int32_t n_pages, n_used, n_most; /* used: by a cache; the most of them so far */
    int32_t *references;             /* caches that hold it, and its entry in the store; 0: free */
    int32_t *free;                   /* stack of free page numbers */
    int32_t n_free;
    int32_t n_lost;         /* below them: pages that the device had no memory for */
    prefix_store *store;    /* NULL: prefixes are not shared */
    uint64_t last_serial;   /* of the store that was dropped */
    struct page_swap *swap; /* swap.c's; NULL: pages are not copied to host memory */
} page_pool;

/* Pages of this shape on a device; counts: whose stats tell of them. */
int pages_open(page_pool *, llm_device *, llm_device *counts, const kern_kv_shape *,
               int32_t n_pages, llm_error *err);
void pages_close(page_pool *); /* accepts a zeroed one */

/* Whether so many can be taken, as far as the budget goes: cache_full if not. */
int pages_check(page_pool *, int64_t n, llm_error *err);

/* A page with memory and one reference; the oldest of those that only the store holds if none is
 * free. */
int page_take(page_pool *, int32_t *page, llm_error *err);
void page_retain(page_pool *, int32_t page);
void page_release(page_pool *, int32_t page);

/* Pages that can be taken. */
static inline int32_t pages_available(const page_pool *pool) {
    return pool->n_free + (pool->store ? pool->store->n_resting : 0);
}

/* Whether more than one cache holds it. */
static inline bool page_is_shared(const page_pool *pool, int32_t page) {
    return pool->references[page] > 1 + (pool->store && prefix_has(pool->store, page));
}

/* Opens the store, in which at most most_resting pages outlive their caches; or drops it. */
int pages_share(page_pool *, bool on, int32_t most_resting, llm_error *err);

/* Enters a page that a cache holds into the store, and takes it out before it is written. */
void page_publish(page_pool *, uint64_t parent, const int32_t *ids, int32_t page);
void page_withdraw(page_pool *, int32_t page); /* accepts one that is not in the store */

/* "f32", "f16", "q8_0" by kern_kv; ends with NULL. */
extern const char *const kv_names[];

static inline int64_t pages_for(int64_t n_positions) {
    return (n_positions + KERN_PAGE_POSITIONS - 1) / KERN_PAGE_POSITIONS;
}

#endif
