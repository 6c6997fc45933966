/* prefix.c: a hash table over (entry of the page before, ids), chained through entries that lie by
 * page number, so that it is bounded by the pages; and the list of those that rest, by age. */
#include "prefix.h"

#include "../kernels/memory.h"
#include <assert.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

prefix_store *prefix_open(int32_t n_pages, int32_t most_resting, uint64_t last_serial,
                          llm_error *err) {
    size_t n_buckets = 16, n = (size_t)n_pages;
    while (n_buckets < n) n_buckets *= 2;
    prefix_store *s = kern_alloc(sizeof *s);
    if (s) {
        s->entries = kern_alloc_array(n, sizeof *s->entries);
        s->buckets = kern_alloc_array(n_buckets, sizeof *s->buckets);
    }
    if (!s || !s->entries || !s->buckets) {
        llm_fail_memory(err, n * sizeof *s->entries, "the store of prefixes");
        prefix_close(s);
        return NULL;
    }
    s->mask = (uint32_t)(n_buckets - 1);
    s->n_pages = n_pages;
    s->most_resting = most_resting;
    s->last_serial = last_serial;
    return s;
}

void prefix_close(prefix_store *s) {
    if (!s) return;
    kern_free(s->entries);
    kern_free(s->buckets);
    kern_free(s);
}

static int32_t *bucket_of(const prefix_store *s, uint64_t parent, const int32_t *ids) {
    uint64_t hash = XXH3_64bits_withSeed(ids, KERN_PAGE_POSITIONS * sizeof *ids, parent);
    return &s->buckets[hash & s->mask];
}

int32_t prefix_find(const prefix_store *s, uint64_t parent, const int32_t *ids) {
    for (int32_t at = *bucket_of(s, parent, ids); at; at = s->entries[at - 1].next) {
        const prefix_entry *e = &s->entries[at - 1];
        if (e->parent == parent && memcmp(e->ids, ids, sizeof e->ids) == 0) return at - 1;
    }
    return -1;
}

void prefix_add(prefix_store *s, uint64_t parent, const int32_t *ids, int32_t page) {
    prefix_entry *e = &s->entries[page];
    int32_t *bucket = bucket_of(s, parent, ids);
    assert(!e->serial && !e->rests);
    e->serial = ++s->last_serial;
    e->parent = parent;
    memcpy(e->ids, ids, sizeof e->ids);
    e->next = *bucket;
    *bucket = page + 1;
}

void prefix_remove(prefix_store *s, int32_t page) {
    prefix_entry *e = &s->entries[page];
    int32_t *at = bucket_of(s, e->parent, e->ids);
    assert(e->serial && !e->rests);
    while (*at != page + 1) at = &s->entries[*at - 1].next;
    *at = e->next;
    e->serial = 0;
}

void prefix_rest(prefix_store *s, int32_t page) {
    prefix_entry *e = &s->entries[page];
    assert(e->serial && !e->rests);
    e->rests = true;
    e->older = s->newest;
    e->newer = 0;
    if (s->newest)
        s->entries[s->newest - 1].newer = page + 1;
    else
        s->oldest = page + 1;
    s->newest = page + 1;
    s->n_resting++;
}

void prefix_wake(prefix_store *s, int32_t page) {
    prefix_entry *e = &s->entries[page];
    assert(e->rests);
    if (e->older)
        s->entries[e->older - 1].newer = e->newer;
    else
        s->oldest = e->newer;
    if (e->newer)
        s->entries[e->newer - 1].older = e->older;
    else
        s->newest = e->older;
    e->rests = false;
    s->n_resting--;
}
