/* operation.h: one operation on tensors as data, so that it can be run later, or as one with others
 * of its kind. */
#ifndef LLM_CORE_OPERATION_H
#define LLM_CORE_OPERATION_H

#include "../kernels/kern.h"

/* Each row of the results is made of the same row of the operands, and of those of one row. */
typedef enum operation_kind {
    OPERATION_UNARY, /* code; a and b of a clamp */
    OPERATION_BINARY,
    OPERATION_BINARY_I32,
    OPERATION_TO_F32,
    OPERATION_WHERE, /* x, condition, y */
    OPERATION_REDUCE,
    OPERATION_LOG_SOFTMAX,
    OPERATION_SOFTMAX,
    OPERATION_SORT,
    OPERATION_CUMSUM,
    OPERATION_NORMALIZE,
    OPERATION_ARGMAX,     /* base */
    OPERATION_TOPK,       /* n, base → scores, ids */
    OPERATION_TOPK_JOINT, /* n, groups, base → scores, ids, rows: those of groups of rows */
    OPERATION_GUMBEL,     /* base, keys */
    OPERATION_SAMPLE,
    OPERATION_THRESHOLD_K, /* x, k, key or none */
    OPERATION_THRESHOLD_MASS,
    OPERATION_MIN_P, /* x, p */
    OPERATION_CUT_BELOW,
    OPERATION_MASK,   /* only, lists */
    OPERATION_GATHER, /* x, ids; base */
    OPERATION_SCATTER /* x, ids, values; base, code: add */
} operation_kind;

#define OPERATION_INS  3
#define OPERATION_OUTS 3

/* Operands and results, of an initialiser; they last as long as the block that it stands in. */
#define OPERATION_TAKES(...)                                                                       \
    .in = (const kern_tensor[]){__VA_ARGS__},                                                      \
    .n_in = sizeof((const kern_tensor[]){__VA_ARGS__}) / sizeof(kern_tensor)
#define OPERATION_MAKES(...)                                                                       \
    .out = (const kern_tensor[]){__VA_ARGS__},                                                     \
    .n_out = sizeof((const kern_tensor[]){__VA_ARGS__}) / sizeof(kern_tensor)

typedef struct operation {
    operation_kind kind;
    int32_t code, base;
    float a, b;
    int64_t n, groups;
    const kern_tensor *in, *out; /* buffer NULL: none, as those beyond n_in and n_out */
    int32_t n_in, n_out;
    const kern_key *keys; /* one a row */
    const int64_t *first; /* of a mask: one list for all rows, or one a row */
    const int32_t *columns;
    int64_t n_lists;
} operation;

int operation_run(const kern_backend *, kern_device *, const operation *);

#endif
