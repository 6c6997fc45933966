/* host_rows.c: where the rows of a batch stand in their sequences, and what a row of a tree of
 * candidates sees. The backends of the host's memory share it. */
#include "host.h"

#include <assert.h>
#include <string.h>

int host_map_rows(kern_device *device, const kern_work *work, const kern_batch *batch,
                  host_row *rows) {
    const kern_pages *pages = work->pages;
    const kern_limits most = {work->max_rows, pages ? pages->n_pages : 0,
                              pages ? pages->pages : NULL};
    return kern_map_rows(batch, &most, rows, device->message, sizeof device->message);
}

/* Keys and values in slots slot … slot + n - 1, all of one page, to positions i … of the copy, all
 * of one page too. */
static void copy_slots(const kern_pages *pages, const kern_sequence *q, int32_t i_layer,
                       int32_t head, int32_t slot, int32_t n, int32_t i, unsigned char *keys,
                       unsigned char *values) {
    const int32_t page = q->pages[slot / KERN_PAGE_POSITIONS], at = slot % KERN_PAGE_POSITIONS;
    const size_t page_of_copy = (size_t)(i / KERN_PAGE_POSITIONS) * KERN_PAGE_POSITIONS;
    host_copy_keys(pages->shape.type, pages->shape.head_dim_k,
                   keys + page_of_copy * pages->key_row_bytes, i % KERN_PAGE_POSITIONS,
                   host_keys(pages, page, i_layer, head), at, n);
    memcpy(values + (size_t)i * pages->value_row_bytes,
           host_values(pages, page, i_layer, head) + (size_t)at * pages->value_row_bytes,
           (size_t)n * pages->value_row_bytes);
}

void host_gather_path(const kern_pages *pages, const kern_batch *batch, const host_row *rows,
                      int64_t t, int32_t i_layer, int32_t head, int32_t from, int32_t to,
                      unsigned char *keys, unsigned char *values) {
    const kern_sequence *q = &batch->sequences[rows[t].i_sequence];
    const int32_t base = from / KERN_PAGE_POSITIONS * KERN_PAGE_POSITIONS;
    assert(base >= q->n_past / KERN_PAGE_POSITIONS * KERN_PAGE_POSITIONS);
    assert(to <= rows[t].position + 1);
    const int32_t n_cached = (to < q->n_past ? to : q->n_past) - from;
    if (n_cached > 0)
        copy_slots(pages, q, i_layer, head, from, n_cached, from - base, keys, values);
    for (int64_t u = t; u >= 0 && rows[u].position >= from; u = rows[u].parent)
        if (rows[u].position < to)
            copy_slots(pages, q, i_layer, head, rows[u].slot, 1, rows[u].position - base, keys,
                       values);
}
