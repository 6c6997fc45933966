/* products.h: the products of a tier, a function for each format: included by products_*.c. */
#ifndef KERN_CPU_PRODUCTS_H
#define KERN_CPU_PRODUCTS_H

#include "strips.h"

#define PRODUCT_FORMATS(X)                                                                         \
    X(F32)                                                                                         \
    X(F16)                                                                                         \
    X(BF16)                                                                                        \
    X(BF16_DOTS)                                                                                   \
    X(Q4_0)                                                                                        \
    X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(IQ4_XS)

#define PRODUCT(f)                                                                                 \
    static void product_##f(const cpu_product *p, int64_t first, int64_t end) {                    \
        strips_product(p, KERN_##f, first, end);                                                   \
    }
PRODUCT_FORMATS(PRODUCT)
#undef PRODUCT

/* Of a format of the table, or of KERN_BF16_DOTS. */
static cpu_product_fn *product_of(int32_t format) {
#define PRODUCT(f)                                                                                 \
    case KERN_##f: return product_##f;
    switch (format) {
        PRODUCT_FORMATS(PRODUCT)
    default: return NULL;
    }
#undef PRODUCT
}

/* The tile that wastes least: whole tiles have to cover the rows, and each unpacks the weights
 * once, which costs about as much as a row. */
static int32_t tile_of(int64_t n_rows) {
#define TILE(n) n,
    static const int32_t tiles[] = {LANES_TILES(TILE)};
#undef TILE
    int32_t best = 1;
    int64_t least = INT64_MAX;
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        const int64_t cost = (n_rows + tiles[i] - 1) / tiles[i] * (tiles[i] + 1);
        if (cost > least) continue;
        least = cost;
        best = tiles[i];
    }
    return best;
}

#endif
