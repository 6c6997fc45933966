/* rows.h: where the rows of a batch stand in their sequences, and what the operations of a run cost
 * by their shapes. Every backend asks this; nothing here depends on where memory lies. */
#ifndef KERN_ROWS_H
#define KERN_ROWS_H

#include "kern.h"

/* Where a row of a batch stands. Slot and position are the same but for rows of a tree that do not
 * follow all rows before them. */
typedef struct kern_row {
    int32_t i_sequence; /* -1: of none (a run of the head alone) */
    int32_t position;   /* in its text: what turns its keys, and what attention sums in order of */
    int32_t slot;       /* where its keys and values lie in the pages: n_past + row */
    int32_t parent;     /* the row of the batch that it follows; -1: what was cached before */
} kern_row;

/* What rows may ask for. */
typedef struct kern_limits {
    int32_t max_rows, n_pages;
    unsigned char *const *pages; /* NULL until reserved; unused by a run of the head alone */
} kern_limits;

/* Fills rows[batch->n_rows]; KERN_DEVICE with a message where the batch does not fit what was
 * opened and reserved. */
int kern_map_rows(const kern_batch *, const kern_limits *, kern_row *rows, char *message,
                  size_t message_bytes);

/* Adds to the costs of operations first … first + count - 1 all but seconds. kv: NULL where the
 * plan has no cache. */
void kern_profile_add(kern_profile *, const kern_kv_shape *kv, const plan *, int32_t first,
                      int32_t count, const kern_batch *, const kern_row *rows);

/* Bytes of a row of head_dim numbers in a file of keys and values. */
size_t kern_kv_row_bytes(kern_kv type, int32_t head_dim);

/* Bytes of a position of all layers there; SIZE_MAX when they overflow. */
size_t kern_position_bytes(const kern_kv_shape *);

/* Whether a cache may have this shape: KERN_OK, or KERN_UNSUPPORTED with a message. */
int kern_kv_check(const kern_kv_shape *, char *message, size_t message_bytes);

/* Seconds of a clock that only goes forward. */
double kern_clock(void);

#endif
