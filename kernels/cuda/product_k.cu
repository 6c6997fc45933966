/* product_k.cu: products by weights in blocks of 256. */
#include "product_tiles.h"

template void product_tiles<KERN_Q4_K>(kern_device *, product_kernel, const product_args *);
template void product_tiles<KERN_Q5_K>(kern_device *, product_kernel, const product_args *);
template void product_tiles<KERN_Q6_K>(kern_device *, product_kernel, const product_args *);
