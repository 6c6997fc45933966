/* host_pages.c: the pages of the key/value cache in the host's memory, rows of keys and values in
 * their three types, and the activation buffers of a pass. host.h draws the layout of a page. */
#include "formats.h"
#include "host.h"
#include "memory.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define Q8_BLOCK 32
#define Q8_BYTES 34 /* f16 scale, 32 int8 */
#define SLAB_BYTES                                                                                 \
    ((size_t)8 << 20) /* at most, but for one page: a few of the system's huge pages */

/* Scale: largest size / 127 as f16. What is not finite, or too large for it, makes the block NaN.
 */
static void store_q8(const float *x, unsigned char *to) {
    float largest = 0;
    for (int i = 0; i < Q8_BLOCK; i++) {
        const float size = fabsf(x[i]);
        if (!(size <= largest)) largest = size; /* and a NaN stays */
        if (isnan(size)) break;
    }
    uint16_t scale = kern_f32_to_f16(largest / 127.0f);
    const float d = kern_f16_to_f32(scale);
    if (!isfinite(d)) scale = kern_f32_to_f16(NAN);
    memcpy(to, &scale, 2);
    for (int i = 0; i < Q8_BLOCK; i++) {
        long q = d > 0 && isfinite(d) ? lrintf(x[i] / d) : 0;
        if (q > 127) q = 127; /* the scale was rounded down */
        if (q < -127) q = -127;
        to[2 + i] = (unsigned char)(signed char)q;
    }
}

void host_kv_store(kern_kv type, const float *x, int32_t n, void *to) {
    unsigned char *bytes = to;
    switch (type) {
    case KERN_KV_F32: memcpy(to, x, (size_t)n * 4); break;
    case KERN_KV_F16:
        for (int32_t i = 0; i < n; i++) {
            const uint16_t h = kern_f32_to_f16(x[i]);
            memcpy(bytes + 2 * (size_t)i, &h, 2);
        }
        break;
    case KERN_KV_Q8_0:
        for (int32_t i = 0; i < n; i += Q8_BLOCK, bytes += Q8_BYTES) store_q8(x + i, bytes);
        break;
    }
}

void host_kv_load(kern_kv type, const void *from, int32_t n, float *y) {
    static const int32_t formats[] = {KERN_F32, KERN_F16, KERN_Q8_0};
    kern_format_find(formats[type])->dequantise(from, y, n);
}

/* In the keys of a page (or a plain row), `rows` numbers of `bytes` each follow at *at: where that
 * of the slot begins, and the distance to the next. */
static size_t key_numbers(size_t *at, int32_t slot, size_t bytes, size_t rows, size_t *step) {
    const size_t first = slot == HOST_ROW ? *at : *at + (size_t)slot * bytes;
    *step = slot == HOST_ROW ? bytes : bytes * KERN_PAGE_POSITIONS;
    *at += rows * *step;
    return first;
}

void host_copy_keys(kern_kv type, int32_t head_dim, unsigned char *to, int32_t to_slot,
                    const unsigned char *from, int32_t from_slot, int32_t n) {
    const int is_q8 = type == KERN_KV_Q8_0;
    const size_t bytes[2] = {type == KERN_KV_F32 ? 4 : 2, 1}; /* q8_0: the scale, then the rest */
    const size_t rows[2] = {is_q8 ? 1 : (size_t)head_dim, Q8_BLOCK};
    size_t to_at = 0, from_at = 0, to_step, from_step;
    for (int32_t i = 0; i < (is_q8 ? head_dim / Q8_BLOCK * 2 : 1); i++) {
        const size_t size = bytes[i % 2], count = rows[i % 2];
        unsigned char *y = to + key_numbers(&to_at, to_slot, size, count, &to_step);
        const unsigned char *x = from + key_numbers(&from_at, from_slot, size, count, &from_step);
        for (size_t j = 0; j < count; j++)
            memcpy(y + j * to_step, x + j * from_step, (size_t)n * size);
    }
}

/* The sizes of a page of this shape; 0, or -1 when they overflow. */
static int page_layout(const kern_kv_shape *shape, kern_pages *out) {
    out->shape = *shape;
    out->key_row_bytes = kern_kv_row_bytes(shape->type, shape->head_dim_k);
    const int32_t padded = shape->type == KERN_KV_Q8_0 ? 0 : -shape->head_dim_v & 15;
    out->value_row_bytes =
        kern_kv_row_bytes(shape->type, shape->head_dim_v) + kern_kv_row_bytes(shape->type, padded);
    size_t rows;
    if (__builtin_mul_overflow((size_t)shape->n_heads_kv, (size_t)KERN_PAGE_POSITIONS, &rows) ||
        __builtin_mul_overflow(rows, out->key_row_bytes + out->value_row_bytes,
                               &out->layer_bytes) ||
        __builtin_mul_overflow(out->layer_bytes, (size_t)shape->n_layers, &out->page_bytes))
        return -1;
    return 0;
}

size_t host_page_bytes(kern_device *device, const kern_kv_shape *shape) {
    (void)device;
    kern_pages layout;
    return page_layout(shape, &layout) == 0 ? layout.page_bytes : SIZE_MAX;
}

int host_pages_open(kern_device *device, const kern_kv_shape *shape, int32_t n_pages,
                    kern_pages **out) {
    *out = NULL;
    if (kern_kv_check(shape, device->message, sizeof device->message)) return KERN_UNSUPPORTED;
    kern_pages *pages = kern_alloc(sizeof *pages);
    if (pages && page_layout(shape, pages) == 0) {
        const size_t fit = pages->page_bytes ? SLAB_BYTES / pages->page_bytes : 1;
        pages->slab_pages = fit < 1 ? 1 : fit < (size_t)n_pages ? (int32_t)fit : n_pages;
        pages->n_pages = n_pages;
        pages->pages = kern_alloc_array((size_t)n_pages, sizeof *pages->pages);
        pages->slabs = kern_alloc_array((size_t)n_pages, sizeof *pages->slabs);
    }
    if (!pages || !pages->pages || !pages->slabs) {
        host_pages_close(device, pages);
        return host_fail(device, KERN_NO_MEMORY, "out of memory: a table of %d pages", n_pages);
    }
    *out = pages;
    return KERN_OK;
}

void host_pages_close(kern_device *device, kern_pages *pages) {
    (void)device;
    if (!pages) return;
    if (pages->slabs)
        for (int32_t i = 0; i < pages->n_pages; i++) kern_free_aligned(pages->slabs[i]);
    kern_free(pages->slabs);
    kern_free(pages->pages);
    kern_free(pages);
}

int host_page_reserve(kern_device *device, kern_pages *pages, int32_t page) {
    assert(page >= 0 && page < pages->n_pages);
    if (pages->pages[page]) return KERN_OK;
    unsigned char **slab = &pages->slabs[page / pages->slab_pages];
    const size_t bytes = (size_t)pages->slab_pages * pages->page_bytes;
    if (!*slab) *slab = kern_alloc_huge(bytes);
    if (!*slab)
        return host_fail(device, KERN_NO_MEMORY, "out of memory: %zu bytes asked for cache pages",
                         bytes);
    pages->pages[page] = *slab + (size_t)(page % pages->slab_pages) * pages->page_bytes;
    memset(pages->pages[page], 0, pages->page_bytes); /* its memory is taken only now */
    return KERN_OK;
}

int host_page_copy(kern_device *device, kern_pages *pages, int32_t to, int32_t from,
                   int32_t n_positions) {
    assert(n_positions >= 0 && n_positions <= KERN_PAGE_POSITIONS);
    assert(from >= 0 && from < pages->n_pages && pages->pages[from]);
    const int code = host_page_reserve(device, pages, to);
    if (code || to == from) return code;
    const kern_kv_shape *shape = &pages->shape;
    for (int32_t layer = 0; layer < pages->shape.n_layers; layer++) {
        for (int32_t head = 0; head < pages->shape.n_heads_kv; head++) {
            host_copy_keys(shape->type, shape->head_dim_k, host_keys(pages, to, layer, head), 0,
                           host_keys(pages, from, layer, head), 0, n_positions);
            memcpy(host_values(pages, to, layer, head), host_values(pages, from, layer, head),
                   (size_t)n_positions * pages->value_row_bytes);
        }
    }
    return KERN_OK;
}

/* Visits the rows of one position in the order of files; copies to or from plain bytes. */
static void position_copy(const kern_pages *pages, int32_t page, int32_t position,
                          unsigned char *out, const unsigned char *in) {
    assert(page >= 0 && page < pages->n_pages && pages->pages[page]);
    assert(position >= 0 && position < KERN_PAGE_POSITIONS);
    const kern_kv_shape *shape = &pages->shape;
    const size_t key_bytes = pages->key_row_bytes;
    const size_t value_bytes = kern_kv_row_bytes(shape->type, shape->head_dim_v);
    size_t done = 0;
    for (int32_t layer = 0; layer < shape->n_layers; layer++) {
        for (int32_t head = 0; head < shape->n_heads_kv; head++, done += key_bytes) {
            unsigned char *keys = host_keys(pages, page, layer, head);
            if (out)
                host_copy_keys(shape->type, shape->head_dim_k, out + done, HOST_ROW, keys, position,
                               1);
            else
                host_copy_keys(shape->type, shape->head_dim_k, keys, position, in + done, HOST_ROW,
                               1);
        }
        for (int32_t head = 0; head < shape->n_heads_kv; head++, done += value_bytes) {
            unsigned char *row =
                host_values(pages, page, layer, head) + (size_t)position * pages->value_row_bytes;
            memcpy(out ? out + done : row, out ? row : in + done, value_bytes);
        }
    }
}

int host_page_read(kern_device *device, kern_pages *pages, int32_t page, int32_t position,
                   void *to) {
    position_copy(pages, page, position, to, NULL);
    device->stats.bytes_down += kern_position_bytes(&pages->shape);
    device->stats.syncs++;
    return KERN_OK;
}

int host_page_write(kern_device *device, kern_pages *pages, int32_t page, int32_t position,
                    const void *from) {
    const int code = host_page_reserve(device, pages, page);
    if (code) return code;
    position_copy(pages, page, position, NULL, from);
    device->stats.bytes_up += kern_position_bytes(&pages->shape);
    return KERN_OK;
}

int host_work_open(kern_device *device, const plan *p, kern_pages *pages, int32_t max_rows,
                   kern_work **out) {
    *out = NULL;
    kern_work *work = kern_alloc(sizeof *work);
    if (!work) return host_fail(device, KERN_NO_MEMORY, "out of memory: activations of a pass");
    work->pages = pages;
    work->max_rows = max_rows;
    work->buffers = kern_alloc_array((size_t)p->n_buffers, sizeof *work->buffers);
    work->n_buffers = work->buffers ? p->n_buffers : 0;
    int code =
        work->buffers ? KERN_OK : host_fail(device, KERN_NO_MEMORY, "out of memory: buffers");
    for (int32_t i = 0; i < p->n_buffers && !code; i++) {
        if (i == p->logits) continue;
        size_t bytes;
        if (__builtin_mul_overflow((size_t)max_rows * 4, (size_t)p->buffers[i].width, &bytes))
            bytes = SIZE_MAX;
        code = host_alloc(device, bytes, &work->buffers[i]);
    }
    if (code)
        host_work_close(device, work);
    else
        *out = work;
    return code;
}

void host_work_close(kern_device *device, kern_work *work) {
    if (!work) return;
    for (int32_t i = 0; i < work->n_buffers; i++) host_free(device, &work->buffers[i]);
    kern_free_aligned(work->scratch);
    kern_free(work->buffers);
    kern_free(work);
}

size_t host_work_bytes(const kern_work *work) {
    size_t bytes = work->scratch_bytes;
    for (int32_t i = 0; i < work->n_buffers; i++) bytes += work->buffers[i].bytes;
    return bytes;
}

kern_buffer *host_work_buffer(kern_work *work, int32_t i_buffer) {
    assert(i_buffer >= 0 && i_buffer < work->n_buffers);
    return &work->buffers[i_buffer];
}
