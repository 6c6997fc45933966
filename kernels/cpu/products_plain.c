/* products_plain.c: the products of the plain tier. */
#include "products.h"

const cpu_products cpu_products_plain = {product_of, tile_of, LANES_PAIR_DOTS};
