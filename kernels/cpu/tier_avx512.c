/* tier_avx512.c: the AVX-512 tier, with VNNI. */
#include "products.h"
#include "x86_ops.h"

const cpu_tier cpu_tier_avx512 = {
    .tier = KERN_TIER_AVX512,
    TIER_PRODUCTS,
    TIER_ROW_OPS,
    .kv_store = kv_store,
};
