/* host.h: what the backends whose memory is the host's share: the device, buffers, pages, the rows
 * of a batch. */
#ifndef KERN_HOST_H
#define KERN_HOST_H

#include "kern.h"
#include "rows.h"

/* Instruction tiers of the cpu backend, in order; one that a machine lacks is served by the best of
 * its own below. A file named *_avx2.c is compiled for that tier
 * only and is entered only through a table that tier.c picked at run time. */
typedef enum kern_tier {
    KERN_TIER_PLAIN,
    KERN_TIER_NEON, /* aarch64, with dot products of bytes; all others are of x86-64 */
    KERN_TIER_AVX2,
    KERN_TIER_AVXVNNI,
    KERN_TIER_AVX512
} kern_tier;

/* The best tier that this processor and system can run, of those up to `most`. */
kern_tier kern_tier_within(kern_tier most);
static inline kern_tier kern_tier_best(void) { return kern_tier_within(KERN_TIER_AVX512); }
int kern_tier_parse(const char *name, kern_tier *out); /* 0, or -1: unknown name */
const char *kern_tier_name(kern_tier);

struct kern_device {
    const kern_backend *backend;
    kern_pool *pool;
    kern_tier tier;
    int rounds_bf16; /* cpu: products with BF16 weights round activations to bf16, set where the
                        tier has an instruction that wants them so */
    kern_stats stats;
    char message[256];     /* last_error */
    char description[128]; /* describe */
};

int host_probe(int index, kern_device_info *out, int *n_devices, char *message,
               size_t message_bytes);
/* Opens the device with its pool; the tier is PLAIN unless the backend sets it. */
kern_device *host_open(const kern_backend *, const kern_device_options *, char *message,
                       size_t message_bytes);
void host_close(kern_device *);
const char *host_describe(kern_device *);
const char *host_last_error(kern_device *);
void host_stats(kern_device *, kern_stats *out);
int host_fail(kern_device *, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

int host_alloc(kern_device *, size_t bytes, kern_buffer *out);
void host_free(kern_device *, kern_buffer *);
int host_write(kern_device *, kern_buffer *to, size_t offset, const void *from, size_t bytes);
int host_read(kern_device *, const kern_buffer *from, size_t offset, void *to, size_t bytes);
int host_copy(kern_device *, kern_buffer *to, size_t to_offset, const kern_buffer *from,
              size_t from_offset, size_t bytes);

static inline float *host_f32(kern_tensor t) {
    return (float *)(void *)((char *)t.buffer->data + t.offset);
}
static inline int32_t *host_i32(kern_tensor t) {
    return (int32_t *)(void *)((char *)t.buffer->data + t.offset);
}

/* Pages. Layout of a page: layer after layer; in a layer all keys, then all values; 64-byte
 * aligned. Keys are transposed, [n_heads_kv][head_dim_k][32 positions]: a number of a query meets
 * 32 positions at once. Values are [n_heads_kv][32 positions][head_dim_v], rows rounded up to 16
 * numbers. In the KV type; q8_0: for each 32 numbers of a key the f16 scales of 32 positions, then
 * int8 [32][32 positions]; a value is head_dim / 32 blocks of an f16 scale and 32 int8. */
struct kern_pages {
    kern_kv_shape shape;
    int32_t n_pages;
    size_t page_bytes, layer_bytes;        /* layer_bytes: keys and values of a layer in a page */
    size_t key_row_bytes, value_row_bytes; /* one head of one position, in a page */
    unsigned char **pages;                 /* NULL until reserved */
    int32_t slab_pages;                    /* memory is taken for so many neighbours at a time */
    unsigned char **slabs;
};
static inline unsigned char *host_keys(const struct kern_pages *p, int32_t page, int32_t i_layer,
                                       int32_t head) {
    return p->pages[page] + (size_t)i_layer * p->layer_bytes +
           (size_t)head * KERN_PAGE_POSITIONS * p->key_row_bytes;
}
static inline unsigned char *host_values(const struct kern_pages *p, int32_t page, int32_t i_layer,
                                         int32_t head) {
    return p->pages[page] + (size_t)i_layer * p->layer_bytes +
           (size_t)p->shape.n_heads_kv * KERN_PAGE_POSITIONS * p->key_row_bytes +
           (size_t)head * KERN_PAGE_POSITIONS * p->value_row_bytes;
}
void host_kv_store(kern_kv type, const float *x, int32_t n,
                   void *to); /* a row of n values, rounded */
void host_kv_load(kern_kv type, const void *from, int32_t n, float *y); /* back to f32 */

/* The keys of a head in a page, n positions from from_slot on, to positions to_slot … of another;
 * or one position to or from a plain row, which HOST_ROW for its slot says. */
enum { HOST_ROW = -1 };
void host_copy_keys(kern_kv type, int32_t head_dim, unsigned char *to, int32_t to_slot,
                    const unsigned char *from, int32_t from_slot, int32_t n);

int host_pages_open(kern_device *, const kern_kv_shape *, int32_t n_pages, kern_pages **out);
void host_pages_close(kern_device *, kern_pages *);
size_t host_page_bytes(kern_device *, const kern_kv_shape *);
int host_page_reserve(kern_device *, kern_pages *, int32_t page);
int host_page_copy(kern_device *, kern_pages *, int32_t to, int32_t from, int32_t n_positions);
int host_page_read(kern_device *, kern_pages *, int32_t page, int32_t position, void *to);
int host_page_write(kern_device *, kern_pages *, int32_t page, int32_t position, const void *from);

/* Activations of a pass: a buffer of max_rows rows for every plan buffer but the logits. */
struct kern_work {
    kern_pages *pages;
    int32_t max_rows, n_buffers;
    kern_buffer *buffers;
    void *scratch; /* the backend's own (quantised activations, attention partials) */
    size_t scratch_bytes;
};
/* The shape of its keys and values; NULL: it has no pages. */
static inline const kern_kv_shape *host_kv(const struct kern_work *work) {
    return work->pages ? &work->pages->shape : NULL;
}
int host_work_open(kern_device *, const plan *, kern_pages *, int32_t max_rows, kern_work **out);
void host_work_close(kern_device *, kern_work *);
size_t host_work_bytes(const kern_work *);
kern_buffer *host_work_buffer(kern_work *, int32_t i_buffer);

typedef kern_row host_row;

/* Fills rows[n_rows]; what is asked must fit what was opened and reserved. */
int host_map_rows(kern_device *, const kern_work *, const kern_batch *, host_row *rows);

/* Whether what the row sees beyond n_past lies elsewhere than in the slots of its positions. */
static inline int host_row_branches(const host_row *row) { return row->slot != row->position; }

/* The keys and values of one head that row t sees at positions from … to - 1, laid out as in pages:
 * position p in slot p % 32 of page p / 32 - from / 32. No position is on a page before that of
 * n_past. */
void host_gather_path(const kern_pages *, const kern_batch *, const host_row *rows, int64_t t,
                      int32_t i_layer, int32_t head, int32_t from, int32_t to, unsigned char *keys,
                      unsigned char *values);

/* The entries of a backend's table that the functions above are. */
#define HOST_OPS                                                                                   \
    .probe = host_probe, .close = host_close, .describe = host_describe,                           \
    .last_error = host_last_error, .stats = host_stats, .alloc = host_alloc, .free = host_free,    \
    .write = host_write, .read = host_read, .copy = host_copy, .pages_open = host_pages_open,      \
    .pages_close = host_pages_close, .page_bytes = host_page_bytes,                                \
    .page_reserve = host_page_reserve, .page_copy = host_page_copy,                                \
    .position_bytes = kern_position_bytes, .page_read = host_page_read,                            \
    .page_write = host_page_write, .work_close = host_work_close, .work_bytes = host_work_bytes,   \
    .work_buffer = host_work_buffer

#endif
