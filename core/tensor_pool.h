/* tensor_pool.h: the pool of a device: opened by device.c with the device, closed with it. Memory
 * of closed tensors is kept by size class for re-use; pressed when live + kept bytes reach the
 * budget (which then doubles if they are all live). */
#ifndef LLM_CORE_TENSOR_POOL_H
#define LLM_CORE_TENSOR_POOL_H

#include "../kernels/kern.h"
#include "error.h"

struct tensor_pool *tensor_pool_open(llm_error *err);
void tensor_pool_close(struct tensor_pool *, llm_device *);
bool tensor_pool_pressed(const struct tensor_pool *);
uint64_t tensor_pool_bytes(const struct tensor_pool *);
/* The binding was told that the pool is pressed: the next allocation may widen the budget. */
void tensor_pool_told(struct tensor_pool *);
/* Bytes that queued operations will take are counted as live until they are taken. */
void tensor_pool_expect(struct tensor_pool *, int64_t bytes);

/* Memory for n_rows × n_columns entries of 4 bytes; contents undefined. Memory is short: error. */
int tensor_pool_take(llm_device *, int64_t n_rows, int64_t n_columns, kern_buffer *out,
                     llm_error *err);
void tensor_pool_give(llm_device *, kern_buffer);

#endif
