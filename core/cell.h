/* cell.h: what a tensor holds on a device with memory of its own: entries that are there, or will
 * be once a queued operation has run. They never change once they are there: an operation in place
 * gives its tensor another cell, so that whoever holds a cell (an operation that waits, a copy, ids
 * on their way to the host) keeps what it was. Cells of one block lie in one piece of memory, side
 * by side: what several jobs got of one pass or of one launch. */
#ifndef LLM_CORE_CELL_H
#define LLM_CORE_CELL_H

#include "../kernels/kern.h"
#include "error.h"

/* Entries are of 4 bytes. */
typedef struct block {
    int32_t references;
    kern_buffer buffer; /* from the device's pool */
    int64_t n_entries;
    void *known;         /* NULL, or all of them on the host */
    kern_fetch *fetch;   /* NULL, or of those on their way there */
    struct block *after; /* NULL, or held: what set out for the host next, together with it */
} block;

typedef struct cell {
    kern_buffer buffer; /* first: views of tensors point here. data NULL: not there yet */
    int32_t references;
    int32_t i_maker;          /* the queued operation that will fill it; -1: none */
    bool is_wanted;           /* on the host: it sets out for there as soon as it is there */
    block *block;             /* held; NULL: not there */
    const llm_error *failure; /* why it never will be, or NULL */
} cell;

/* Blocks of at most so many entries are read whole, once, when one of them is asked for. */
#define BLOCK_KNOWN_MOST 1024

/* n_rows × n_columns entries, contents undefined. NULL with err. */
block *block_open(llm_device *, int64_t n_rows, int64_t n_columns, llm_error *err);
/* Drops a reference. */
void block_close(llm_device *, block *);
/* Its entries leave for the host, without a wait, unless they are too many or have left before. */
int block_set_out(llm_device *, block *, llm_error *err);
/* All entries on the host; waits for those that are not there. NULL with err. */
const void *block_learn(llm_device *, block *, llm_error *err);

/* Holds nothing yet; one reference. NULL with err. */
cell *cell_open(llm_error *err);
cell *cell_retain(cell *);
void cell_close(llm_device *, cell *); /* drops a reference; accepts NULL */
/* n entries of the block from `first` on, in place of what it holds. */
void cell_place(llm_device *, cell *, block *, int64_t first, int64_t n);
/* It will never be there. */
void cell_fail(cell *, const llm_error *why);

/* The first of a placed cell's entries in its block. */
static inline int64_t cell_first(const cell *c) {
    return ((const char *)c->buffer.data - (const char *)c->block->buffer.data) / 4;
}

#endif
