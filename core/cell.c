/* cell.c: cells of tensors and the blocks of memory that they share. */
#include "cell.h"
#include "device.h"
#include "tensor_pool.h"

#include "../kernels/memory.h"

/* ---- blocks ---- */

block *block_open(llm_device *device, int64_t n_rows, int64_t n_columns, llm_error *err) {
    block *b = kern_alloc(sizeof *b);
    if (!b) {
        llm_fail_memory(err, sizeof *b, "a tensor");
        return NULL;
    }
    if (tensor_pool_take(device, n_rows, n_columns, &b->buffer, err)) {
        kern_free(b);
        return NULL;
    }
    b->references = 1;
    b->n_entries = n_rows * n_columns;
    return b;
}

void block_close(llm_device *device, block *b) {
    while (b && --b->references == 0) {
        block *after = b->after;
        if (b->fetch) (void)device->backend->fetched(device->kern, b->fetch, NULL);
        tensor_pool_give(device, b->buffer);
        kern_free(b->known);
        kern_free(b);
        b = after;
    }
}

int block_set_out(llm_device *device, block *b, llm_error *err) {
    const size_t bytes = (size_t)b->n_entries * 4;
    if (b->known || b->fetch || !bytes || bytes > KERN_FETCH_MOST) return 0;
    const int code = device->backend->fetch(device->kern, &b->buffer, 0, bytes, &b->fetch);
    return device_check(device, code, "reading ids", err);
}

/* What has set out arrives, or all is read. */
static int arrive(llm_device *device, block *b, void *to) {
    kern_fetch *fetch = b->fetch;
    b->fetch = NULL;
    if (fetch) return device->backend->fetched(device->kern, fetch, to);
    return device->backend->read(device->kern, &b->buffer, 0, to, (size_t)b->n_entries * 4);
}

const void *block_learn(llm_device *device, block *b, llm_error *err) {
    if (b->known) return b->known;
    block *after = b->after;
    b->after = NULL;
    if (after) (void)block_learn(device, after, NULL); /* once the last is there, all are */
    block_close(device, after);
    void *known = kern_alloc_array((size_t)b->n_entries, 4);
    if (!known) {
        llm_fail_memory(err, (size_t)b->n_entries * 4, "ids");
        return NULL;
    }
    if (device_check(device, arrive(device, b, known), "reading a tensor", err)) {
        kern_free(known);
        return NULL;
    }
    return b->known = known;
}

/* ---- cells ---- */

cell *cell_open(llm_error *err) {
    cell *c = kern_alloc(sizeof *c);
    if (!c) {
        llm_fail_memory(err, sizeof *c, "a tensor");
        return NULL;
    }
    c->references = 1;
    c->i_maker = -1;
    return c;
}

cell *cell_retain(cell *c) {
    c->references++;
    return c;
}

static const llm_error no_memory = {LLM_OUT_OF_MEMORY, "out of memory"};

static void forget_failure(cell *c) {
    if (c->failure != &no_memory) kern_free((void *)(uintptr_t)c->failure);
    c->failure = NULL;
}

void cell_close(llm_device *device, cell *c) {
    if (!c || --c->references > 0) return;
    block_close(device, c->block);
    forget_failure(c);
    kern_free(c);
}

void cell_place(llm_device *device, cell *c, block *b, int64_t first, int64_t n) {
    b->references++;
    block_close(device, c->block);
    c->block = b;
    c->buffer = (kern_buffer){(char *)b->buffer.data + first * 4, (size_t)n * 4};
}

void cell_fail(cell *c, const llm_error *why) {
    forget_failure(c);
    llm_error *failure = kern_alloc(sizeof *failure);
    if (failure) *failure = *why;
    c->failure = failure ? failure : &no_memory;
}
