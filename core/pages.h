/* pages.h: the pages of a model: which are free, and how many caches hold each. Contents and layout
 * are the backend's. */
#ifndef LLM_CORE_PAGES_H
#define LLM_CORE_PAGES_H

#include "device.h"

typedef struct page_pool {
    llm_device *device; /* borrowed */
    kern_pages *kern;
    kern_kv_shape shape;
    int32_t n_pages, n_used;
    int32_t *references; /* 0: free */
    int32_t *free;       /* stack of free page numbers */
    int32_t n_free;
} page_pool;

int pages_open(page_pool *, llm_device *, const kern_kv_shape *, int32_t n_pages, llm_error *err);
void pages_close(page_pool *); /* accepts a zeroed one */

/* A page with memory and one reference. */
int page_take(page_pool *, int32_t *page, llm_error *err);
void page_retain(page_pool *, int32_t page);
void page_release(page_pool *, int32_t page);

/* "f32", "f16", "q8_0" by kern_kv; ends with NULL. */
extern const char *const kv_names[];

static inline int64_t pages_for(int64_t n_positions) {
    return (n_positions + KERN_PAGE_POSITIONS - 1) / KERN_PAGE_POSITIONS;
}

#endif
