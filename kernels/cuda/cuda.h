/* cuda.h: the inside of the CUDA backend: the device, memory, what a pass is made of, and the
 * launches that the .cu files offer to the executor (run.c). C and C++ alike. Pointers named
 * gpu_… or marked "device" are addresses on the GPU; the host never reads them. Everything is
 * queued on the device's one stream and returns at once, but for cuda_read.
 *
 * Letters: T rows (ids fed) of a pass, N × K a weight's rows × columns. */
#ifndef CUDA_CUDA_H
#define CUDA_CUDA_H

#include "../kern.h"
#include "../rows.h"
#include <cuda_runtime_api.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cuda_memory cuda_memory; /* pool, scratch, staging: memory.c */
typedef struct cuda_blas cuda_blas;     /* cuBLASLt, if found: blas.c */

typedef kern_row cuda_row; /* where a row stands, on the device */

#define CUDA_COUNTERS (1 << 19)

struct kern_device {
    const kern_backend *backend;
    cudaStream_t stream; /* of all operations */
    kern_stats stats;
    int index, compute; /* compute: 10 · major + minor */
    int n_multiprocessors;
    size_t shared_most; /* dynamic shared memory a block may ask for */
    bool invariant;     /* own kernels only, one kind for all numbers of rows */
    uint32_t *counters; /* device: CUDA_COUNTERS words that are 0 between launches: a kernel that
                           counts in them leaves them so */
    bool lost;          /* a kernel failed for good: every call fails, with its message */
    cuda_memory *memory;
    struct cuda_fetches *fetches;
    cuda_blas *blas; /* NULL: own kernels do all products */
    char message[256], description[256];
};

/* Makes the device the calling thread's current one, as every launch and call of CUDA asks. */
static inline void cuda_select(const kern_device *device) {
    int current;
    if (cudaGetDevice(&current) != cudaSuccess || current != device->index)
        (void)cudaSetDevice(device->index);
}

/* ---- backend.c ---- */

/* What a plug-in shows of itself. */
__attribute__((visibility("default"))) const kern_backend *llmlua_backend(void);

/* Writes last_error and returns code. */
int cuda_fail(kern_device *, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* KERN_OK, KERN_NO_MEMORY, or KERN_DEVICE with a message that names what and the error. */
int cuda_check(kern_device *, cudaError_t, const char *what);
/* After launches: whether they could be queued. */
int cuda_launched(kern_device *, const char *what);

/* ---- memory.c ---- */

int cuda_memory_open(kern_device *);
void cuda_memory_close(kern_device *);

/* As kern_backend has them. Small buffers share pieces of device memory, freed ones are kept for
 * the next that asks; work already queued on them has had its turn by then. */
int cuda_alloc(kern_device *, size_t bytes, kern_buffer *out);
void cuda_free(kern_device *, kern_buffer *);
int cuda_write(kern_device *, kern_buffer *to, size_t offset, const void *from, size_t bytes);
int cuda_read(kern_device *, const kern_buffer *from, size_t offset, void *to, size_t bytes);
int cuda_copy(kern_device *, kern_buffer *to, size_t to_offset, const kern_buffer *from,
              size_t from_offset, size_t bytes);

/* Whether bytes from offset on lie in the buffer; KERN_DEVICE with a message. */
int cuda_check_range(kern_device *, const kern_buffer *, size_t offset, size_t bytes);

/* ---- fetch.c ---- */

typedef struct cuda_fetches cuda_fetches; /* reads under way */
int cuda_fetches_open(kern_device *);
void cuda_fetches_close(kern_device *);
int cuda_fetch_begin(kern_device *, const kern_buffer *from, size_t offset, size_t bytes,
                     kern_fetch **out);
int cuda_fetch_end(kern_device *, kern_fetch *, void *to);

/* Copies device memory to the host; waits for all that is queued. */
int cuda_fetch(kern_device *, const void *from, void *to, size_t bytes);

/* A piece of pinned memory of CUDA_PIECE bytes, when the copies sent from it before are done; then
 * a copy from it to the device. For much data; cuda_pieces_free gives the pieces back. With 0 bytes
 * it is next taken when what the caller queued is done, CUDA_PIECES pieces later. */
#define CUDA_PIECE  ((size_t)8 << 20)
#define CUDA_PIECES 3
int cuda_piece_take(kern_device *, void **pinned);
int cuda_piece_send(kern_device *, void *to, size_t bytes);
void cuda_pieces_free(kern_device *);

/* Device memory that lasts until the next call of this function; aligned to 256. Later work on the
 * stream may use it at once: work already queued has had its turn by then. */
int cuda_scratch(kern_device *, size_t bytes, void **out);
/* Copies host bytes to the device by way of pinned memory, without waiting; they stay readable for
 * operations queued before the next 64 such calls. For small things (keys, lists of rows). */
int cuda_upload(kern_device *, const void *from, size_t bytes, const void **out);

/* The device address of a tensor's first entry. */
static inline float *cuda_f32(kern_tensor t) {
    return (float *)(void *)((char *)t.buffer->data + t.offset);
}
static inline int32_t *cuda_i32(kern_tensor t) {
    return (int32_t *)(void *)((char *)t.buffer->data + t.offset);
}

/* ---- weights: store.c, layout.cu ---- */

/* How a matrix lies on the device. */
typedef enum cuda_layout {
    CUDA_PLAIN, /* as in the file, row-major (vectors, tables that are looked up) */
    CUDA_TILED  /* re-laid for products in tiles of 16 rows: see layout.h */
} cuda_layout;

typedef struct cuda_matrix {
    const kern_format *format;
    int64_t n_rows, n_columns;
    cuda_layout layout;
    const void *gpu; /* device; NULL: none in this layout */
    size_t bytes;
    const void *gpu_plain; /* device: rows as in the file where they are looked up too, or NULL */
} cuda_matrix;

/* Bytes that a weight takes in tiles; 0: its format has no tiles of its own (the generic kernel
 * reads it plain). */
size_t cuda_tiled_bytes(const kern_format *, int64_t n_rows, int64_t n_columns);
/* Re-lays a matrix that lies plain at `from` (device) into tiles at `to` (device). Strips of 16
 * rows follow each other, each cuda_tiled_bytes(format, 16, n_columns) long: whole strips can be
 * re-laid one after the other. */
int cuda_tile(kern_device *, const kern_format *, int64_t n_rows, int64_t n_columns,
              const void *from, void *to);

/* ---- products: product*.cu ---- */

/* What becomes of a product's result. */
typedef enum cuda_epilogue {
    CUDA_STORE,    /* out = x (+ bias) */
    CUDA_ADD,      /* out += x (+ bias) */
    CUDA_GELU,     /* out = gelu_tanh(x + bias) */
    CUDA_SILU_MUL, /* two matrices, gate and up: out = silu(gate) · up */
    CUDA_GELU_MUL  /* the same with gelu_tanh */
} cuda_epilogue;

typedef struct cuda_product {
    const cuda_matrix *w; /* [N,K] */
    const float *bias;    /* device [N], or NULL */
    float *out;           /* device [T,N]; of the second of a pair: scratch */
} cuda_product;

#define CUDA_MOST_PRODUCTS 3

/* Up to three products of one input [T,K] (q, k, v; gate, up). One launch where all weights lie
 * alike or T is at most 32; else one for each run of neighbours that do. Rows' results do not
 * depend on T where the device is invariant. */
int cuda_products(kern_device *, const cuda_product *list, int n_products, const float *in,
                  int32_t n_rows, cuda_epilogue);

/* Rows first … first + n_rows of a matrix in f16 (or bf16), out [n_rows, n_columns], whatever its
 * layout. */
int cuda_dequantise(kern_device *, const cuda_matrix *, int64_t first, int64_t n_rows, bool bf16,
                    uint16_t *out);

/* out[t] = scale · w[id(t)]; ids device [T] */
int cuda_embed(kern_device *, const cuda_matrix *w, const int32_t *ids, int32_t n_rows, float scale,
               float *out);
/* out[t] += w[position(t)] */
int cuda_embed_at(kern_device *, const cuda_matrix *w, const cuda_row *rows, int32_t n_rows,
                  float *out);

/* ---- blas.c ---- */

/* Opens the library if it is there; else products are made by the own kernels. */
void cuda_blas_open(kern_device *);
void cuda_blas_close(kern_device *);
void cuda_blas_describe(const kern_device *, char *text, size_t text_bytes); /* "cuBLASLt 13.1" */
/* Whether cuda_blas_products is there for such a weight and so many rows, and likely faster. Never
 * where the device is invariant. */
bool cuda_blas_serves(const kern_device *, const cuda_matrix *w, int32_t n_rows);
/* As cuda_products, by cuBLASLt; every out is written to, that of the second of a pair too. Rows
 * are rounded to bf16 for BF16 weights, else to f16, those with large entries scaled by a power of
 * two. What the library does not take goes to cuda_products. */
int cuda_blas_products(kern_device *, const cuda_product *list, int n_products, const float *in,
                       int32_t n_rows, cuda_epilogue);

/* out[n,n] = x[n,n] · w[n,n]^T of bf16 matrices on the device, by the library, which must be there.
 */
int cuda_blas_square(kern_device *, int64_t n, const void *w, const void *x, float *out);

/* ---- around cuBLASLt: blas_rows.cu ---- */

/* out16[T,K] = in[T,K] / scales[t] as f16, scales[t] a power of two that keeps it within f16's
 * range; or as bf16, with scales NULL. */
int cuda_blas_round(kern_device *, const float *in, int32_t n_rows, int64_t width, bool bf16,
                    uint16_t *out16, float *scales);
/* x[T,N] /= scales[t] */
int cuda_blas_unscale(kern_device *, float *x, int32_t n_rows, int64_t width, const float *scales);
/* What the epilogue makes of out[T,N] · scales[t] (NULL: 1) + bias (or NULL): itself, its gelu, or
 * its act · up[T,N]. */
int cuda_blas_finish(kern_device *, float *out, const float *up, int32_t n_rows, int64_t width,
                     const float *scales, const float *bias, cuda_epilogue);

/* ---- what is done row by row: rows.cu ---- */

typedef struct cuda_norm {
    const float *in;       /* device [T,W] */
    const float *w, *bias; /* device [W]; bias: of a layer norm, or NULL */
    float *out;            /* device [T,W]; may be `in` */
    int32_t n_rows, width;
    float eps;
    int32_t layer; /* not 0: layer norm; else RMS norm (32 bits: arguments have no gaps) */
    float *add; /* NULL, or device [T,W]: add[t] += norm(in[t]), and out is not written (norms after
                   a block, Gemma) */
    const float *then_w; /* with add: NULL, or device [W]: then also out[t] = RMS norm(add[t]) ·
                            then_w, with then_eps */
    float then_eps;
} cuda_norm;
int cuda_norm_rows(kern_device *, const cuda_norm *);

/* x[T,W] += y[T,W]; out = act(x) · y; out = gelu(x): for plans that cannot be fused */
int cuda_add_rows(kern_device *, float *x, const float *y, int64_t n);
int cuda_act_mul(kern_device *, plan_kind, const float *x, const float *y, float *out, int64_t n);

/* ---- pages and attention: pages.c, attend*.cu ---- */

/* A sequence of the pass, on the device. Its page i holds slots 32·i …: pages[first_page + i]. */
typedef struct cuda_sequence {
    int32_t n_past, n_rows, first_row, first_page;
} cuda_sequence;

/* What a pass reads from device memory, so that a captured graph serves every step: addresses stay
 * as long as the work's bucket does, their content is uploaded at each step's beginning in one
 * copy. Rows beyond those in use of a bucket have i_sequence -1: kernels leave their results
 * undefined (finite or not) but read no pages for them and write none. */
typedef struct cuda_step {
    const int32_t *ids;             /* device [n_rows] */
    const cuda_row *rows;           /* device [n_rows] */
    const cuda_sequence *sequences; /* device [n_sequences] */
    unsigned char *const *pages;    /* device: addresses of all sequences' pages, list after list */
    const int32_t *n_shared_pages; /* device [1]: leading pages that all sequences have in common */
    int32_t n_rows, n_sequences;   /* of the bucket */
    int32_t most_positions;        /* no row of any step of this bucket sees more */
    int32_t shared_worth;          /* 0: n_shared_pages is 0 whatever comes */
    bool one_each;                 /* row t is sequence t's only one (decode) */
    bool trees;                    /* rows may branch: parents count */
    void *attend_work;             /* device: cuda_attend_bytes of scratch */
    int32_t *attend_counters;      /* device: cuda_attend_counters() ints, 0 between launches */
} cuda_step;

/* A page: layer after layer; in a layer keys [n_heads_kv][32][head_dim_k], then values
 * [n_heads_kv][32][head_dim_v], in the KV type; q8_0: for each row of a head, int8 values, and the
 * f16 scales of all its rows' blocks after them (attend.h). 256-byte aligned. */
typedef struct cuda_page_shape {
    kern_kv_shape kv;
    size_t layer_bytes, key_bytes; /* of a layer in a page; of its keys */
    size_t page_bytes;
} cuda_page_shape;
cuda_page_shape cuda_page_layout(const kern_kv_shape *);

typedef struct cuda_attention {
    const plan_op *op;            /* PLAN_ATTEND: heads, dims, scale, window, layer */
    float *q;                     /* device [T, n_heads · head_dim] */
    float *k;                     /* device [T, n_heads_kv · head_dim] */
    const float *v;               /* device [T, n_heads_kv · head_dim_v] */
    float *out;                   /* device [T, n_heads · head_dim_v] */
    const float *q_norm, *k_norm; /* device [head_dim], or NULL: no norm of heads */
    float eps;
    const float *freqs; /* device [n_rotary / 2], or NULL: no rotation */
    int32_t n_rotary;
    float magnitude;
    bool interleaved;
} cuda_attention;
/* q normed by head and rotated in place; keys, normed and rotated too, and values to their slots of
 * the pages (k stays as it is). */
int cuda_place(kern_device *, const cuda_page_shape *, const cuda_step *, const cuda_attention *);
/* out = attention over what each row sees. Sums run in chunks of fixed absolute position. */
int cuda_attend(kern_device *, const cuda_page_shape *, const cuda_step *, const cuda_attention *);
/* Bytes of attend_work for steps of up to n_rows rows that see up to most_positions. */
size_t cuda_attend_bytes(const cuda_page_shape *, const cuda_attention *, int32_t n_rows,
                         int32_t most_positions);
/* ints of attend_counters for that many rows */
int32_t cuda_attend_counters(const cuda_attention *, int32_t n_rows);

/* One position of a page (a device address) from and to plain bytes on the device, as
 * kern_backend's page_read has them. */
int cuda_position_get(kern_device *, const cuda_page_shape *, const unsigned char *page,
                      int32_t position, unsigned char *plain);
int cuda_position_set(kern_device *, const cuda_page_shape *, unsigned char *page, int32_t position,
                      const unsigned char *plain);

/* ---- pages.c ---- */

int cuda_pages_open(kern_device *, const kern_kv_shape *, int32_t n_pages, kern_pages **out);
void cuda_pages_close(kern_device *, kern_pages *);
size_t cuda_page_bytes(kern_device *, const kern_kv_shape *);
int cuda_page_reserve(kern_device *, kern_pages *, int32_t page);
int cuda_page_copy(kern_device *, kern_pages *, int32_t to, int32_t from, int32_t n_positions);
size_t cuda_position_bytes(const kern_kv_shape *);
int cuda_page_read(kern_device *, kern_pages *, int32_t page, int32_t position, void *to);
int cuda_page_write(kern_device *, kern_pages *, int32_t page, int32_t position, const void *from);
int cuda_pages_save(kern_device *, kern_pages *, const int32_t *pages, int32_t n_pages,
                    void *const *to);
int cuda_pages_load(kern_device *, kern_pages *, const int32_t *pages, int32_t n_pages,
                    const void *const *from);

struct kern_pages {
    cuda_page_shape shape;
    int32_t n_pages;
    unsigned char **pages; /* host array of device addresses; NULL until reserved */
    int32_t slab_pages, n_slabs;
    kern_buffer *slabs;
};

/* ---- store.c ---- */

int cuda_store_open(kern_device *, kern_binding *, kern_store **out);
void cuda_store_close(kern_device *, kern_store *);

/* What bind left in w->bound; a vector's `gpu` is f32 [n_columns]. */
static inline const cuda_matrix *cuda_bound(const kern_weight *w) {
    return (const cuda_matrix *)w->bound;
}

/* ---- measure.c, peak.cu ---- */

int cuda_measure(kern_device *, kern_peak, size_t size, double *out);
/* Fills device memory (whole blocks) with random blocks: at most CUDA_PIECE is sent, and repeated.
 */
int cuda_fill_random(kern_device *, const kern_format *, uint64_t seed, void *to, size_t bytes);

/* One launch that reads the bytes (all but less than a turn of all threads: *read), or does about
 * so many operations of bf16 products in registers (*done). out: device, 4 bytes. */
int cuda_peak_read(kern_device *, const void *from, size_t bytes, void *out, size_t *read);
int cuda_peak_multiply(kern_device *, double operations, void *out, double *done);

/* ---- run.c ---- */

int cuda_work_open(kern_device *, const plan *, kern_pages *, int32_t max_rows, kern_work **out);
void cuda_work_close(kern_device *, kern_work *);
size_t cuda_work_bytes(const kern_work *);
kern_buffer *cuda_work_buffer(kern_work *, int32_t i_buffer);
int cuda_run(kern_device *, kern_work *, const plan *, int32_t first, int32_t count,
             const kern_batch *);

#ifdef __cplusplus
}
#endif

#endif
