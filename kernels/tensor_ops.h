/* tensor_ops.h: the tensor operations of the backends whose memory is the host's. Signatures and
 * meaning are those of the table in kern.h. Every one works row by row in a fixed order (fixed
 * chunks of columns, eight partial sums), so that a row's results depend neither on the other rows,
 * nor on the number of threads, nor on the instruction tier. */
#ifndef KERN_TENSOR_OPS_H
#define KERN_TENSOR_OPS_H

#include "kern.h"

int tensor_unary(kern_device *, kern_unary, kern_tensor x, float a, float b, kern_tensor out);
int tensor_binary(kern_device *, kern_binary, kern_tensor x, kern_tensor y, kern_tensor out);
int tensor_binary_i32(kern_device *, kern_binary, kern_tensor x, kern_tensor y, kern_tensor out);
int tensor_to_f32(kern_device *, kern_tensor x_i32, kern_tensor out);
int tensor_where(kern_device *, kern_tensor x, kern_tensor cond, kern_tensor y, kern_tensor out);
int tensor_reduce(kern_device *, kern_reduce, kern_tensor x, kern_tensor out);
int tensor_log_softmax(kern_device *, kern_tensor x, kern_tensor out);
int tensor_softmax(kern_device *, kern_tensor x, kern_tensor out);
int tensor_sort(kern_device *, kern_tensor x, kern_tensor out);
int tensor_cumsum(kern_device *, kern_tensor x, kern_tensor out);

int tensor_argmax(kern_device *, kern_tensor x, int32_t base, kern_tensor ids);
int tensor_topk(kern_device *, kern_tensor x, int64_t k, int32_t base, kern_tensor scores,
                kern_tensor ids);
int tensor_topk_joint(kern_device *, kern_tensor x, int64_t k, int64_t groups, int32_t base,
                      kern_tensor scores, kern_tensor ids, kern_tensor rows);
int tensor_gumbel(kern_device *, kern_tensor x, int32_t base, const kern_key *keys,
                  kern_tensor out);
int tensor_sample(kern_device *, kern_tensor x, int32_t base, const kern_key *keys,
                  kern_tensor ids);

int tensor_threshold_k(kern_device *, kern_tensor x, kern_tensor k_i32, kern_tensor key,
                       kern_tensor out);
int tensor_threshold_mass(kern_device *, kern_tensor x, kern_tensor p, kern_tensor key,
                          kern_tensor out);
int tensor_min_p(kern_device *, kern_tensor x, kern_tensor p, kern_tensor out);
int tensor_cut_below(kern_device *, kern_tensor x, kern_tensor least, kern_tensor out);
int tensor_mask(kern_device *, kern_tensor x, const int64_t *first, const int32_t *columns,
                int64_t n_lists, int only, kern_tensor out);
int tensor_gather(kern_device *, kern_tensor x, kern_tensor ids, int32_t base, kern_tensor out);
int tensor_scatter(kern_device *, kern_tensor x, kern_tensor ids, int32_t base, kern_tensor v,
                   int add);

int tensor_matmul(kern_device *, kern_tensor a, kern_tensor b, kern_tensor out);
int tensor_transpose(kern_device *, kern_tensor x, kern_tensor out);
int tensor_normalize(kern_device *, kern_tensor x, kern_tensor out);
int tensor_rows(kern_device *, kern_tensor x, const int64_t *rows, kern_tensor out);
int tensor_columns(kern_device *, kern_tensor x, int64_t from, int64_t count, kern_tensor out,
                   int64_t to);

/* The entries of a backend's table that they are. */
#define TENSOR_OPS                                                                                 \
    .unary = tensor_unary, .binary = tensor_binary, .binary_i32 = tensor_binary_i32,               \
    .to_f32 = tensor_to_f32, .where = tensor_where, .reduce = tensor_reduce,                       \
    .log_softmax = tensor_log_softmax, .softmax = tensor_softmax, .sort = tensor_sort,             \
    .cumsum = tensor_cumsum, .argmax = tensor_argmax, .topk = tensor_topk,                         \
    .topk_joint = tensor_topk_joint, .gumbel = tensor_gumbel, .sample = tensor_sample,             \
    .threshold_k = tensor_threshold_k, .threshold_mass = tensor_threshold_mass,                    \
    .min_p = tensor_min_p, .cut_below = tensor_cut_below, .mask = tensor_mask,                     \
    .gather = tensor_gather, .scatter = tensor_scatter, .matmul = tensor_matmul,                   \
    .transpose = tensor_transpose, .normalize = tensor_normalize, .rows = tensor_rows,             \
    .columns = tensor_columns

#endif
