/* tensor_choice.c: which ids: the largest entry, the k largest, a draw. Ties: the lower row, then
 * the lower column. Rows that cannot be chosen from give a KERN_ID_ code instead of ids. */
#include "noise.h"
#include "tensor_ops.h"
#include "tensor_row.h"

typedef struct job {
    const row_functions *f;
    kern_tensor x;
    int64_t k, n_group_rows;
    int32_t base;
    const kern_key *keys;
    float *scores;
    int32_t *ids, *rows; /* rows: NULL but for topk_joint */
} job;

static const float *x_row(const job *j, int64_t i_row) {
    return host_f32(j->x) + i_row * j->x.n_columns;
}

/* ---- argmax ---- */

static void argmax_row(const void *data, int64_t i_row) {
    const job *j = data;
    const float *x = x_row(j, i_row);
    float max;
    const int32_t fault = row_fault(j->f, x, j->x.n_columns, &max);
    j->ids[i_row] = fault ? fault : (int32_t)j->f->next_equal(x, 0, j->x.n_columns, max) + j->base;
}

/* ids[R,1] */
int tensor_argmax(kern_device *device, kern_tensor x, int32_t base, kern_tensor ids) {
    const job j = {.f = row_of(device), .x = x, .base = base, .ids = host_i32(ids)};
    row_each(device, x.n_rows, (double)x.n_columns * 0.1, argmax_row, &j);
    return KERN_OK;
}

/* ---- the k best ---- */

/* A heap of entries over parallel arrays, its root the worst; sorted in the end, best first. */
typedef struct heap {
    float *scores;
    int32_t *ids, *rows;
    int64_t n;
} heap;

static bool is_worse(const heap *h, int64_t a, int64_t b) {
    if (h->scores[a] != h->scores[b]) return h->scores[a] < h->scores[b];
    if (h->rows && h->rows[a] != h->rows[b]) return h->rows[a] > h->rows[b];
    return h->ids[a] > h->ids[b];
}

static void swap(heap *h, int64_t a, int64_t b) {
    const float score = h->scores[a];
    const int32_t id = h->ids[a];
    h->scores[a] = h->scores[b];
    h->scores[b] = score;
    h->ids[a] = h->ids[b];
    h->ids[b] = id;
    if (!h->rows) return;
    const int32_t row = h->rows[a];
    h->rows[a] = h->rows[b];
    h->rows[b] = row;
}

static void sift_down(heap *h, int64_t at) {
    for (;;) {
        int64_t worst = at;
        const int64_t left = 2 * at + 1, right = left + 1;
        if (left < h->n && is_worse(h, left, worst)) worst = left;
        if (right < h->n && is_worse(h, right, worst)) worst = right;
        if (worst == at) return;
        swap(h, at, worst);
        at = worst;
    }
}

static void put(heap *h, int64_t at, float score, int32_t id, int32_t row) {
    h->scores[at] = score;
    h->ids[at] = id;
    if (h->rows) h->rows[at] = row;
}

/* Offers the n entries of a row; rows come in ascending order, so that an entry equal to the root
 * is always behind it. */
static void offer(const job *j, heap *h, const float *x, int32_t row) {
    const int64_t n = j->x.n_columns;
    int64_t i = 0;
    if (h->n < j->k) {
        for (; i < n && h->n < j->k; i++) put(h, h->n++, x[i], (int32_t)i + j->base, row);
        if (h->n < j->k) return;
        for (int64_t at = h->n / 2; at-- > 0;) sift_down(h, at);
    }
    while ((i = j->f->next_above(x, i, n, h->scores[0])) < n) {
        put(h, 0, x[i], (int32_t)i + j->base, row);
        sift_down(h, 0);
        i++;
    }
}

static void sort_best_first(heap *h) {
    const int64_t n = h->n;
    for (int64_t at = n / 2; at-- > 0;) sift_down(h, at);
    for (int64_t last = n - 1; last > 0; last--) {
        swap(h, 0, last);
        h->n = last;
        sift_down(h, 0);
    }
    h->n = n;
}

/* Group i: rows i · n_group_rows … and results i · k … */
static void topk_group(const void *data, int64_t i_group) {
    const job *j = data;
    const int64_t first_row = i_group * j->n_group_rows, k = j->k;
    heap h = {j->scores + i_group * k, j->ids + i_group * k, j->rows ? j->rows + i_group * k : NULL,
              0};
    int32_t fault = KERN_ID_NO_FINITE;
    if (k == 0) return;
    for (int64_t i = 0; i < j->n_group_rows; i++) {
        const float *x = x_row(j, first_row + i);
        float max;
        const int32_t row_code = row_fault(j->f, x, j->x.n_columns, &max);
        if (row_code == KERN_ID_NAN || row_code == KERN_ID_INF) fault = row_code;
        if (fault == KERN_ID_NAN || fault == KERN_ID_INF) break;
        if (row_code == 0) fault = 0;
        offer(j, &h, x, (int32_t)(first_row + i + 1));
    }
    if (!fault) {
        sort_best_first(&h);
        return;
    }
    const float score = fault == KERN_ID_NO_FINITE ? -INFINITY : NAN;
    for (int64_t i = 0; i < k; i++) put(&h, i, score, fault, (int32_t)first_row + 1);
}

/* scores, ids[R,k] */
int tensor_topk(kern_device *device, kern_tensor x, int64_t k, int32_t base, kern_tensor scores,
                kern_tensor ids) {
    const job j = {.f = row_of(device),
                   .x = x,
                   .k = k,
                   .n_group_rows = 1,
                   .base = base,
                   .scores = host_f32(scores),
                   .ids = host_i32(ids)};
    row_each(device, x.n_rows, (double)x.n_columns * 0.2, topk_group, &j);
    return KERN_OK;
}

/* scores, ids, rows[groups · k, 1] */
int tensor_topk_joint(kern_device *device, kern_tensor x, int64_t k, int64_t groups, int32_t base,
                      kern_tensor scores, kern_tensor ids, kern_tensor rows) {
    if (groups == 0) return KERN_OK;
    const job j = {.f = row_of(device),
                   .x = x,
                   .k = k,
                   .n_group_rows = x.n_rows / groups,
                   .base = base,
                   .scores = host_f32(scores),
                   .ids = host_i32(ids),
                   .rows = host_i32(rows)};
    row_each(device, groups, (double)j.n_group_rows * (double)x.n_columns * 0.2, topk_group, &j);
    return KERN_OK;
}

/* ---- draws ---- */

/* Noise comes in blocks of ids 32 · block …, the first of them column `first`, in a row of n
 * columns. Copies a block's columns; −inf stands for those outside the row. */
static void block_read(const float *x, int64_t first, int64_t n, float part[32]) {
    for (int i = 0; i < 32; i++)
        part[i] = first + i >= 0 && first + i < n ? x[first + i] : -INFINITY;
}

static bool block_is_whole(int64_t first, int64_t n) { return first >= 0 && first + 32 <= n; }

static void gumbel_row(const void *data, int64_t i_row) {
    const job *j = data;
    const float *x = x_row(j, i_row);
    const int64_t n = j->x.n_columns, base = j->base;
    float *out = j->scores + i_row * n;
    for (int64_t block = base / 32; block * 32 - base < n; block++) {
        const int64_t first = block * 32 - base;
        if (block_is_whole(first, n)) {
            j->f->add_noise(j->keys[i_row], (uint32_t)block, x + first, out + first);
            continue;
        }
        float part[32];
        block_read(x, first, n, part);
        j->f->add_noise(j->keys[i_row], (uint32_t)block, part, part);
        for (int i = 0; i < 32; i++)
            if (first + i >= 0 && first + i < n) out[first + i] = part[i];
    }
}

/* out[R,C] = x[R,C] + noise; entries that are not finite stay */
int tensor_gumbel(kern_device *device, kern_tensor x, int32_t base, const kern_key *keys,
                  kern_tensor out) {
    const job j = {
        .f = row_of(device), .x = x, .base = base, .keys = keys, .scores = host_f32(out)};
    row_each(device, x.n_rows, (double)x.n_columns * 8, gumbel_row, &j);
    return KERN_OK;
}

/* The best so far of a draw. */
typedef struct draw {
    float score;
    int64_t column;
} draw;

static void draw_offer(draw *best, float x, int64_t column, uint32_t word) {
    const float score = x + kern_word_gumbel(word);
    if (score > best->score || (score == best->score && column < best->column))
        *best = (draw){score, column};
}

/* Argmax of x + noise, with the noise of those entries alone that may win: bounds first, logarithms
 * last. It begins with the largest entry, so that there is something to beat. */
static void sample_row(const void *data, int64_t i_row) {
    const job *j = data;
    const float *x = x_row(j, i_row);
    const int64_t n = j->x.n_columns, base = j->base;
    const kern_key key = j->keys[i_row];
    float max;
    const int32_t fault = row_fault(j->f, x, n, &max);
    if (fault) {
        j->ids[i_row] = fault;
        return;
    }
    const int64_t i_max = j->f->next_equal(x, 0, n, max);
    draw best = {max + kern_gumbel(key, (uint32_t)(i_max + base)), i_max};
    for (int64_t block = base / 32; block * 32 - base < n; block++) {
        const int64_t first = block * 32 - base;
        const bool is_whole = block_is_whole(first, n);
        float part[32];
        if (!is_whole) block_read(x, first, n, part);
        const float *from = is_whole ? x + first : part;
        uint32_t words[32];
        uint32_t may = j->f->contenders(key, (uint32_t)block, from, best.score, words);
        for (; may; may &= may - 1) {
            const int i = __builtin_ctz(may);
            draw_offer(&best, from[i], first + i, words[i]);
        }
    }
    j->ids[i_row] = (int32_t)(best.column + base);
}

/* ids[R,1] */
int tensor_sample(kern_device *device, kern_tensor x, int32_t base, const kern_key *keys,
                  kern_tensor ids) {
    const job j = {.f = row_of(device), .x = x, .base = base, .keys = keys, .ids = host_i32(ids)};
    row_each(device, x.n_rows, (double)x.n_columns * 2, sample_row, &j);
    return KERN_OK;
}
