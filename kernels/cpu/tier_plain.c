/* tier_plain.c: the tier of portable C, for processors that have no tier of their own. */
#include "row_ops.h"

static inline float block_largest(const float *x) {
    float largest = 0.0f;
    int finite = 1;
    for (int j = 0; j < 32; j++) {
        const float a = fabsf(x[j]);
        finite &= a < INFINITY;
        largest = a > largest ? a : largest;
    }
    return finite ? largest : INFINITY;
}

static inline void block_round(const float *x, float scale, int8_t *q, int32_t sums[2]) {
    sums[0] = sums[1] = 0;
    for (int j = 0; j < 32; j++) {
        q[j] = (int8_t)lrintf(x[j] * scale);
        sums[j / 16] += q[j];
    }
}

static inline void block_rest(const float *x, float scale, const int8_t *q, int8_t *rest,
                              int32_t sums[2]) {
    sums[0] = sums[1] = 0;
    for (int j = 0; j < 32; j++) {
        const float y = (float)((double)x[j] * (double)scale - q[j]) * 256.0f; /* one rounding */
        rest[j] = (int8_t)lrintf(y > 127.0f ? 127.0f : y < -127.0f ? -127.0f : y);
        sums[j / 16] += rest[j];
    }
}

const cpu_tier cpu_tier_plain = {
    .tier = KERN_TIER_PLAIN,
    .products = &cpu_products_plain,
    TIER_ROW_OPS,
    .kv_store = host_kv_store,
};
