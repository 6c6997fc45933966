/* memory.c: owns device memory and the pinned memory that copies go by way of: a pool for buffers,
 * scratch, a ring of slots for small things, pieces for much data. All copies are queued on the
 * device's stream, so that what is queued later sees them and memory that is freed can be given out
 * again at once. */
#include "../memory.h"
#include "cuda.h"

#include <string.h>

#define ALIGNMENT   ((size_t)256)
#define ARENA_BYTES ((size_t)4 << 20)   /* that small buffers are cut from */
#define SMALL_BYTES ((size_t)1 << 20)   /* the largest small one */
#define KEPT_BYTES  ((size_t)256 << 20) /* of freed large ones, at most */
#define LEAST_LOG2  8                   /* of ALIGNMENT: the smallest size class */
#define N_CLASSES   (8 * 13)            /* eight between two powers of two, up to SMALL_BYTES */

#define N_SLOTS       128
#define GROUP_SLOTS   16 /* that share an event */
#define N_GROUPS      (N_SLOTS / GROUP_SLOTS)
#define SLOT_BYTES    ((size_t)4096) /* grown where more is asked */
#define SMALL_WRITE   ((size_t)64 << 10)
#define SCRATCH_BYTES ((size_t)1 << 20)

typedef struct block {
    void *data;
    size_t bytes;
} block;

typedef struct block_list {
    block *items;
    size_t n, capacity;
} block_list;

/* A slot's memory is part of the ring's, or its own where it has grown. */
typedef struct slot {
    void *pinned, *gpu;
    size_t bytes;
    bool owns;
} slot;

struct cuda_memory {
    block_list arenas, small[N_CLASSES], large; /* free ones, but for the arenas */
    size_t arena_used, large_bytes;
    block_list outgrown; /* scratch that graphs may still refer to */
    block scratch;
    void *ring_pinned, *ring_gpu;
    slot slots[N_SLOTS];
    cudaEvent_t groups[N_GROUPS];
    bool recorded[N_GROUPS];
    int i_slot;
    void *pieces[CUDA_PIECES];
    cudaEvent_t piece_events[CUDA_PIECES];
    bool piece_sent[CUDA_PIECES];
    int i_piece;
    void *landing; /* pinned: what reads arrive in */
    size_t landing_bytes;
};

/* ---- lists ---- */

static int list_push(block_list *list, void *data, size_t bytes) {
    if (list->n == list->capacity) {
        const size_t capacity = list->capacity ? 2 * list->capacity : 16;
        block *items = kern_realloc(list->items, capacity * sizeof *items);
        if (!items) return -1;
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->n++] = (block){data, bytes};
    return 0;
}

static void list_close(block_list *list, bool gives_back) {
    for (size_t i = 0; gives_back && i < list->n; i++) (void)cudaFree(list->items[i].data);
    kern_free(list->items);
    *list = (block_list){0};
}

static size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

/* ---- device memory ---- */

static int fail_memory(kern_device *device, size_t bytes) {
    size_t n_free = 0, total = 0;
    (void)cudaMemGetInfo(&n_free, &total);
    return cuda_fail(device, KERN_NO_MEMORY,
                     "out of memory: %zu bytes asked of the GPU, %zu of %zu are free", bytes,
                     n_free, total);
}

static void drop_large(cuda_memory *m) {
    while (m->large.n) (void)cudaFree(m->large.items[--m->large.n].data);
    m->large_bytes = 0;
}

/* From the driver; what is kept for others goes first. */
static int device_malloc(kern_device *device, size_t bytes, void **out) {
    *out = NULL;
    if (device->lost) return KERN_DEVICE;
    cuda_select(device);
    cudaError_t error = cudaMalloc(out, bytes);
    if (error == cudaErrorMemoryAllocation && device->memory->large.n) {
        (void)cudaGetLastError();
        drop_large(device->memory);
        error = cudaMalloc(out, bytes);
    }
    if (error == cudaSuccess) return KERN_OK;
    *out = NULL;
    if (error != cudaErrorMemoryAllocation) return cuda_check(device, error, "device memory");
    (void)cudaGetLastError();
    return fail_memory(device, bytes);
}

/* The class of a small buffer, and its size: a power of two and 0 … 7 eighths of it. */
static int class_of(size_t bytes, size_t *class_bytes) {
    size_t power = ALIGNMENT;
    int log2 = 0;
    while (2 * power <= bytes) power *= 2, log2++;
    const size_t step = power / 8;
    const size_t eighths = bytes > power ? (bytes - power + step - 1) / step : 0;
    *class_bytes = power + eighths * step;
    return 8 * log2 + (int)eighths;
}

/* Every class is a multiple of the alignment. */
static size_t small_bytes(size_t bytes) { return bytes < ALIGNMENT ? ALIGNMENT : bytes; }

/* An arena, and the first bytes of it; or, where memory is short, one of so many bytes. */
static int new_arena(kern_device *device, size_t bytes, void **out) {
    cuda_memory *m = device->memory;
    size_t arena_bytes = ARENA_BYTES;
    int code = device_malloc(device, arena_bytes, out);
    if (code == KERN_NO_MEMORY) code = device_malloc(device, arena_bytes = bytes, out);
    if (code) return code;
    if (list_push(&m->arenas, *out, arena_bytes)) {
        (void)cudaFree(*out);
        return cuda_fail(device, KERN_NO_MEMORY, "out of memory: a list of buffers");
    }
    m->arena_used = arena_bytes == ARENA_BYTES ? bytes : ARENA_BYTES; /* that one is full */
    return KERN_OK;
}

static int alloc_small(kern_device *device, size_t bytes, void **out) {
    cuda_memory *m = device->memory;
    size_t class_bytes;
    block_list *list = &m->small[class_of(small_bytes(bytes), &class_bytes)];
    if (list->n) {
        *out = list->items[--list->n].data;
        return KERN_OK;
    }
    class_bytes = round_up(class_bytes, ALIGNMENT);
    if (!m->arenas.n || m->arena_used + class_bytes > ARENA_BYTES)
        return new_arena(device, class_bytes, out);
    *out = (char *)m->arenas.items[m->arenas.n - 1].data + m->arena_used;
    m->arena_used += class_bytes;
    return KERN_OK;
}

/* A kept one of this size, or a new one. */
static int alloc_large(kern_device *device, size_t bytes, void **out) {
    cuda_memory *m = device->memory;
    const size_t asked = round_up(bytes, ALIGNMENT);
    for (size_t i = m->large.n; i-- > 0;) {
        const block kept = m->large.items[i];
        if (kept.bytes != asked) continue;
        m->large.items[i] = m->large.items[--m->large.n];
        m->large_bytes -= kept.bytes;
        *out = kept.data;
        return KERN_OK;
    }
    return device_malloc(device, asked, out);
}

int cuda_alloc(kern_device *device, size_t bytes, kern_buffer *out) {
    *out = (kern_buffer){0};
    if (device->lost) return KERN_DEVICE;
    if (bytes > SIZE_MAX / 2) return fail_memory(device, bytes);
    const int code = bytes <= SMALL_BYTES ? alloc_small(device, bytes, &out->data)
                                          : alloc_large(device, bytes, &out->data);
    if (!code) out->bytes = bytes;
    return code;
}

void cuda_free(kern_device *device, kern_buffer *buffer) {
    cuda_memory *m = device->memory;
    void *data = buffer->data;
    const size_t bytes = buffer->bytes;
    *buffer = (kern_buffer){0};
    if (!data) return;
    if (bytes <= SMALL_BYTES) { /* a list that cannot grow loses it until the device is closed */
        size_t class_bytes;
        (void)list_push(&m->small[class_of(small_bytes(bytes), &class_bytes)], data, bytes);
        return;
    }
    const size_t held = round_up(bytes, ALIGNMENT);
    if (!device->lost && m->large_bytes + held <= KEPT_BYTES &&
        list_push(&m->large, data, held) == 0) {
        m->large_bytes += held;
        return;
    }
    cuda_select(device);
    (void)cudaFree(data);
}

int cuda_scratch(kern_device *device, size_t bytes, void **out) {
    cuda_memory *m = device->memory;
    *out = m->scratch.data;
    if (bytes <= m->scratch.bytes && m->scratch.data) return device->lost ? KERN_DEVICE : KERN_OK;
    size_t grown = m->scratch.bytes ? 2 * m->scratch.bytes : SCRATCH_BYTES;
    if (grown < bytes) grown = round_up(bytes, ALIGNMENT);
    void *data;
    int code = device_malloc(device, grown, &data);
    if (code == KERN_NO_MEMORY && grown > bytes)
        code = device_malloc(device, grown = round_up(bytes, ALIGNMENT), &data);
    if (code) return code;
    if (m->scratch.data && list_push(&m->outgrown, m->scratch.data, m->scratch.bytes)) {
        (void)cudaFree(data);
        return cuda_fail(device, KERN_NO_MEMORY, "out of memory: a list of buffers");
    }
    m->scratch = (block){data, grown};
    *out = data;
    return KERN_OK;
}

/* ---- small things up ---- */

static int grow_slot(kern_device *device, slot *s, size_t bytes) {
    const size_t grown = round_up(bytes, SLOT_BYTES);
    void *pinned, *gpu;
    int code = device_malloc(device, grown, &gpu);
    if (code) return code;
    code = cuda_check(device, cudaHostAlloc(&pinned, grown, cudaHostAllocDefault), "pinned memory");
    if (code) {
        (void)cudaFree(gpu);
        return code;
    }
    if (s->owns) { /* waits for what is queued */
        (void)cudaFree(s->gpu);
        (void)cudaFreeHost(s->pinned);
    }
    *s = (slot){pinned, gpu, grown, true};
    return KERN_OK;
}

/* The next slot, when copies from it are done. */
static int take_slot(kern_device *device, size_t bytes, slot **out) {
    cuda_memory *m = device->memory;
    if (device->lost) return KERN_DEVICE;
    cuda_select(device);
    const int i = m->i_slot, group = i / GROUP_SLOTS;
    if (i % GROUP_SLOTS == 0) {
        const int before = (group + N_GROUPS - 1) % N_GROUPS;
        int code = cuda_check(device, cudaEventRecord(m->groups[before], device->stream),
                              "recording an event");
        if (code) return code;
        m->recorded[before] = true;
        if (m->recorded[group]) {
            code = cuda_check(device, cudaEventSynchronize(m->groups[group]), "waiting for a copy");
            if (code) return code;
        }
    }
    slot *s = &m->slots[i];
    if (bytes > s->bytes) {
        const int code = grow_slot(device, s, bytes);
        if (code) return code;
    }
    m->i_slot = (i + 1) % N_SLOTS;
    *out = s;
    return KERN_OK;
}

static int send(kern_device *device, void *to, const void *pinned, size_t bytes) {
    device->stats.bytes_up += bytes;
    return cuda_check(device,
                      cudaMemcpyAsync(to, pinned, bytes, cudaMemcpyHostToDevice, device->stream),
                      "a copy to the device");
}

int cuda_upload(kern_device *device, const void *from, size_t bytes, const void **out) {
    slot *s;
    *out = NULL;
    const int code = take_slot(device, bytes, &s);
    if (code) return code;
    *out = s->gpu;
    if (!bytes) return KERN_OK;
    memcpy(s->pinned, from, bytes);
    return send(device, s->gpu, s->pinned, bytes);
}

/* ---- much data up ---- */

int cuda_piece_take(kern_device *device, void **pinned) {
    cuda_memory *m = device->memory;
    const int i = m->i_piece;
    *pinned = NULL;
    if (device->lost) return KERN_DEVICE;
    cuda_select(device);
    if (!m->pieces[i]) {
        const int code =
            cuda_check(device, cudaHostAlloc(&m->pieces[i], CUDA_PIECE, cudaHostAllocDefault),
                       "pinned memory");
        if (code) {
            m->pieces[i] = NULL;
            return code;
        }
    }
    if (m->piece_sent[i]) {
        const int code =
            cuda_check(device, cudaEventSynchronize(m->piece_events[i]), "waiting for a copy");
        if (code) return code;
        m->piece_sent[i] = false;
    }
    *pinned = m->pieces[i];
    return KERN_OK;
}

int cuda_piece_send(kern_device *device, void *to, size_t bytes) {
    cuda_memory *m = device->memory;
    const int i = m->i_piece;
    int code = bytes ? send(device, to, m->pieces[i], bytes) : KERN_OK;
    if (!code)
        code = cuda_check(device, cudaEventRecord(m->piece_events[i], device->stream),
                          "recording an event");
    if (code) return code;
    m->piece_sent[i] = true;
    m->i_piece = (i + 1) % CUDA_PIECES;
    return KERN_OK;
}

void cuda_pieces_free(kern_device *device) {
    cuda_memory *m = device->memory;
    cuda_select(device);
    for (int i = 0; i < CUDA_PIECES; i++) {
        if (m->piece_sent[i]) (void)cudaEventSynchronize(m->piece_events[i]);
        if (m->pieces[i]) (void)cudaFreeHost(m->pieces[i]);
        m->pieces[i] = NULL;
        m->piece_sent[i] = false;
    }
}

/* ---- the backend's operations ---- */

int cuda_check_range(kern_device *device, const kern_buffer *buffer, size_t offset, size_t bytes) {
    if (offset <= buffer->bytes && bytes <= buffer->bytes - offset) return KERN_OK;
    return cuda_fail(device, KERN_DEVICE, "bytes %zu + %zu lie outside a buffer of %zu", offset,
                     bytes, buffer->bytes);
}

int cuda_write(kern_device *device, kern_buffer *to, size_t offset, const void *from,
               size_t bytes) {
    int code = cuda_check_range(device, to, offset, bytes);
    if (code || !bytes) return code;
    char *at = (char *)to->data + offset;
    if (bytes <= SMALL_WRITE) {
        slot *s;
        code = take_slot(device, bytes, &s);
        if (code) return code;
        memcpy(s->pinned, from, bytes);
        return send(device, at, s->pinned, bytes);
    }
    for (size_t done = 0; done < bytes && !code; done += CUDA_PIECE) {
        const size_t n = bytes - done < CUDA_PIECE ? bytes - done : CUDA_PIECE;
        void *pinned;
        code = cuda_piece_take(device, &pinned);
        if (code) break;
        memcpy(pinned, (const char *)from + done, n);
        code = cuda_piece_send(device, at + done, n);
    }
    return code;
}

/* Pinned memory of at least so many bytes, at most a piece's, that a read may arrive in. */
static int prepare_landing(kern_device *device, size_t bytes) {
    cuda_memory *m = device->memory;
    const size_t wanted = bytes < CUDA_PIECE ? round_up(bytes, SLOT_BYTES) : CUDA_PIECE;
    if (wanted <= m->landing_bytes) return KERN_OK;
    if (m->landing) (void)cudaFreeHost(m->landing);
    m->landing_bytes = 0;
    const int code = cuda_check(device, cudaHostAlloc(&m->landing, wanted, cudaHostAllocDefault),
                                "pinned memory");
    if (code)
        m->landing = NULL;
    else
        m->landing_bytes = wanted;
    return code;
}

int cuda_fetch(kern_device *device, const void *from, void *to, size_t bytes) {
    if (device->lost) return KERN_DEVICE;
    cuda_select(device);
    int code = prepare_landing(device, bytes);
    for (size_t done = 0; done < bytes && !code;) {
        const size_t left = bytes - done, n = left < CUDA_PIECE ? left : CUDA_PIECE;
        void *landing = device->memory->landing;
        code = cuda_check(device,
                          cudaMemcpyAsync(landing, (const char *)from + done, n,
                                          cudaMemcpyDeviceToHost, device->stream),
                          "a copy from the device");
        if (!code) code = cuda_check(device, cudaStreamSynchronize(device->stream), "a kernel");
        if (code) break;
        memcpy((char *)to + done, landing, n);
        device->stats.syncs++;
        device->stats.bytes_down += n;
        done += n;
    }
    return code;
}

int cuda_read(kern_device *device, const kern_buffer *from, size_t offset, void *to, size_t bytes) {
    const int code = cuda_check_range(device, from, offset, bytes);
    return code || !bytes ? code : cuda_fetch(device, (const char *)from->data + offset, to, bytes);
}

int cuda_copy(kern_device *device, kern_buffer *to, size_t to_offset, const kern_buffer *from,
              size_t from_offset, size_t bytes) {
    int code = cuda_check_range(device, to, to_offset, bytes);
    if (!code) code = cuda_check_range(device, from, from_offset, bytes);
    if (code || !bytes) return code;
    if (device->lost) return KERN_DEVICE;
    cuda_select(device);
    return cuda_check(device,
                      cudaMemcpyAsync((char *)to->data + to_offset,
                                      (const char *)from->data + from_offset, bytes,
                                      cudaMemcpyDeviceToDevice, device->stream),
                      "a copy on the device");
}

/* ---- open and close ---- */

static int open_ring(kern_device *device) {
    cuda_memory *m = device->memory;
    int code = device_malloc(device, N_SLOTS * SLOT_BYTES, &m->ring_gpu);
    if (!code)
        code = cuda_check(
            device, cudaHostAlloc(&m->ring_pinned, N_SLOTS * SLOT_BYTES, cudaHostAllocDefault),
            "pinned memory");
    if (code) return code;
    for (int i = 0; i < N_SLOTS; i++)
        m->slots[i] = (slot){(char *)m->ring_pinned + (size_t)i * SLOT_BYTES,
                             (char *)m->ring_gpu + (size_t)i * SLOT_BYTES, SLOT_BYTES, false};
    return KERN_OK;
}

int cuda_memory_open(kern_device *device) {
    cuda_memory *m = device->memory = kern_alloc(sizeof *m);
    if (!m) return cuda_fail(device, KERN_NO_MEMORY, "out of memory: the lists of buffers");
    int code = KERN_OK;
    for (int i = 0; i < N_GROUPS && !code; i++)
        code = cuda_check(device, cudaEventCreateWithFlags(&m->groups[i], cudaEventDisableTiming),
                          "an event");
    for (int i = 0; i < CUDA_PIECES && !code; i++)
        code = cuda_check(device,
                          cudaEventCreateWithFlags(&m->piece_events[i], cudaEventDisableTiming),
                          "an event");
    return code ? code : open_ring(device);
}

void cuda_memory_close(kern_device *device) {
    cuda_memory *m = device->memory;
    if (!m) return;
    cuda_select(device);
    (void)cudaStreamSynchronize(device->stream);
    cuda_pieces_free(device);
    drop_large(m);
    for (int i = 0; i < N_CLASSES; i++) list_close(&m->small[i], false);
    list_close(&m->large, false);
    list_close(&m->arenas, true);
    list_close(&m->outgrown, true);
    for (int i = 0; i < N_SLOTS; i++) {
        if (!m->slots[i].owns) continue;
        (void)cudaFree(m->slots[i].gpu);
        (void)cudaFreeHost(m->slots[i].pinned);
    }
    for (int i = 0; i < N_GROUPS; i++)
        if (m->groups[i]) (void)cudaEventDestroy(m->groups[i]);
    for (int i = 0; i < CUDA_PIECES; i++)
        if (m->piece_events[i]) (void)cudaEventDestroy(m->piece_events[i]);
    if (m->scratch.data) (void)cudaFree(m->scratch.data);
    if (m->ring_gpu) (void)cudaFree(m->ring_gpu);
    if (m->ring_pinned) (void)cudaFreeHost(m->ring_pinned);
    if (m->landing) (void)cudaFreeHost(m->landing);
    kern_free(m);
    device->memory = NULL;
}
