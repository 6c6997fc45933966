/* attend_rows.cu: the kernels of passes with several rows a sequence. */
#include "attend_kernel.h"

void attend_prefill(kern_device *device, kern_kv type, const attend_args &a, int32_t n_tiles) {
    attend_launch_any<2, false, false>(device, type, a, n_tiles);
}

void attend_tree(kern_device *device, kern_kv type, const attend_args &a, int32_t n_tiles) {
    attend_launch_any<1, false, true>(device, type, a, n_tiles);
}
