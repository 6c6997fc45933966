/* host_rows.c: where the rows of a batch stand in their sequences, and what a row of a tree of
 * candidates sees. The backends of the host's memory share it. */
#include "host.h"

#include <assert.h>
#include <string.h>

/* Rows, pages and parents of sequence i are within what was opened and reserved. */
static int check_sequence(kern_device *device, const kern_work *work, const kern_batch *batch,
                          int32_t i) {
    const kern_sequence *q = &batch->sequences[i];
    if (q->n_past < 0 || q->n_rows < 0 || q->first_row < 0 ||
        q->first_row > batch->n_rows - q->n_rows)
        return host_fail(device, KERN_DEVICE, "sequence %d: rows %d + %d of %d", i + 1,
                         q->first_row, q->n_rows, batch->n_rows);
    const int64_t n_positions = (int64_t)q->n_past + q->n_rows;
    for (int64_t j = 0; j * KERN_PAGE_POSITIONS < n_positions; j++) {
        const int32_t page = q->pages[j];
        if (page < 0 || page >= work->pages->n_pages || !work->pages->pages[page])
            return host_fail(device, KERN_DEVICE, "page %d of sequence %d is not reserved", page,
                             i + 1);
    }
    for (int32_t j = 0; batch->parents && j < q->n_rows; j++) {
        const int32_t parent = batch->parents[q->first_row + j];
        if (parent < 0 || parent > j)
            return host_fail(device, KERN_DEVICE, "parent %d of row %d of sequence %d", parent,
                             j + 1, i + 1);
    }
    return KERN_OK;
}

/* A position is that of the row before it on the path, and one more. */
static void map_sequence(const kern_batch *batch, int32_t i, host_row *rows) {
    const kern_sequence *q = &batch->sequences[i];
    for (int32_t j = 0; j < q->n_rows; j++) {
        const int32_t parent = batch->parents ? batch->parents[q->first_row + j] : j;
        rows[q->first_row + j] = (host_row){
            .i_sequence = i,
            .position = parent ? rows[q->first_row + parent - 1].position + 1 : q->n_past,
            .slot = q->n_past + j,
            .parent = parent ? q->first_row + parent - 1 : -1,
        };
    }
}

int host_map_rows(kern_device *device, const kern_work *work, const kern_batch *batch,
                  host_row *rows) {
    if (batch->n_rows < 0 || batch->n_rows > work->max_rows)
        return host_fail(device, KERN_DEVICE, "%d rows in a pass of at most %d", batch->n_rows,
                         work->max_rows);
    for (int32_t t = 0; t < batch->n_rows; t++)
        rows[t] = (host_row){.i_sequence = -1, .parent = -1};
    int64_t n_rows = 0;
    for (int32_t i = 0; i < batch->n_sequences; i++) {
        const int code = check_sequence(device, work, batch, i);
        if (code) return code;
        n_rows += batch->sequences[i].n_rows;
        if (n_rows > batch->n_rows)
            return host_fail(device, KERN_DEVICE, "sequences of %lld rows in a pass of %d",
                             (long long)n_rows, batch->n_rows);
        map_sequence(batch, i, rows);
    }
    return KERN_OK;
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
