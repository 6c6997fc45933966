/* products_neon.c: the products of the NEON tier. */
#include "products.h"

const cpu_products cpu_products_neon = {product_of, tile_of, LANES_PAIR_DOTS};
