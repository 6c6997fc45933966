/* tensor_filter.c: filters: what they cut becomes −inf, and at least one entry of a row with a
 * finite one stays. Rows with a NaN, +inf or no finite entry pass unchanged, so that the choice
 * reports them. Selections need no sort: three histograms over the bits of the keys narrow the cut
 * down. */
#include "tensor_ops.h"
#include "tensor_row.h"

#include <string.h>

typedef struct job {
    const row_functions *f;
    kern_tensor x, parameter, key, out;
} job;

static job job_of(kern_device *device, kern_tensor x, kern_tensor parameter, kern_tensor key,
                  kern_tensor out) {
    return (job){row_of(device), x, parameter, key, out};
}

static const float *x_row(const job *j, int64_t i_row) {
    return host_f32(j->x) + i_row * j->x.n_columns;
}
static float *out_row(const job *j, int64_t i_row) {
    return host_f32(j->out) + i_row * j->out.n_columns;
}
static int64_t parameter_row(const job *j, int64_t i_row) {
    return j->parameter.n_rows == 1 ? 0 : i_row;
}

static void copy_row(const job *j, int64_t i_row) {
    const float *x = x_row(j, i_row);
    float *out = out_row(j, i_row);
    if (out != x) memcpy(out, x, (size_t)j->x.n_columns * sizeof *x);
}

static void select_open(const job *j, int64_t i_row, row_select *s) {
    s->x = x_row(j, i_row);
    s->key = NULL;
    s->n_columns = j->x.n_columns;
    s->is_weighted = false;
    s->lo = 0;
    s->hi = UINT32_MAX;
    s->shift = 21;
    if (!j->key.buffer) return;
    s->key = host_f32(j->key) + (j->key.n_rows == 1 ? 0 : i_row * j->key.n_columns);
}

/* The first bin with which there are `count` entries (and, if weighted, that mass); else the last
 * that is not empty. -1: all are empty. What lies before it is added to *count and *mass. */
static int find_bin(const row_select *s, int64_t need_count, double need_mass, int64_t *count,
                    double *mass) {
    int last = -1;
    int64_t before_count = 0;
    double before_mass = 0;
    for (int bin = 0; bin < ROW_BINS; bin++) {
        if (!s->count[bin]) continue;
        if (last >= 0) {
            before_count += s->count[last];
            before_mass += s->mass[last];
        }
        last = bin;
        if (s->is_weighted ? *mass + before_mass + s->mass[bin] >= need_mass
                           : *count + before_count + s->count[bin] >= need_count)
            break;
    }
    *count += before_count;
    *mass += before_mass;
    return last;
}

/* The key at which the selection ends, from the first tally on: three steps of 11, 11 and 10 bits.
 */
static uint32_t narrow(const row_functions *f, row_select *s, int64_t need_count, double need_mass,
                       int64_t *count, double *mass) {
    static const int next_shift[] = {10, 0};
    for (int step = 0;; step++) {
        const int bin = find_bin(s, need_count, need_mass, count, mass);
        const uint32_t lo = s->lo + ((uint32_t)bin << s->shift);
        const uint32_t width = UINT32_C(1) << s->shift;
        if (step == 2) return lo;
        s->lo = lo;
        s->hi = s->hi - lo < width ? s->hi : lo + (width - 1);
        s->shift = next_shift[step];
        f->tally(s);
    }
}

static int64_t count_all(const row_select *s) {
    int64_t n = 0;
    for (int bin = 0; bin < ROW_BINS; bin++) n += s->count[bin];
    return n;
}

/* ---- the first k ---- */

#define FEW 128

/* The k-th largest entry for small k, and how many are larger: a heap of the k best, its root the
 * least. */
static float kth_largest(const row_functions *f, const float *x, int64_t n, int64_t k,
                         int64_t *n_larger) {
    float heap[FEW];
    int64_t i = 0;
    for (; i < k; i++) { /* sifts up */
        int64_t at = i;
        for (; at > 0 && heap[(at - 1) / 2] > x[i]; at = (at - 1) / 2)
            heap[at] = heap[(at - 1) / 2];
        heap[at] = x[i];
    }
    for (; (i = f->next_above(x, i, n, heap[0])) < n; i++) {
        int64_t at = 0, child;
        while ((child = 2 * at + 1) < k) {
            if (child + 1 < k && heap[child + 1] < heap[child]) child++;
            if (heap[child] >= x[i]) break;
            heap[at] = heap[child];
            at = child;
        }
        heap[at] = x[i];
    }
    *n_larger = 0;
    for (int64_t at = 0; at < k; at++) *n_larger += heap[at] > heap[0];
    return heap[0];
}

/* k < n_columns, keys are −x */
static void keep_few(const job *j, int64_t i_row, const row_select *s, int64_t k) {
    int64_t n_larger;
    const float least = kth_largest(j->f, s->x, s->n_columns, k, &n_larger);
    if (least == -INFINITY)
        copy_row(j, i_row);
    else
        j->f->keep(s, row_key(-least), k - n_larger, out_row(j, i_row));
}

static void threshold_k_row(const void *data, int64_t i_row) {
    const job *j = data;
    const int64_t k_given = host_i32(j->parameter)[parameter_row(j, i_row)];
    const int64_t k = k_given < 1 ? 1 : k_given;
    row_select s;
    select_open(j, i_row, &s);
    if (k >= s.n_columns || row_fault(j->f, s.x, s.n_columns, &s.max)) {
        copy_row(j, i_row);
        return;
    }
    if (!s.key && k <= FEW) {
        keep_few(j, i_row, &s, k);
        return;
    }
    j->f->tally(&s);
    if (count_all(&s) <= k) {
        copy_row(j, i_row);
        return;
    }
    int64_t count = 0;
    double mass = 0;
    memset(s.mass, 0, sizeof s.mass);
    const uint32_t at = narrow(j->f, &s, k, 0, &count, &mass);
    j->f->keep(&s, at, k - count, out_row(j, i_row));
}

/* out[R,C]; k[1|R,1], key[1|R,C] or none */
int tensor_threshold_k(kern_device *device, kern_tensor x, kern_tensor k_i32, kern_tensor key,
                       kern_tensor out) {
    const job j = job_of(device, x, k_i32, key, out);
    row_each(device, x.n_rows, (double)x.n_columns * 0.7, threshold_k_row, &j);
    return KERN_OK;
}

/* ---- the smallest mass ≥ p ---- */

/* p in f32 and probabilities of rounded logits miss an exact tie by some ulp: a mass this close to
 * p counts as p, relative to p. */
#define TOLERANCE 5e-7

/* Tallies the weights. With the default key the entries near the maximum nearly always suffice:
 * look there first. Any prefix of the order that reaches `need` gives the same cut. */
static void tally_mass(const row_functions *f, row_select *s, double need) {
    static const float depths[] = {4, 8, 16};
    for (int i = 0; i < 3 && !s->key; i++) {
        s->hi = row_key(-(s->max - depths[i]));
        f->tally(s);
        double mass = 0;
        for (int bin = 0; bin < ROW_BINS; bin++) mass += s->mass[bin];
        if (mass >= need) return;
    }
    s->hi = UINT32_MAX;
    f->tally(s);
}

static void threshold_mass_row(const void *data, int64_t i_row) {
    const job *j = data;
    const double p = host_f32(j->parameter)[parameter_row(j, i_row)];
    row_select s;
    select_open(j, i_row, &s);
    if (!(p < 1) || row_fault(j->f, s.x, s.n_columns, &s.max)) {
        copy_row(j, i_row);
        return;
    }
    const double need = p * (1 - TOLERANCE) * j->f->sum_exp(s.x, s.n_columns, s.max);
    s.is_weighted = true;
    tally_mass(j->f, &s, need);
    int64_t count = 0;
    double mass = 0;
    const uint32_t at = narrow(j->f, &s, 0, need, &count, &mass);
    j->f->keep(&s, at, j->f->tally_equal(&s, at, mass, need), out_row(j, i_row));
}

/* out[R,C]; p[1|R,1], key[1|R,C] or none */
int tensor_threshold_mass(kern_device *device, kern_tensor x, kern_tensor p, kern_tensor key,
                          kern_tensor out) {
    const job j = job_of(device, x, p, key, out);
    row_each(device, x.n_rows, (double)x.n_columns * 3, threshold_mass_row, &j);
    return KERN_OK;
}

/* ---- cuts at a value ---- */

/* Cuts below `least`; if that is above all, the largest entry stays, the lowest column of a tie. */
static void cut_row(const job *j, int64_t i_row, float max, float least) {
    const int64_t n = j->x.n_columns;
    const float *x = x_row(j, i_row);
    float *out = out_row(j, i_row);
    if (!(max < least)) {
        j->f->cut(x, n, least, out);
        return;
    }
    const int64_t i_max = j->f->next_equal(x, 0, n, max);
    for (int64_t i = 0; i < n; i++) out[i] = -INFINITY;
    out[i_max] = max;
}

static void min_p_row(const void *data, int64_t i_row) {
    const job *j = data;
    const float p = host_f32(j->parameter)[parameter_row(j, i_row)];
    float max;
    if (!(p > 0) || row_fault(j->f, x_row(j, i_row), j->x.n_columns, &max))
        copy_row(j, i_row);
    else
        cut_row(j, i_row, max, max + logf(p));
}

/* Keeps x ≥ max + ln p, that is, p(x) ≥ p · max p. */
int tensor_min_p(kern_device *device, kern_tensor x, kern_tensor p, kern_tensor out) {
    const job j = job_of(device, x, p, (kern_tensor){0}, out);
    row_each(device, x.n_rows, (double)x.n_columns * 0.3, min_p_row, &j);
    return KERN_OK;
}

static void cut_below_row(const void *data, int64_t i_row) {
    const job *j = data;
    const float least = host_f32(j->parameter)[parameter_row(j, i_row)];
    float max;
    if (row_fault(j->f, x_row(j, i_row), j->x.n_columns, &max))
        copy_row(j, i_row);
    else
        cut_row(j, i_row, max, least);
}

int tensor_cut_below(kern_device *device, kern_tensor x, kern_tensor least, kern_tensor out) {
    const job j = job_of(device, x, least, (kern_tensor){0}, out);
    row_each(device, x.n_rows, (double)x.n_columns * 0.3, cut_below_row, &j);
    return KERN_OK;
}
