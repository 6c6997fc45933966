/* attend_ops.h: attention over one chunk of positions; compiled for each tier (row_ops.h).
 *
 * Both products of attention are sums of numbers times rows of a page: scores[32] = Σ q[d] ·
 * keys[d][32], and out[dim] = Σ weight[p] · values[p][dim]. The lanes of a sum never meet, and each
 * is a chain of fused steps in the order of d or p, so a result does not depend on how many queries
 * are taken together, nor on the width of the registers. */
#ifndef KERN_CPU_ATTEND_OPS_H
#define KERN_CPU_ATTEND_OPS_H

#include "cpu.h"
#include "vector.h"
#include <math.h>

enum {
    ATTEND_QUERIES = VX_REGISTERS == 32 ? 6 : 4, /* with sums in registers at a time, at most */
    ATTEND_WIDTH = 4, /* vectors of each, where there are registers for so many */
    PAGE = KERN_PAGE_POSITIONS
};

static inline int32_t int_max(int32_t a, int32_t b) { return a > b ? a : b; }
static inline int32_t int_min(int32_t a, int32_t b) { return a < b ? a : b; }

/* To the second cache: what the first one can wait for at a time is too little for the memory. */
V8_INLINE void attend_prefetch(const unsigned char *p) { __builtin_prefetch(p, 0, 2); }

/* Some rows of a page (f16) or of a tile (f32) that are summed up: x[n][n_columns]. `soon` is as
 * many rows of a page that is wanted soon: the processor does not foresee the step to it; NULL of a
 * tile. */
typedef struct attend_rows {
    const unsigned char *x, *soon;
    size_t stride; /* bytes */
    int32_t n, n_columns;
    int is_f16, fresh; /* fresh: sums begin with 0 */
} attend_rows;

/* sum[q][columns] (+)= Σ a[q][i] · x[i][columns], i in order, from column `first` on. */
V8_INLINE void attend_block(const attend_rows *r, const float *const *a, float *const *sum,
                            int32_t first, const int n_queries, const int width, const int is_f16) {
    const size_t number = is_f16 ? 2 : 4, stride = r->stride;
    const unsigned char *x = r->x + (size_t)first * number, *soon = r->soon;
    if (soon != NULL) soon += (size_t)first * number;
    vx sums[ATTEND_QUERIES][ATTEND_WIDTH];
    for (int q = 0; q < n_queries; q++)
        for (int j = 0; j < width; j++)
            sums[q][j] = r->fresh ? vx_set(0.0f) : vx_load(sum[q] + first + j * VX);
    for (int32_t i = 0; i < r->n; i++, x += stride) {
        vx factor[ATTEND_QUERIES];
        if (is_f16 || soon != NULL) {
            for (size_t j = 0; j < (size_t)(width * VX) * number; j += 64)
                attend_prefetch(soon + j);
            soon += stride;
        }
        for (int q = 0; q < n_queries; q++) factor[q] = vx_set(a[q][i]);
        for (int j = 0; j < width; j++) {
            const unsigned char *at = x + (size_t)(j * VX) * number;
            const vx v = is_f16 ? vx_of_f16(at) : vx_load((const float *)(const void *)at);
            for (int q = 0; q < n_queries; q++) sums[q][j] = vx_fma(factor[q], v, sums[q][j]);
        }
    }
    for (int q = 0; q < n_queries; q++)
        for (int j = 0; j < width; j++) vx_store(sum[q] + first + j * VX, sums[q][j]);
}

V8_INLINE void attend_columns(const attend_rows *r, const float *const *a, float *const *sum,
                              const int n_queries, const int is_f16) {
    const int width = VX_REGISTERS == 32 || n_queries <= 3 ? ATTEND_WIDTH : 2;
    int32_t i = 0;
    for (; i + width * VX <= r->n_columns; i += width * VX)
        attend_block(r, a, sum, i, n_queries, width, is_f16);
    if (width > 2)
        for (; i + 2 * VX <= r->n_columns; i += 2 * VX)
            attend_block(r, a, sum, i, n_queries, 2, is_f16);
    if (VX == 16 && i < r->n_columns) attend_block(r, a, sum, i, n_queries, 1, is_f16);
}

V8_INLINE void attend_typed(const attend_rows *r, const float *const *a, float *const *sum,
                            int32_t n_queries, const int is_f16) {
    switch (n_queries) {
    case 1: attend_columns(r, a, sum, 1, is_f16); break;
    case 2: attend_columns(r, a, sum, 2, is_f16); break;
    case 3: attend_columns(r, a, sum, 3, is_f16); break;
    case 4: attend_columns(r, a, sum, 4, is_f16); break;
#if VX_REGISTERS == 32
    case 5: attend_columns(r, a, sum, 5, is_f16); break;
    case 6: attend_columns(r, a, sum, 6, is_f16); break;
#endif
    default: break;
    }
}

/* For all n_queries. */
static void attend_sum(const attend_rows *r, const float *const *a, float *const *sum,
                       int32_t n_queries) {
    for (int32_t i = 0, n; i < n_queries; i += n) {
        n = n_queries - i;
        if (n > ATTEND_QUERIES)
            n = VX_REGISTERS == 32 ? 6 : 3; /* 3 · 4 sums are the best of 16 registers */
        if (r->is_f16)
            attend_typed(r, a + i, sum + i, n, 1);
        else
            attend_typed(r, a + i, sum + i, n, 0);
    }
}

/* y[n] = f16 at x; n is a multiple of 16 */
V8_INLINE void tile_f16(const unsigned char *x, int32_t n, float *y) {
    for (int32_t i = 0; i < n; i += VX) vx_store(y + i, vx_of_f16(x + 2 * (size_t)i));
}

/* y[32] = int8 at x, each times its scale */
V8_INLINE void tile_q8(const unsigned char *x, const vx *scale, float *y) {
    for (int32_t i = 0; i < PAGE; i += VX) vx_store(y + i, vx_of_int8(x + i) * scale[i / VX]);
}

V8_INLINE float f16_at(const unsigned char *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
#ifdef __AVX2__
    return _cvtsh_ss(h);
#elif defined(__ARM_FEATURE_DOTPROD)
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0);
#else
    return kern_f16_to_f32(h);
#endif
}

/* Whether the page is converted to f32 first, for n queries. */
V8_INLINE int wants_tile(kern_kv type, int32_t n_queries) {
#if defined(__AVX2__) || defined(__ARM_FEATURE_DOTPROD)
    return type == KERN_KV_Q8_0 || (type == KERN_KV_F16 && n_queries > ATTEND_QUERIES);
#else
    (void)n_queries;
    return type != KERN_KV_F32;
#endif
}

/* Bytes of 32 numbers. */
V8_INLINE size_t kv_bytes(kern_kv type) {
    return type == KERN_KV_F32 ? 128 : type == KERN_KV_F16 ? 64 : 34;
}

/* tile[n][32] = numbers d … d + n - 1 of the keys of a page, d a multiple of 32 */
static void tile_keys(kern_kv type, const unsigned char *keys, const unsigned char *soon, int32_t d,
                      int32_t n, float *tile) {
    const size_t bytes = kv_bytes(type);
    keys += (size_t)d * bytes;
    soon += (size_t)d * bytes;
    for (size_t i = 0; i < (size_t)n * bytes; i += 64) attend_prefetch(soon + i);
    if (type == KERN_KV_F16) {
        tile_f16(keys, n * PAGE, tile);
        return;
    }
    for (int32_t i = 0; i < n; i += 32, keys += 32 * bytes) {
        vx scale[PAGE / VX];
        for (int32_t j = 0; j < PAGE / VX; j++) scale[j] = vx_of_f16(keys + 2 * j * VX);
        for (int32_t j = 0; j < 32; j++)
            tile_q8(keys + 2 * PAGE + j * PAGE, scale, tile + (i + j) * PAGE);
    }
}

/* tile[p][64] = columns d … of the values at positions from … to - 1 of a page */
static void tile_values(kern_kv type, const unsigned char *values, const unsigned char *soon,
                        size_t stride, int32_t from, int32_t to, int32_t d, int32_t n,
                        float *tile) {
    const size_t at = (size_t)(d / 32) * kv_bytes(type);
    for (int32_t p = from; p < to; p++) {
        const unsigned char *row = values + (size_t)p * stride + at;
        float *y = tile + p * CPU_ATTEND_SPAN;
        attend_prefetch(soon + (size_t)p * stride + at);
        attend_prefetch(soon + (size_t)p * stride + at + 64);
        if (type == KERN_KV_F16) {
            tile_f16(row, n, y);
            continue;
        }
        for (int32_t i = 0; i < n; i += 32, row += 34) {
            vx scale[PAGE / VX];
            for (int32_t j = 0; j < PAGE / VX; j++) scale[j] = vx_set(f16_at(row));
            tile_q8(row + 2, scale, y + i);
        }
    }
}

/* What a chunk's kernels work with. */
typedef struct attend_state {
    const cpu_chunk *c;
    float *scores, *tile; /* [CPU_QUERIES][CPU_CHUNK]; 32 · CPU_ATTEND_SPAN */
    int32_t low, high;    /* what any row sees, from the chunk's start */
    int32_t from[CPU_QUERIES], to[CPU_QUERIES]; /* what each row sees */
} attend_state;

/* The rows that see some of page i and have the same one as the first of `rows`, a set that they
 * leave. Their numbers go to `out`; returns how many. */
static int32_t same_page(const attend_state *s, int32_t i, uint64_t *rows, int32_t *out) {
    int32_t n = 0;
    for (uint64_t left = *rows; left != 0; left &= left - 1) {
        const int32_t row = __builtin_ctzll(left);
        const int sees = s->from[row] < (i + 1) * PAGE && s->to[row] > i * PAGE;
        if (sees && n > 0 && s->c->row[row].keys[i] != s->c->row[out[0]].keys[i]) continue;
        *rows &= ~((uint64_t)1 << row);
        if (sees) out[n++] = row;
    }
    return n;
}

static uint64_t all_rows(const attend_state *s) { return ~(uint64_t)0 >> (64 - s->c->n_rows); }

/* The page that a row wants two pages after the keys (or values) of page i: first it takes the keys
 * of all pages, then the values. */
static const unsigned char *wanted_soon(const attend_state *s, int32_t row, int32_t i, int values) {
    const int32_t first = s->from[row] / PAGE, n = (s->to[row] - 1) / PAGE + 1 - first;
    const int32_t k = (values ? n : 0) + i - first + 2;
    if (k < n) return s->c->row[row].keys[first + k];
    if (k < 2 * n) return s->c->row[row].values[first + k - n];
    return s->c->soon[k == 2 * n ? 0 : 1];
}

/* Scores of page i for n rows that have it. */
static void score_page(const attend_state *s, int32_t i, const int32_t *rows, int32_t n) {
    const cpu_chunk *c = s->c;
    const kern_kv_shape *shape = &c->kv->shape;
    const unsigned char *keys = c->row[rows[0]].keys[i], *soon = wanted_soon(s, rows[0], i, 0);
    const float *q[CPU_QUERIES], *a[CPU_QUERIES];
    float *sum[CPU_QUERIES];
    int32_t n_queries = 0;
    for (int32_t j = 0; j < n; j++) {
        for (int32_t h = 0; h < c->n_heads; h++, n_queries++) {
            const int32_t query = rows[j] * c->n_heads + h;
            q[n_queries] = c->query[query].q;
            sum[n_queries] = s->scores + query * CPU_CHUNK + i * PAGE;
        }
    }
    const size_t bytes = kv_bytes(shape->type);
    for (int32_t d = 0; d < shape->head_dim_k; d += CPU_ATTEND_SPAN) {
        const int32_t n_d = int_min(shape->head_dim_k - d, CPU_ATTEND_SPAN);
        attend_rows r = {.n = n_d, .n_columns = PAGE, .fresh = d == 0};
        if (wants_tile(shape->type, n_queries)) {
            tile_keys(shape->type, keys, soon, d, n_d, s->tile);
            r.x = (const unsigned char *)s->tile;
            r.stride = PAGE * sizeof(float);
        } else {
            r.x = keys + (size_t)d * bytes;
            r.soon = soon + (size_t)d * bytes;
            r.stride = bytes;
            r.is_f16 = shape->type == KERN_KV_F16;
        }
        for (int32_t j = 0; j < n_queries; j++) a[j] = q[j] + d;
        attend_sum(&r, a, sum, n_queries);
    }
}

/* Scores of the visible positions from … to - 1 of a chunk become exp(score · scale − max), in
 * place. Sums go by absolute position: lane p % VX. */
V8_INLINE void attend_weights(float *score, int32_t from, int32_t to, float scale, float *partial) {
    const vx low = vx_set(-INFINITY), factor = vx_set(scale);
    vx sum = {0}, largest = low;
    for (int32_t i = from & ~(VX - 1); i < to; i += VX) {
        vx s = vx_load(score + i) * factor;
        if (i < from || i + VX > to) s = vx_within(s, from - i, to - i, low);
        vx_store(score + i, s);
        largest = vx_max(largest, s);
    }
    partial[0] = vx_largest(largest);
    const vx m = vx_set(partial[0]);
    for (int32_t i = from & ~(VX - 1); i < to; i += VX) {
        vx e = vx_exp(vx_load(score + i) - m);
        if (i < from || i + VX > to) e = vx_within(e, from - i, to - i, vx_set(0.0f));
        sum = sum + e;
        vx_store(score + i, e);
    }
    partial[1] = vx_sum(sum);
}

/* A span of columns of the values of page i, and the queries that sum them up. */
typedef struct value_page {
    attend_rows r; /* of position 0 on */
    int32_t n_queries;
    int32_t from[CPU_QUERIES], to[CPU_QUERIES]; /* positions that each sees */
    const float *weights[CPU_QUERIES];          /* of the page's 32 positions */
    float *sum[CPU_QUERIES];                    /* of the span */
} value_page;

/* Queries first … end - 1 sum up positions from … to - 1. */
static void value_range(const value_page *v, int32_t first, int32_t end, int32_t from, int32_t to) {
    if (from >= to) return;
    attend_rows r = v->r;
    const float *a[CPU_QUERIES];
    r.x += (size_t)from * r.stride;
    if (r.soon != NULL) r.soon += (size_t)from * r.stride;
    r.n = to - from;
    for (int32_t i = first; i < end; i++) a[i - first] = v->weights[i] + from;
    attend_sum(&r, a, v->sum + first, end - first);
}

/* Each query its own positions, in order: neighbours that see the same together, and what all see
 * for all at once. */
static void value_sums(const value_page *v) {
    int32_t all_from = 0, all_to = PAGE;
    for (int32_t i = 0; i < v->n_queries; i++) {
        all_from = int_max(all_from, v->from[i]);
        all_to = int_min(all_to, v->to[i]);
    }
    const int common = all_from < all_to;
    for (int32_t i = 0, end; i < v->n_queries; i = end) {
        for (end = i + 1; end < v->n_queries; end++)
            if (v->from[end] != v->from[i] || v->to[end] != v->to[i]) break;
        value_range(v, i, end, v->from[i], common ? all_from : v->to[i]);
    }
    if (!common) return;
    value_range(v, 0, v->n_queries, all_from, all_to);
    for (int32_t i = 0, end; i < v->n_queries; i = end) {
        for (end = i + 1; end < v->n_queries && v->to[end] == v->to[i];) end++;
        value_range(v, i, end, all_to, v->to[i]);
    }
}

/* Adds the values of page i for n rows that have it. */
static void value_page_sums(const attend_state *s, int32_t i, const int32_t *rows, int32_t n) {
    const cpu_chunk *c = s->c;
    const kern_kv type = c->kv->shape.type;
    const unsigned char *values = c->row[rows[0]].values[i], *soon = wanted_soon(s, rows[0], i, 1);
    value_page v; /* large: not cleared */
    v.r = (attend_rows){.stride = c->kv->value_row_bytes, .is_f16 = type == KERN_KV_F16};
    v.n_queries = 0;
    int32_t from = PAGE, to = 0;
    for (int32_t j = 0; j < n; j++) {
        const int32_t a = int_max(s->from[rows[j]] - i * PAGE, 0);
        const int32_t b = int_min(s->to[rows[j]] - i * PAGE, PAGE);
        from = int_min(from, a);
        to = int_max(to, b);
        for (int32_t h = 0; h < c->n_heads; h++, v.n_queries++) {
            const int32_t query = rows[j] * c->n_heads + h;
            v.from[v.n_queries] = a;
            v.to[v.n_queries] = b;
            v.weights[v.n_queries] = s->scores + query * CPU_CHUNK + i * PAGE;
            v.sum[v.n_queries] = c->query[query].partial + CPU_PARTIAL_HEAD;
        }
    }
    const int tiled = wants_tile(type, v.n_queries);
    if (tiled) v.r = (attend_rows){.stride = CPU_ATTEND_SPAN * sizeof(float)};
    const int32_t n_columns = (int32_t)cpu_round_up(c->kv->shape.head_dim_v, 16);
    for (int32_t d = 0; d < n_columns; d += CPU_ATTEND_SPAN) {
        v.r.n_columns = int_min(n_columns - d, CPU_ATTEND_SPAN);
        if (tiled) {
            tile_values(type, values, soon, c->kv->value_row_bytes, from, to, d, v.r.n_columns,
                        s->tile);
            v.r.x = (const unsigned char *)s->tile;
        } else {
            v.r.x = values + (size_t)(d / 32) * kv_bytes(type);
            v.r.soon = soon + (size_t)(d / 32) * kv_bytes(type);
        }
        value_sums(&v);
        for (int32_t j = 0; j < v.n_queries; j++) v.sum[j] += CPU_ATTEND_SPAN;
    }
}

static void attend_chunk(const cpu_chunk *c, void *scratch) {
    attend_state s; /* large: not cleared */
    s.c = c;
    s.scores = (float *)scratch;
    s.tile = s.scores + CPU_QUERIES * CPU_CHUNK;
    s.low = CPU_CHUNK;
    s.high = 0;
    for (int32_t i = 0; i < c->n_rows; i++) {
        s.from[i] = int_max(c->row[i].first - c->start, 0);
        s.to[i] = int_min(c->row[i].end - c->start, CPU_CHUNK);
        s.low = int_min(s.low, s.from[i]);
        s.high = int_max(s.high, s.to[i]);
    }
    int32_t rows[CPU_QUERIES], n;
    for (int32_t i = s.low / PAGE; i * PAGE < s.high; i++)
        for (uint64_t left = all_rows(&s); (n = same_page(&s, i, &left, rows)) > 0;)
            score_page(&s, i, rows, n);
    for (int32_t i = 0; i < c->n_rows * c->n_heads; i++) {
        float *partial = c->query[i].partial;
        attend_weights(s.scores + i * CPU_CHUNK, s.from[i / c->n_heads], s.to[i / c->n_heads],
                       c->scale, partial);
        for (int64_t j = 2; j < cpu_partial_floats(c->kv->shape.head_dim_v); j++) partial[j] = 0;
    }
    for (int32_t i = s.low / PAGE; i * PAGE < s.high; i++)
        for (uint64_t left = all_rows(&s); (n = same_page(&s, i, &left, rows)) > 0;)
            value_page_sums(&s, i, rows, n);
}

static void attend_fold(float *state, const float *p, int32_t dim_v, int first) {
    const int64_t n = cpu_partial_floats(dim_v);
    if (first) {
        memcpy(state, p, (size_t)n * sizeof(float));
        return;
    }
    const float largest = p[0] > state[0] ? p[0] : state[0];
    const vx old = vx_exp(vx_set(state[0] - largest)), new = vx_exp(vx_set(p[0] - largest));
    state[0] = largest;
    state[1] = state[1] * old[0] + p[1] * new[0];
    for (int64_t i = CPU_PARTIAL_HEAD; i < n; i += VX)
        vx_store(state + i, vx_load(state + i) * old + vx_load(p + i) * new);
}

static void attend_finish(const float *state, int32_t dim_v, float *out) {
    for (int32_t i = 0; i < dim_v; i++) out[i] = state[CPU_PARTIAL_HEAD + i] / state[1];
}

#endif
