/* queue_device.h: for tests of queued operations: `ref` with memory that core may not look into, so
 * that operations wait there as on a GPU, beside `ref` as it is. It counts launches and waits, and
 * fails where it is told to. */
#ifndef SPEC_QUEUE_DEVICE_H
#define SPEC_QUEUE_DEVICE_H

#include "check.h"
#include "device.h"
#include "queue.h"

#include <stdlib.h>
#include <string.h>

static llm_error err;
static llm_device *plain, *apart;
static int64_t n_launches, n_waits, n_rows_masked, n_columns_masked;
static int64_t n_fetches, n_arrived; /* fetches arrive in the order in which they set out */
static int64_t most_bytes;           /* of one piece of memory; 0: any */
static int fail_draws;               /* so many draws fail */
static bool is_idle;                 /* operations compute nothing */

struct kern_fetch {
    int64_t i;
    size_t bytes;
    char data[KERN_FETCH_MOST];
};

static int apart_fetch(kern_device *d, const kern_buffer *from, size_t offset, size_t bytes,
                       kern_fetch **out) {
    (void)d;
    *out = malloc(sizeof **out);
    if (!*out) return KERN_NO_MEMORY;
    (*out)->i = ++n_fetches;
    (*out)->bytes = bytes;
    memcpy((*out)->data, (const char *)from->data + offset, bytes);
    return KERN_OK;
}

static int apart_fetched(kern_device *d, kern_fetch *f, void *to) {
    (void)d;
    if (f->i > n_arrived) {
        n_waits++;
        n_arrived = f->i;
    }
    if (to) memcpy(to, f->data, f->bytes);
    free(f);
    return KERN_OK;
}

static int apart_read(kern_device *d, const kern_buffer *from, size_t offset, void *to,
                      size_t bytes) {
    n_waits++;
    n_arrived = n_fetches;
    return kern_ref.read(d, from, offset, to, bytes);
}

static int apart_alloc(kern_device *d, size_t bytes, kern_buffer *out) {
    if (most_bytes && bytes > (size_t)most_bytes) return KERN_NO_MEMORY;
    return kern_ref.alloc(d, bytes, out);
}

#define LAUNCH(name, parameters, ...)                                                              \
    static int apart_##name parameters {                                                           \
        n_launches++;                                                                              \
        return is_idle ? KERN_OK : kern_ref.name(__VA_ARGS__);                                     \
    }
LAUNCH(unary, (kern_device * d, kern_unary op, kern_tensor x, float a, float b, kern_tensor y), d,
       op, x, a, b, y)
LAUNCH(binary, (kern_device * d, kern_binary op, kern_tensor x, kern_tensor y, kern_tensor z), d,
       op, x, y, z)
LAUNCH(reduce, (kern_device * d, kern_reduce op, kern_tensor x, kern_tensor y), d, op, x, y)
LAUNCH(log_softmax, (kern_device * d, kern_tensor x, kern_tensor y), d, x, y)
LAUNCH(argmax, (kern_device * d, kern_tensor x, int32_t base, kern_tensor y), d, x, base, y)
LAUNCH(threshold_k, (kern_device * d, kern_tensor x, kern_tensor k, kern_tensor key, kern_tensor y),
       d, x, k, key, y)
LAUNCH(threshold_mass,
       (kern_device * d, kern_tensor x, kern_tensor p, kern_tensor key, kern_tensor y), d, x, p,
       key, y)

static int apart_sample(kern_device *d, kern_tensor x, int32_t base, const kern_key *keys,
                        kern_tensor y) {
    n_launches++;
    if (fail_draws && fail_draws--) return KERN_DEVICE;
    return is_idle ? KERN_OK : kern_ref.sample(d, x, base, keys, y);
}

static int apart_mask(kern_device *d, kern_tensor x, const int64_t *first, const int32_t *columns,
                      int64_t n_lists, int only, kern_tensor y) {
    n_launches++;
    n_rows_masked = x.n_rows;
    n_columns_masked = first[n_lists] - first[0];
    return kern_ref.mask(d, x, first, columns, n_lists, only, y);
}

static kern_backend apart_backend;

static llm_device *device_open(void) {
    llm_device *d = llm_device_open(&(llm_device_options){.name = "ref", .n_threads = 1}, &err);
    if (!d) abort();
    return d;
}

static llm_device *apart_open(void) {
    apart_backend = kern_ref;
    apart_backend.host_memory = 0;
    apart_backend.fetch = apart_fetch;
    apart_backend.fetched = apart_fetched;
    apart_backend.read = apart_read;
    apart_backend.alloc = apart_alloc;
    apart_backend.unary = apart_unary;
    apart_backend.binary = apart_binary;
    apart_backend.reduce = apart_reduce;
    apart_backend.log_softmax = apart_log_softmax;
    apart_backend.argmax = apart_argmax;
    apart_backend.threshold_k = apart_threshold_k;
    apart_backend.threshold_mass = apart_threshold_mass;
    apart_backend.sample = apart_sample;
    apart_backend.mask = apart_mask;
    llm_device *d = device_open();
    d->backend = &apart_backend;
    d->queue = queue_open(&err);
    if (!d->queue) abort();
    return d;
}

#endif
