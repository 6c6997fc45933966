/* reuse.c: what a cache and the store of prefixes, or two caches, share by reference: pages whose
 * keys and values follow from the ids up to their end. */
#include "cache.h"

#include <string.h>

#define SIZE KERN_PAGE_POSITIONS

/* Leading pages that are full, not of a tree, of all layers and of known ids. */
static int32_t publishable(llm_cache *c) {
    int64_t known = cache_known(c), plain = cache_plain(c);
    int32_t n = (int32_t)((known < plain ? known : plain) / SIZE);
    while (n > 0 && c->depths[n * SIZE - 1] < c->model->info.n_layers) n--;
    return n;
}

/* Entries are looked up from the last one known; from the first page on if that is gone. */
void cache_publish(llm_cache *c) {
    page_pool *pool = &c->model->pages;
    prefix_store *store = pool->store;
    if (!store || c->is_foreign) return;
    int32_t n = publishable(c);
    if (c->n_chained && store->entries[c->chain_page].serial != c->chain_serial) c->n_chained = 0;
    while (c->n_chained < n) {
        int32_t i = c->n_chained;
        uint64_t parent = i ? c->chain_serial : 0;
        int32_t page = prefix_find(store, parent, c->ids + i * SIZE);
        if (page < 0) {
            page = c->pages[i];
            page_publish(pool, parent, c->ids + i * SIZE, page);
        }
        c->chain_page = page;
        c->chain_serial = store->entries[page].serial;
        c->n_chained++;
    }
}

int32_t cache_find_next(llm_cache *c, const int32_t *ids) {
    prefix_store *store = c->model->pages.store;
    if (!store) return -1;
    cache_publish(c);
    if (c->n % SIZE || c->n_chained != c->n / SIZE) return -1;
    return prefix_find(store, c->n_chained ? c->chain_serial : 0, ids);
}

int cache_append_page(llm_cache *c, int32_t page, const int32_t *ids, int32_t depth,
                      llm_error *err) {
    if (cache_reserve(c, c->n + SIZE, err)) return -1;
    page_retain(&c->model->pages, page);
    c->pages[c->n_pages++] = page;
    cache_commit(c, ids, SIZE, depth);
    return 0;
}

/* Leading positions at which ids and depths of both agree. */
static int64_t common_prefix(const llm_cache *c, const llm_cache *like) {
    int64_t n = c->n + c->n_lost, i = 0;
    if (c->tree) n = c->n_before_tree;
    if (n > cache_plain(like)) n = cache_plain(like);
    while (i < n && c->ids[i] == like->ids[i] && c->depths[i] == like->depths[i]) i++;
    return i;
}

int cache_share(llm_cache *c, llm_cache *like, llm_error *err) {
    if (cache_settle(like, err)) return -1;
    if (like == c || like->model != c->model || c->n % SIZE) return 0;
    int64_t n = common_prefix(c, like);
    if (n < c->n + c->n_lost) n -= n % SIZE; /* the last page is shared only with all that it has */
    if (n <= c->n) return 0;
    if (cache_reserve(c, n, err)) return -1;
    for (int32_t i = c->n_pages; i < pages_for(n); i++) {
        page_retain(&c->model->pages, like->pages[i]);
        c->pages[c->n_pages++] = like->pages[i];
    }
    c->is_foreign = c->is_foreign || like->is_foreign;
    c->n_lost -= n - c->n;
    c->n = n;
    return 0;
}
