/* tensor.c: tensors and the pool that their memory comes from and returns to. */
#include "tensor.h"
#include "late.h"

#include "../kernels/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LEAST_BYTES  256
#define BUDGET_BYTES (UINT64_C(24) << 20)
#define KEPT_LEAST   (UINT64_C(8) << 20)
#define KEPT_MOST    (UINT64_C(32) << 20)
#define N_KEPT       1024
#define MOST_LATE    4096 /* entries of a choice that the host keeps once it has read them */
#define MOST_ENTRIES (INT64_C(1) << 40)

struct tensor_pool {
    uint64_t live, kept_bytes, budget;
    bool is_told;
    int n_kept;
    kern_buffer kept[N_KEPT]; /* the last one was closed last */
};

/* ---- the pool ---- */

/* Sizes are powers of two up to 64 KiB, quarter steps between them above. */
static size_t class_bytes(size_t bytes) {
    size_t power = LEAST_BYTES;
    while (power < bytes) power *= 2;
    if (power <= 65536) return power;
    const size_t step = power / 8;
    return (bytes + step - 1) / step * step;
}

struct tensor_pool *tensor_pool_open(llm_device *device, llm_error *err) {
    (void)device;
    struct tensor_pool *pool = kern_alloc(sizeof *pool);
    if (pool)
        pool->budget = BUDGET_BYTES;
    else
        llm_fail_memory(err, sizeof *pool, "the tensor pool");
    return pool;
}

/* Gives the kept buffer i back to the device. */
static void pool_drop(struct tensor_pool *pool, llm_device *device, int i) {
    pool->kept_bytes -= pool->kept[i].bytes;
    device->backend->free(device->kern, &pool->kept[i]);
    pool->n_kept--;
    memmove(&pool->kept[i], &pool->kept[i + 1], (size_t)(pool->n_kept - i) * sizeof *pool->kept);
}

static void pool_drop_all(struct tensor_pool *pool, llm_device *device) {
    while (pool->n_kept) pool_drop(pool, device, pool->n_kept - 1);
}

void tensor_pool_close(struct tensor_pool *pool, llm_device *device) {
    pool_drop_all(pool, device);
    kern_free(pool);
}

bool tensor_pool_pressed(const struct tensor_pool *pool) { return pool->live >= pool->budget; }

uint64_t tensor_pool_bytes(const struct tensor_pool *pool) { return pool->live + pool->kept_bytes; }

void tensor_pool_told(struct tensor_pool *pool) { pool->is_told = true; }

static bool pool_take(struct tensor_pool *pool, size_t bytes, kern_buffer *out) {
    for (int i = pool->n_kept; i-- > 0;) {
        if (pool->kept[i].bytes != bytes) continue;
        *out = pool->kept[i];
        pool->kept_bytes -= bytes;
        pool->n_kept--;
        memmove(&pool->kept[i], &pool->kept[i + 1],
                (size_t)(pool->n_kept - i) * sizeof *pool->kept);
        return true;
    }
    return false;
}

/* `bytes` is a class. */
static int pool_alloc(llm_device *device, size_t bytes, kern_buffer *out) {
    struct tensor_pool *pool = device->pool;
    if (pool->is_told) { /* garbage was collected since: what is live now is needed */
        const uint64_t wanted = 3 * pool->live;
        pool->budget = wanted > BUDGET_BYTES ? wanted : BUDGET_BYTES;
        pool->is_told = false;
    }
    if (!pool_take(pool, bytes, out)) {
        int code = device->backend->alloc(device->kern, bytes, out);
        if (code == KERN_NO_MEMORY && pool->n_kept) {
            pool_drop_all(pool, device);
            code = device->backend->alloc(device->kern, bytes, out);
        }
        if (code != KERN_OK) return code;
        out->bytes = bytes;
    }
    pool->live += bytes;
    return KERN_OK;
}

/* Keeps what the budget has left, within bounds; the largest go first. */
static void pool_give(llm_device *device, kern_buffer buffer) {
    struct tensor_pool *pool = device->pool;
    pool->live -= buffer.bytes;
    if (pool->n_kept == N_KEPT) pool_drop(pool, device, 0);
    pool->kept[pool->n_kept++] = buffer;
    pool->kept_bytes += buffer.bytes;
    uint64_t most = pool->budget > pool->live ? pool->budget - pool->live : 0;
    const uint64_t bound = pool->live > KEPT_MOST ? pool->live : KEPT_MOST;
    if (most > bound) most = bound;
    if (most < KEPT_LEAST) most = KEPT_LEAST;
    while (pool->kept_bytes > most) {
        int largest = 0;
        for (int i = 1; i < pool->n_kept; i++)
            if (pool->kept[i].bytes > pool->kept[largest].bytes) largest = i;
        pool_drop(pool, device, largest);
    }
}

/* ---- tensors ---- */

llm_tensor *tensor_alloc(llm_device *device, llm_dtype dtype, int64_t n_rows, int64_t n_columns,
                         llm_error *err) {
    int64_t n_entries;
    if (n_rows < 0 || n_columns < 0) {
        llm_fail(err, LLM_MISUSE, "a tensor cannot have %" PRId64 " × %" PRId64 " entries", n_rows,
                 n_columns);
        return NULL;
    }
    if (__builtin_mul_overflow(n_rows, n_columns, &n_entries) || n_entries > MOST_ENTRIES ||
        n_rows > INT32_MAX || n_columns > INT32_MAX) {
        llm_fail(err, LLM_OUT_OF_MEMORY,
                 "out of memory: a tensor of %" PRId64 " × %" PRId64
                 " entries, the most is %" PRId64,
                 n_rows, n_columns, MOST_ENTRIES);
        return NULL;
    }
    llm_tensor *t = kern_alloc(sizeof *t);
    if (!t) {
        llm_fail_memory(err, sizeof *t, "a tensor");
        return NULL;
    }
    const size_t bytes = class_bytes((size_t)n_entries * 4);
    const int code = pool_alloc(device, bytes, &t->buffer);
    if (code != KERN_OK) {
        if (code == KERN_NO_MEMORY)
            llm_fail(err, LLM_OUT_OF_MEMORY,
                     "out of memory: %zu bytes for a tensor of %" PRId64 " × %" PRId64 ", %" PRIu64
                     " bytes of tensors are live",
                     bytes, n_rows, n_columns, device->pool->live);
        else
            device_check(device, code, "tensor memory", err);
        kern_free(t);
        return NULL;
    }
    t->info = (llm_tensor_info){.dtype = dtype, .n_rows = n_rows, .n_columns = n_columns};
    t->device = device_retain(device);
    return t;
}

static int fill_zero(llm_tensor *t, llm_error *err) {
    static const char zeros[4096];
    const size_t bytes = (size_t)(t->info.n_rows * t->info.n_columns) * 4;
    const kern_backend *backend = t->device->backend;
    if (backend->host_memory) {
        if (bytes) memset(t->buffer.data, 0, bytes);
        return 0;
    }
    for (size_t at = 0; at < bytes; at += sizeof zeros) {
        const size_t n = bytes - at < sizeof zeros ? bytes - at : sizeof zeros;
        const int code = backend->write(t->device->kern, &t->buffer, at, zeros, n);
        if (device_check(t->device, code, "writing a tensor", err)) return -1;
    }
    return 0;
}

static int fill_data(llm_tensor *t, const void *data, llm_error *err) {
    const size_t bytes = (size_t)(t->info.n_rows * t->info.n_columns) * 4;
    if (!bytes) return 0;
    const int code = t->device->backend->write(t->device->kern, &t->buffer, 0, data, bytes);
    return device_check(t->device, code, "writing a tensor", err);
}

llm_tensor *llm_tensor_new(llm_device *device, llm_dtype dtype, int64_t n_rows, int64_t n_columns,
                           const void *data, llm_error *err) {
    llm_tensor *t = tensor_alloc(device, dtype, n_rows, n_columns, err);
    if (!t) return NULL;
    if (data ? fill_data(t, data, err) : fill_zero(t, err)) {
        llm_tensor_close(t);
        return NULL;
    }
    return t;
}

void llm_tensor_close(llm_tensor *t) {
    if (!t) return;
    llm_device *device = t->device;
    late_forget(t);
    pool_give(device, t->buffer);
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

int llm_tensor_read(llm_tensor *t, int64_t first, int64_t count, void *to, llm_error *err) {
    const int64_t n = t->info.n_rows * t->info.n_columns;
    if (first < 0 || count < 0 || first > n || count > n - first)
        return llm_fail(err, LLM_MISUSE,
                        "entries %" PRId64 " … %" PRId64 " are outside a tensor of %" PRId64,
                        first + 1, first + count, n);
    if (!count) return 0;
    const int32_t *ids = t->late ? late_known(t->late) : NULL;
    if (!ids && (!t->is_choice || t->device->backend->host_memory || n > MOST_LATE))
        return tensor_read(t, first, count, to, err);
    if (!ids && !(ids = late_read_tensor(t, err))) return -1;
    memcpy(to, ids + first, (size_t)count * sizeof *ids);
    return 0;
}

int tensor_read(llm_tensor *t, int64_t first, int64_t count, void *to, llm_error *err) {
    const int code = t->device->backend->read(t->device->kern, &t->buffer, (size_t)first * 4, to,
                                              (size_t)count * 4);
    if (device_check(t->device, code, "reading a tensor", err)) return -1;
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
