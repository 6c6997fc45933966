/* product_blocks.cu: products by weights in blocks of 32. */
#include "product_tiles.h"

template void product_tiles<KERN_Q8_0>(kern_device *, product_kernel, const product_args *);
template void product_tiles<KERN_Q4_0>(kern_device *, product_kernel, const product_args *);
template void product_tiles<KERN_Q4_1>(kern_device *, product_kernel, const product_args *);
