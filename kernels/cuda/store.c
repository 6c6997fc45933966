/* store.c: owns the weights on the device. The file's bytes go up in pieces by way of pinned
 * memory, so that the threads that copy the next piece out of the mapped file (and wait for the
 * disk) work while one is on its way. What is multiplied by is re-laid in tiles there, a run of
 * 16-row strips at a time; what is looked up and vectors stay as they are in the file. Random
 * matrices are made on the device. */
#include "../memory.h"
#include "cuda.h"

#include <string.h>

enum { STRIP = 16, MOST_THREADS = 4 }; /* rows a strip; threads that copy out of the file */

struct kern_store {
    kern_weight *weights;
    cuda_matrix *matrices; /* one for each weight */
    int32_t n_weights;
    kern_buffer *buffers; /* of each */
    size_t bytes;
};

/* What a bind works with. */
typedef struct upload {
    kern_device *device;
    const kern_binding *binding;
    kern_pool *pool;
    kern_buffer rows;          /* plain rows on their way into tiles */
    const kern_format *random; /* `rows` holds random blocks of this format */
    size_t asked;              /* of the device */
    int64_t done, total;       /* bytes of the file */
    const char *from;          /* of a piece: what the threads copy */
    char *to;
    size_t n;
} upload;

static size_t plain_bytes(const kern_weight *w) {
    return kern_format_bytes(w->format, w->n_rows * w->n_columns);
}

static bool is_used(const kern_weight *w) { /* else only slices of it are */
    return w->product || w->looked_up || w->n_rows == 1;
}

/* How a weight lies, and how much it takes. A tied head's rows are looked up in its tiles. */
static cuda_matrix measure(const kern_weight *w) {
    const size_t tiled = w->product ? cuda_tiled_bytes(w->format, w->n_rows, w->n_columns) : 0;
    return (cuda_matrix){.format = w->format,
                         .n_rows = w->n_rows,
                         .n_columns = w->n_columns,
                         .layout = tiled ? CUDA_TILED : CUDA_PLAIN,
                         .bytes = !is_used(w) ? 0
                                  : tiled     ? tiled
                                              : plain_bytes(w)};
}

/* Bytes of plain rows that are sent before they are re-laid: whole strips. */
static size_t run_bytes(const kern_weight *w) {
    const size_t strip = STRIP * kern_format_bytes(w->format, w->n_columns);
    return strip > CUDA_PIECE ? strip : CUDA_PIECE / strip * strip;
}

/* Memory for all weights, if all of it fits. */
static int allocate(upload *u, kern_store *s) {
    size_t rows = 0, n_free = 0, total = 0;
    for (int32_t i = 0; i < s->n_weights; i++) {
        const kern_weight *w = &s->weights[i];
        const cuda_matrix *m = &s->matrices[i];
        s->matrices[i] = measure(w);
        s->bytes += m->bytes;
        u->total += m->bytes ? (int64_t)plain_bytes(w) : 0;
        if (m->layout == CUDA_TILED && run_bytes(w) > rows) rows = run_bytes(w);
    }
    cuda_select(u->device);
    const cudaError_t error = cudaMemGetInfo(&n_free, &total);
    if (error != cudaSuccess) return cuda_check(u->device, error, "asking for free memory");
    u->asked = s->bytes + rows;
    if (u->asked > n_free)
        return cuda_fail(u->device, KERN_NO_MEMORY,
                         "out of memory: %zu bytes asked of the GPU, %zu of %zu are free", u->asked,
                         n_free, total);
    for (int32_t i = 0; i < s->n_weights; i++) {
        const size_t bytes = s->matrices[i].bytes;
        const int code = bytes ? cuda_alloc(u->device, bytes, &s->buffers[i]) : KERN_OK;
        if (code) return code;
    }
    return rows ? cuda_alloc(u->device, rows, &u->rows) : KERN_OK;
}

/* ---- sending ---- */

static bool stopped(const kern_binding *b) {
    return b->stop && __atomic_load_n(b->stop, __ATOMIC_RELAXED);
}

static void copy_thread(void *data, int i_thread, int n_threads) {
    const upload *u = data;
    const size_t begin = u->n * (size_t)i_thread / (size_t)n_threads;
    const size_t end = u->n * (size_t)(i_thread + 1) / (size_t)n_threads;
    memcpy(u->to + begin, u->from + begin, end - begin);
}

static void advance(upload *u, size_t bytes) {
    u->done += (int64_t)bytes;
    if (u->binding->progress) u->binding->progress(u->binding->data, u->done, u->total);
}

/* Bytes of the file to the device, a piece at a time. */
static int send(upload *u, const void *from, size_t bytes, void *to) {
    for (size_t done = 0; done < bytes; done += u->n) {
        void *pinned;
        if (stopped(u->binding)) return KERN_INTERRUPTED;
        int code = cuda_piece_take(u->device, &pinned);
        if (code) return code;
        u->from = (const char *)from + done;
        u->to = pinned;
        u->n = bytes - done < CUDA_PIECE ? bytes - done : CUDA_PIECE;
        kern_pool_run(u->pool, copy_thread, u);
        code = cuda_piece_send(u->device, (char *)to + done, u->n);
        if (code) return code;
        advance(u, u->n);
    }
    return KERN_OK;
}

/* ---- random matrices ---- */

/* In `rows`, once for neighbours of one format. */
static int random_rows(upload *u, const kern_weight *w, size_t bytes) {
    advance(u, bytes);
    if (stopped(u->binding)) return KERN_INTERRUPTED;
    if (u->random == w->format) return KERN_OK;
    const size_t block = (size_t)w->format->block_bytes;
    u->random = w->format;
    return cuda_fill_random(u->device, w->format, u->binding->random, u->rows.data,
                            u->rows.bytes / block * block);
}

static int random_plain(upload *u, const kern_weight *w, void *to) {
    advance(u, plain_bytes(w));
    return cuda_fill_random(u->device, w->format, u->binding->random, to, plain_bytes(w));
}

/* ---- each weight ---- */

/* A run of strips after the other: up, and into tiles. */
static int send_tiled(upload *u, const kern_weight *w, void *to) {
    const size_t row = kern_format_bytes(w->format, w->n_columns);
    const size_t tiles = cuda_tiled_bytes(w->format, STRIP, w->n_columns);
    const int64_t step = (int64_t)(run_bytes(w) / row);
    for (int64_t i = 0; i < w->n_rows; i += step) {
        const int64_t n = w->n_rows - i < step ? w->n_rows - i : step;
        const char *from = (const char *)w->data + (size_t)i * row;
        int code = u->binding->random ? random_rows(u, w, (size_t)n * row)
                                      : send(u, from, (size_t)n * row, u->rows.data);
        if (!code)
            code = cuda_tile(u->device, w->format, n, w->n_columns, u->rows.data,
                             (char *)to + (size_t)(i / STRIP) * tiles);
        if (code) return code;
    }
    return KERN_OK;
}

static int send_all(upload *u, kern_store *s) {
    for (int32_t i = 0; i < s->n_weights; i++) {
        kern_weight *w = &s->weights[i];
        cuda_matrix *m = &s->matrices[i];
        void *gpu = s->buffers[i].data;
        if (!gpu) continue;
        const bool random = u->binding->random && w->n_rows > 1;
        const int code = m->layout == CUDA_TILED ? send_tiled(u, w, gpu)
                         : random                ? random_plain(u, w, gpu)
                                                 : send(u, w->data, plain_bytes(w), gpu);
        if (code) return code;
        m->gpu = gpu;
        w->bound = m;
        if (!w->owned && u->binding->spent) u->binding->spent(u->binding->data, w);
    }
    /* What went wrong on the device is said here, not by the first pass. */
    return cuda_check(u->device, cudaStreamSynchronize(u->device->stream), "sending weights");
}

/* ---- open and close ---- */

static int fill(kern_device *device, kern_binding *binding, kern_store *s) {
    const int n_cores = kern_pool_cores();
    upload u = {.device = device, .binding = binding};
    u.pool = kern_pool_open(n_cores < MOST_THREADS ? n_cores : MOST_THREADS);
    int code = u.pool ? allocate(&u, s)
                      : cuda_fail(device, KERN_NO_MEMORY, "out of memory: threads that load");
    if (!code) code = send_all(&u, s);
    if (code) (void)cudaStreamSynchronize(device->stream); /* copies from what goes now */
    cuda_free(device, &u.rows);
    cuda_pieces_free(device);
    kern_pool_close(u.pool);
    binding->bytes = u.asked;
    return code;
}

int cuda_store_open(kern_device *device, kern_binding *binding, kern_store **out) {
    if (binding->f16_as_bf16)
        return cuda_fail(device, KERN_UNSUPPORTED, "it computes with F16 weights as they are");
    const size_t n = (size_t)binding->n_weights;
    *out = NULL;
    for (size_t i = 0; i < n; i++) {
        binding->weights[i].bound = NULL;
        binding->weights[i].bound_as = NULL;
    }
    if (device->lost) return KERN_DEVICE;
    kern_store *s = kern_alloc(sizeof *s);
    if (s) {
        s->weights = binding->weights;
        s->n_weights = binding->n_weights;
        s->matrices = kern_alloc_array(n, sizeof *s->matrices);
        s->buffers = kern_alloc_array(n, sizeof *s->buffers);
    }
    int code = s && s->matrices && s->buffers
                   ? fill(device, binding, s)
                   : cuda_fail(device, KERN_NO_MEMORY, "out of memory: a table of %zu weights", n);
    if (code) {
        cuda_store_close(device, s);
        return code;
    }
    binding->bytes = s->bytes;
    binding->from_image = false;
    *out = s;
    return KERN_OK;
}

void cuda_store_close(kern_device *device, kern_store *s) {
    if (!s) return;
    for (int32_t i = 0; s->matrices && i < s->n_weights; i++) s->weights[i].bound = NULL;
    for (int32_t i = 0; s->buffers && i < s->n_weights; i++) cuda_free(device, &s->buffers[i]);
    kern_free(s->buffers);
    kern_free(s->matrices);
    kern_free(s);
}
