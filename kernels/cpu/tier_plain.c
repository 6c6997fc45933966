/* tier_plain.c: the tier of portable C, for processors that have no tier of their own. */
#include "products.h"
#include "row_ops.h"

static void quantise(const float *x, int64_t n, uint8_t *to, int32_t tile, int32_t i) {
    for (; n > 0; n -= 32, x += 32, to += (size_t)tile * CPU_IN_BYTES) {
        int8_t *q = (int8_t *)to;
        float largest = 0.0f;
        int finite = 1;
        for (int j = 0; j < 32; j++) {
            float a = fabsf(x[j]);
            finite &= a < INFINITY;
            largest = a > largest ? a : largest;
        }
        int32_t sums[2] = {0, 0};
        const int some = finite && largest >= 1e-35f;
        const float scale = some ? 127.0f / largest : 0.0f;
        for (int j = 0; j < 32; j++) {
            q[j] = some ? (int8_t)lrintf(x[j] * scale) : 0;
            sums[j / 16] += q[j];
        }
        put_record(to, tile, i, !finite ? NAN : some ? largest / 127.0f : 0.0f, sums);
    }
}

const cpu_tier cpu_tier_plain = {
    .tier = KERN_TIER_PLAIN,
    TIER_PRODUCTS,
    TIER_ROW_OPS,
    .kv_store = host_kv_store,
};
