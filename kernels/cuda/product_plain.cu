/* product_plain.cu: products by weights that lie as in the file, for every format: one warp for a
 * row of the weight. */
#include "plain_rows.h"

#define WARPS  PLAIN_WARPS
#define INPUTS PLAIN_INPUTS

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
