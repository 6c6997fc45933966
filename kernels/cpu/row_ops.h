/* row_ops.h: kernels over one row of activations, and with attend_ops.h those of attention;
 * included by the file of each tier, which compiles them for its instructions. */
#ifndef KERN_CPU_ROW_OPS_H
#define KERN_CPU_ROW_OPS_H

#include "attend_ops.h"
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
