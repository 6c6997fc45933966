/* tensor.c: tensors: making, closing and reading them. */
#include "tensor.h"
#include "queue.h"

#include "../kernels/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MOST_ENTRIES (INT64_C(1) << 40)

/* ---- tensors ---- */

static int check_size(int64_t n_rows, int64_t n_columns, llm_error *err) {
    int64_t n_entries;
    if (n_rows < 0 || n_columns < 0)
        return llm_fail(err, LLM_MISUSE, "a tensor cannot have %" PRId64 " × %" PRId64 " entries",
                        n_rows, n_columns);
    if (__builtin_mul_overflow(n_rows, n_columns, &n_entries) || n_entries > MOST_ENTRIES ||
        n_rows > INT32_MAX || n_columns > INT32_MAX)
        return llm_fail(err, LLM_OUT_OF_MEMORY,
                        "out of memory: a tensor of %" PRId64 " × %" PRId64
                        " entries, the most is %" PRId64,
                        n_rows, n_columns, MOST_ENTRIES);
    return 0;
}

/* Without memory. */
static llm_tensor *tensor_new(llm_device *device, const llm_tensor_info *info, llm_error *err) {
    llm_tensor *t = kern_alloc(sizeof *t);
    if (!t) {
        llm_fail_memory(err, sizeof *t, "a tensor");
        return NULL;
    }
    t->info = *info;
    t->device = device_retain(device);
    return t;
}

int tensor_fill(llm_tensor *t, llm_error *err) {
    const int64_t n_rows = t->info.n_rows, n_columns = t->info.n_columns;
    if (t->cell ? t->cell->block != NULL : t->buffer.data != NULL) return 0;
    if (!t->cell) return tensor_pool_take(t->device, n_rows, n_columns, &t->buffer, err);
    block *b = block_open(t->device, n_rows, n_columns, err);
    if (!b) return -1;
    cell_place(t->device, t->cell, b, 0, n_rows * n_columns);
    block_close(t->device, b);
    return 0;
}

llm_tensor *tensor_alloc_later(llm_device *device, llm_dtype dtype, int64_t n_rows,
                               int64_t n_columns, llm_error *err) {
    const bool is_seen = device->backend->host_memory;
    const llm_tensor_info info = {.dtype = dtype, .n_rows = n_rows, .n_columns = n_columns};
    if (check_size(n_rows, n_columns, err)) return NULL;
    llm_tensor *t = tensor_new(device, &info, err);
    if (!t || (is_seen ? !tensor_fill(t, err) : (t->cell = cell_open(err)) != NULL)) return t;
    llm_tensor_close(t);
    return NULL;
}

llm_tensor *tensor_alloc(llm_device *device, llm_dtype dtype, int64_t n_rows, int64_t n_columns,
                         llm_error *err) {
    llm_tensor *t = tensor_alloc_later(device, dtype, n_rows, n_columns, err);
    if (!t || !tensor_fill(t, err)) return t;
    llm_tensor_close(t);
    return NULL;
}

llm_tensor *tensor_share(const llm_tensor *from, llm_error *err) {
    llm_tensor *t = tensor_new(from->device, &from->info, err);
    if (!t) return NULL;
    t->cell = cell_retain(from->cell);
    t->is_choice = from->is_choice;
    t->n_group_rows = from->n_group_rows;
    t->n_group_results = from->n_group_results;
    return t;
}

llm_tensor *tensor_number(llm_device *device, llm_dtype dtype, const void *bits, llm_error *err) {
    const llm_tensor_info info = {.dtype = dtype, .n_rows = 1, .n_columns = 1};
    if (!device->queue) return llm_tensor_new(device, dtype, 1, 1, bits, err);
    llm_tensor *t = tensor_new(device, &info, err);
    if (!t || (t->cell = queue_number(device, bits, err))) return t;
    llm_tensor_close(t);
    return NULL;
}

int tensor_ready(const llm_tensor *t, llm_error *err) {
    return t->cell && !t->cell->block ? queue_wait(t->device, t->cell, err) : 0;
}

static int fill_zero(llm_tensor *t, llm_error *err) {
    static const char zeros[4096];
    const size_t bytes = (size_t)(t->info.n_rows * t->info.n_columns) * 4;
    const kern_backend *backend = t->device->backend;
    if (!t->cell) {
        if (bytes) memset(t->buffer.data, 0, bytes);
        return 0;
    }
    for (size_t at = 0; at < bytes; at += sizeof zeros) {
        const size_t n = bytes - at < sizeof zeros ? bytes - at : sizeof zeros;
        const int code = backend->write(t->device->kern, tensor_view(t).buffer, at, zeros, n);
        if (device_check(t->device, code, "writing a tensor", err)) return -1;
    }
    return 0;
}

static int fill_data(llm_tensor *t, const void *data, llm_error *err) {
    const size_t bytes = (size_t)(t->info.n_rows * t->info.n_columns) * 4;
    if (!bytes) return 0;
    const int code =
        t->device->backend->write(t->device->kern, tensor_view(t).buffer, 0, data, bytes);
    return device_check(t->device, code, "writing a tensor", err);
}

/* What the host gave it need not be read back. */
static int keep_data(llm_tensor *t, const void *data, llm_error *err) {
    block *b = t->cell->block;
    if (b->n_entries > BLOCK_KNOWN_MOST) return 0;
    b->known = kern_alloc_array((size_t)b->n_entries, 4);
    if (!b->known) return llm_fail_memory(err, (size_t)b->n_entries * 4, "a tensor");
    memcpy(b->known, data, (size_t)b->n_entries * 4);
    return 0;
}

llm_tensor *llm_tensor_new(llm_device *device, llm_dtype dtype, int64_t n_rows, int64_t n_columns,
                           const void *data, llm_error *err) {
    llm_tensor *t = tensor_alloc(device, dtype, n_rows, n_columns, err);
    if (!t) return NULL;
    if (data ? fill_data(t, data, err) || (t->cell && keep_data(t, data, err))
             : fill_zero(t, err)) {
        llm_tensor_close(t);
        return NULL;
    }
    return t;
}

void llm_tensor_close(llm_tensor *t) {
    if (!t) return;
    llm_device *device = t->device;
    if (t->buffer.data) tensor_pool_give(device, t->buffer);
    if (t->cell) cell_close(device, t->cell);
    kern_free(t);
    llm_device_close(device);
}

const llm_tensor_info *llm_tensor_get_info(const llm_tensor *t) { return &t->info; }

llm_device *llm_tensor_device(const llm_tensor *t) { return t->device; }

void llm_tensor_set_logits(llm_tensor *t, bool is_logits) { t->info.is_logits = is_logits; }

/* ---- reading ---- */

/* Rows first … last, 0-based. */
static int fail_rows(int32_t code, int64_t first, int64_t last, int64_t step, llm_error *err) {
    const char *what = code == KERN_ID_NAN   ? "nan"
                       : code == KERN_ID_INF ? "+inf"
                                             : "no finite entry";
    char rows[64], of_step[48] = "";
    if (first == last)
        snprintf(rows, sizeof rows, "row %" PRId64, first + 1);
    else
        snprintf(rows, sizeof rows, "rows %" PRId64 " … %" PRId64, first + 1, last + 1);
    if (step) snprintf(of_step, sizeof of_step, " of step %" PRId64, step);
    return llm_fail(err, code == KERN_ID_NO_FINITE ? LLM_NO_FINITE : LLM_NAN,
                    "%s in %s of the logits%s", what, rows, of_step);
}

int tensor_fail_choice(int32_t code, int64_t i_row, int64_t step, llm_error *err) {
    return fail_rows(code, i_row, i_row, step, err);
}

/* Entry i of a choice is a code. */
static int fail_entry(const llm_tensor *t, int32_t code, int64_t i, llm_error *err) {
    const int64_t n = t->n_group_rows;
    if (n == 0) return tensor_fail_choice(code, i / t->info.n_columns, t->info.step, err);
    const int64_t first = i / t->n_group_results * n;
    return fail_rows(code, first, first + n - 1, t->info.step, err);
}

int tensor_check_codes(const llm_tensor *t, int64_t first, int64_t count, const int32_t *ids,
                       llm_error *err) {
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 && ids[i] >= KERN_ID_NO_FINITE) return fail_entry(t, ids[i], first + i, err);
    return 0;
}

/* Entries of a cell, from the host if it knows them or learns them with their neighbours. */
static int read_cell(const llm_tensor *t, int64_t first, int64_t count, void *to, llm_error *err) {
    if (tensor_ready(t, err)) return -1;
    block *b = t->cell->block;
    if (b->n_entries <= BLOCK_KNOWN_MOST) {
        const int32_t *known = block_learn(t->device, b, err);
        if (!known) return -1;
        memcpy(to, known + cell_first(t->cell) + first, (size_t)count * sizeof *known);
        return 0;
    }
    const int code = t->device->backend->read(t->device->kern, &t->cell->buffer, (size_t)first * 4,
                                              to, (size_t)count * 4);
    return device_check(t->device, code, "reading a tensor", err);
}

int llm_tensor_read(llm_tensor *t, int64_t first, int64_t count, void *to, llm_error *err) {
    const int64_t n = t->info.n_rows * t->info.n_columns;
    if (first < 0 || count < 0 || first > n || count > n - first)
        return llm_fail(err, LLM_MISUSE,
                        "entries %" PRId64 " … %" PRId64 " are outside a tensor of %" PRId64,
                        first + 1, first + count, n);
    if (!count) return 0;
    if (t->cell) {
        if (read_cell(t, first, count, to, err)) return -1;
    } else {
        const int code = t->device->backend->read(t->device->kern, &t->buffer, (size_t)first * 4,
                                                  to, (size_t)count * 4);
        if (device_check(t->device, code, "reading a tensor", err)) return -1;
    }
    return t->is_choice ? tensor_check_codes(t, first, count, to, err) : 0;
}

int tensor_check(llm_tensor *t, int64_t first, int64_t count, llm_error *err) {
    int32_t piece[256];
    const int64_t most = sizeof piece / sizeof *piece;
    if (!t->is_choice) return 0;
    for (int64_t i = 0; i < count; i += most)
        if (llm_tensor_read(t, first + i, count - i < most ? count - i : most, piece, err))
            return -1;
    return 0;
}

int tensor_settle(llm_tensor *t, llm_error *err) {
    if (tensor_check(t, 0, t->info.n_rows * t->info.n_columns, err)) return -1;
    t->is_choice = false;
    return 0;
}
