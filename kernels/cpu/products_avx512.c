/* products_avx512.c: the products of the avx512 tier. */
#include "products.h"

const cpu_products cpu_products_avx512 = {product_of, tile_of, LANES_PAIR_DOTS};
