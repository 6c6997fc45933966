/* plain.c: the tier of portable C, for processors that have no tier of their own: the same rounding
 * of activations as the others, weights dequantised a row at a time. */
#include "row_ops.h"

enum { PIECE = 256 }; /* columns of one sum */

static void quantise(const float *x, int64_t n, const cpu_q8 *to, int64_t row) {
    int8_t *q = cpu_q8_q(to, row);
    float *d = cpu_q8_d(to, row), *s = cpu_q8_s(to, row);
    int16_t *sums = cpu_q8_sums(to, row);
    int64_t n_blocks = n / 32;
    memset(q, 0, to->stride);
    for (int64_t b = 0; b < n_blocks; b++) {
        float largest = 0.0f;
        int finite = 1;
        for (int i = 0; i < 32; i++) {
            float a = fabsf(x[32 * b + i]);
            finite &= a < INFINITY;
            largest = a > largest ? a : largest;
        }
        if (!finite) {
            d[b] = s[b] = NAN;
            continue;
        }
        if (largest < 1e-35f) continue;
        float scale = 127.0f / largest;
        int sum[2] = {0, 0};
        for (int i = 0; i < 32; i++) {
            q[32 * b + i] = (int8_t)lrintf(x[32 * b + i] * scale);
            sum[i / 16] += q[32 * b + i];
        }
        d[b] = largest / 127.0f;
        s[b] = d[b] * (float)(sum[0] + sum[1]);
        sums[2 * b] = (int16_t)sum[0];
        sums[2 * b + 1] = (int16_t)sum[1];
    }
}

/* Σ w · q over a block of 32 */
static float dot_q8(const float *w, const int8_t *q) {
    v8 sum = {0};
    for (int i = 0; i < 32; i += 8) {
        v8 x;
        for (int j = 0; j < 8; j++) x[j] = (float)q[i + j];
        sum = v8_fma(v8_load(w + i), x, sum);
    }
    return v8_sum(sum);
}

static float dot_f32(const float *w, const float *x, int64_t n) {
    v8 sum = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) sum = v8_fma(v8_load(w + i), v8_load(x + i), sum);
    if (i < n) sum = v8_fma(v8_load_tail(w + i, n - i), v8_load_tail(x + i, n - i), sum);
    return v8_sum(sum);
}

/* out[T, first … first + n] = x[T,K] @ w[N,K]^T: a row of w is dequantised once for all T */
static void product(const cpu_product *p, int64_t first, int64_t n, void *panel) {
    const kern_format *f = p->w->format;
    int64_t k = p->w->n_columns;
    float *w = (float *)panel;
    for (int64_t i = first; i < first + n; i++) {
        f->dequantise((const char *)p->w->data + (size_t)i * p->w_stride, w, k);
        for (int64_t t = 0; t < p->n_x; t++) {
            float sum = 0.0f;
            if (cpu_wants_q8(f)) {
                const int8_t *q = cpu_q8_q(&p->q8, t);
                const float *d = cpu_q8_d(&p->q8, t);
                for (int64_t b = 0; b < k / 32; b++) sum += d[b] * dot_q8(w + 32 * b, q + 32 * b);
            } else {
                const float *x = p->x + t * p->x_stride;
                for (int64_t j = 0; j < k; j += PIECE)
                    sum += dot_f32(w + j, x + j, k - j < PIECE ? k - j : PIECE);
            }
            p->out[t * p->out_stride + i] = p->bias != NULL ? sum + p->bias[i] : sum;
        }
    }
}

static cpu_product_fn *product_of(int32_t format) {
    (void)format;
    return product;
}

const cpu_tier cpu_tier_plain = {
    .tier = KERN_TIER_PLAIN,
    .product = product_of,
    .quantise = quantise,
    .norm_rms = norm_rms,
    .norm_layer = norm_layer,
    .add = row_add,
    .silu_mul = silu_mul,
    .gelu_mul = gelu_mul,
    .rope = row_rope,
    .kv_store = host_kv_store,
    .attend_chunk = attend_chunk,
    .attend_fold = attend_fold,
    .attend_finish = attend_finish,
};
