/* swap.c: owns the copies of pages in host memory. A copy knows the page that it was made of for as
 * long as that stays as it is: another cache that is evicted with the same page takes the copy
 * there is, and one that comes back takes the page instead of the copy. */
#include "swap.h"

#include "../kernels/memory.h"
#include <string.h>

/* Those that are set aside had all pages of the device once, or a few times as many; a host that
 * pages its own memory out would be slower than computing. */
static int64_t default_most(const page_pool *pool) {
    const size_t bytes = pool->device->backend->page_bytes(pool->device->kern, &pool->shape);
    const size_t fitting = bytes ? kern_memory_available() / 2 / bytes : 0;
    return (size_t)pool->n_pages < fitting ? pool->n_pages : (int64_t)fitting;
}

int swap_open(page_pool *pool, int64_t most, llm_error *err) {
    if (most < 0 || !pool->device->backend->pages_save) return 0;
    const size_t n = (size_t)pool->n_pages;
    pool->swap = kern_alloc(sizeof *pool->swap);
    if (pool->swap) pool->swap->copies = kern_alloc_array(n, sizeof *pool->swap->copies);
    if (!pool->swap || !pool->swap->copies)
        return llm_fail_memory(err, n * sizeof(swap_page *), "the table of swapped pages");
    pool->swap->most = most ? most : default_most(pool);
    return 0;
}

void swap_close(page_pool *pool) {
    if (pool->swap) kern_free(pool->swap->copies);
    kern_free(pool->swap);
    pool->swap = NULL;
}

void swap_forget(page_pool *pool, int32_t page) {
    if (!pool->swap || !pool->swap->copies[page]) return;
    pool->swap->copies[page]->page = -1;
    pool->swap->copies[page] = NULL;
}

static void remember(page_swap *s, swap_page *copy, int32_t page) {
    s->copies[page] = copy;
    copy->page = page;
}

static void copy_release(page_pool *pool, swap_page *copy) {
    if (--copy->references > 0) return;
    if (copy->page >= 0) swap_forget(pool, copy->page);
    pool->swap->n_pages--;
    kern_free(copy);
}

void swap_drop(llm_cache *c) {
    for (int64_t i = 0; c->swapped && i < pages_for(c->n_swapped); i++)
        copy_release(&c->model->pages, c->swapped[i]);
    kern_free(c->swapped);
    c->swapped = NULL;
    c->n_swapped = 0;
}

/* Between the cache's pages from `first` on and those of their copies that are not alike yet: they
 * are from then on. A code of the backend's. */
static int transfer(llm_cache *c, int32_t first, bool out) {
    page_pool *pool = &c->model->pages;
    const kern_backend *backend = pool->device->backend;
    int32_t *pages = kern_alloc_array((size_t)c->n_pages, sizeof *pages), n = 0;
    void **bytes = kern_alloc_array((size_t)c->n_pages, sizeof *bytes);
    for (int32_t i = first; pages && bytes && i < c->n_pages; i++) {
        if (c->swapped[i]->page >= 0) continue;
        pages[n] = c->pages[i];
        bytes[n++] = c->swapped[i]->bytes;
    }
    int code = pages && bytes ? KERN_OK : KERN_NO_MEMORY;
    if (n && out) code = backend->pages_save(pool->device->kern, pool->kern, pages, n, bytes);
    if (n && !out)
        code = backend->pages_load(pool->device->kern, pool->kern, pages, n,
                                   (const void *const *)bytes);
    for (int32_t i = first; !code && i < c->n_pages; i++)
        if (c->swapped[i]->page < 0) remember(pool->swap, c->swapped[i], c->pages[i]);
    kern_free(pages);
    kern_free(bytes);
    return code;
}

/* ---- out ---- */

/* A copy of the page, or room for one. */
static swap_page *copy_of(page_pool *pool, int32_t page) {
    page_swap *s = pool->swap;
    swap_page *copy = s->copies[page];
    if (!copy && s->n_pages < s->most) {
        copy = kern_alloc(sizeof *copy +
                          pool->device->backend->page_bytes(pool->device->kern, &pool->shape));
        if (copy) s->n_pages++;
        if (copy) copy->page = -1;
    }
    if (copy) copy->references++;
    return copy;
}

void swap_out(llm_cache *c) {
    page_pool *pool = &c->model->pages;
    if (!pool->swap || c->n <= c->n_swapped) return;
    swap_drop(c);
    c->swapped = kern_alloc_array((size_t)c->n_pages, sizeof *c->swapped);
    if (!c->swapped) return;
    for (int32_t i = 0; i < c->n_pages; i++) {
        c->swapped[i] = copy_of(pool, c->pages[i]);
        if (!c->swapped[i]) {
            swap_drop(c);
            return;
        }
        c->n_swapped = (int64_t)(i + 1) * KERN_PAGE_POSITIONS;
    }
    if (transfer(c, 0, true))
        swap_drop(c);
    else
        c->n_swapped = c->n;
}

/* ---- in ---- */

/* Pages for positions c->n … n_swapped - 1, behind those that the cache has: those that still hold
 * what is wanted, new ones for the others. *n_new of these, or what they are too few by. */
static int take_pages(llm_cache *c, int64_t *n_new, llm_error *why) {
    page_pool *pool = &c->model->pages;
    const int32_t first = c->n_pages, end = (int32_t)pages_for(c->n_swapped);
    *n_new = 0;
    for (int32_t i = first; i < end; i++) {
        c->pages[i] = c->swapped[i]->page;
        if (c->pages[i] >= 0)
            page_retain(pool, c->pages[i]);
        else
            ++*n_new;
    }
    int failed = pages_check(pool, *n_new, why);
    for (int32_t i = first; i < end && !failed; i++)
        if (c->pages[i] < 0) failed = page_take(pool, &c->pages[i], why);
    if (!failed) {
        c->n_pages = end;
        return 0;
    }
    for (int32_t i = first; i < end; i++)
        if (c->pages[i] >= 0) page_release(pool, c->pages[i]);
    *n_new -= pages_available(pool);
    return -1;
}

int swap_in(llm_cache *c, int64_t *n_missing, llm_error *why) {
    page_pool *pool = &c->model->pages;
    const int32_t first = c->n_pages;
    int64_t n_new;
    *n_missing = 0;
    if (take_pages(c, &n_new, why)) {
        const bool is_short = why->kind == LLM_OUT_OF_MEMORY && pool->n_lost;
        if (why->kind != LLM_CACHE_FULL && !is_short) return -1;
        *n_missing = n_new > 1 ? n_new : 1;
        return 0;
    }
    const int code = transfer(c, first, false);
    if (code) {
        cache_trim(c);
        swap_drop(c);
        if (!c->n) c->is_foreign = false;
        return code == KERN_NO_MEMORY ? 0 : device_check(pool->device, code, "swapped pages", why);
    }
    c->n_lost -= c->n_swapped - c->n;
    c->n = c->n_swapped;
    swap_drop(c);
    return 0;
}
