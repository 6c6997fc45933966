/* products_avxvnni.c: the products of the avxvnni tier. */
#include "products.h"

const cpu_products cpu_products_avxvnni = {product_of, tile_of, LANES_PAIR_DOTS};
