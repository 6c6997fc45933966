/* store.c: owns the memory of bound weights. Matrices lie in the order of the list of weights, each
 * at a cache line; the threads of the device pack them a few strips at a time, or read them from an
 * image that an earlier start left. */
#include "store.h"
#include "../memory.h"
#include "pack.h"
#include <stdatomic.h>
#include <string.h>

enum { UNIT_BYTES = 128 << 10 }; /* of strips that a thread packs at once, about */

/* A matrix to be packed. */
typedef struct matrix {
    kern_weight *w;
    unsigned char *to;                  /* its strips */
    size_t strip_bytes;                 /* of each */
    int64_t n_strips, unit, first_unit; /* strips a unit, units of the matrices before it */
    atomic_llong n_left;                /* units not yet packed */
} matrix;

struct kern_store {
    kern_weight *weights;
    int32_t n_weights, n_matrices;
    matrix *matrices;
    unsigned char *strips;
    size_t strip_bytes; /* of all matrices */
    int64_t n_units;
    float *vectors;
    size_t vector_bytes;
};

static int is_vector(const kern_weight *w) { return w->n_rows == 1 && !w->product; }

static size_t vector_bytes(const kern_weight *w) {
    return ((size_t)w->n_columns * sizeof(float) + 63) / 64 * 64;
}

/* The format that a weight is packed in, if another than its own. */
static const kern_format *rounded(const kern_binding *b, const kern_weight *w) {
    return b->f16_as_bf16 && w->product && w->format->id == KERN_F16 ? kern_format_find(KERN_BF16)
                                                                     : NULL;
}

/* Adds to the store's sizes; strips have no address yet. */
static int measure(kern_device *device, kern_store *s, const kern_binding *binding) {
    for (int32_t i = 0; i < s->n_weights; i++) {
        kern_weight *w = &s->weights[i];
        w->bound_as = rounded(binding, w);
        if (is_vector(w)) s->vector_bytes += vector_bytes(w);
        if (!w->product) continue;
        matrix *m = &s->matrices[s->n_matrices++];
        size_t bytes;
        m->w = w;
        m->n_strips = cpu_strips(w->n_rows);
        m->strip_bytes = cpu_strip_bytes(cpu_packed(w), w->n_columns);
        if (__builtin_mul_overflow(m->strip_bytes, (size_t)m->n_strips, &bytes) ||
            __builtin_add_overflow(s->strip_bytes, bytes, &s->strip_bytes))
            return host_fail(device, KERN_NO_MEMORY, "out of memory: %lld × %lld weights",
                             (long long)w->n_rows, (long long)w->n_columns);
        m->unit = (int64_t)(UNIT_BYTES / m->strip_bytes) + 1;
        m->first_unit = s->n_units;
        m->n_left = (m->n_strips + m->unit - 1) / m->unit;
        s->n_units += m->n_left;
    }
    return KERN_OK;
}

static int fail_memory(kern_device *device, size_t bytes, size_t available) {
    if (available == SIZE_MAX)
        return host_fail(device, KERN_NO_MEMORY, "out of memory: %zu bytes asked", bytes);
    return host_fail(device, KERN_NO_MEMORY, "out of memory: %zu bytes asked, %zu are available",
                     bytes, available);
}

/* Memory for the strips and the vectors, and where each lies in it. What the system would have to
 * drive others out for is not asked: it might end them, or this process, without a word. */
static int allocate(kern_device *device, kern_store *s) {
    const size_t bytes = s->strip_bytes + s->vector_bytes, available = kern_memory_available();
    if (bytes > available) return fail_memory(device, bytes, available);
    s->strips = kern_alloc_huge(s->strip_bytes);
    s->vectors = kern_alloc_aligned(64, s->vector_bytes);
    if (!s->strips || !s->vectors) return fail_memory(device, bytes, available);
    unsigned char *to = s->strips;
    for (int32_t i = 0; i < s->n_matrices; i++) {
        s->matrices[i].to = to;
        to += s->matrices[i].strip_bytes * (size_t)s->matrices[i].n_strips;
    }
    return KERN_OK;
}

/* ---- packing ---- */

typedef struct packing {
    kern_pool *pool;
    kern_store *store;
    const kern_binding *binding;
    atomic_llong n_bytes; /* packed so far */
} packing;

static int stopped(const kern_binding *b) {
    return b->stop && __atomic_load_n(b->stop, __ATOMIC_RELAXED);
}

/* The matrix of a unit. */
static matrix *matrix_of(const kern_store *s, int64_t unit) {
    int32_t low = 0, high = s->n_matrices - 1;
    while (low < high) {
        const int32_t middle = (low + high + 1) / 2;
        if (s->matrices[middle].first_unit <= unit)
            low = middle;
        else
            high = middle - 1;
    }
    return &s->matrices[low];
}

static void pack_thread(void *data, int i_thread, int n_threads) {
    (void)n_threads;
    packing *p = data;
    const kern_binding *b = p->binding;
    const int64_t total = (int64_t)p->store->strip_bytes;
    int64_t i;
    while (!stopped(b) && (i = kern_pool_next(p->pool, p->store->n_units)) >= 0) {
        matrix *m = matrix_of(p->store, i);
        const int64_t first = (i - m->first_unit) * m->unit;
        const int64_t end = first + m->unit < m->n_strips ? first + m->unit : m->n_strips;
        const int64_t bytes = (end - first) * (int64_t)m->strip_bytes;
        cpu_pack(m->w, first, end, m->to + (size_t)first * m->strip_bytes);
        if (atomic_fetch_sub(&m->n_left, 1) == 1 && b->spent) b->spent(b->data, m->w);
        const int64_t done = atomic_fetch_add(&p->n_bytes, bytes) + bytes;
        if (i_thread == 0 && b->progress) b->progress(b->data, done, total);
    }
}

static int pack_all(kern_device *device, kern_store *s, const kern_binding *binding) {
    packing p = {.pool = device->pool, .store = s, .binding = binding};
    if (s->n_units) kern_pool_run(device->pool, pack_thread, &p);
    if (p.n_bytes < (int64_t)s->strip_bytes) return KERN_INTERRUPTED;
    if (binding->progress) binding->progress(binding->data, p.n_bytes, p.n_bytes);
    return KERN_OK;
}

/* ---- the image ---- */

static uint64_t mix(uint64_t hash, const void *data, size_t bytes) { /* FNV-1a */
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash;
}

/* What packing makes of a fixed sample in the format of a weight: changes with the layout of its
 * strips. */
static uint64_t mix_sample(uint64_t hash, const kern_weight *like) {
    enum { COLUMNS = 512, ROWS = CPU_STRIP + 1 };
    unsigned char rows[ROWS * COLUMNS * 4];
    _Alignas(64) unsigned char strips[2 * CPU_STRIP * COLUMNS * 4];
    const kern_weight sample = {.format = like->format,
                                .bound_as = like->bound_as,
                                .data = rows,
                                .n_rows = ROWS,
                                .n_columns = COLUMNS};
    for (size_t i = 0; i < sizeof rows; i++) rows[i] = (unsigned char)(i * 0x9e3779b1u >> 13);
    cpu_pack(&sample, 0, 2, strips);
    return mix(hash, strips, 2 * cpu_strip_bytes(cpu_packed(like), COLUMNS));
}

/* A hash of all that decides what lies where: which parts of the file, in which order, packed how.
 */
static uint64_t layout_of(const kern_store *s) {
    uint64_t hash = 0xcbf29ce484222325u;
    const char *start = NULL;
    for (int32_t i = 0; i < s->n_matrices; i++) {
        const kern_weight *w = s->matrices[i].w;
        if (!w->owned && (!start || (const char *)w->data < start)) start = w->data;
    }
    for (int32_t i = 0; i < s->n_matrices; i++) {
        const kern_weight *w = s->matrices[i].w;
        const int64_t at = w->owned ? -1 : (const char *)w->data - start;
        const int64_t shape[] = {at, w->format->id, cpu_packed(w)->id, w->n_rows, w->n_columns};
        hash = mix(mix(hash, shape, sizeof shape), w->name, strlen(w->name));
    }
    for (const kern_format *f = kern_formats; f->name; f++) {
        int32_t i = 0;
        while (i < s->n_matrices && s->matrices[i].w->format != f) i++;
        if (i < s->n_matrices) hash = mix_sample(hash, s->matrices[i].w);
    }
    return hash;
}

typedef struct reading {
    kern_pool *pool;
    const kern_store *store;
    const kern_binding *binding;
    atomic_llong n_bytes;
    atomic_bool failed;
} reading;

static void read_thread(void *data, int i_thread, int n_threads) {
    (void)n_threads;
    reading *r = data;
    const kern_binding *b = r->binding;
    const size_t total = r->store->strip_bytes;
    const int64_t n = (int64_t)((total + KERN_IMAGE_PIECE - 1) / KERN_IMAGE_PIECE);
    int64_t i;
    while (!stopped(b) && !r->failed && (i = kern_pool_next(r->pool, n)) >= 0) {
        const size_t at = (size_t)i * KERN_IMAGE_PIECE;
        const size_t bytes = total - at < KERN_IMAGE_PIECE ? total - at : KERN_IMAGE_PIECE;
        if (!b->image->read(b->image->data, at, r->store->strips + at, bytes)) r->failed = true;
        const int64_t done = atomic_fetch_add(&r->n_bytes, (int64_t)bytes) + (int64_t)bytes;
        if (i_thread == 0 && b->progress) b->progress(b->data, done, (int64_t)total);
    }
}

/* Whether the strips could be had from an image. */
static int read_all(kern_device *device, kern_store *s, const kern_binding *binding) {
    const kern_image *image = binding->image;
    if (!image || !image->open(image->data, layout_of(s), s->strip_bytes)) return 0;
    reading r = {.pool = device->pool, .store = s, .binding = binding};
    kern_pool_run(device->pool, read_thread, &r);
    if (r.failed || r.n_bytes < (int64_t)s->strip_bytes) return 0;
    if (binding->progress) binding->progress(binding->data, r.n_bytes, r.n_bytes);
    return 1;
}

/* Strips from the image or from the file. */
static int fill(kern_device *device, kern_store *s, kern_binding *binding) {
    binding->from_image = read_all(device, s, binding);
    if (binding->from_image) return KERN_OK;
    const int code = stopped(binding) ? KERN_INTERRUPTED : pack_all(device, s, binding);
    if (!code && binding->image) binding->image->keep(binding->image->data, s->strips);
    return code;
}

/* ---- open and close ---- */

static void set_bound(kern_store *s) {
    float *vector = s->vectors;
    for (int32_t i = 0; i < s->n_weights; i++) {
        kern_weight *w = &s->weights[i];
        if (!is_vector(w)) continue;
        w->format->dequantise(w->data, vector, w->n_columns);
        w->bound = vector;
        vector += vector_bytes(w) / sizeof *vector;
    }
    for (int32_t i = 0; i < s->n_matrices; i++) s->matrices[i].w->bound = s->matrices[i].to;
}

int cpu_store_open(kern_device *device, kern_binding *binding, kern_store **out) {
    *out = NULL;
    for (int32_t i = 0; i < binding->n_weights; i++) binding->weights[i].bound = NULL;
    kern_store *s = kern_alloc(sizeof *s);
    if (s) s->matrices = kern_alloc_array((size_t)binding->n_weights, sizeof *s->matrices);
    if (!s || !s->matrices) {
        kern_free(s);
        return host_fail(device, KERN_NO_MEMORY, "out of memory: a table of %d weights",
                         binding->n_weights);
    }
    s->weights = binding->weights;
    s->n_weights = binding->n_weights;
    int code = measure(device, s, binding);
    if (!code) code = allocate(device, s);
    if (!code) code = fill(device, s, binding);
    if (code) {
        cpu_store_close(device, s);
        return code;
    }
    set_bound(s);
    binding->bytes = s->strip_bytes + s->vector_bytes;
    *out = s;
    return KERN_OK;
}

void cpu_store_close(kern_device *device, kern_store *s) {
    (void)device;
    if (!s) return;
    for (int32_t i = 0; i < s->n_weights; i++) s->weights[i].bound = NULL;
    kern_free_aligned(s->strips);
    kern_free_aligned(s->vectors);
    kern_free(s->matrices);
    kern_free(s);
}
