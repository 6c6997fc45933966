/* kern.h: what a backend is: one table of operations. Operations take buffer + offset, return only
 * an error code and leave their results in buffers; they may be asynchronous, and `read` is the
 * only wait. ref.c is the specification of every one of them. Letters as in plan.h; a tensor is
 * [R,C], row-major. */
#ifndef KERN_KERN_H
#define KERN_KERN_H

#include "plan.h"
#include "pool.h"
#include <stddef.h>
#include <stdint.h>

#define KERN_ABI 7

/* Codes of every operation. The message, if any, is the device's last_error(). */
enum {
    KERN_OK = 0,
    KERN_NO_MEMORY = -1,
    KERN_INTERRUPTED = -2,
    KERN_DEVICE = -3,
    KERN_UNSUPPORTED = -4
};

typedef struct kern_device kern_device; /* private to the backend */
typedef struct kern_pages kern_pages;   /* private to the backend */
typedef struct kern_work kern_work;     /* private to the backend */
typedef struct kern_fetch kern_fetch;   /* private to the backend */
typedef struct kern_store kern_store;   /* private to the backend */

/* Device memory, and any part of it: `data` + n is the address of byte n. The host may use it if
 * the backend says host_memory. */
typedef struct kern_buffer {
    void *data;
    size_t bytes;
} kern_buffer;

/* A dense tensor in device memory: f32 or i32 [n_rows, n_columns] from byte `offset` on. */
typedef struct kern_tensor {
    kern_buffer *buffer;
    size_t offset;
    int64_t n_rows, n_columns;
} kern_tensor;

#define KERN_FETCH_MOST 1024 /* bytes */

typedef enum kern_kv { KERN_KV_F32, KERN_KV_F16, KERN_KV_Q8_0 } kern_kv;

#define KERN_PAGE_POSITIONS 32 /* positions of all layers of one sequence in a page */

typedef struct kern_kv_shape {
    int32_t n_layers, n_heads_kv, head_dim_k, head_dim_v;
    kern_kv type; /* q8_0 asks head dims that are multiples of 32 */
} kern_kv_shape;

/* One sequence of a pass: keys and values of rows first_row … first_row + n_rows of the batch lie
 * in its slots n_past … n_past + n_rows - 1, which are their positions too but on branches of a
 * tree. Page i holds slots 32·i … of the sequence. */
typedef struct kern_sequence {
    const int32_t *pages; /* page numbers, enough for n_past + n_rows positions */
    int32_t n_past, n_rows, first_row;
} kern_sequence;

/* What one operation of a plan cost, summed over runs. On n threads seconds are those of all of
 * them ÷ n. */
typedef struct kern_cost {
    uint64_t calls, rows;
    uint64_t bytes;      /* of weights that it had to read, of keys and values to read or write */
    uint64_t operations; /* of products and attention; multiplying and adding are two */
    double seconds;
    double input_s; /* of those: making its input ready (rounding activations to int8) */
    double wait_s;  /* besides: threads that waited for others after it */
} kern_cost;

typedef struct kern_profile {
    kern_cost *ops; /* of each operation of the plan */
    double run_s;   /* in runs; what is in no operation is threads waiting for each other */
} kern_profile;

/* One pass over the weights. Every row's results are bit-identical whatever else is in the batch.
 */
typedef struct kern_batch {
    int32_t n_rows, n_sequences;
    const kern_sequence *sequences;
    kern_tensor ids;         /* i32 [n_rows, 1], on the device; unused by a run of the head alone */
    const int32_t *host_ids; /* the same, for a model that is split (split.h); else NULL */
    /* NULL: each row follows the one before it. Else trees: a row's parent within its sequence's
     * rows (1-based, an earlier one; 0: the cache's end). A row stands at its parent's position + 1
     * (n_past below 0), sees what was cached and its ancestors, and its results are the same bits
     * as if those had been fed in that order. */
    const int32_t *parents;
    kern_tensor logits; /* where PLAN_MATMUL into buffer `logits` writes: [n_rows, vocabulary] */
    const volatile int *stop; /* NULL, or: when it becomes non-zero, return KERN_INTERRUPTED soon */
    kern_profile *profile;    /* NULL, or: what the run costs is added here */
} kern_batch;

typedef struct kern_device_options {
    int n_threads;
    const char *tier; /* CPU: plain, neon, avx2, avxvnni, avx512; NULL: the best there is */
    int index;        /* which of several GPUs, from 0 on */
    bool invariant;   /* GPU: the same bits for a row in any batch, which the CPU has always */
} kern_device_options;

/* What there is to compute on, before it is opened. */
typedef struct kern_device_info {
    char name[128];             /* of the hardware */
    uint64_t bytes, bytes_free; /* its memory */
    int32_t compute;            /* GPU: compute capability, 10 · major + minor; else 0 */
    int32_t driver, runtime;    /* GPU: the newest CUDA the driver knows, and that of the plug-in,
                                   as 1000 · major + 10 · minor; else 0 */
} kern_device_info;

typedef struct kern_stats {
    uint64_t launches, syncs, bytes_up, bytes_down;
} kern_stats;

/* Where a backend may find, and leave, what it makes of a model's weights: bytes that whoever keeps
 * them knows nothing of. Any failure means that they have to be made. */
typedef struct kern_image {
    void *data; /* of the calls */
    /* Whether an image of the same weights is there that was made by this layout (a hash of all
     * that decides what lies where) and has this size. */
    bool (*open)(void *data, uint64_t layout, size_t bytes);
    /* Reads bytes from offset on (a multiple of KERN_IMAGE_PIECE; as many, or up to the end), any
     * number of threads at once. false: they cannot be read or are not what was kept. */
    bool (*read)(void *data, size_t offset, void *to, size_t bytes);
    /* Takes what open asked for; it stays as it is until unbind. */
    void (*keep)(void *data, const void *from);
} kern_image;

#define KERN_IMAGE_PIECE ((size_t)256 << 10)

/* All weights of a model, to be made ready for runs. */
typedef struct kern_binding {
    kern_weight *weights; /* stay until unbind; tensors that share data are one weight */
    int32_t n_weights;
    bool f16_as_bf16;         /* products may take F16 weights rounded to BF16 */
    const volatile int *stop; /* NULL, or: when it becomes non-zero, end with KERN_INTERRUPTED */
    /* NULL, or is told how far it is, in bytes of weights made; on the caller's thread */
    void (*progress)(void *data, int64_t done, int64_t total);
    /* NULL, or is told that the weight's data has been read and is only needed again where rows are
     * looked up: memory it was read into may go; on any thread */
    void (*spent)(void *data, const kern_weight *);
    void *data;              /* of the calls */
    const kern_image *image; /* or NULL */
    /* Not 0 (where the host cannot see the memory): matrices are not read, they are random blocks
     * of this seed (random.h), repeated. */
    uint64_t random;
    size_t bytes;    /* out: memory taken for what was made; 0: weights are read where they are.
                        With KERN_NO_MEMORY: what was asked, if that is known */
    bool from_image; /* out */
} kern_binding;

/* Which numbers a random draw uses: see noise.h. */
typedef struct kern_key {
    uint64_t seed, stream;
    uint32_t position;
} kern_key;

/* What a device can do at best, measured as bandwidth.c and arithmetic.c measure the CPU. */
typedef enum kern_peak {
    KERN_PEAK_READ,    /* bytes of its memory read a second */
    KERN_PEAK_PRODUCTS /* operations a second of a large product of bf16 matrices, f32 sums */
} kern_peak;

typedef enum kern_unary {
    KERN_EXP,
    KERN_LOG,
    KERN_ABS,
    KERN_SQRT,
    KERN_NEG,
    KERN_CLAMP /* to [a, b] */
} kern_unary;

typedef enum kern_binary {
    KERN_ADD,
    KERN_SUB,
    KERN_MUL,
    KERN_DIV,
    KERN_POW,
    KERN_LT,
    KERN_LE,
    KERN_GT,
    KERN_GE,
    KERN_EQ /* comparisons give 1 / 0 */
} kern_binary;

typedef enum kern_reduce {
    KERN_MAX,
    KERN_MIN,
    KERN_SUM,
    KERN_LOGSUMEXP,
    KERN_ENTROPY, /* nats, of the softmax of the row; 0 · ln 0 = 0 */
    KERN_STD      /* population deviation of the finite entries */
} kern_reduce;

/* What a choice (argmax, topk, sample) writes instead of an id if the row cannot be chosen from. */
enum { KERN_ID_NAN = -1, KERN_ID_INF = -2, KERN_ID_NO_FINITE = -3 };

typedef struct kern_backend {
    uint32_t abi;  /* KERN_ABI */
    uint32_t size; /* sizeof(kern_backend) */
    const char *name;
    kern_kv kv_default;
    uint8_t host_memory; /* buffers' data may be read and written by the host between operations */

    /* Device `index` of those that could be opened. KERN_OK, or KERN_DEVICE with a message: why
     * there is none, or that there are no more. n_devices (out): how many there are. */
    int (*probe)(int index, kern_device_info *out, int *n_devices, char *message,
                 size_t message_bytes);
    /* NULL with a message, which is empty if memory is short. What last_error says of a device
     * just opened is a line that its user should know. */
    kern_device *(*open)(const kern_device_options *options, char *message, size_t message_bytes);
    void (*close)(kern_device *);
    const char *(*describe)(kern_device *); /* "cpu: avx2, 2 threads" */
    const char *(*last_error)(kern_device *);
    void (*stats)(kern_device *, kern_stats *out);

    /* memory */
    int (*alloc)(kern_device *, size_t bytes,
                 kern_buffer *out); /* contents undefined; aligned to 64 */
    void (*free)(kern_device *, kern_buffer *);
    int (*write)(kern_device *, kern_buffer *to, size_t offset, const void *from, size_t bytes);
    int (*read)(kern_device *, const kern_buffer *from, size_t offset, void *to, size_t bytes);
    int (*copy)(kern_device *, kern_buffer *to, size_t to_offset, const kern_buffer *from,
                size_t from_offset, size_t bytes);

    /* Reads that do not wait, of at most KERN_FETCH_MOST bytes; both NULL where the host can see
     * the memory. fetch queues the copy; fetched waits until it is there, though not for what was
     * queued after it, and ends it. With `to` NULL it only ends it. */
    int (*fetch)(kern_device *, const kern_buffer *from, size_t offset, size_t bytes,
                 kern_fetch **out);
    int (*fetched)(kern_device *, kern_fetch *, void *to);

    /* weights: `bound` may be set; the file stays mapped until unbind, which frees all that bind
     * made. bind fails as a whole, and then nothing is left of it. */
    int (*bind)(kern_device *, kern_binding *, kern_store **out);
    void (*unbind)(kern_device *, kern_store *); /* accepts NULL */

    /* pages: numbers 0 … n_pages-1; memory of a page is taken at its first use */
    int (*pages_open)(kern_device *, const kern_kv_shape *, int32_t n_pages, kern_pages **out);
    void (*pages_close)(kern_device *, kern_pages *);
    size_t (*page_bytes)(kern_device *, const kern_kv_shape *);
    int (*page_reserve)(kern_device *, kern_pages *, int32_t page); /* makes its memory exist */
    int (*page_copy)(kern_device *, kern_pages *, int32_t to, int32_t from, int32_t n_positions);
    /* one position (0 … 31) of a page as plain bytes, layer after layer: keys then values, head
     * after head, in the KV type (q8_0: f16 scale + 32 int8 a block): what files hold. */
    size_t (*position_bytes)(const kern_kv_shape *);
    int (*page_read)(kern_device *, kern_pages *, int32_t page, int32_t position, void *to);
    int (*page_write)(kern_device *, kern_pages *, int32_t page, int32_t position,
                      const void *from);
    /* Whole pages, distinct ones, as page_bytes opaque bytes each that mean something only to pages
     * of the same shape on the same device; both NULL where the host can see the memory. save waits
     * until the bytes are there. load makes the pages' memory exist, and the bytes may go when it
     * returns. A failed save leaves the pages as they were, a failed load has undefined ones. */
    int (*pages_save)(kern_device *, kern_pages *, const int32_t *pages, int32_t n_pages,
                      void *const *to);
    int (*pages_load)(kern_device *, kern_pages *, const int32_t *pages, int32_t n_pages,
                      const void *const *from);

    /* the forward pass: operations first … first + count of the plan on the work's buffers */
    int (*work_open)(kern_device *, const plan *, kern_pages *, int32_t max_rows, kern_work **out);
    void (*work_close)(kern_device *, kern_work *);
    size_t (*work_bytes)(const kern_work *);                    /* memory it takes */
    kern_buffer *(*work_buffer)(kern_work *, int32_t i_buffer); /* rows of its width, densely */
    int (*run)(kern_device *, kern_work *, const plan *, int32_t first, int32_t count,
               const kern_batch *);

    /* tensors. Shapes are checked by the caller. `out` may be the same tensor as x. A binary
     * operand of one row is repeated over rows, of one column over columns. i32 variants are exact
     * (wrap). */
    int (*unary)(kern_device *, kern_unary, kern_tensor x, float a, float b, kern_tensor out);
    int (*binary)(kern_device *, kern_binary, kern_tensor x, kern_tensor y, kern_tensor out);
    int (*binary_i32)(kern_device *, kern_binary, kern_tensor x, kern_tensor y, kern_tensor out);
    int (*to_f32)(kern_device *, kern_tensor x_i32, kern_tensor out);
    int (*where)(kern_device *, kern_tensor x, kern_tensor cond, kern_tensor y, kern_tensor out);
    int (*reduce)(kern_device *, kern_reduce, kern_tensor x, kern_tensor out); /* out [R,1] */
    int (*log_softmax)(kern_device *, kern_tensor x, kern_tensor out);
    int (*softmax)(kern_device *, kern_tensor x, kern_tensor out);
    int (*sort)(kern_device *, kern_tensor x, kern_tensor out);   /* rows, ascending */
    int (*cumsum)(kern_device *, kern_tensor x, kern_tensor out); /* along rows' columns */
    /* choices: ids are column + base */
    int (*argmax)(kern_device *, kern_tensor x, int32_t base, kern_tensor ids);
    int (*topk)(kern_device *, kern_tensor x, int64_t k, int32_t base, kern_tensor scores,
                kern_tensor ids);
    /* groups of R / groups rows each; per group the k best of all its rows' entries, best first
     * (ties: lower row, then lower id): scores f32, ids i32 (+ base), rows i32 (1-based), each
     * [groups · k, 1] */
    int (*topk_joint)(kern_device *, kern_tensor x, int64_t k, int64_t groups, int32_t base,
                      kern_tensor scores, kern_tensor ids, kern_tensor rows);
    int (*gumbel)(kern_device *, kern_tensor x, int32_t base, const kern_key *keys,
                  kern_tensor out);
    int (*sample)(kern_device *, kern_tensor x, int32_t base, const kern_key *keys,
                  kern_tensor ids);
    /* filters: what is cut becomes -inf; at least one entry of a row with a finite one stays. `key`
     * has buffer NULL for the default, -x. k and p are [R,1] or [1,1]. */
    int (*threshold_k)(kern_device *, kern_tensor x, kern_tensor k_i32, kern_tensor key,
                       kern_tensor out);
    int (*threshold_mass)(kern_device *, kern_tensor x, kern_tensor p, kern_tensor key,
                          kern_tensor out);
    int (*min_p)(kern_device *, kern_tensor x, kern_tensor p, kern_tensor out);
    int (*cut_below)(kern_device *, kern_tensor x, kern_tensor least, kern_tensor out);
    /* lists of columns (first[r] … first[r + 1] of them; host arrays, checked): one for all rows,
     * or one a row */
    int (*mask)(kern_device *, kern_tensor x, const int64_t *first, const int32_t *columns,
                int64_t n_lists, int only, kern_tensor out);
    /* out[r,i] = x[r, ids[r,i] - base]; ids i32 [R,n] or [1,n] on the device, inside the columns */
    int (*gather)(kern_device *, kern_tensor x, kern_tensor ids, int32_t base, kern_tensor out);
    /* x[r, ids[r,i] - base] (+)= v[r,i] in place, v broadcast as in binary; repeated ids: the last
     * sets, each adds, in order */
    int (*scatter)(kern_device *, kern_tensor x, kern_tensor ids, int32_t base, kern_tensor v,
                   int add);
    /* matrices */
    int (*matmul)(kern_device *, kern_tensor a, kern_tensor b, kern_tensor out); /* [n,k] · [k,m] */
    int (*transpose)(kern_device *, kern_tensor x, kern_tensor out);
    int (*normalize)(kern_device *, kern_tensor x,
                     kern_tensor out); /* rows to length 1; zero rows stay */
    int (*rows)(kern_device *, kern_tensor x, const int64_t *rows,
                kern_tensor out); /* 0-based, repeats */
    /* a block of columns (4-byte entries): out[r, to + c] = x[r, from + c], c < count */
    int (*columns)(kern_device *, kern_tensor x, int64_t from, int64_t count, kern_tensor out,
                   int64_t to);

    /* A peak of the device, a second: size is bytes to read, or rows and columns of the matrices (a
     * multiple of 64). NULL: not known. */
    int (*measure)(kern_device *, kern_peak, size_t size, double *out);
} kern_backend;

/* The backends built in; ends with NULL. */
extern const kern_backend *const kern_backends[];
extern const kern_backend kern_ref, kern_cpu;

#endif
