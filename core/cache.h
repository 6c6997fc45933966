/* cache.h: one sequence inside core: its ids and its pages. */
#ifndef LLM_CORE_CACHE_H
#define LLM_CORE_CACHE_H

#include "model.h"

struct llm_cache {
    llm_model *model; /* held */
    int32_t *ids;
    int64_t n, capacity; /* ids */
    int32_t *pages;
    int32_t n_pages, pages_capacity; /* n_pages = pages_for(n) between calls */
};

/* Makes positions n … n + n_more - 1 writable: takes pages, copies a shared last one. On failure the
 * cache is as it was. */
int cache_extend(llm_cache *, int64_t n_more, llm_error *err);

/* Appends ids after cache_extend made room and a pass wrote their keys and values. */
void cache_commit(llm_cache *, const int32_t *ids, int64_t n);

/* Gives back the pages beyond the committed ids. */
void cache_trim(llm_cache *);

#endif
