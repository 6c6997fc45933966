/* step.c: what a pass tells the device: where rows stand, which pages hold them. One copy a pass,
 * from pinned memory, to addresses that stay, so that a captured graph reads the step of the day.
 * The ids are on the device already and move to their place there. */
#include "../memory.h"
#include "run.h"

#include <string.h>

enum { PAGES_LEAST = 4096 };

static size_t align(size_t bytes) { return (bytes + 255) / 256 * 256; }

/* Offsets of the lists of a step of n rows, in bytes. */
typedef struct step_layout {
    size_t rows, sequences, n_shared, pages;
} step_layout;

static step_layout layout_of(const kern_work *work, int32_t n_rows) {
    const size_t n = (size_t)n_rows;
    step_layout l = {.rows = align((size_t)work->max_rows * sizeof(int32_t))};
    l.sequences = l.rows + align(n * sizeof(cuda_row));
    l.n_shared = l.sequences + align(n * sizeof(cuda_sequence));
    l.pages = l.n_shared + align(sizeof(int32_t));
    return l;
}

static void close_block(kern_device *device, step_block *b) {
    for (int i = 0; i < CUDA_SLOTS; i++) {
        if (b->sent[i]) (void)cudaEventDestroy(b->sent[i]);
        if (b->pinned[i]) (void)cudaFreeHost(b->pinned[i]);
    }
    device->backend->free(device, &b->device);
    memset(b, 0, sizeof *b);
}

static int open_block(kern_device *device, kern_work *work, int64_t pages_most) {
    step_block *b = &work->block;
    b->pages_most = pages_most;
    const size_t most = layout_of(work, work->max_rows).pages;
    const size_t bytes = most + (size_t)pages_most * sizeof(unsigned char *);
    int code = device->backend->alloc(device, bytes, &b->device);
    for (int i = 0; i < CUDA_SLOTS && !code; i++) {
        code = cuda_check(device, cudaMallocHost(&b->pinned[i], bytes), "pinned memory");
        if (!code)
            code = cuda_check(device, cudaEventCreateWithFlags(&b->sent[i], cudaEventDisableTiming),
                              "an event");
    }
    if (!code)
        code = cuda_check(device, cudaMemsetAsync(b->device.data, 0, most, device->stream),
                          "clearing the lists of a pass");
    if (code) close_block(device, b);
    return code;
}

int cuda_step_open(kern_device *device, kern_work *work) {
    const int64_t n_pages = work->pages ? work->pages->n_pages : 0;
    const int code = open_block(device, work, n_pages + PAGES_LEAST);
    if (!code) work->bytes += work->block.device.bytes;
    return code;
}

void cuda_step_close(kern_device *device, kern_work *work) {
    if (work->block.device.data) (void)cudaStreamSynchronize(device->stream);
    close_block(device, &work->block);
}

static int64_t pages_of(const kern_sequence *q) {
    return ((int64_t)q->n_past + q->n_rows + KERN_PAGE_POSITIONS - 1) / KERN_PAGE_POSITIONS;
}

/* Room for all lists of pages. */
static int reserve_pages(kern_device *device, kern_work *work, int64_t n) {
    if (n <= work->block.pages_most) return KERN_OK;
    cuda_graphs_drop(work); /* they read the old block */
    work->bytes -= work->block.device.bytes;
    cuda_step_close(device, work);
    const int code = open_block(device, work, 2 * n);
    if (!code) work->bytes += work->block.device.bytes;
    return code;
}

/* Leading pages that all sequences have whole and in common. */
static int32_t count_shared(const kern_batch *batch) {
    const kern_sequence *first = &batch->sequences[0];
    int32_t n = batch->n_sequences > 1 ? first->n_past / KERN_PAGE_POSITIONS : 0;
    for (int32_t i = 1; i < batch->n_sequences && n; i++) {
        const kern_sequence *q = &batch->sequences[i];
        const int32_t whole = q->n_past / KERN_PAGE_POSITIONS;
        if (whole < n) n = whole;
        for (int32_t j = 0; j < n; j++)
            if (q->pages[j] != first->pages[j]) n = j;
    }
    return n;
}

bool cuda_is_one_each(const kern_batch *batch) {
    if (batch->n_sequences != batch->n_rows) return false;
    for (int32_t i = 0; i < batch->n_sequences; i++)
        if (batch->sequences[i].n_rows != 1 || batch->sequences[i].first_row != i) return false;
    return true;
}

/* Rows that do not simply follow each other. */
static bool has_branches(const kern_batch *batch, const kern_row *rows) {
    for (int32_t t = 0; batch->parents && t < batch->n_rows; t++)
        if (rows[t].slot != rows[t].position) return true;
    return false;
}

/* Fills the pinned copy; returns its end. */
static size_t fill(const kern_work *work, const kern_batch *batch, int32_t n_rows, int32_t n_shared,
                   unsigned char *to) {
    const step_layout l = layout_of(work, n_rows);
    cuda_row *rows = (cuda_row *)(void *)(to + l.rows);
    cuda_sequence *sequences = (cuda_sequence *)(void *)(to + l.sequences);
    unsigned char **pages = (unsigned char **)(void *)(to + l.pages);
    memcpy(rows, work->rows, (size_t)batch->n_rows * sizeof *rows);
    for (int32_t t = batch->n_rows; t < n_rows; t++)
        rows[t] = (cuda_row){.i_sequence = -1, .parent = -1};
    int64_t n = 0;
    for (int32_t i = 0; i < n_rows; i++) {
        const kern_sequence none = {.first_row = i};
        const kern_sequence *q = i < batch->n_sequences ? &batch->sequences[i] : &none;
        const int64_t n_pages = pages_of(q);
        sequences[i] = (cuda_sequence){q->n_past, q->n_rows, q->first_row, (int32_t)n};
        for (int64_t j = 0; j < n_pages; j++) pages[n++] = work->pages->pages[q->pages[j]];
    }
    memcpy(to + l.n_shared, &n_shared, sizeof n_shared);
    return l.pages + (size_t)n * sizeof *pages;
}

static int upload(kern_device *device, step_block *b, int i_slot, size_t first, size_t end,
                  const kern_batch *batch) {
    char *to = b->device.data;
    const char *from = b->pinned[i_slot];
    int code = cuda_check(device,
                          cudaMemcpyAsync(to + first, from + first, end - first,
                                          cudaMemcpyHostToDevice, device->stream),
                          "sending the lists of a pass");
    if (code) return code;
    device->stats.bytes_up += end - first;
    code = cuda_check(device, cudaEventRecord(b->sent[i_slot], device->stream), "an event");
    if (code) return code;
    return cuda_check(device,
                      cudaMemcpyAsync(to, cuda_i32(batch->ids),
                                      (size_t)batch->n_rows * sizeof(int32_t),
                                      cudaMemcpyDeviceToDevice, device->stream),
                      "the ids of a pass");
}

int cuda_step_send(kern_device *device, kern_work *work, const kern_batch *batch, int32_t n_rows,
                   cuda_step *out) {
    int64_t n_pages = 0;
    for (int32_t i = 0; i < batch->n_sequences; i++) n_pages += pages_of(&batch->sequences[i]);
    int code = reserve_pages(device, work, n_pages);
    if (code) return code;
    step_block *b = &work->block;
    const int i_slot = b->i_slot;
    b->i_slot = (i_slot + 1) % CUDA_SLOTS;
    code = cuda_check(device, cudaEventSynchronize(b->sent[i_slot]), "waiting for a step");
    if (code) return code;
    const step_layout l = layout_of(work, n_rows);
    const int32_t n_shared = count_shared(batch);
    const size_t end = fill(work, batch, n_rows, n_shared, b->pinned[i_slot]);
    code = upload(device, b, i_slot, l.rows, end, batch);
    if (code) return code;
    char *at = b->device.data;
    *out = (cuda_step){
        .ids = (const int32_t *)(void *)at,
        .rows = (const cuda_row *)(void *)(at + l.rows),
        .sequences = (const cuda_sequence *)(void *)(at + l.sequences),
        .pages = (unsigned char *const *)(void *)(at + l.pages),
        .n_shared_pages = (const int32_t *)(void *)(at + l.n_shared),
        .n_rows = n_rows,
        .n_sequences = n_rows > batch->n_rows ? n_rows : batch->n_sequences,
        .most_positions = work->most_positions,
        .shared_worth = n_shared > 0,
        .one_each = cuda_is_one_each(batch),
        .trees = has_branches(batch, work->rows),
        .attend_work = work->attend_work.data,
        .attend_counters = work->attend_counters.data,
    };
    return KERN_OK;
}
