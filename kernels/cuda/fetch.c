/* fetch.c: small reads that do not wait: the copy is queued at once, an event behind it says when
 * it is there. Waiting for the event does not wait for what was queued later, so that the host
 * reads the ids of one step while the device works at the next. */
#include "../memory.h"
#include "cuda.h"

#include <string.h>

enum { SLAB_FETCHES = 64 };

struct kern_fetch {
    kern_fetch *next; /* of those that rest */
    void *pinned;
    cudaEvent_t arrived;
    size_t bytes;
};

/* So many at a time: pinned memory is dear to take. */
typedef struct slab {
    struct slab *next;
    void *pinned;
    kern_fetch fetches[SLAB_FETCHES];
} slab;

struct cuda_fetches {
    slab *slabs;
    kern_fetch *resting;
};

static void close_slab(slab *s) {
    for (int i = 0; i < SLAB_FETCHES; i++)
        if (s->fetches[i].arrived) (void)cudaEventDestroy(s->fetches[i].arrived);
    if (s->pinned) (void)cudaFreeHost(s->pinned);
    kern_free(s);
}

static int fill_slab(kern_device *device, slab *s) {
    int code = cuda_check(
        device, cudaHostAlloc(&s->pinned, SLAB_FETCHES * KERN_FETCH_MOST, cudaHostAllocDefault),
        "pinned memory");
    for (int i = 0; i < SLAB_FETCHES && !code; i++) {
        kern_fetch *f = &s->fetches[i];
        f->pinned = (char *)s->pinned + (size_t)i * KERN_FETCH_MOST;
        code = cuda_check(device, cudaEventCreateWithFlags(&f->arrived, cudaEventDisableTiming),
                          "an event");
    }
    return code;
}

static int add_slab(kern_device *device) {
    cuda_fetches *all = device->fetches;
    slab *s = kern_alloc(sizeof *s);
    if (!s) return cuda_fail(device, KERN_NO_MEMORY, "out of memory: %zu bytes", sizeof *s);
    const int code = fill_slab(device, s);
    if (code) {
        close_slab(s);
        return code;
    }
    s->next = all->slabs;
    all->slabs = s;
    for (int i = 0; i < SLAB_FETCHES; i++) {
        s->fetches[i].next = all->resting;
        all->resting = &s->fetches[i];
    }
    return KERN_OK;
}

int cuda_fetch_begin(kern_device *device, const kern_buffer *from, size_t offset, size_t bytes,
                     kern_fetch **out) {
    *out = NULL;
    if (device->lost) return KERN_DEVICE;
    if (bytes > KERN_FETCH_MOST)
        return cuda_fail(device, KERN_DEVICE, "%zu bytes in one fetch, at most %d", bytes,
                         KERN_FETCH_MOST);
    int code = cuda_check_range(device, from, offset, bytes);
    if (code) return code;
    cuda_select(device);
    if (!device->fetches->resting) code = add_slab(device);
    if (code) return code;
    kern_fetch *f = device->fetches->resting;
    code = cuda_check(device,
                      cudaMemcpyAsync(f->pinned, (const char *)from->data + offset, bytes,
                                      cudaMemcpyDeviceToHost, device->stream),
                      "a copy from the device");
    if (!code)
        code =
            cuda_check(device, cudaEventRecord(f->arrived, device->stream), "recording an event");
    if (code) return code;
    f->bytes = bytes;
    device->fetches->resting = f->next;
    device->stats.bytes_down += bytes;
    *out = f;
    return KERN_OK;
}

static int wait_for(kern_device *device, kern_fetch *f) {
    if (device->lost) return KERN_DEVICE;
    cuda_select(device);
    const cudaError_t is_there = cudaEventQuery(f->arrived);
    if (is_there == cudaSuccess) return KERN_OK;
    (void)cudaGetLastError(); /* "not ready" counts as one */
    device->stats.syncs++;
    return cuda_check(device, cudaEventSynchronize(f->arrived), "a kernel");
}

int cuda_fetch_end(kern_device *device, kern_fetch *f, void *to) {
    /* one that is dropped must have arrived too before its memory serves another */
    const int code = wait_for(device, f);
    if (!code && to) memcpy(to, f->pinned, f->bytes);
    f->next = device->fetches->resting;
    device->fetches->resting = f;
    return code;
}

int cuda_fetches_open(kern_device *device) {
    device->fetches = kern_alloc(sizeof *device->fetches);
    return device->fetches ? KERN_OK
                           : cuda_fail(device, KERN_NO_MEMORY, "out of memory: the list of reads");
}

void cuda_fetches_close(kern_device *device) {
    if (!device->fetches) return;
    for (slab *s = device->fetches->slabs, *next; s; s = next) {
        next = s->next;
        close_slab(s);
    }
    kern_free(device->fetches);
    device->fetches = NULL;
}
