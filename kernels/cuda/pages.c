/* pages.c: owns the pages of the key/value cache in device memory. How keys and values lie in a
 * page is attend.h's. */
#include "../memory.h"
#include "../rows.h"
#include "cuda.h"

#include <assert.h>

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
