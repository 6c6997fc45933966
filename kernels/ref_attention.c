/* ref_attention.c: keys and values go into the cache's pages; queries attend over them. A row's
 * sums run over positions in rising order, a page of 32 at a time, so they depend on nothing but
 * what the row sees. */
#include "ref.h"

#include <math.h>

/* The positions that a row sees, all of its own path: first … last. */
typedef struct visible {
    int32_t first, last;
} visible;

static visible row_visible(const ref_pass *pass, int64_t t) {
    const int32_t position = pass->scratch->rows[t].position, window = pass->op->window;
    return (visible){window > 0 && position >= window ? position - window + 1 : 0, position};
}

static const kern_sequence *row_sequence(const ref_pass *pass, int64_t t) {
    return &pass->batch->sequences[pass->scratch->rows[t].i_sequence];
}

/* pages of layer op.layer, in each row's slot = in[T, n_heads_kv · head_dim],
 * in2[T, n_heads_kv · head_dim_v] */
void ref_kv_append(const ref_pass *pass, int i_thread, int n_threads) {
    const kern_pages *pages = pass->pages;
    const kern_kv_shape *shape = &pages->shape;
    const int32_t i_layer = pass->op->layer - 1;
    unsigned char *row = (unsigned char *)ref_thread(pass, i_thread);
    for (int64_t t = i_thread; t < pass->batch->n_rows; t += n_threads) {
        const int32_t i_slot = pass->scratch->rows[t].slot;
        const int32_t page = row_sequence(pass, t)->pages[i_slot / KERN_PAGE_POSITIONS];
        const int32_t slot = i_slot % KERN_PAGE_POSITIONS;
        for (int32_t h = 0; h < shape->n_heads_kv; h++) {
            const int64_t i = t * shape->n_heads_kv + h;
            host_kv_store(shape->type, pass->in + i * shape->head_dim_k, shape->head_dim_k, row);
            host_copy_keys(shape->type, shape->head_dim_k, host_keys(pages, page, i_layer, h), slot,
                           row, HOST_ROW, 1);
            host_kv_store(shape->type, pass->in2 + i * shape->head_dim_v, shape->head_dim_v,
                          host_values(pages, page, i_layer, h) +
                              (size_t)slot * pages->value_row_bytes);
        }
    }
}

/* A page's keys and values of one head as f32 and as they lie in the cache (at most as many bytes,
 * but that its rows of values are rounded up to 16), a plain row of a key, and a query head's
 * running softmax. */
size_t ref_attend_scratch(const plan_op *op) {
    return 2 * (size_t)KERN_PAGE_POSITIONS * (size_t)(op->head_dim + op->head_dim_v + 16) +
           (size_t)op->head_dim + 2 * (size_t)(op->n_heads / op->n_heads_kv);
}

typedef struct softmax {
    float largest, sum;
} softmax;

/* Takes n more positions into a query head's softmax; out[head_dim_v] is the weighted sum of
 * values, relative to exp(largest). */
static void attend_chunk(const plan_op *op, const float *query, const float *keys,
                         const float *values, int n, softmax *state, float *out) {
    float scores[KERN_PAGE_POSITIONS], largest = state->largest;
    for (int i = 0; i < n; i++) {
        scores[i] = ref_dot(query, keys + (int64_t)i * op->head_dim, op->head_dim) * op->scale;
        if (scores[i] > largest) largest = scores[i];
    }
    if (largest > state->largest) {
        const float shrink = expf(state->largest - largest);
        state->sum *= shrink;
        for (int32_t d = 0; d < op->head_dim_v; d++) out[d] *= shrink;
        state->largest = largest;
    }
    for (int i = 0; i < n; i++) {
        const float e = expf(scores[i] - largest);
        const float *value = values + (int64_t)i * op->head_dim_v;
        state->sum += e;
        for (int32_t d = 0; d < op->head_dim_v; d++) out[d] += e * value[d];
    }
}

/* Keys and values of head h at positions from … to - 1, all of one page, as f32: keys[to - from,
 * head_dim], values[to - from, head_dim_v]. `raw` is memory for those of a branch of a tree, which
 * lie apart, and for a plain row. */
static void load_positions(const ref_pass *pass, int64_t t, int32_t h, int32_t from, int32_t to,
                           float *keys, float *values, unsigned char *raw) {
    const plan_op *op = pass->op;
    const kern_pages *pages = pass->pages;
    const kern_kv type = pages->shape.type;
    const kern_sequence *sequence = row_sequence(pass, t);
    const host_row *rows = pass->scratch->rows;
    const int32_t i_layer = op->layer - 1, first = from % KERN_PAGE_POSITIONS;
    const unsigned char *from_keys, *from_values;
    unsigned char *raw_values = raw + KERN_PAGE_POSITIONS * pages->key_row_bytes;
    unsigned char *row = raw_values + KERN_PAGE_POSITIONS * pages->value_row_bytes;
    if (to > sequence->n_past && host_row_branches(&rows[t])) {
        host_gather_path(pages, pass->batch, rows, t, i_layer, h, from, to, raw, raw_values);
        from_keys = raw;
        from_values = raw_values;
    } else {
        const int32_t page = sequence->pages[from / KERN_PAGE_POSITIONS];
        from_keys = host_keys(pages, page, i_layer, h);
        from_values = host_values(pages, page, i_layer, h);
    }
    for (int32_t i = 0; i < to - from; i++) {
        host_copy_keys(type, op->head_dim, row, HOST_ROW, from_keys, first + i, 1);
        host_kv_load(type, row, op->head_dim, keys + (int64_t)i * op->head_dim);
        host_kv_load(type, from_values + (size_t)(first + i) * pages->value_row_bytes,
                     op->head_dim_v, values + (int64_t)i * op->head_dim_v);
    }
}

/* All query heads of row t that share key head h. */
static void attend_row(const ref_pass *pass, int64_t t, int32_t h, float *scratch) {
    const plan_op *op = pass->op;
    const int32_t n_shared = op->n_heads / op->n_heads_kv;
    const int64_t i_head = t * op->n_heads + (int64_t)h * n_shared;
    const float *queries = pass->in + i_head * op->head_dim;
    float *out = pass->out + i_head * op->head_dim_v;
    float *keys = scratch, *values = keys + (int64_t)KERN_PAGE_POSITIONS * op->head_dim;
    float *raw = values + (int64_t)KERN_PAGE_POSITIONS * op->head_dim_v;
    float *raw_end =
        raw + (int64_t)KERN_PAGE_POSITIONS * (op->head_dim + op->head_dim_v + 16) + op->head_dim;
    softmax *states = (softmax *)(void *)raw_end;
    for (int32_t q = 0; q < n_shared; q++) states[q] = (softmax){-INFINITY, 0};
    for (int64_t i = 0; i < (int64_t)n_shared * op->head_dim_v; i++) out[i] = 0;

    const visible seen = row_visible(pass, t);
    for (int32_t from = seen.first, to; from <= seen.last; from = to) {
        to = (from / KERN_PAGE_POSITIONS + 1) * KERN_PAGE_POSITIONS;
        if (to > seen.last + 1) to = seen.last + 1;
        load_positions(pass, t, h, from, to, keys, values, (unsigned char *)raw);
        for (int32_t q = 0; q < n_shared; q++)
            attend_chunk(op, queries + (int64_t)q * op->head_dim, keys, values, to - from,
                         &states[q], out + (int64_t)q * op->head_dim_v);
    }
    for (int32_t q = 0; q < n_shared; q++)
        for (int32_t d = 0; d < op->head_dim_v; d++) out[q * op->head_dim_v + d] /= states[q].sum;
}

/* out[T, n_heads · head_dim_v] = softmax(in[T, n_heads · head_dim] · keys^T · scale) · values */
void ref_attend(const ref_pass *pass, int i_thread, int n_threads) {
    (void)n_threads;
    const int64_t n_heads_kv = pass->op->n_heads_kv, n_units = pass->batch->n_rows * n_heads_kv;
    int64_t unit;
    while ((unit = kern_pool_next(pass->pool, n_units)) >= 0 && !ref_stopped(pass->batch))
        attend_row(pass, unit / n_heads_kv, (int32_t)(unit % n_heads_kv),
                   ref_thread(pass, i_thread));
}
