/* tensor.h: the tensor operations of the CUDA backend. Signatures and meaning are those of the
 * table in kern.h, results those of the CPU: the same choices, values within some ulp. Sums run in
 * chunks of TENSOR_CHUNK columns whatever the number of rows, and what is counted is counted in
 * integers, so a row's results are the same bits alone and among others. All work is queued; none
 * waits. */
#ifndef CUDA_TENSOR_H
#define CUDA_TENSOR_H

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* tensor_elementwise.cu: one launch each */
int cuda_tensor_unary(kern_device *, kern_unary, kern_tensor x, float a, float b, kern_tensor out);
int cuda_tensor_binary(kern_device *, kern_binary, kern_tensor x, kern_tensor y, kern_tensor out);
int cuda_tensor_binary_i32(kern_device *, kern_binary, kern_tensor x, kern_tensor y,
                           kern_tensor out);
int cuda_tensor_to_f32(kern_device *, kern_tensor x_i32, kern_tensor out);
int cuda_tensor_where(kern_device *, kern_tensor x, kern_tensor cond, kern_tensor y,
                      kern_tensor out);

/* tensor_row.cu: one launch where a result is a number a row or a row is one chunk, else two */
int cuda_tensor_reduce(kern_device *, kern_reduce, kern_tensor x, kern_tensor out);
int cuda_tensor_argmax(kern_device *, kern_tensor x, int32_t base, kern_tensor ids);
int cuda_tensor_log_softmax(kern_device *, kern_tensor x, kern_tensor out);
int cuda_tensor_softmax(kern_device *, kern_tensor x, kern_tensor out);
int cuda_tensor_min_p(kern_device *, kern_tensor x, kern_tensor p, kern_tensor out);
int cuda_tensor_cut_below(kern_device *, kern_tensor x, kern_tensor least, kern_tensor out);
int cuda_tensor_normalize(kern_device *, kern_tensor x, kern_tensor out);

/* tensor_noise.cu: one launch each, and the keys go up */
int cuda_tensor_gumbel(kern_device *, kern_tensor x, int32_t base, const kern_key *keys,
                       kern_tensor out);
int cuda_tensor_sample(kern_device *, kern_tensor x, int32_t base, const kern_key *keys,
                       kern_tensor ids);

/* tensor_select.cu, tensor_tally.cu, tensor_narrow.cu: two launches for up to 2048 results, three
 * for a count, four for a mass */
int cuda_tensor_topk(kern_device *, kern_tensor x, int64_t k, int32_t base, kern_tensor scores,
                     kern_tensor ids);
int cuda_tensor_topk_joint(kern_device *, kern_tensor x, int64_t k, int64_t groups, int32_t base,
                           kern_tensor scores, kern_tensor ids, kern_tensor rows);
int cuda_tensor_threshold_k(kern_device *, kern_tensor x, kern_tensor k_i32, kern_tensor key,
                            kern_tensor out);
int cuda_tensor_threshold_mass(kern_device *, kern_tensor x, kern_tensor p, kern_tensor key,
                               kern_tensor out);

/* tensor_order.cu: one launch up to a chunk; sorting needs one more for each doubling after it, a
 * running sum one more */
int cuda_tensor_sort(kern_device *, kern_tensor x, kern_tensor out);
int cuda_tensor_cumsum(kern_device *, kern_tensor x, kern_tensor out);

/* tensor_columns.cu: one launch each; lists of the host go up */
int cuda_tensor_mask(kern_device *, kern_tensor x, const int64_t *first, const int32_t *columns,
                     int64_t n_lists, int only, kern_tensor out);
int cuda_tensor_gather(kern_device *, kern_tensor x, kern_tensor ids, int32_t base,
                       kern_tensor out);
int cuda_tensor_scatter(kern_device *, kern_tensor x, kern_tensor ids, int32_t base, kern_tensor v,
                        int add);
int cuda_tensor_columns(kern_device *, kern_tensor x, int64_t from, int64_t count, kern_tensor out,
                        int64_t to);
int cuda_tensor_rows(kern_device *, kern_tensor x, const int64_t *rows, kern_tensor out);

/* tensor_matrix.cu: one launch each */
int cuda_tensor_matmul(kern_device *, kern_tensor a, kern_tensor b, kern_tensor out);
int cuda_tensor_transpose(kern_device *, kern_tensor x, kern_tensor out);

/* The entries of the backend's table that they are. */
#define CUDA_TENSOR_OPS                                                                            \
    .unary = cuda_tensor_unary, .binary = cuda_tensor_binary,                                      \
    .binary_i32 = cuda_tensor_binary_i32, .to_f32 = cuda_tensor_to_f32,                            \
    .where = cuda_tensor_where, .reduce = cuda_tensor_reduce,                                      \
    .log_softmax = cuda_tensor_log_softmax, .softmax = cuda_tensor_softmax,                        \
    .sort = cuda_tensor_sort, .cumsum = cuda_tensor_cumsum, .argmax = cuda_tensor_argmax,          \
    .topk = cuda_tensor_topk, .topk_joint = cuda_tensor_topk_joint, .gumbel = cuda_tensor_gumbel,  \
    .sample = cuda_tensor_sample, .threshold_k = cuda_tensor_threshold_k,                          \
    .threshold_mass = cuda_tensor_threshold_mass, .min_p = cuda_tensor_min_p,                      \
    .cut_below = cuda_tensor_cut_below, .mask = cuda_tensor_mask, .gather = cuda_tensor_gather,    \
    .scatter = cuda_tensor_scatter, .matmul = cuda_tensor_matmul,                                  \
    .transpose = cuda_tensor_transpose, .normalize = cuda_tensor_normalize,                        \
    .rows = cuda_tensor_rows, .columns = cuda_tensor_columns

#ifdef __cplusplus
}
#endif

#endif
