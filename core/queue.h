/* queue.h: operations that wait to be run, on devices with memory of their own. They run when one
 * of their results is needed (read, fed to a pass, an operand of what is not queued), before each
 * pass, and when there are many; equal ones whose operands lie side by side run as one. */
#ifndef LLM_CORE_QUEUE_H
#define LLM_CORE_QUEUE_H

#include "cell.h"
#include "operation.h"

typedef struct queue queue;

queue *queue_open(llm_error *err);
void queue_close(llm_device *); /* the device's; accepts that there is none */

/* Puts it at the end. Buffers of its operands and results begin cells, which it holds until it has
 * run; keys and lists are copied, the name, for messages, is not. */
int queue_add(llm_device *, const operation *, const char *name, llm_error *err);

/* Runs all. The results of one that fails fail with it, wherever they are asked for; the others
 * run. Short of memory it fails as a whole, once, so that the caller may free some and call again.
 */
int queue_flush(llm_device *, llm_error *err);

/* Until the cell is there. */
int queue_wait(llm_device *, cell *, llm_error *err);

/* The cell of an entry with these 32 bits, the same for the same bits while they are in use. */
cell *queue_number(llm_device *, const void *bits, llm_error *err);

#endif
