/* tier_avxvnni.c: the AVX-VNNI tier: AVX2 with dot products of bytes. */
#include "x86_ops.h"

const cpu_tier cpu_tier_avxvnni = {
    .tier = KERN_TIER_AVXVNNI,
    .products = &cpu_products_avxvnni,
    TIER_ROW_OPS,
    .kv_store = kv_store,
};
