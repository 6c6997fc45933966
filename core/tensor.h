/* tensor.h: tensors inside core. */
#ifndef LLM_CORE_TENSOR_H
#define LLM_CORE_TENSOR_H

#include "device.h"

struct llm_tensor {
    llm_tensor_info info;
    llm_device *device; /* held */
    kern_buffer buffer; /* from the device's pool */
    bool is_choice;     /* entries may be KERN_ID_NAN …: checked when read or fed */
    int64_t n_group_rows,
        n_group_results;   /* topk_joint: rows each group of results was chosen from */
    struct llm_late *late; /* NULL, or what was read or fed of a choice (late.h) */
};

/* Contents undefined. NULL with err on failure. */
llm_tensor *tensor_alloc(llm_device *, llm_dtype, int64_t n_rows, int64_t n_columns,
                         llm_error *err);

/* The whole of it as the kernels see it. */
static inline kern_tensor tensor_view(llm_tensor *t) {
    return (kern_tensor){&t->buffer, 0, t->info.n_rows, t->info.n_columns};
}

/* The pool of a device: opened by device.c with the device, closed with it. Memory of closed
 * tensors is kept by size class for re-use; pressed when live + kept bytes reach the budget (which
 * then doubles if they are all live). */
struct tensor_pool *tensor_pool_open(llm_device *, llm_error *err);
void tensor_pool_close(struct tensor_pool *, llm_device *);
bool tensor_pool_pressed(const struct tensor_pool *);
uint64_t tensor_pool_bytes(const struct tensor_pool *);
/* The binding was told that the pool is pressed: the next allocation may widen the budget. */
void tensor_pool_told(struct tensor_pool *);

/* llm_tensor_read of entries that are there, always from the device. */
int tensor_read(llm_tensor *, int64_t first, int64_t count, void *to, llm_error *err);

/* Fails where one of `ids`, which are entries first … of a choice, is a code. */
int tensor_check_codes(const llm_tensor *, int64_t first, int64_t count, const int32_t *ids,
                       llm_error *err);

/* Checks entries first … of a choice for codes now, which on some devices waits. Others pass. */
int tensor_check(llm_tensor *, int64_t first, int64_t count, llm_error *err);
/* The same for all entries; afterwards the tensor is plain i32. */
int tensor_settle(llm_tensor *, llm_error *err);

/* The error of a choice that could not be made: code is KERN_ID_NAN, … of row i_row. */
int tensor_fail_choice(int32_t code, int64_t i_row, int64_t step, llm_error *err);

#endif
