/* prefix.h: full pages that stay findable by the ids they hold and the page before them. An entry
 * belongs to a page and counts as one reference of it; pages.c keeps those counts. A page that only
 * its entry refers to rests: it can be taken back at any time. */
#ifndef LLM_CORE_PREFIX_H
#define LLM_CORE_PREFIX_H

#include "../kernels/kern.h"
#include "error.h"

typedef struct prefix_entry {
    uint64_t serial; /* names the entry for ever; 0: the page has none */
    uint64_t parent; /* serial of the page before; 0: it is the first */
    int32_t ids[KERN_PAGE_POSITIONS];
    int32_t next;         /* in its bucket: page + 1, 0: the last */
    int32_t older, newer; /* among those that rest: page + 1, 0: none */
    bool rests;
} prefix_entry;

typedef struct prefix_store {
    prefix_entry *entries;           /* by page number */
    int32_t *buckets;                /* page + 1, 0: empty */
    uint32_t mask;                   /* buckets − 1 */
    int32_t n_pages, oldest, newest; /* of those that rest: page + 1, 0: none */
    int32_t n_resting, most_resting;
    uint64_t last_serial;
} prefix_store;

/* last_serial: of the store before it, so that no name returns. */
prefix_store *prefix_open(int32_t n_pages, int32_t most_resting, uint64_t last_serial,
                          llm_error *err);
void prefix_close(prefix_store *); /* accepts NULL */

/* The page of these KERN_PAGE_POSITIONS ids after the entry `parent`, or -1. */
int32_t prefix_find(const prefix_store *, uint64_t parent, const int32_t *ids);

/* An entry for a page that has none. */
void prefix_add(prefix_store *, uint64_t parent, const int32_t *ids, int32_t page);

/* Forgets the entry of a page that has one; what follows it is not found any more. */
void prefix_remove(prefix_store *, int32_t page);

/* Begins and ends its rest. The oldest is the one that began first, or -1. */
void prefix_rest(prefix_store *, int32_t page);
void prefix_wake(prefix_store *, int32_t page);
static inline int32_t prefix_oldest(const prefix_store *s) { return s->oldest - 1; }

static inline bool prefix_has(const prefix_store *s, int32_t page) {
    return s->entries[page].serial != 0;
}

#endif
