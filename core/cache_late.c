/* cache_late.c: positions of a cache that were fed with ids which the host has not read. */
#include "cache.h"

#include "../kernels/memory.h"
#include <string.h>

/* The first n of them have been learnt or belong to nobody any more. */
static void take_off(llm_cache *c, int32_t n) {
    for (int32_t i = 0; i < n; i++) llm_late_close(c->late[i].ids);
    c->n_late -= n;
    if (n) memmove(c->late, c->late + n, (size_t)c->n_late * sizeof *c->late);
}

/* Learns ids from the first on until one cannot be had: without waiting, one that the host does not
 * know. */
static int learn(llm_cache *c, bool waits, llm_error *err) {
    int32_t n = 0;
    int failed = 0;
    for (; n < c->n_late; n++) {
        const cache_late *l = &c->late[n];
        const int32_t *ids = waits ? llm_late_read(l->ids, err) : late_known(l->ids);
        failed = !ids || model_check_ids(c->model, ids + l->i, 1, err);
        if (failed) break;
        c->ids[l->position] = ids[l->i];
    }
    take_off(c, n);
    return failed ? -1 : 0;
}

int cache_settle(llm_cache *c, llm_error *err) { return learn(c, true, err); }

int64_t cache_known(llm_cache *c) {
    return learn(c, false, NULL) ? c->late[0].position : c->n + c->n_lost;
}

static int open_list(llm_cache *c, llm_error *err) {
    if (c->late) return 0;
    c->late = kern_alloc_array(CACHE_LATE_MOST, sizeof *c->late);
    return c->late ? 0
                   : llm_fail_memory(err, CACHE_LATE_MOST * sizeof *c->late, "the ids of a cache");
}

int cache_reserve_late(llm_cache *c, llm_error *err) {
    if (open_list(c, err)) return -1;
    cache_known(c);
    return c->n_late < CACHE_LATE_MOST ? 0 : cache_settle(c, err);
}

void cache_add_late(llm_cache *c, llm_late *ids, int64_t i) {
    c->late[c->n_late++] = (cache_late){late_retain(ids), i, c->n - 1};
}

void cache_drop_late(llm_cache *c, int64_t n) {
    while (c->n_late && c->late[c->n_late - 1].position >= n)
        llm_late_close(c->late[--c->n_late].ids);
}

int cache_copy_late(llm_cache *fork, const llm_cache *c, llm_error *err) {
    if (!c->n_late || c->late[0].position >= fork->n) return 0;
    if (open_list(fork, err)) return -1;
    for (int32_t i = 0; i < c->n_late && c->late[i].position < fork->n; i++) {
        fork->late[fork->n_late++] = c->late[i];
        late_retain(c->late[i].ids);
    }
    return 0;
}
