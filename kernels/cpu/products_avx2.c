/* products_avx2.c: the products of the avx2 tier. */
#include "products.h"

const cpu_products cpu_products_avx2 = {product_of, tile_of, LANES_PAIR_DOTS};
