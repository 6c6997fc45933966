/* pages.c: owns the pages of the key/value cache in device memory. How keys and values lie in a
 * page is attend.h's. */
#include "../memory.h"
#include "../rows.h"
#include "cuda.h"

#include <assert.h>
#include <string.h>

/* Memory is taken for several pages at a time: taking it may wait for the device. */
#define SLAB_LEAST ((size_t)1 << 20)
#define SLAB_MOST  ((size_t)64 << 20)
#define SLAB_SHARE 256 /* of the device's memory, between these */

size_t cuda_page_bytes(kern_device *device, const kern_kv_shape *shape) {
    (void)device;
    /* A page pads what its positions hold by far less than all of it. */
    const size_t position = kern_position_bytes(shape);
    if (position > SIZE_MAX / (4 * (size_t)KERN_PAGE_POSITIONS)) return SIZE_MAX;
    return cuda_page_layout(shape).page_bytes;
}

size_t cuda_position_bytes(const kern_kv_shape *shape) { return kern_position_bytes(shape); }

static size_t slab_bytes(const kern_device *device) {
    size_t n_free = 0, total = 0;
    cuda_select(device);
    (void)cudaMemGetInfo(&n_free, &total);
    const size_t share = total / SLAB_SHARE;
    return share < SLAB_LEAST ? SLAB_LEAST : share > SLAB_MOST ? SLAB_MOST : share;
}

int cuda_pages_open(kern_device *device, const kern_kv_shape *shape, int32_t n_pages,
                    kern_pages **out) {
    char message[128];
    *out = NULL;
    if (kern_kv_check(shape, message, sizeof message))
        return cuda_fail(device, KERN_UNSUPPORTED, "%s", message);
    const size_t page_bytes = cuda_page_bytes(device, shape);
    kern_pages *pages = page_bytes < SIZE_MAX ? kern_alloc(sizeof *pages) : NULL;
    if (pages) {
        const size_t fit = page_bytes ? slab_bytes(device) / page_bytes : 1;
        pages->shape = cuda_page_layout(shape);
        pages->n_pages = n_pages;
        pages->slab_pages = fit < 1 ? 1 : fit < (size_t)n_pages ? (int32_t)fit : n_pages;
        pages->n_slabs = n_pages ? (n_pages - 1) / pages->slab_pages + 1 : 0;
        pages->pages = kern_alloc_array((size_t)n_pages, sizeof *pages->pages);
        pages->slabs = kern_alloc_array((size_t)pages->n_slabs, sizeof *pages->slabs);
    }
    if (!pages || !pages->pages || !pages->slabs) {
        cuda_pages_close(device, pages);
        return cuda_fail(device, KERN_NO_MEMORY, "out of memory: a table of %d pages", n_pages);
    }
    *out = pages;
    return KERN_OK;
}

void cuda_pages_close(kern_device *device, kern_pages *pages) {
    if (!pages) return;
    for (int32_t i = 0; pages->slabs && i < pages->n_slabs; i++)
        cuda_free(device, &pages->slabs[i]);
    kern_free(pages->slabs);
    kern_free(pages->pages);
    kern_free(pages);
}

int cuda_page_reserve(kern_device *device, kern_pages *pages, int32_t page) {
    assert(page >= 0 && page < pages->n_pages);
    if (pages->pages[page]) return KERN_OK;
    kern_buffer *slab = &pages->slabs[page / pages->slab_pages];
    const size_t page_bytes = pages->shape.page_bytes;
    if (!slab->data) {
        const int code = cuda_alloc(device, (size_t)pages->slab_pages * page_bytes, slab);
        if (code) return code;
    }
    unsigned char *at =
        (unsigned char *)slab->data + (size_t)(page % pages->slab_pages) * page_bytes;
    if (device->lost) return KERN_DEVICE;
    cuda_select(device);
    const int code = cuda_check(device, cudaMemsetAsync(at, 0, page_bytes, device->stream),
                                "clearing a cache page");
    if (!code) pages->pages[page] = at;
    return code;
}

/* All of the page: what lies behind n_positions is no one's. */
int cuda_page_copy(kern_device *device, kern_pages *pages, int32_t to, int32_t from,
                   int32_t n_positions) {
    assert(n_positions >= 0 && n_positions <= KERN_PAGE_POSITIONS);
    assert(from >= 0 && from < pages->n_pages && pages->pages[from]);
    const int code = cuda_page_reserve(device, pages, to);
    if (code || to == from || !n_positions) return code;
    kern_buffer target = {pages->pages[to], pages->shape.page_bytes};
    const kern_buffer source = {pages->pages[from], pages->shape.page_bytes};
    return cuda_copy(device, &target, 0, &source, 0, pages->shape.page_bytes);
}

int cuda_page_read(kern_device *device, kern_pages *pages, int32_t page, int32_t position,
                   void *to) {
    assert(page >= 0 && page < pages->n_pages && pages->pages[page]);
    const size_t bytes = kern_position_bytes(&pages->shape.kv);
    void *plain;
    int code = cuda_scratch(device, bytes, &plain);
    if (!code) code = cuda_position_get(device, &pages->shape, pages->pages[page], position, plain);
    return code ? code : cuda_fetch(device, plain, to, bytes);
}

int cuda_page_write(kern_device *device, kern_pages *pages, int32_t page, int32_t position,
                    const void *from) {
    const void *plain;
    int code = cuda_page_reserve(device, pages, page);
    if (!code) code = cuda_upload(device, from, kern_position_bytes(&pages->shape.kv), &plain);
    return code ? code
                : cuda_position_set(device, &pages->shape, pages->pages[page], position, plain);
}

/* ---- whole pages, by way of pinned pieces ---- */

/* How far a walk over the bytes of several pages is. */
typedef struct page_walk {
    int32_t i_page;
    size_t offset; /* in that page */
} page_walk;

/* The next bytes of the walk that lie in one page and in what is left of a piece, or 0. */
static size_t walk_next(const page_walk *w, int32_t n_pages, size_t page_bytes, size_t used) {
    const size_t left = page_bytes - w->offset, room = CUDA_PIECE - used;
    return w->i_page == n_pages ? 0 : left < room ? left : room;
}

static void walk_on(page_walk *w, size_t bytes, size_t page_bytes) {
    w->offset += bytes;
    if (w->offset < page_bytes) return;
    w->offset = 0;
    w->i_page++;
}

/* Queues copies that fill a piece. */
static int queue_piece(kern_device *device, const kern_pages *pages, const int32_t *list,
                       int32_t n_pages, page_walk *w, char *piece) {
    const size_t page_bytes = pages->shape.page_bytes;
    int code = KERN_OK;
    for (size_t used = 0, n; !code && (n = walk_next(w, n_pages, page_bytes, used)); used += n) {
        code = cuda_check(device,
                          cudaMemcpyAsync(piece + used, pages->pages[list[w->i_page]] + w->offset,
                                          n, cudaMemcpyDeviceToHost, device->stream),
                          "a copy from the device");
        walk_on(w, n, page_bytes);
        device->stats.bytes_down += n;
    }
    return code;
}

/* What such a piece brought goes where it belongs. */
static void take_piece(size_t page_bytes, int32_t n_pages, page_walk *w, const char *piece,
                       void *const *to) {
    for (size_t used = 0, n; (n = walk_next(w, n_pages, page_bytes, used)); used += n) {
        memcpy((char *)to[w->i_page] + w->offset, piece + used, n);
        walk_on(w, n, page_bytes);
    }
}

/* While the host takes one piece the next ones are filled. One wait a piece. */
int cuda_pages_save(kern_device *device, kern_pages *pages, const int32_t *list, int32_t n_pages,
                    void *const *to) {
    const size_t page_bytes = pages->shape.page_bytes;
    page_walk queued = {0}, taken = {0};
    for (int32_t i = 0; i < n_pages; i++)
        assert(list[i] >= 0 && list[i] < pages->n_pages && pages->pages[list[i]]);
    for (int i = 0; taken.i_page < n_pages && page_bytes; i++) {
        void *piece;
        int code = cuda_piece_take(device, &piece);
        if (!code && i >= CUDA_PIECES) {
            take_piece(page_bytes, n_pages, &taken, piece, to);
            device->stats.syncs++;
        }
        if (code) return code;
        code = queue_piece(device, pages, list, n_pages, &queued, piece);
        const int sent = cuda_piece_send(device, NULL, 0); /* copies may be on their way to it */
        if (code || sent) return code ? code : sent;
    }
    return KERN_OK;
}

int cuda_pages_load(kern_device *device, kern_pages *pages, const int32_t *list, int32_t n_pages,
                    const void *const *from) {
    int code = KERN_OK;
    for (int32_t i = 0; i < n_pages && !code; i++) {
        code = cuda_page_reserve(device, pages, list[i]);
        if (code) return code;
        kern_buffer page = {pages->pages[list[i]], pages->shape.page_bytes};
        code = cuda_write(device, &page, 0, from[i], page.bytes);
    }
    return code;
}
