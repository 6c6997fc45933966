/* tensor.h: tensors inside core. */
#ifndef LLM_CORE_TENSOR_H
#define LLM_CORE_TENSOR_H

#include "cell.h"
#include "device.h"
#include "tensor_pool.h"

struct llm_tensor {
    llm_tensor_info info;
    llm_device *device; /* held */
    kern_buffer buffer; /* where the host sees the device's memory: from its pool */
    cell *cell;         /* elsewhere; else NULL */
    bool is_choice;     /* entries may be KERN_ID_NAN …: checked when read or fed */
    int64_t n_group_rows,
        n_group_results; /* topk_joint: rows each group of results was chosen from */
};

/* Contents undefined. NULL with err on failure. */
llm_tensor *tensor_alloc(llm_device *, llm_dtype, int64_t n_rows, int64_t n_columns,
                         llm_error *err);

/* The same for what fills it later, a queued operation or a pass: where the host does not see the
 * memory there is none yet. */
llm_tensor *tensor_alloc_later(llm_device *, llm_dtype, int64_t n_rows, int64_t n_columns,
                               llm_error *err);
/* Memory of its own for such a one, unless it has some. */
int tensor_fill(llm_tensor *, llm_error *err);
/* A tensor that holds what another holds, where tensors have cells. */
llm_tensor *tensor_share(const llm_tensor *, llm_error *err);
/* An entry with these 32 bits. */
llm_tensor *tensor_number(llm_device *, llm_dtype, const void *bits, llm_error *err);
/* What is queued for it runs. Fails as that failed. */
int tensor_ready(const llm_tensor *, llm_error *err);

/* The whole of it as the kernels see it. Where the host does not see the memory the buffer is the
 * beginning of a cell. */
static inline kern_tensor tensor_view(llm_tensor *t) {
    return (kern_tensor){t->cell ? &t->cell->buffer : &t->buffer, 0, t->info.n_rows,
                         t->info.n_columns};
}

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
