/* product_plain.cu: products by weights that lie as in the file, for every format: one warp for a
 * row of the weight, 32 columns at a time. F32 weights are multiplied exactly. */
#include "plain.h"
#include "product.h"

#define WARPS  8
#define INPUTS 8 /* rows of input a block */

/* The products of a weight row and the inputs from t on; every lane gets them. */
template <int id>
GPU_INLINE void row_products(const product_args &p, const unsigned char *row, int t, int lane,
                             float sums[INPUTS]) {
    GPU_UNROLL
    for (int j = 0; j < INPUTS; j++) sums[j] = 0;
    for (int k = lane; k < p.n_columns; k += 32) {
        const float w = plain_at<plain<id>>(row, k);
        const float *in = p.in + (int64_t)t * p.stride + k;
        GPU_UNROLL
        for (int j = 0; j < INPUTS; j++)
            if (t + j < p.n_inputs)
                sums[j] = __fmaf_rn(w, __ldg(in + (int64_t)j * p.stride), sums[j]);
    }
    GPU_UNROLL
    for (int j = 0; j < INPUTS; j++) sums[j] = gpu_warp_sum(sums[j]);
}

template <int id> GPU_KERNEL_BOUNDS(32 * WARPS, 2) plain_rows(const product_args p) {
    const int lane = (int)(threadIdx.x & 31);
    const product_place place = product_place_of(p, INPUTS);
    const int group = place.group * WARPS + (int)(threadIdx.x >> 5);
    const product_part part = product_part_of(p, group);
    const int n = group - part.first_group;
    if (n >= part.n_rows) return;
    float x[INPUTS], up[INPUTS] = {};
    row_products<id>(p, part.w + n * p.strip_bytes, place.t, lane, x);
    if (p.pair) row_products<id>(p, p.parts[1].w + n * p.strip_bytes, place.t, lane, up);
    GPU_UNROLL
    for (int j = 0; j < INPUTS; j++)
        if (lane == j) product_finish(p, part, place.t + j, n, x[j], up[j]);
}

template <int id> void product_plain(kern_device *device, const product_args *args) {
    const product_args p = *args;
    const int64_t blocks =
        product_blocks(p.n_inputs, INPUTS) * product_blocks(product_groups(args, 1), WARPS);
    GPU_LAUNCH(device, (plain_rows<id>), (unsigned)blocks, 32 * WARPS, 0, p);
}

#define INSTANCE(id) template void product_plain<id>(kern_device *, const product_args *);
PLAIN_FORMATS(INSTANCE)
