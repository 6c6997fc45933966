/* ops.h: what the operations on tensors (ops_*.c) share: operands, results, checks. An operation
 * opens a call, makes its operands and its result, and finishes the call with what is to be run, at
 * once or, on devices with memory of their own, later; or it calls the backend itself, when its
 * operands are ready, and closes the call. */
#ifndef LLM_CORE_OPS_H
#define LLM_CORE_OPS_H

#include "operation.h"
#include "tensor.h"

#define OPS_N_TEMPS 6

typedef struct ops_call {
    const char *name;
    llm_device *device;
    const kern_backend *backend;
    kern_device *kern;
    llm_tensor **out; /* the caller's slot */
    llm_tensor *y;    /* the result */
    bool is_logits;   /* what the result will be */
    int64_t step;
    double started; /* if a profile wants to know */
    int n_temps;
    llm_tensor *temps[OPS_N_TEMPS]; /* closed with the call */
} ops_call;

/* Starts a call on x's device. */
void ops_open(ops_call *, const char *name, llm_tensor *x, llm_tensor **out);

/* A tensor that takes part: checks its device, counts its step. */
int ops_join(ops_call *, const llm_tensor *t, llm_error *err);

/* t as f32: itself or a converted copy. The codes of a choice are checked. NULL on failure. */
llm_tensor *ops_f32(ops_call *, llm_tensor *t, llm_error *err);

/* An operand as an f32 tensor; a number becomes 1 × 1. */
llm_tensor *ops_operand(ops_call *, llm_operand o, llm_error *err);

/* Makes the result: x itself if *out is x (then x must be such a tensor already), else a new one.
 * With `apart` its memory is never x's, and there at once: ops_close exchanges it. */
int ops_result(ops_call *, llm_tensor *x, llm_dtype dtype, int64_t n_rows, int64_t n_columns,
               bool apart, llm_error *err);

/* Ends the call: an error of the backend's code, or the result in *out. */
int ops_close(ops_call *, int code, llm_error *err);

/* Runs the operation or queues it; with ops_finish the call ends as with ops_close. */
int ops_run(ops_call *, const operation *, llm_error *err);
int ops_finish(ops_call *, const operation *, llm_error *err);

/* Ends the call without a result. Returns -1. */
int ops_abandon(ops_call *);

/* Only a new result is possible. */
int ops_check_new(const char *name, llm_tensor *const *out, llm_error *err);

/* The parameter of a filter as a column for n_rows rows, each value checked: least ≤ v ≤ most. With
 * `integer` it is i32, values above INT32_MAX and, with `zero_is_off`, 0 becoming INT32_MAX. */
typedef struct ops_range {
    double least, most;
    bool is_integer, zero_is_off;
} ops_range;
llm_tensor *ops_parameter(ops_call *, llm_operand o, int64_t n_rows, ops_range range,
                          llm_error *err);

/* Broadcasting: grows *n_rows × *n_columns by t. */
int ops_broadcast(ops_call *, const llm_tensor *t, int64_t *n_rows, int64_t *n_columns,
                  llm_error *err);

/* What scripts add to a 0-based column. */
static inline int32_t ops_base(const llm_tensor *x) { return x->info.is_logits ? 0 : 1; }

/* Fails if an id does not name a column of x. */
int ops_check_ids(const llm_tensor *x, const int32_t *ids, int64_t n, llm_error *err);

static inline kern_tensor ops_none(void) { return (kern_tensor){0}; }

#endif
