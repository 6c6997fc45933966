/* tier_avx2.c: the AVX2 + FMA + F16C tier. */
#include "x86_ops.h"

const cpu_tier cpu_tier_avx2 = {
    .tier = KERN_TIER_AVX2,
    .products = &cpu_products_avx2,
    TIER_ROW_OPS,
    .kv_store = kv_store,
};
