/* queue_parts.h: the queue as its two files see it. */
#ifndef LLM_CORE_QUEUE_PARTS_H
#define LLM_CORE_QUEUE_PARTS_H

#include "device.h"
#include "queue.h"

#define QUEUE_HEADS   64
#define QUEUE_NUMBERS 64

/* What is equal in the operations of a group. No padding: it is hashed and compared as bytes. */
typedef struct group_key {
    int32_t kind, code, base, level;
    float a, b;
    int64_t n, columns[OPERATION_INS + OPERATION_OUTS]; /* -1: there is none */
} group_key;

typedef struct group {
    group_key key;
    int32_t first, last; /* of its operations */
    int32_t next;        /* with the same head */
    bool is_done;
} group;

typedef struct waiting {
    operation op; /* keys and lists: in the queue's data; operands and results: */
    kern_tensor in[OPERATION_INS], out[OPERATION_OUTS];
    const char *name;
    size_t data_at; /* keys; or of a mask first[n_lists + 1], from 0 on, and columns */
    int32_t level;
    int32_t next; /* of the group; -1: none */
    bool is_done;
} waiting;

typedef struct number {
    uint32_t bits;
    cell *cell;
} number;

struct queue {
    waiting *operations;
    group *groups;
    int32_t *list, *order; /* of operations, of groups: what a flush works with */
    int32_t n_operations, n_groups, capacity;
    int32_t heads[QUEUE_HEADS];
    char *data;
    size_t n_data, data_capacity;
    number numbers[QUEUE_NUMBERS];
    int i_number;
    bool is_told;  /* that memory is short: what fails of it now has failed */
    bool is_short; /* something has, in the last flush */
    block *out;    /* held: what the flush in hand set out last for the host */
};

static inline cell *cell_of(kern_tensor t) { return (cell *)(void *)t.buffer; }

static inline int64_t entries_of(kern_tensor t) { return t.n_rows * t.n_columns; }

/* Rows of an operation's results: what may be one row in its operands has as many or is shared. */
static inline int64_t rows_of(const waiting *w) { return w->out[0].n_rows; }

/* How many of the n operations can be one launch, and which of their operands it shares: a row, the
 * same for all. */
int32_t queue_span(const queue *, const int32_t *list, int32_t n, bool shared[OPERATION_INS]);

/* Runs n operations as one, into the entries of the blocks from first[] on. */
int queue_launch(llm_device *, const int32_t *list, int32_t n, const bool shared[OPERATION_INS],
                 block *const *blocks, const int64_t *first, llm_error *err);

#endif
