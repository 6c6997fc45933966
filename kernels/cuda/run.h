/* run.h: the inside of a work, shared by work.c (what it owns), step.c (what a pass uploads) and
 * run.c (the launches, and graphs of them). */
#ifndef CUDA_RUN_H
#define CUDA_RUN_H

#include "fuse.h"

enum {
    CUDA_SLOTS = 4,      /* steps whose upload may be under way */
    CUDA_GRAPHS = 48,    /* captured, at most */
    CUDA_GRAPH_ROWS = 64 /* more rows are launched one by one: they are long enough */
};

/* What a captured graph depends on; addresses never change while it lives. */
typedef struct graph_key {
    int32_t first, count, n_rows; /* n_rows: of the bucket */
    int32_t shared_worth;
} graph_key;

typedef struct cuda_graph {
    graph_key key;
    cudaGraphExec_t exec; /* NULL: seen once, launched one by one */
    uint64_t launches;
} cuda_graph;

/* The step's lists in one block of memory: ids, which come from the device, then what is sent. */
typedef struct step_block {
    kern_buffer device;
    int64_t pages_most; /* entries there is room for */
    void *pinned[CUDA_SLOTS];
    cudaEvent_t sent[CUDA_SLOTS];
    int i_slot;
} step_block;

typedef struct rope_table {
    const plan_rope *rope;
    size_t offset; /* in the work's freqs */
} rope_table;

struct kern_work {
    const plan *plan;
    kern_pages *pages;
    int32_t max_rows, n_buffers;
    kern_buffer *buffers;
    cuda_group *groups;
    int32_t n_groups;
    kern_row *rows; /* host [max_rows] */
    kern_buffer freqs;
    rope_table *ropes;
    int32_t n_ropes;
    kern_buffer attend_work, attend_counters;
    int32_t most_positions;
    step_block block;
    cuda_graph graphs[CUDA_GRAPHS];
    int32_t n_graphs;
    size_t bytes;
};

/* The device's view of the batch, uploaded, for so many rows (at least the batch's; what is more
 * is idle). */
int cuda_step_send(kern_device *, kern_work *, const kern_batch *, int32_t n_rows, cuda_step *out);
/* Whether row t is sequence t's only one. */
bool cuda_is_one_each(const kern_batch *);
int cuda_step_open(kern_device *, kern_work *);
void cuda_step_close(kern_device *, kern_work *);

/* All that graphs point to is about to move. */
void cuda_graphs_drop(kern_work *);

/* What attention of a group is, on the work's buffers. */
cuda_attention cuda_group_attention(const kern_work *, const cuda_group *);

static inline float *cuda_work_f32(const kern_work *work, int32_t i_buffer) {
    return i_buffer < 0 ? NULL : (float *)work->buffers[i_buffer].data;
}

#endif
