/* tensor_row.h: loops over one row, for the tensor_*.c files only. They exist twice, compiled for
 * any machine and for AVX2 (tensor_rows.inc); both give the same bits. V: columns of a row. */
#ifndef KERN_TENSOR_ROW_H
#define KERN_TENSOR_ROW_H

#include "host.h"
#include "noise.h"
#include <math.h>

#define ROW_BINS 2048

/* A selection in a row: entries in ascending order of `key` (NULL: −x), lower columns first among
 * equals; −inf entries of x are not in it. Keys are compared as 32-bit numbers of the same order.
 */
typedef struct row_select {
    const float *x, *key;
    int64_t n_columns;
    float max; /* largest x, for the weights exp(x − max) */
    bool is_weighted;
    uint32_t lo, hi; /* keys in lo … hi are counted, by bin (key − lo) >> shift */
    int shift;
    int64_t count[ROW_BINS];
    double mass[ROW_BINS]; /* sums of weights, if is_weighted */
} row_select;

typedef struct row_functions {
    /* The largest entry that is not NaN (−inf if there is none), the smallest likewise (+inf). */
    float (*max)(const float *x, int64_t n, bool *has_nan);
    float (*min)(const float *x, int64_t n, bool *has_nan);
    double (*sum)(const float *x, int64_t n);
    /* Sum of exp(x − max), and of exp(x − max)·(x − max). Terms below e^−87 count as 0. */
    double (*sum_exp)(const float *x, int64_t n, float max);
    void (*sum_exp_times)(const float *x, int64_t n, float max, double sums[2]);
    /* Count, sum and sum of squares of x − centre over the finite entries. */
    void (*moments)(const float *x, int64_t n, float centre, double sums[3]);
    void (*softmax)(const float *x, int64_t n, float max, float factor, float *out);
    void (*subtract)(const float *x, int64_t n, double c, float *out);
    void (*scale)(const float *x, int64_t n, float factor, float *out);
    void (*exp)(const float *x, int64_t n, float *out);
    /* The first column from `first` on with x > least, or = value; n if there is none. */
    int64_t (*next_above)(const float *x, int64_t first, int64_t n, float least);
    int64_t (*next_equal)(const float *x, int64_t first, int64_t n, float value);
    /* x, or −inf where x < least */
    void (*cut)(const float *x, int64_t n, float least, float *out);
    /* Fills count and mass. */
    void (*tally)(row_select *);
    /* How many entries of key `at` it takes, lower columns first, to bring `mass` to `need`. */
    int64_t (*tally_equal)(const row_select *, uint32_t at, double mass, double need);
    /* Keeps the keys below `at` and the first n_equal of those equal to it; the rest becomes −inf.
     */
    void (*keep)(const row_select *, uint32_t at, int64_t n_equal, float *out);
    /* The words of ids 32·i … 32·i + 31, and a bit for each x[32] that, its noise added, may reach
     * `best`. −inf never does. */
    uint32_t (*contenders)(kern_key, uint32_t i, const float *x, float best, uint32_t words[32]);
    /* out[32] = x[32] + the noise of ids 32·i … 32·i + 31; entries that are not finite stay */
    void (*add_noise)(kern_key, uint32_t i, const float *x, float *out);
    /* out[m] = a[k] · b[k,m] */
    void (*multiply)(const float *a, int64_t k, const float *b, int64_t m, float *out);
} row_functions;

extern const row_functions row_plain;
#if defined(__x86_64__)
extern const row_functions row_avx2;
#endif

static inline const row_functions *row_of(const kern_device *device) {
#if defined(__x86_64__)
    if (device->tier >= KERN_TIER_AVX2) return &row_avx2;
#endif
    (void)device;
    return &row_plain;
}

/* A key as a number of the same order: −0 equals +0, NaN comes last. */
static inline uint32_t row_key(float key) {
    union {
        float f;
        uint32_t u;
    } bits = {.f = key + 0.0f};
    if (key != key) return UINT32_MAX;
    return bits.u & 0x80000000u ? ~bits.u : bits.u | 0x80000000u;
}

/* Why a row cannot be chosen from (KERN_ID_NAN …), or 0. *max is its largest entry. */
static inline int32_t row_fault(const row_functions *f, const float *x, int64_t n, float *max) {
    bool has_nan;
    *max = f->max(x, n, &has_nan);
    if (has_nan) return KERN_ID_NAN;
    if (*max == INFINITY) return KERN_ID_INF;
    return *max == -INFINITY ? KERN_ID_NO_FINITE : 0;
}

/* Calls unit(job, i) for i = 0 … n_units-1, on all threads if that takes longer than waking them;
 * unit_ns is about what one takes. */
typedef void row_unit(const void *job, int64_t i);
void row_each(kern_device *, int64_t n_units, double unit_ns, row_unit *, const void *job);

#endif
