/* product_16.cu: products by weights of 16 bits. */
#include "product_tiles.h"

template void product_tiles<KERN_F16>(kern_device *, product_kernel, const product_args *);
template void product_tiles<KERN_BF16>(kern_device *, product_kernel, const product_args *);
