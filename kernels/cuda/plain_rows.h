/* plain_rows.h: products by a row of weights that lies as in the file, for every format: a warp's
 * work, 32 columns at a time. F32 weights are multiplied exactly. Included by .cu files only. */
#ifndef CUDA_PLAIN_ROWS_H
#define CUDA_PLAIN_ROWS_H

#include "plain.h"
#include "product.h"

#define PLAIN_WARPS  8 /* of a block */
#define PLAIN_INPUTS 8 /* rows of input a block */

/* The products of a weight row and the inputs from t on; every lane gets them. */
template <int id>
GPU_INLINE void row_products(const product_args &p, const unsigned char *row, int t, int lane,
                             float sums[PLAIN_INPUTS]) {
    GPU_UNROLL
    for (int j = 0; j < PLAIN_INPUTS; j++) sums[j] = 0;
    for (int k = lane; k < p.n_columns; k += 32) {
        const float w = plain_at<plain<id>>(row, k);
        const float *in = p.in + (int64_t)t * p.stride + k;
        GPU_UNROLL
        for (int j = 0; j < PLAIN_INPUTS; j++)
            if (t + j < p.n_inputs)
                sums[j] = __fmaf_rn(w, __ldg(in + (int64_t)j * p.stride), sums[j]);
    }
    GPU_UNROLL
    for (int j = 0; j < PLAIN_INPUTS; j++) sums[j] = gpu_warp_sum(sums[j]);
}

#endif
