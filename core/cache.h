/* cache.h: one sequence inside core: its ids and its pages. */
#ifndef LLM_CORE_CACHE_H
#define LLM_CORE_CACHE_H

#include "late.h"
#include "model.h"

/* The id of a position is entry i of a choice that has not been read. */
typedef struct cache_late {
    llm_late *ids;
    int64_t i, position;
} cache_late;

#define CACHE_LATE_MOST 32 /* positions of a cache; then it waits for them */

struct llm_cache {
    llm_model *model; /* held */
    int32_t *ids;
    int32_t *depths; /* layers that a position's pass went through; never rises along the cache */
    int64_t n;       /* positions whose keys and values are there */
    int64_t n_lost;  /* those after them that were evicted; ids, depths and tree hold them too */
    int64_t capacity, depths_capacity; /* ids */
    int32_t *tree;         /* NULL, or the parents of the last n + n_lost - n_before_tree ids */
    int64_t n_before_tree; /* length before the last pass; what keep counts from */
    int32_t *pages;
    int32_t n_pages, pages_capacity; /* n_pages = pages_for(n) between calls */
    int64_t n_passes;                /* feeds that went into it */
    llm_request *feeding, *refill;   /* open requests that feed it, that make it whole again */
    cache_late *late; /* NULL, or positions whose ids the host does not know yet, ascending; ids
                         holds 0 there */
    int32_t n_late;
    bool is_foreign; /* holds keys and values that a file brought */
    /* Evicted: copies in host memory of the pages of its first n_swapped positions (swap.h). */
    struct swap_page **swapped;
    int64_t n_swapped;
    /* the store's entries of its first pages, as far as known (reuse.c) */
    int32_t n_chained, chain_page;
    uint64_t chain_serial;
};

/* Fails while a request feeds it and while it is evicted. i_cache (1-based; 0: the only one). */
int cache_check_free(const llm_cache *, int64_t i_cache, llm_error *err);

/* Its second half. */
int cache_check_whole(const llm_cache *, int64_t i_cache, llm_error *err);
/* Fails (cache_full) where the context does not hold n_more ids after those there. */
int cache_check_context(const llm_cache *, int64_t n_more, llm_error *err);

/* The functions of llm.h without these checks. */
llm_cache *cache_fork(llm_cache *, int64_t n, llm_error *err);
void cache_truncate(llm_cache *, int64_t n);

/* Takes commits back: n positions are there. Of a refill (is_lost) the others stay evicted. */
void cache_undo(llm_cache *, int64_t n, bool is_lost);

/* The contents change places; who holds and feeds them does not. */
void cache_swap(llm_cache *, llm_cache *);

/* Makes positions n … n + n_more - 1 writable: takes pages, copies a shared last one. On failure
 * the cache is as it was. */
int cache_extend(llm_cache *, int64_t n_more, llm_error *err);

/* Pages that it takes at most, with (copies) a copy of a shared last one. */
int64_t cache_pages_needed(const llm_cache *, int64_t n_more, bool copies);

/* Room for the ids and the page table of n positions. */
int cache_reserve(llm_cache *, int64_t n, llm_error *err);

/* Appends ids after cache_extend made room and a pass of `depth` layers wrote their keys and
 * values. Of an evicted cache they are the next of those that it lost. */
void cache_commit(llm_cache *, const int32_t *ids, int64_t n, int32_t depth);

/* ---- late.h's side of it ---- */

/* Learns the ids that some positions still lack; waits for the device if it must. */
int cache_settle(llm_cache *, llm_error *err);
/* Learns those that can be had without waiting; returns how many leading positions have theirs. */
int64_t cache_known(llm_cache *);
/* Room for one more late position: waits for those there are if there are too many. */
int cache_reserve_late(llm_cache *, llm_error *err);
/* The last position, which was committed, has entry i of these ids. */
void cache_add_late(llm_cache *, llm_late *, int64_t i);
/* Those from position n on are none of the cache's any more. */
void cache_drop_late(llm_cache *, int64_t n);
/* A fork of the first positions waits for the same. */
int cache_copy_late(llm_cache *fork, const llm_cache *, llm_error *err);

/* Layers that every position went through: a deeper pass cannot follow. */
int32_t cache_depth(const llm_cache *);

/* Positions that are there and not of a tree. */
int64_t cache_plain(const llm_cache *);

/* Gives back the pages beyond the committed ids. */
void cache_trim(llm_cache *);

/* ---- reuse.c: the cache and the store of prefixes ---- */

/* Enters its full pages into the store. Between passes only. */
void cache_publish(llm_cache *);

/* For a cache of whole pages: the page of the next ids if the store has it, or -1. */
int32_t cache_find_next(llm_cache *, const int32_t *ids);

/* Appends a page that holds these ids, of the given depth, by reference. */
int cache_append_page(llm_cache *, int32_t page, const int32_t *ids, int32_t depth, llm_error *err);

/* Shares the pages of `like` that continue what an evicted cache has, as far as ids and depths
 * agree. */
int cache_share(llm_cache *, llm_cache *like, llm_error *err);

#endif
