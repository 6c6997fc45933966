/* work.c: what passes over one model work with: the plan's buffers on the device, its groups of
 * operations, rotation tables, the scratch of attention. Made once; a pass allocates nothing. */
#include "../memory.h"
#include "run.h"

#include <string.h>

static int take_buffer(kern_device *device, kern_work *work, size_t bytes, kern_buffer *out) {
    const int code = device->backend->alloc(device, bytes ? bytes : 1, out);
    if (!code) work->bytes += bytes;
    return code;
}

static int take_host(kern_device *device, size_t n, size_t size, void **out) {
    *out = kern_alloc_array(n ? n : 1, size);
    if (*out) return KERN_OK;
    return cuda_fail(device, KERN_NO_MEMORY, "out of memory: %zu bytes asked for a pass", n * size);
}

/* A buffer of max_rows rows for every plan buffer but the logits. */
static int open_buffers(kern_device *device, kern_work *work) {
    const plan *p = work->plan;
    void *list;
    int code = take_host(device, (size_t)p->n_buffers, sizeof *work->buffers, &list);
    if (code) return code;
    work->buffers = list;
    work->n_buffers = p->n_buffers;
    for (int32_t i = 0; i < p->n_buffers && !code; i++)
        if (i != p->logits)
            code = take_buffer(device, work,
                               (size_t)work->max_rows * (size_t)p->buffers[i].width * sizeof(float),
                               &work->buffers[i]);
    return code;
}

/* Layer by layer, so that a run may begin and end with any layer. */
static int open_groups(kern_device *device, kern_work *work) {
    const plan *p = work->plan;
    void *list;
    const int code = take_host(device, (size_t)p->n_ops, sizeof *work->groups, &list);
    if (code) return code;
    work->groups = list;
    for (int32_t layer = 0; layer <= p->n_layers + 1; layer++) {
        int32_t failed = 0, first = p->first_op[layer];
        const int32_t n =
            cuda_fuse(p, first, p->first_op[layer + 1], work->groups + work->n_groups, &failed);
        if (n < 0)
            return cuda_fail(device, KERN_UNSUPPORTED,
                             "operation %d of layer %d is in an order that no kernel serves",
                             failed - first + 1, layer);
        work->n_groups += n;
    }
    return KERN_OK;
}

static rope_table *find_rope(const kern_work *work, const plan_rope *rope) {
    for (int32_t i = 0; i < work->n_ropes; i++)
        if (work->ropes[i].rope == rope) return &work->ropes[i];
    return NULL;
}

static int open_ropes(kern_device *device, kern_work *work) {
    void *list;
    int code = take_host(device, (size_t)work->n_groups, sizeof *work->ropes, &list);
    if (code) return code;
    work->ropes = list;
    size_t bytes = 0;
    for (int32_t i = 0; i < work->n_groups; i++) {
        const plan_op *op = work->groups[i].kind == GROUP_ATTEND ? work->groups[i].rope : NULL;
        if (!op || find_rope(work, op->rope)) continue;
        work->ropes[work->n_ropes++] = (rope_table){op->rope, bytes};
        bytes += ((size_t)op->rope->n_rotary / 2 * sizeof(float) + 255) / 256 * 256;
    }
    if (!bytes) return KERN_OK;
    code = take_buffer(device, work, bytes, &work->freqs);
    for (int32_t i = 0; i < work->n_ropes && !code; i++)
        code = device->backend->write(device, &work->freqs, work->ropes[i].offset,
                                      work->ropes[i].rope->freqs,
                                      (size_t)work->ropes[i].rope->n_rotary / 2 * sizeof(float));
    return code;
}

static const float *vector_of(const plan_op *op) { return op ? cuda_bound(op->w)->gpu : NULL; }

cuda_attention cuda_group_attention(const kern_work *work, const cuda_group *g) {
    cuda_attention a = {.op = g->op,
                        .q = cuda_work_f32(work, g->in),
                        .k = cuda_work_f32(work, g->append->in),
                        .v = cuda_work_f32(work, g->append->in2),
                        .out = cuda_work_f32(work, g->out),
                        .q_norm = vector_of(g->q_norm),
                        .k_norm = vector_of(g->k_norm),
                        .eps = g->q_norm ? g->q_norm->eps : g->op->eps};
    if (!g->rope) return a;
    const plan_rope *rope = g->rope->rope;
    a.freqs = (const float *)((const char *)work->freqs.data + find_rope(work, rope)->offset);
    a.n_rotary = rope->n_rotary;
    a.magnitude = rope->magnitude;
    a.interleaved = rope->interleaved;
    return a;
}

/* The scratch of attention: as the layer that needs most. */
static int open_attention(kern_device *device, kern_work *work) {
    if (!work->pages) return KERN_OK;
    const int64_t positions = (int64_t)work->pages->n_pages * KERN_PAGE_POSITIONS;
    work->most_positions = positions < INT32_MAX ? (int32_t)positions : INT32_MAX;
    size_t bytes = 0, counters = 0;
    for (int32_t i = 0; i < work->n_groups; i++) {
        if (work->groups[i].kind != GROUP_ATTEND) continue;
        const cuda_attention a = cuda_group_attention(work, &work->groups[i]);
        const size_t asked =
            cuda_attend_bytes(&work->pages->shape, &a, work->max_rows, work->most_positions);
        const size_t ints = (size_t)cuda_attend_counters(&a, work->max_rows);
        bytes = asked > bytes ? asked : bytes;
        counters = ints > counters ? ints : counters;
    }
    int code = take_buffer(device, work, bytes, &work->attend_work);
    if (!code) code = take_buffer(device, work, counters * sizeof(int32_t), &work->attend_counters);
    if (!code && counters)
        code = cuda_check(device,
                          cudaMemsetAsync(work->attend_counters.data, 0, counters * sizeof(int32_t),
                                          device->stream),
                          "clearing the counters of attention");
    return code;
}

static int open_work(kern_device *device, kern_work *work) {
    void *rows;
    int code = take_host(device, (size_t)work->max_rows, sizeof *work->rows, &rows);
    if (code) return code;
    work->rows = rows;
    if ((code = open_buffers(device, work)) || (code = open_groups(device, work)) ||
        (code = open_ropes(device, work)) || (code = open_attention(device, work)))
        return code;
    return cuda_step_open(device, work);
}

int cuda_work_open(kern_device *device, const plan *p, kern_pages *pages, int32_t max_rows,
                   kern_work **out) {
    *out = NULL;
    kern_work *work = kern_alloc(sizeof *work);
    if (!work)
        return cuda_fail(device, KERN_NO_MEMORY, "out of memory: %zu bytes asked for a pass",
                         sizeof *work);
    work->plan = p;
    work->pages = pages;
    work->max_rows = max_rows;
    const int code = open_work(device, work);
    if (code)
        cuda_work_close(device, work);
    else
        *out = work;
    return code;
}

void cuda_work_close(kern_device *device, kern_work *work) {
    if (!work) return;
    cuda_graphs_drop(work);
    cuda_step_close(device, work);
    for (int32_t i = 0; i < work->n_buffers; i++) device->backend->free(device, &work->buffers[i]);
    device->backend->free(device, &work->freqs);
    device->backend->free(device, &work->attend_work);
    device->backend->free(device, &work->attend_counters);
    kern_free(work->buffers);
    kern_free(work->groups);
    kern_free(work->ropes);
    kern_free(work->rows);
    kern_free(work);
}

size_t cuda_work_bytes(const kern_work *work) { return work->bytes; }

kern_buffer *cuda_work_buffer(kern_work *work, int32_t i_buffer) {
    return &work->buffers[i_buffer];
}
