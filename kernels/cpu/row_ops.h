/* row_ops.h: kernels over one row of activations, and attention over one chunk; included by the
 * file of each tier, which compiles them for its instructions. */
#ifndef KERN_CPU_ROW_OPS_H
#define KERN_CPU_ROW_OPS_H

#include "cpu.h"
#include "vector.h"
#include <math.h>

/* Σ x², and Σ (x − mean)² with a mean: four vectors of sums, the tail in the first. */
V8_INLINE float row_squares(const float *x, int64_t n, float mean) {
    v8 sums[4] = {{0}, {0}, {0}, {0}};
    v8 m = v8_set(mean);
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int j = 0; j < 4; j++) {
            v8 d = v8_load(x + i + 8 * j) - m;
            sums[j] = v8_fma(d, d, sums[j]);
        }
    }
    for (; i + 8 <= n; i += 8) {
        v8 d = v8_load(x + i) - m;
        sums[0] = v8_fma(d, d, sums[0]);
    }
    float sum = v8_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; i < n; i++) sum += (x[i] - mean) * (x[i] - mean);
    return sum;
}

static void norm_rms(const float *x, const float *w, float *y, int64_t n, float eps) {
    float scale = 1.0f / sqrtf(row_squares(x, n, 0.0f) / (float)n + eps);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale * w[i];
}

static void norm_layer(const float *x, const float *w, const float *b, float *y, int64_t n,
                       float eps) {
    v8 sums = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) sums = sums + v8_load(x + i);
    float sum = v8_sum(sums);
    for (; i < n; i++) sum += x[i];
    float mean = sum / (float)n;
    float scale = 1.0f / sqrtf(row_squares(x, n, mean) / (float)n + eps);
    for (i = 0; i < n; i++) y[i] = (x[i] - mean) * scale * w[i] + (b != NULL ? b[i] : 0.0f);
}

static void row_add(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

V8_INLINE v8 v8_silu(v8 x) { return x / (v8_set(1.0f) + v8_exp(-x)); }

/* x/2 · (1 + tanh u) = x / (1 + exp(−2u)), u = √(2/π) (x + 0.044715 x³) */
V8_INLINE v8 v8_gelu(v8 x) {
    v8 u = x * v8_fma(x * x, v8_set(0.044715f * 1.5957691216057308f), v8_set(1.5957691216057308f));
    return x / (v8_set(1.0f) + v8_exp(-u));
}

static void silu_mul(const float *x, const float *z, float *y, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) v8_store(y + i, v8_silu(v8_load(x + i)) * v8_load(z + i));
    if (i < n)
        v8_store_tail(y + i, v8_silu(v8_load_tail(x + i, n - i)) * v8_load_tail(z + i, n - i),
                      n - i);
}

static void gelu_mul(const float *x, const float *z, float *y, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        v8 g = v8_gelu(v8_load(x + i));
        v8_store(y + i, z != NULL ? g * v8_load(z + i) : g);
    }
    if (i == n) return;
    v8 g = v8_gelu(v8_load_tail(x + i, n - i));
    v8_store_tail(y + i, z != NULL ? g * v8_load_tail(z + i, n - i) : g, n - i);
}

static void row_rope(float *x, const float *cosines, int32_t n_rotary, int interleaved) {
    int32_t half = n_rotary / 2, step = interleaved ? 2 : 1, other = interleaved ? 1 : half;
    const float *sines = cosines + half;
    for (int32_t i = 0; i < half; i++) {
        float *p = x + (int64_t)i * step;
        float a = p[0], b = p[other];
        p[0] = a * cosines[i] - b * sines[i];
        p[other] = a * sines[i] + b * cosines[i];
    }
}

/* y[n] = a row of keys or values of one head, zero-filled to a multiple of 8 */
V8_INLINE void kv_load(kern_kv type, const unsigned char *from, int32_t n, float *y) {
    int32_t i = 0;
    if (type == KERN_KV_F32) {
        memcpy(y, from, (size_t)n * sizeof(float));
        i = n;
    } else if (type == KERN_KV_F16) {
#ifdef __AVX2__
        for (; i + 8 <= n; i += 8) {
            __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(from + 2 * (size_t)i));
            _mm256_storeu_ps(y + i, _mm256_cvtph_ps(h));
        }
#endif
        for (; i < n; i++) {
            uint16_t h;
            memcpy(&h, from + 2 * (size_t)i, sizeof h);
            y[i] = kern_f16_to_f32(h);
        }
    } else {
        for (; i < n; i += 32, from += 34) {
            uint16_t h;
            memcpy(&h, from, sizeof h);
            float d = kern_f16_to_f32(h);
            const int8_t *q = (const int8_t *)from + 2;
            for (int j = 0; j < 32; j++) y[i + j] = d * (float)q[j];
        }
    }
    for (; i % 8 != 0; i++) y[i] = 0.0f;
}

/* Scores of a query at positions 8·i … of a page tile k[8, dim]: q·k · scale. */
V8_INLINE v8 attend_scores(const float *q, const float *k, int64_t dim, float scale) {
    v8 sums[8] = {{0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}};
    for (int64_t d = 0; d < dim; d += 8) {
        v8 x = v8_load(q + d);
        for (int j = 0; j < 8; j++) sums[j] = v8_fma(x, v8_load(k + j * dim + d), sums[j]);
    }
    return v8_sums(sums) * v8_set(scale);
}

/* sum[width] += Σ p[j] · v[j], positions j in order; width of at most 4 vectors */
V8_INLINE void attend_values(const float *p, const float *v, int64_t dim, int32_t n, float *sum,
                             const int width) {
    v8 sums[4];
    for (int i = 0; i < width; i++) sums[i] = v8_load(sum + 8 * i);
    for (int32_t j = 0; j < n; j++) {
        v8 x = v8_set(p[j]);
        for (int i = 0; i < width; i++) sums[i] = v8_fma(x, v8_load(v + j * dim + 8 * i), sums[i]);
    }
    for (int i = 0; i < width; i++) v8_store(sum + 8 * i, sums[i]);
}

static inline int32_t int_max(int32_t a, int32_t b) { return a > b ? a : b; }
static inline int32_t int_min(int32_t a, int32_t b) { return a < b ? a : b; }

/* Scores of the visible positions from … to - 1 of a chunk become exp(score − max), in place. */
V8_INLINE void attend_weights(float *score, int32_t from, int32_t to, float *partial) {
    /* Sums go by absolute position: lane p % 8. */
    const v8i lane = {0, 1, 2, 3, 4, 5, 6, 7};
    v8 sum = {0}, largest = v8_set(-INFINITY);
    for (int32_t i = from & ~7; i < to; i += 8) {
        v8i p = lane + i;
        v8i seen = (p >= from) & (p < to);
        v8 s = v8_select(seen, v8_load(score + i), v8_set(-INFINITY));
        v8_store(score + i, s);
        largest = v8_max(largest, s);
    }
    for (int i = 1; i < 8; i++) largest[0] = largest[i] > largest[0] ? largest[i] : largest[0];
    v8 m = v8_set(largest[0]);
    for (int32_t i = from & ~7; i < to; i += 8) {
        v8i p = lane + i;
        v8i seen = (p >= from) & (p < to);
        v8 e = (v8)(seen & (v8i)v8_exp(v8_load(score + i) - m));
        sum = sum + e;
        v8_store(score + i, e);
    }
    partial[0] = largest[0];
    partial[1] = v8_sum(sum);
}

/* The `bytes` at p are wanted soon: the processor does not foresee the step to another page. */
V8_INLINE void kv_prefetch(const unsigned char *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

/* Keys (or values) from position p of a chunk on, p within what its queries see. */
V8_INLINE const unsigned char *chunk_keys(const cpu_chunk *c, int32_t p) {
    return c->keys[p / KERN_PAGE_POSITIONS] +
           (size_t)(p % KERN_PAGE_POSITIONS) * c->kv->key_row_bytes;
}
V8_INLINE const unsigned char *chunk_values(const cpu_chunk *c, int32_t p) {
    return c->values[p / KERN_PAGE_POSITIONS] +
           (size_t)(p % KERN_PAGE_POSITIONS) * c->kv->value_row_bytes;
}

static void attend_chunk(const cpu_chunk *c, void *scratch) {
    const struct kern_pages *kv = c->kv;
    const int32_t dim_k = kv->shape.head_dim_k, dim_v = kv->shape.head_dim_v;
    const int64_t pad_k = cpu_round_up(dim_k, 8), pad_v = cpu_round_up(dim_v, 8);
    float *queries = (float *)scratch, *scores = queries + CPU_QUERIES * pad_k;
    float *tile = scores + CPU_QUERIES * CPU_CHUNK;
    int32_t low = CPU_CHUNK, high = 0; /* what any query sees, from the chunk's start */
    int32_t from[CPU_QUERIES], to[CPU_QUERIES];
    for (int32_t i = 0; i < c->n_queries; i++) {
        from[i] = int_max(c->query[i].first - c->start, 0);
        to[i] = int_min(c->query[i].end - c->start, CPU_CHUNK);
        low = int_min(low, from[i]);
        high = int_max(high, to[i]);
        memcpy(queries + i * pad_k, c->query[i].q, (size_t)dim_k * sizeof(float));
        for (int64_t d = dim_k; d < pad_k; d++) queries[i * pad_k + d] = 0.0f;
        memset(c->query[i].partial, 0, (size_t)cpu_partial_floats(dim_v) * sizeof(float));
    }
    for (int32_t p = low & ~7; p < high; p += 8) {
        const unsigned char *keys = chunk_keys(c, p);
        if (p + KERN_PAGE_POSITIONS < high)
            kv_prefetch(chunk_keys(c, p + KERN_PAGE_POSITIONS), 8 * kv->key_row_bytes);
        else /* the last page of keys: the first of values */
            kv_prefetch(chunk_values(c, (low & ~31) + p % KERN_PAGE_POSITIONS),
                        8 * kv->value_row_bytes);
        int32_t n = int_min(8, high - p); /* rows that are not written yet are not read */
        for (int32_t j = 0; j < 8; j++)
            if (j < n)
                kv_load(kv->shape.type, keys + (size_t)j * kv->key_row_bytes, dim_k,
                        tile + j * pad_k);
        for (int32_t j = n; j < 8; j++) memset(tile + j * pad_k, 0, (size_t)pad_k * sizeof(float));
        for (int32_t i = 0; i < c->n_queries; i++) {
            if (p >= to[i] || p + 8 <= from[i]) continue;
            v8_store(scores + i * CPU_CHUNK + p,
                     attend_scores(queries + i * pad_k, tile, pad_k, c->scale));
        }
    }
    for (int32_t i = 0; i < c->n_queries; i++)
        attend_weights(scores + i * CPU_CHUNK, from[i], to[i], c->query[i].partial);
    for (int32_t p = low & ~31; p < high; p += KERN_PAGE_POSITIONS) {
        const unsigned char *values = chunk_values(c, p);
        const unsigned char *next =
            p + KERN_PAGE_POSITIONS < high ? chunk_values(c, p + KERN_PAGE_POSITIONS) : values;
        for (int32_t j = int_max(low - p, 0); j < int_min(high - p, KERN_PAGE_POSITIONS); j++) {
            kv_prefetch(next + (size_t)j * kv->value_row_bytes, kv->value_row_bytes);
            kv_load(kv->shape.type, values + (size_t)j * kv->value_row_bytes, dim_v,
                    tile + j * pad_v);
        }
        for (int32_t i = 0; i < c->n_queries; i++) {
            int32_t a = int_max(from[i] - p, 0), b = int_min(to[i] - p, KERN_PAGE_POSITIONS);
            if (a >= b) continue;
            const float *weights = scores + i * CPU_CHUNK + p + a, *v = tile + a * pad_v;
            float *sum = c->query[i].partial + CPU_PARTIAL_HEAD;
            int64_t d = 0;
            for (; d + 32 <= pad_v; d += 32)
                attend_values(weights, v + d, pad_v, b - a, sum + d, 4);
            for (; d < pad_v; d += 8) attend_values(weights, v + d, pad_v, b - a, sum + d, 1);
        }
    }
}

static void attend_fold(float *state, const float *p, int32_t dim_v, int first) {
    int64_t n = cpu_partial_floats(dim_v);
    if (first) {
        memcpy(state, p, (size_t)n * sizeof(float));
        return;
    }
    float largest = p[0] > state[0] ? p[0] : state[0];
    v8 old = v8_exp(v8_set(state[0] - largest)), new = v8_exp(v8_set(p[0] - largest));
    state[0] = largest;
    state[1] = state[1] * old[0] + p[1] * new[0];
    for (int64_t i = CPU_PARTIAL_HEAD; i < n; i += 8)
        v8_store(state + i, v8_load(state + i) * old + v8_load(p + i) * new);
}

static void attend_finish(const float *state, int32_t dim_v, float *out) {
    for (int32_t i = 0; i < dim_v; i++) out[i] = state[CPU_PARTIAL_HEAD + i] / state[1];
}

/* The d and the sums of a block to its record: `to` as in cpu_tier.quantise. */
static inline void put_record(uint8_t *to, int32_t tile, int32_t i, float d,
                              const int32_t sums[2]) {
    const size_t t = (size_t)tile;
    uint8_t *meta = to + 32 * (t - (size_t)i) + 4 * (size_t)i;
    const int32_t all = -(sums[0] + sums[1]), first = -sums[0], second = -sums[1];
    const float s = d * (float)-all;
    memcpy(meta + CPU_IN_D * t, &d, 4);
    memcpy(meta + CPU_IN_S * t, &s, 4);
    memcpy(meta + CPU_IN_SUM * t, &all, 4);
    memcpy(meta + CPU_IN_HALVES * t, &first, 4);
    memcpy(meta + (CPU_IN_HALVES + 4) * t, &second, 4);
}

/* The entries of a tier's table that the functions above are. */
#define TIER_ROW_OPS                                                                               \
    .quantise = quantise, .norm_rms = norm_rms, .norm_layer = norm_layer, .add = row_add,          \
    .silu_mul = silu_mul, .gelu_mul = gelu_mul, .rope = row_rope, .attend_chunk = attend_chunk,    \
    .attend_fold = attend_fold, .attend_finish = attend_finish

#endif
