/* split.h: a plan that two backends run: the embedding and the first layers on a device whose
 * memory is the host's, the other layers and the head on another, for models that do not fit into
 * that. It is a backend for weights, pages and passes only (the table's other entries are NULL):
 * what a pass leaves (residual stream, logits) lies on the second device, and tensors are that
 * one's. */
#ifndef KERN_SPLIT_H
#define KERN_SPLIT_H

#include "kern.h"

typedef struct kern_half {
    const kern_backend *backend;
    kern_device *device; /* borrowed */
} kern_half;

extern const kern_backend kern_split;

/* The plan (borrowed, as are the devices) cut after layer n_first, 1 … n_layers. halves[0] has
 * host_memory. NULL: out of memory. Closed by kern_split.close.
 *
 * Runs: the rows of the residual stream are handed over whenever a run leaves the first half, so
 * that the work's buffer `residual` is always the second one's and up to date. Batches have
 * host_ids. Positions of a page are read and written layer after layer, first half first, as a
 * whole backend's are. bind takes the weights that each half's operations use; one that both use is
 * made ready twice. */
kern_device *kern_split_open(const kern_half halves[2], const plan *, int32_t n_first);

/* What a half (0, 1) has: layers first_layer … last_layer of the plan (none: last is one less), and
 * memory as far as it was opened. */
typedef struct kern_half_memory {
    const kern_backend *backend;
    int32_t first_layer, last_layer;
    size_t weight_bytes; /* where there was no memory for them: what was asked, or 0 */
    size_t page_bytes, scratch_bytes;
} kern_half_memory;

kern_half_memory kern_split_memory(const kern_device *, int i_half);

/* The half that failed last; -1: neither did. */
int kern_split_failed(const kern_device *);

#endif
