/* row_ops.h: kernels over one row of activations, and with attend_ops.h those of attention;
 * included by the file of each tier, which compiles them for its instructions. */
#ifndef KERN_CPU_ROW_OPS_H
#define KERN_CPU_ROW_OPS_H

#include "../formats_internal.h"
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

/* ---- rounding of activations; the file of a tier has these three, for blocks of 32 ---- */

/* max|x|, not finite if any of x is not */
static inline float block_largest(const float *x);
/* q = x · scale, rounded to nearest even, and the sums of its halves */
static inline void block_round(const float *x, float scale, int8_t *q, int32_t sums[2]);
/* rest = (x · scale - q) · 256, rounded and within ±127 */
static inline void block_rest(const float *x, float scale, const int8_t *q, int8_t *rest,
                              int32_t sums[2]);

static inline void put_sums(int32_t to[3], const int32_t sums[2]) {
    to[0] = -(sums[0] + sums[1]);
    to[1] = -sums[0];
    to[2] = -sums[1];
}

enum { REST_TIMES = 2 }; /* blocks whose d is more than so many times the row's mean have a rest */

/* Most of what rounding costs is where a few columns hold outliers: the blocks with the largest d
 * get rests, once all of a row are known. Rows are done side by side: memory is written in order.
 */
static void quantise(const float *x, int64_t n, int32_t n_rows, int32_t tile, cpu_in_block *block,
                     cpu_in_rest *rest, uint8_t *flags) {
    const int64_t n_blocks = n / 32;
    float most[CPU_TILE_MOST] = {0};
    for (int64_t b = 0; b < n_blocks; b++) {
        for (int32_t i = 0; i < n_rows; i++) {
            const float *from = x + i * n + 32 * b;
            cpu_in_block *to = &block[b * tile + i];
            const float largest = block_largest(from);
            const int finite = largest < INFINITY, some = finite && largest >= 1e-35f;
            int32_t sums[2] = {0, 0};
            to->d = !finite ? NAN : some ? largest / 127.0f : 0.0f;
            if (some)
                block_round(from, 127.0f / largest, to->q, sums);
            else
                memset(to->q, 0, sizeof to->q);
            to->s = to->d * (float)(sums[0] + sums[1]);
            put_sums(to->sums, sums);
            most[i] += to->d;
        }
    }
    for (int32_t i = 0; i < n_rows; i++) most[i] = most[i] / (float)n_blocks * REST_TIMES;
    for (int64_t b = 0; b < n_blocks; b++, flags += CPU_FLAGS) {
        for (int32_t i = 0; i < n_rows; i++) {
            const float *from = x + i * n + 32 * b;
            cpu_in_block *of = &block[b * tile + i];
            cpu_in_rest *to = &rest[b * tile + i];
            const int has = of->d > most[i];
            if (flags[i] != has) flags[i] = (uint8_t)has;
            if (!has) continue;
            int32_t sums[2];
            block_rest(from, 127.0f / block_largest(from), of->q, to->q, sums);
            of->s += of->d / 256.0f * (float)(sums[0] + sums[1]);
            put_sums(to->sums, sums);
        }
    }
}

static void round_pairs(const float *x, int64_t n, int32_t n_rows, int32_t tile, uint32_t *pairs) {
    enum { PIECE = 32 };
    uint32_t piece[PIECE / 2];
    for (int32_t i = 0; i < n_rows; i++, x += n) {
        uint32_t *to = pairs + i;
        int64_t c = 0;
        for (; c + PIECE <= n; c += PIECE, to += PIECE / 2 * tile) {
            for (int j = 0; j < PIECE / 2; j++)
                piece[j] = format_brain(x[c + 2 * j]) | (uint32_t)format_brain(x[c + 2 * j + 1])
                                                            << 16;
            for (int j = 0; j < PIECE / 2; j++) to[j * tile] = piece[j];
        }
        for (; c < n; c += 2, to += tile)
            *to = format_brain(x[c]) | (c + 1 < n ? (uint32_t)format_brain(x[c + 1]) << 16 : 0);
    }
}

/* The entries of a tier's table that the functions above are. */
#define TIER_ROW_OPS                                                                               \
    .quantise = quantise, .round_pairs = round_pairs, .norm_rms = norm_rms,                        \
    .norm_layer = norm_layer, .add = row_add, .silu_mul = silu_mul, .gelu_mul = gelu_mul,          \
    .rope = row_rope, .attend_chunk = attend_chunk, .attend_fold = attend_fold,                    \
    .attend_finish = attend_finish

#endif
