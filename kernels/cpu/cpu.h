/* cpu.h: what the files of the cpu backend share: the table of a tier's kernels, int8 activations,
 * and the scratch of a work. Nothing here is seen outside this folder.
 *
 * Letters: T rows of activations, K columns, N rows of a weight.
 *
 * Batch invariance is a property of the kernels: an output element comes from one fixed sequence of
 * floating-point operations, whatever tile, thread or batch it is computed in. */
#ifndef KERN_CPU_H
#define KERN_CPU_H

#include "../host.h"
#include "pack.h"
#include <stdatomic.h>
#include <string.h>

static inline int64_t cpu_round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* The input of a product, T rows of K columns, as the kernels read it: in tiles of `tile` rows,
 * rows beyond the last being arbitrary.
 *
 *   blocks  for weights of block formats, rounded to int8 in blocks of 32: tile after tile, block
 *           after block [tile]; a cache line each, so that threads with rows of their own do not
 *           meet. A block with a NaN or an infinity has d = s = NaN and q = 0.
 *   rests   what rounding left of the blocks with the largest d, which hold outliers, is rounded
 *           again: x ≈ d · (q + rest / 256). They hold only where the row's flag is set.
 *   flags   tile after tile, block after block [CPU_FLAGS]: 1 for a row that has a rest
 *   floats  for F32, F16 and BF16 weights: tile after tile, column after column [tile]
 *   pairs   for BF16 weights where the device rounds: two columns of bf16, the first in the lower
 *           half; tile after tile, pair after pair [tile]. A column beyond an odd last one is 0 */
typedef struct cpu_in_block {
    int8_t q[32];
    int32_t sums[3]; /* −Σq, and that of each half */
    float d, s;      /* max|x| / 127, d · Σq (with the rest, if there is one) */
    uint8_t empty[12];
} cpu_in_block;
typedef struct cpu_in_rest {
    int8_t q[32];
    int32_t sums[3];
    uint8_t empty[20];
} cpu_in_rest;

enum {
    CPU_TILE_MOST = 12, /* rows of the largest tile of any tier */
    CPU_FLAGS = 16
};

typedef struct cpu_inputs {
    cpu_in_block *blocks;
    cpu_in_rest *rests;
    uint8_t *flags;
    const float *floats;
    uint32_t *pairs;
    int64_t n_rows, k;
    int32_t tile, n_tiles;
} cpu_inputs;

/* Where a tile begins: its blocks and rests are those from this number on. */
static inline int64_t cpu_in_first(const cpu_inputs *in, int64_t i_tile) {
    return i_tile * in->tile * (in->k / 32);
}
static inline uint8_t *cpu_in_flags(const cpu_inputs *in, int64_t i_tile) {
    return in->flags + i_tile * (in->k / 32) * CPU_FLAGS;
}

/* The forms, and a row's bytes in one: of blocks without their rests and flags. */
enum { CPU_WANTS_BLOCKS = 1, CPU_WANTS_FLOATS = 2, CPU_WANTS_PAIRS = 4 };
static inline size_t cpu_in_row_bytes(int form, int64_t k) {
    if (form == CPU_WANTS_BLOCKS) return (size_t)(k / 32) * sizeof(cpu_in_block);
    return form == CPU_WANTS_FLOATS ? (size_t)k * sizeof(float)
                                    : (size_t)(k + 1) / 2 * sizeof(uint32_t);
}
static inline size_t cpu_in_tile_bytes(const cpu_inputs *in, int form) {
    return (size_t)in->tile * cpu_in_row_bytes(form, in->k);
}
/* A tile of floats, or of pairs. */
static inline const void *cpu_in_tile(const cpu_inputs *in, int form, int64_t i_tile) {
    const void *first = form == CPU_WANTS_FLOATS ? (const void *)in->floats : in->pairs;
    return (const char *)first + (size_t)i_tile * cpu_in_tile_bytes(in, form);
}

/* The form that products with the weight take on the device. */
static inline int cpu_wants(const kern_device *device, const kern_weight *w) {
    const kern_format *f = cpu_packed(w);
    if (f->block_size > 1) return CPU_WANTS_BLOCKS;
    return f->id == KERN_BF16 && device->rounds_bf16 ? CPU_WANTS_PAIRS : CPU_WANTS_FLOATS;
}

/* A matrix product: out[T,N] = x[T,K] @ w[N,K]^T (+ bias[N]) */
typedef struct cpu_product {
    const kern_weight *w; /* bound: its strips */
    size_t strip_bytes;
    const cpu_inputs *in;
    float *out;         /* row t, column n at out[t · out_stride + n] */
    int64_t out_stride; /* floats */
    const float *bias;  /* or NULL */
} cpu_product;

/* The columns of strips first … end - 1 of the product. */
typedef void cpu_product_fn(const cpu_product *, int64_t first, int64_t end);

/* Attention of up to CPU_QUERIES queries (rows and heads of one KV head) over the chunk of
 * positions start … start + CPU_CHUNK - 1. Rows may be of several sequences; a page that is the
 * same of more than one is read once for all of them. */
enum { CPU_CHUNK = 256, CPU_QUERIES = 48 };
enum { CPU_CHUNK_PAGES = CPU_CHUNK / KERN_PAGE_POSITIONS };

typedef struct cpu_chunk {
    const struct kern_pages *kv; /* shapes only */
    int32_t start;               /* a multiple of CPU_CHUNK */
    int32_t n_rows, n_heads;     /* query i is of row i / n_heads */
    float scale;
    const unsigned char *soon[2]; /* keys of two pages that will probably be wanted next */
    struct {
        /* the KV head's keys and values, 32 positions each: in the cache's pages or gathered; set
         * as far as the row sees, from the page of `first` on */
        const unsigned char *keys[CPU_CHUNK_PAGES], *values[CPU_CHUNK_PAGES];
        int32_t first, end; /* it sees positions first … end - 1, at least one of this chunk */
    } row[CPU_QUERIES];
    struct {
        const float *q; /* [head_dim_k] */
        float *partial; /* out: max, sum of exponentials, weighted sum of values [head_dim_v] */
    } query[CPU_QUERIES];
} cpu_chunk;

/* A partial result: [0] the largest score, [1] Σ exp(score − max), from CPU_PARTIAL_HEAD on the sum
 * of exp(score − max) · value. */
enum { CPU_PARTIAL_HEAD = 16 };
static inline int64_t cpu_partial_floats(int32_t dim_v) {
    return CPU_PARTIAL_HEAD + cpu_round_up(dim_v, 16);
}

/* Bytes of a thread's own memory that attend_chunk uses: scores, and keys or values as f32. */
enum { CPU_ATTEND_SPAN = 64 }; /* of a head's numbers at a time */
enum {
    CPU_ATTEND_BYTES =
        (CPU_QUERIES * CPU_CHUNK + KERN_PAGE_POSITIONS * CPU_ATTEND_SPAN) * (int)sizeof(float)
};

/* The products of a tier, and the tile that the inputs of so many rows are laid out in. */
typedef struct cpu_products {
    cpu_product_fn *(*product)(int32_t format); /* never NULL for a format of the table */
    int32_t (*tile)(int64_t n_rows);
    int has_pair_dots; /* an instruction multiplies pairs of bf16 */
} cpu_products;
extern const cpu_products cpu_products_plain, cpu_products_avx2, cpu_products_avxvnni,
    cpu_products_avx512, cpu_products_neon; /* products_*.c */

/* The kernels of an instruction tier. A new tier is one file with such a table and a row in cpu.c.
 */
typedef struct cpu_tier {
    kern_tier tier;
    const cpu_products *products;
    /* x[n_rows, n] to the blocks of neighbouring rows of a tile, and where they have them to the
     * rests: of the first row, `tile` apart; flags are CPU_FLAGS apart */
    void (*quantise)(const float *x, int64_t n, int32_t n_rows, int32_t tile, cpu_in_block *,
                     cpu_in_rest *, uint8_t *flags);
    /* x[n_rows, n] to the pairs of neighbouring rows of a tile: of the first row, `tile` apart */
    void (*round_pairs)(const float *x, int64_t n, int32_t n_rows, int32_t tile, uint32_t *pairs);
    /* y[n] from x[n]; w, b f32 [n]; y may be x */
    void (*norm_rms)(const float *x, const float *w, float *y, int64_t n, float eps);
    void (*norm_layer)(const float *x, const float *w, const float *b, float *y, int64_t n,
                       float eps);
    void (*add)(const float *x, float *y, int64_t n);                      /* y += x */
    void (*silu_mul)(const float *x, const float *z, float *y, int64_t n); /* y = silu(x) · z */
    void (*gelu_mul)(const float *x, const float *z, float *y, int64_t n); /* z NULL: y = gelu(x) */
    /* rotates the first n_rotary values of x; cosines[n_rotary / 2], then as many sines */
    void (*rope)(float *x, const float *cosines, int32_t n_rotary, int interleaved);
    void (*kv_store)(kern_kv type, const float *x, int32_t n, void *to); /* as host_kv_store */
    void (*attend_chunk)(const cpu_chunk *, void *scratch);
    /* folds partial p into state (both of dim_v values); first: state = p */
    void (*attend_fold)(float *state, const float *p, int32_t dim_v, int first);
    void (*attend_finish)(const float *state, int32_t dim_v, float *out);
} cpu_tier;

extern const cpu_tier cpu_tier_plain, cpu_tier_avx2, cpu_tier_avxvnni, cpu_tier_avx512,
    cpu_tier_neon;
const cpu_tier *cpu_tier_of(const kern_device *);

/* Rows that are worked on together, and how many rows of the scratch lie before their inputs. */
typedef struct cpu_band {
    int32_t first, end, place;
} cpu_band;

typedef struct cpu_tile { /* neighbouring rows that attend together: they share pages */
    int32_t first_row, n_rows;
} cpu_tile;

/* The scratch of a work, made once by cpu_work_open. */
typedef struct cpu_scratch {
    host_row *rows;  /* [max_rows] */
    cpu_tile *tiles; /* [max_rows] */
    int32_t n_tiles, tile_rows;
    /* inputs of products: max_rows rows, in whole tiles, of the widest, whose columns are: */
    int64_t k_blocks, k_floats, k_pairs;
    cpu_in_block *blocks;
    cpu_in_rest *rests;
    uint8_t *flags;
    float *floats;
    uint32_t *pairs;
    /* rotation tables: of each distinct plan_rope, max_rows rows of cosines and sines */
    const plan_rope **ropes;
    float **rope_tables;
    int32_t n_ropes;
    int32_t *rope_positions; /* for which the tables hold; [max_rows] */
    int32_t n_rope_positions;
    struct cpu_band_done {
        _Alignas(64) _Atomic int32_t n; /* parts of the run that the band is through with */
    } * bands;
    float *partials;        /* of split attention */
    int64_t n_partials;     /* floats */
    unsigned char *threads; /* a piece of thread_bytes for each thread */
    size_t thread_bytes;
    float *rope_memory;
} cpu_scratch;

/* One call of run, as its threads see it. */
typedef struct cpu_run {
    kern_device *device;
    const cpu_tier *tier;
    kern_work *work;
    cpu_scratch *scratch;
    const plan *plan;
    const kern_batch *batch;
    int32_t first, end; /* operations */
    int32_t tile;       /* of the inputs of products */
    int32_t band_rows;  /* see bands.c; 0: the run has phases */
    int rope_stale;     /* the rotation tables have to be filled */
    atomic_int interrupted;
    int n_threads; /* that take part */
    double *laps;  /* see laps.c; NULL: no profile */
    double began;  /* of a run with a profile */
} cpu_run;

static inline int cpu_stopped(cpu_run *r) {
    if (r->batch->stop == NULL || *r->batch->stop == 0) return 0;
    atomic_store_explicit(&r->interrupted, 1, memory_order_relaxed);
    return 1;
}
static inline float *cpu_rows_of(const cpu_run *r, int32_t i_buffer) {
    return (float *)r->work->buffers[i_buffer].data;
}

/* run.c */
/* The end of the products from operation i on that share its input, and the forms of it that they
 * want. */
int32_t cpu_products_end(const cpu_run *, int32_t i, int *wants);
/* Strips first … end - 1 of operation op for the rows of a band, whose inputs these are. */
void cpu_product_strips(cpu_run *, const plan_op *, const cpu_band *, const cpu_inputs *,
                        int64_t first, int64_t end);

/* bands.c */
enum {
    CPU_BAND_MOST = 48,
    CPU_BAND_LEAST = 12,
    CPU_BAND_ROWS = 24 /* of a batch, for each thread: of fewer the weights are read too often */
};
/* Rows of a band where a batch of so many is worked on in bands; else 0. */
int32_t cpu_band_rows(int32_t n_rows, int32_t tile, int n_threads);
void cpu_bands_open(cpu_run *); /* before the threads come */
void cpu_run_bands(cpu_run *, int i_thread);

int cpu_work_open(kern_device *, const plan *, kern_pages *, int32_t max_rows, kern_work **out);
int cpu_run_plan(kern_device *, kern_work *, const plan *, int32_t first, int32_t count,
                 const kern_batch *);

/* laps.c: a thread's lap begins where the one before ended, or anew. It is spent on an operation,
 * on making its input ready, or on waiting for other threads after it. */
enum { CPU_LAP_OWN, CPU_LAP_INPUT, CPU_LAP_WAIT, CPU_LAP_KINDS };
int cpu_laps_open(cpu_run *);
void cpu_laps_begin(cpu_run *, int i_thread);
void cpu_laps_end(cpu_run *, int i_thread, int32_t i_op, int kind);
void cpu_laps_close(cpu_run *, int code);
static inline void cpu_lap_begin(cpu_run *r, int i_thread) {
    if (r->laps != NULL) cpu_laps_begin(r, i_thread);
}
static inline void cpu_lap_end(cpu_run *r, int i_thread, int32_t i_op, int kind) {
    if (r->laps != NULL) cpu_laps_end(r, i_thread, i_op, kind);
}

/* rows.c: row operations, for rows first … end - 1 */
void cpu_row_op(cpu_run *, const plan_op *, int i_thread, int32_t first, int32_t end);
/* The inputs of products of a band with buffer i_buffer, and its rows first … end - 1 of the batch
 * in the forms they want. */
cpu_inputs cpu_inputs_of(const cpu_run *, const cpu_band *, int32_t i_buffer);
void cpu_fill_inputs(cpu_run *, const cpu_band *, int32_t i_buffer, int wants, int32_t first,
                     int32_t end);
void cpu_rope_fill(cpu_run *, int32_t first, int32_t end);
const float *cpu_vector(const kern_weight *); /* f32 values of a bound vector; NULL of NULL */

/* attend.c */
/* From the rows; none lies in two bands of so many rows, if there are such. */
void cpu_attend_tiles(cpu_scratch *, const kern_batch *, int32_t band_rows);
/* Rows of the band, on the caller's thread. */
void cpu_attend_band(cpu_run *, const plan_op *, const cpu_band *, int i_thread);
/* All threads come to it alike, even of a stopped run. */
void cpu_attend(cpu_run *, const plan_op *, int i_thread, int n_threads);

#endif
