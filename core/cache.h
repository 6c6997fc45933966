/* cache.h: one sequence inside core: its ids and its pages. */
#ifndef LLM_CORE_CACHE_H
#define LLM_CORE_CACHE_H

#include "model.h"

struct llm_cache {
    llm_model *model; /* held */
    int32_t *ids;
    int32_t *depths; /* layers that a position's pass went through; never rises along the cache */
    int64_t n, capacity, depths_capacity; /* ids */
    int32_t *tree;         /* NULL, or the parents of the last n - n_before_tree ids */
    int64_t n_before_tree; /* length before the last pass; what keep counts from */
    int32_t *pages;
    int32_t n_pages, pages_capacity; /* n_pages = pages_for(n) between calls */
};

/* Makes positions n … n + n_more - 1 writable: takes pages, copies a shared last one. On failure
 * the cache is as it was. */
int cache_extend(llm_cache *, int64_t n_more, llm_error *err);

/* Appends ids after cache_extend made room and a pass of `depth` layers wrote their keys and
 * values. `tree` (parents, allocated by kern_alloc; or NULL) is taken over. */
void cache_commit(llm_cache *, const int32_t *ids, int64_t n, int32_t depth, int32_t *tree);

/* Layers that every position went through: a deeper pass cannot follow. */
int32_t cache_depth(const llm_cache *);

/* Gives back the pages beyond the committed ids. */
void cache_trim(llm_cache *);

#endif
