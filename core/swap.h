/* swap.h: copies in host memory of the pages of caches that were evicted, where the device has
 * memory of its own. Pages that several of them hold are kept once. */
#ifndef LLM_CORE_SWAP_H
#define LLM_CORE_SWAP_H

#include "cache.h"

typedef struct swap_page {
    int32_t references; /* evicted caches that have it */
    int32_t page;       /* of the device, which holds the same bytes still; -1: none */
    unsigned char bytes[];
} swap_page;

typedef struct page_swap {
    swap_page **copies; /* by page: what holds the same bytes, or NULL */
    int64_t n_pages, most;
} page_swap;

/* From here on caches that are evicted keep copies, of at most so many pages together. 0: as many
 * as the device has, in at most half of the host's free memory; negative: none. */
int swap_open(page_pool *, int64_t most, llm_error *err);
void swap_close(page_pool *);

/* The page is free, or is about to be written: it is like its copy no more. */
void swap_forget(page_pool *, int32_t page);

/* Copies what the cache has, before it is evicted. Where host memory or what may be taken of it
 * does not hold all of it, there is no copy and no error. Keeps copies that it has of more. */
void swap_out(llm_cache *);

/* Brings an evicted cache back as far as there are copies, which are then given up: all, or, with
 * *n_missing pages too few, nothing, and *why says so. Copies that cannot be made are given up too:
 * what is not there then has to be computed. -1: the device failed. */
int swap_in(llm_cache *, int64_t *n_missing, llm_error *why);

/* Gives the copies up. */
void swap_drop(llm_cache *);

#endif
