/* tensor_select.h: what the files that select the first entries of a list in the order of a key
 * share, without sorting it: by number (threshold_k, the k best) or by mass (threshold_mass). A
 * list is a row, or the rows of a group one after the other. An entry is named by 64 bits, its key
 * and then its index: all differ, lower indices come first among equal keys, and a selection is all
 * names up to a last one.
 *
 * tensor_tally.cu: counts entries (and weighs them) by the upper 11 bits of their keys; the last
 *     block of a list finds the bin in which the selection ends. In the end, keeps the selection.
 *
 * tensor_narrow.cu: gathers the entries of that bin; the last block finds the last name among them
 * by more bits of the names, and by sorting what is left. For the k best it gathers all up to the
 *     bin.
 *
 * Weights are counted in integers, in some 2^-42 of what is needed, and none as more than twice
 * that: sums are exact in any order. */
#ifndef CUDA_TENSOR_SELECT_H
#define CUDA_TENSOR_SELECT_H

#include "tensor_parts.h"

#define SELECT_THREADS 512
#define N_ENTRIES      (TENSOR_CHUNK / SELECT_THREADS)
#define N_PARTS        (N_ENTRIES / 4)
#define N_BINS         2048 /* 11 bits */
#define BIN_BITS       11
#define BIN_SHIFT      (32 - BIN_BITS)
#define BINS_EACH      (N_BINS / SELECT_THREADS)
#define N_GATHERED     16384 /* of a list; where more are in the bin its entries are read again */
#define N_SORTED       2048  /* in the end */
#define NAMES_EACH     (N_SORTED / SELECT_THREADS)
#define MOST_LISTS     64 /* a launch */
#define UNIT_BITS      42

enum { SELECT_COUNT, SELECT_MASS, SELECT_BEST };

/* Where a selection ends, as far as it is known. */
typedef struct list_state {
    int32_t fault; /* SELECT_BEST: why nothing can be chosen, or 0 */
    bool is_cut;   /* else all entries stay */
    uint32_t bin;
    uint32_t n_before, n_in_bin; /* entries in the bins before it, and in it */
    uint32_t need_count;
    int32_t unit; /* weights are counted in 2^−unit */
    wide mass_before, need_mass;
    wide last; /* the last name that stays */
} list_state;

typedef struct select_job {
    const float *x;       /* [lists, n] */
    const float *key;     /* NULL: −x */
    int64_t key_step;     /* from a list's keys to the next's */
    int64_t n, n_columns; /* entries of a list, of a row of it */
    uint32_t n_chunks;
    int32_t index_bits; /* of a name */
    int64_t count;      /* how many, if counts is NULL */
    const int32_t *counts;
    const float *masses;
    int32_t need_step, base;    /* need_step: from a list's count or mass to the next's */
    const tensor_summary *rows; /* SELECT_MASS */
    uint32_t *counters;         /* counter_words() a list: 0 between launches */
    list_state *lists;
    wide *gathered; /* N_GATHERED a list */
    float *out;     /* of keep */
    float *scores;  /* SELECT_BEST: [lists, count] each; rows may be NULL */
    int32_t *ids, *best_rows;
    int64_t first_list; /* of the launch */
} select_job;

/* A list's counters: words 0: blocks that are done; 1: the class of its entries; 2: how many have
 * been gathered; then a count for each bin, then, weighted, a mass for each bin. */
enum { DONE, CLASS, GATHERED, COUNTS = 4, MASSES = COUNTS + N_BINS };
#define COUNTER_WORDS (MASSES + 2 * N_BINS)

/* ---- entries ---- */

GPU_INLINE uint32_t key_of(const select_job &j, int64_t list, int64_t i, float x) {
    return order_key(j.key ? j.key[list * j.key_step + i] : -x);
}

/* −inf is no candidate of a filter. */
template <int mode> GPU_INLINE bool takes_part(float x) {
    return mode == SELECT_BEST || x > -INFINITY;
}

GPU_INLINE wide name_of(const select_job &j, uint32_t key, int64_t i) {
    return (wide)key << j.index_bits | (wide)i;
}
GPU_INLINE int64_t index_of(const select_job &j, wide name) {
    return (int64_t)(name & (((wide)1 << j.index_bits) - 1));
}

/* The keys of the thread's entries v of a chunk. */
GPU_INLINE void chunk_keys(const select_job &j, int64_t list, const float v[N_ENTRIES],
                           uint32_t keys[N_ENTRIES]) {
    if (!j.key) {
        GPU_UNROLL
        for (int i = 0; i < N_ENTRIES; i++) keys[i] = order_key(-v[i]);
        return;
    }
    float u[N_ENTRIES];
    chunk_load<N_PARTS>(j.key + list * j.key_step, j.n, 0.0f, u);
    GPU_UNROLL
    for (int i = 0; i < N_ENTRIES; i++) keys[i] = order_key(u[i]);
}

/* What is needed of a mass has so many bits, fewer where sums of more entries would be too large.
 */
GPU_INLINE int32_t mass_bits(const select_job &j) {
    return j.index_bits > 20 ? 62 - j.index_bits : UNIT_BITS;
}

/* exp(x − max) in units of 2^−unit, rounded; at most 2^(mass_bits + 1) */
GPU_INLINE wide weight_of(const select_job &j, int64_t list, float x, int32_t unit) {
    float d;
    const uint32_t bits = __float_as_uint(exp_below(x, best_value(j.rows[list].best), &d));
    const int32_t shift = (int32_t)(bits >> 23) - 150 + unit, most = mass_bits(j) + 1;
    const wide mantissa = (bits & 0x7FFFFFu) | 0x800000u;
    if (!bits || shift < -24) return 0;
    if (shift > most - 24) return (wide)1 << most;
    return shift >= 0 ? mantissa << shift : (mantissa + ((wide)1 << (-shift - 1))) >> -shift;
}

/* The class of an entry, with which the first row that has a NaN or +inf wins, a NaN first. */
GPU_INLINE uint32_t ranked_class(const select_job &j, float x, int64_t i) {
    const uint32_t c = class_of(x);
    if (c < CLASS_INF) return c;
    return (0x3FFFFFFFu - (uint32_t)(i / j.n_columns)) << 2 | c;
}

/* ---- bins ---- */

typedef struct bins {
    gpu_shared<uint32_t> count, mass_low, mass_high; /* N_BINS each; masses: SELECT_MASS */
    gpu_shared<uint32_t> found, count_parts; /* found: its number, entries before it, in it */
    gpu_shared<wide> mass_parts;
} bins;

template <int mode> GPU_INLINE void bins_clear(const bins &b) {
    for (uint32_t i = threadIdx.x; i < N_BINS; i += SELECT_THREADS) {
        b.count[i] = 0;
        if (mode == SELECT_MASS) b.mass_low[i] = 0, b.mass_high[i] = 0;
    }
    __syncthreads();
}

template <int mode> GPU_INLINE void bins_add(const bins &b, uint32_t bin, wide mass) {
    atomicAdd(b.count + bin, 1u);
    if (mode != SELECT_MASS || !mass) return;
    const uint32_t low = (uint32_t)mass, old = atomicAdd(b.mass_low + bin, low);
    const uint32_t high = (uint32_t)(mass >> 32) + (old + low < old);
    if (high) atomicAdd(b.mass_high + bin, high);
}

/* The thread's bins, of consecutive numbers. */
typedef struct own_bins {
    uint32_t count[BINS_EACH];
    wide mass[BINS_EACH];
} own_bins;

template <int mode> GPU_INLINE own_bins bins_own(const bins &b) {
    own_bins own;
    GPU_UNROLL
    for (int i = 0; i < BINS_EACH; i++) {
        const uint32_t bin = threadIdx.x * BINS_EACH + (uint32_t)i;
        own.count[i] = b.count[bin];
        own.mass[i] = 0;
        if (mode == SELECT_MASS)
            own.mass[i] = (wide)(uint32_t)b.mass_high[bin] << 32 | (uint32_t)b.mass_low[bin];
    }
    return own;
}

/* Finds the first bin with which what is needed is there: what lies before it is added to s, which
 * all threads get. If there is none, all entries stay. */
template <int mode> GPU_INLINE void bins_find(const bins &b, const own_bins &own, list_state *s) {
    uint32_t count = 0, all;
    wide mass = 0, all_mass;
    GPU_UNROLL
    for (int i = 0; i < BINS_EACH; i++) count += own.count[i], mass += own.mass[i];
    count = block_scan(count, b.count_parts, &all);
    if (mode == SELECT_MASS) mass = block_scan(mass, b.mass_parts, &all_mass);
    if (threadIdx.x == 0) b.found[0] = N_BINS;
    __syncthreads();
    count += s->n_before;
    mass += s->mass_before;
    for (int write = 0; write < 2; write++) { /* first which bin, then what lies before it */
        const uint32_t at = write ? (uint32_t)b.found[0] : 0;
        uint32_t count_before = count;
        wide mass_before = mass;
        GPU_UNROLL
        for (int i = 0; i < BINS_EACH; i++) {
            const uint32_t bin = threadIdx.x * BINS_EACH + (uint32_t)i;
            const uint32_t with = count_before + own.count[i];
            const wide mass_with = mass_before + own.mass[i];
            const bool enough = own.count[i] && (mode == SELECT_MASS ? mass_with >= s->need_mass
                                                                     : with >= s->need_count);
            if (!write && enough) atomicMin(b.found, bin);
            if (write && at == bin) {
                b.found[1] = count_before;
                b.found[2] = own.count[i];
                b.mass_parts[0] = mass_before;
            }
            count_before = with;
            mass_before = mass_with;
        }
        __syncthreads();
    }
    s->bin = b.found[0];
    s->is_cut = s->bin < N_BINS;
    if (!s->is_cut) return;
    s->n_before = b.found[1];
    s->n_in_bin = b.found[2];
    s->mass_before = b.mass_parts[0];
}

/* ---- launches; n_lists: at most MOST_LISTS ---- */

void tensor_tally(kern_device *, int mode, const select_job &, unsigned n_lists);
void tensor_narrow(kern_device *, int mode, const select_job &, unsigned n_lists);
void tensor_keep(kern_device *, const select_job &, unsigned n_lists);
/* The k best of names that are sorted, where k is large. */
void tensor_write_names(kern_device *, const select_job &, unsigned n_lists, const wide *names);

#endif
