/* tier_avx512.c: the AVX-512 tier, with VNNI. */
#include "x86_ops.h"

const cpu_tier cpu_tier_avx512 = {
    .tier = KERN_TIER_AVX512,
    .products = &cpu_products_avx512,
    TIER_ROW_OPS,
    .kv_store = kv_store,
};
