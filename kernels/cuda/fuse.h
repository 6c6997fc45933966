/* fuse.h: a plan's operations in groups, each of which is one launch (attention of several rows a
 * sequence: two). A group never crosses from one layer into the next. */
#ifndef CUDA_FUSE_H
#define CUDA_FUSE_H

#include "cuda.h"

typedef enum cuda_group_kind {
    GROUP_EMBED,
    GROUP_EMBED_AT,
    GROUP_NORM,     /* of rows; with `add`, into the residual stream (norm and PLAN_ADD) */
    GROUP_PRODUCTS, /* of one input, with what follows them */
    GROUP_ATTEND,   /* norms of heads, rotation, append and attention */
    GROUP_ADD,
    GROUP_ACT /* an activation by itself */
} cuda_group_kind;

typedef struct cuda_group {
    cuda_group_kind kind;
    int32_t first_op, n_ops; /* of the plan, neighbours */
    const plan_op *op;       /* what the group is about: its first product, the norm, PLAN_ATTEND */
    int32_t in, out;         /* buffers; NORM with add: out is -1 */
    int32_t add;             /* NORM: the buffer added to; -1: none */
    int32_t n_products;
    cuda_epilogue epilogue;
    const plan_op *q_norm, *k_norm, *rope, *append; /* ATTEND: NULL where there is none */
} cuda_group;

/* Groups of operations first … end - 1, a whole number of layers' worth; groups has room for as
 * many as there are operations. Returns how many, or -1 with the number of an operation that no
 * launch serves in *failed. */
int32_t cuda_fuse(const plan *, int32_t first, int32_t end, cuda_group *groups, int32_t *failed);

#endif
