/* tensor_pool.c: the pool that the memory of tensors comes from and returns to. */
#include "tensor_pool.h"
#include "device.h"

#include "../kernels/memory.h"

#include <inttypes.h>
#include <string.h>

#define LEAST_BYTES  256
#define BUDGET_BYTES (UINT64_C(24) << 20)
#define KEPT_LEAST   (UINT64_C(8) << 20)
#define KEPT_MOST    (UINT64_C(32) << 20)
#define N_KEPT       1024

struct tensor_pool {
    uint64_t live, kept_bytes, budget;
    int64_t expected;
    bool is_told;
    int n_kept;
    kern_buffer kept[N_KEPT]; /* the last one was closed last */
};

/* Sizes are powers of two up to 64 KiB, quarter steps between them above. */
static size_t class_bytes(size_t bytes) {
    size_t power = LEAST_BYTES;
    while (power < bytes) power *= 2;
    if (power <= 65536) return power;
    const size_t step = power / 8;
    return (bytes + step - 1) / step * step;
}

struct tensor_pool *tensor_pool_open(llm_error *err) {
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

bool tensor_pool_pressed(const struct tensor_pool *pool) {
    return pool->live + (uint64_t)pool->expected >= pool->budget;
}

uint64_t tensor_pool_bytes(const struct tensor_pool *pool) { return pool->live + pool->kept_bytes; }

void tensor_pool_told(struct tensor_pool *pool) { pool->is_told = true; }

/* Garbage was collected since it was told: what is live now is needed. */
static void widen(struct tensor_pool *pool) {
    if (!pool->is_told) return;
    const uint64_t wanted = 3 * (pool->live + (uint64_t)pool->expected);
    pool->budget = wanted > BUDGET_BYTES ? wanted : BUDGET_BYTES;
    pool->is_told = false;
}

void tensor_pool_expect(struct tensor_pool *pool, int64_t bytes) {
    pool->expected += bytes;
    if (bytes > 0) widen(pool);
}

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
    widen(pool);
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

int tensor_pool_take(llm_device *device, int64_t n_rows, int64_t n_columns, kern_buffer *out,
                     llm_error *err) {
    const size_t bytes = class_bytes((size_t)(n_rows * n_columns) * 4);
    const int code = pool_alloc(device, bytes, out);
    if (code == KERN_NO_MEMORY)
        return llm_fail(err, LLM_OUT_OF_MEMORY,
                        "out of memory: %zu bytes for a tensor of %" PRId64 " × %" PRId64
                        ", %" PRIu64 " bytes of tensors are live",
                        bytes, n_rows, n_columns, device->pool->live);
    return device_check(device, code, "tensor memory", err);
}

/* Keeps what the budget has left, within bounds; the largest go first. */
void tensor_pool_give(llm_device *device, kern_buffer buffer) {
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
