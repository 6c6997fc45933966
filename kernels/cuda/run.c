/* run.c: runs a plan's groups on the device: one launch each, queued without a wait. A decode step
 * (one row a sequence) is captured as a graph for each number of rows, rounded up to a power of
 * two, and replayed from then on: all that changes from step to step is read from device memory
 * (step.c). Products of more rows than a few go to cuBLASLt where it is there. */
#include "run.h"

#include <string.h>

typedef struct pass {
    kern_device *device;
    kern_work *work;
    const kern_batch *batch;
    cuda_step step; /* unused by a run of the head alone */
    int32_t n_rows; /* of the bucket */
} pass;

static float *buffer_of(const pass *p, int32_t i_buffer) {
    if (i_buffer == p->work->plan->logits) return cuda_f32(p->batch->logits);
    return cuda_work_f32(p->work, i_buffer);
}

static int run_products(const pass *p, const cuda_group *g) {
    cuda_product list[CUDA_MOST_PRODUCTS];
    for (int32_t i = 0; i < g->n_products; i++) {
        const plan_op *op = g->op + i;
        list[i] = (cuda_product){.w = cuda_bound(op->w),
                                 .bias = op->bias ? cuda_bound(op->bias)->gpu : NULL,
                                 .out = buffer_of(p, op->out)};
    }
    if (g->epilogue != CUDA_STORE) list[0].out = buffer_of(p, g->out);
    const float *in = buffer_of(p, g->in);
    if (cuda_blas_serves(p->device, list[0].w, p->n_rows))
        return cuda_blas_products(p->device, list, g->n_products, in, p->n_rows, g->epilogue);
    return cuda_products(p->device, list, g->n_products, in, p->n_rows, g->epilogue);
}

static int run_attention(const pass *p, const cuda_group *g) {
    const cuda_attention a = cuda_group_attention(p->work, g);
    const cuda_page_shape *pages = &p->work->pages->shape;
    const int code = p->step.one_each ? KERN_OK : cuda_place(p->device, pages, &p->step, &a);
    return code ? code : cuda_attend(p->device, pages, &p->step, &a);
}

/* A norm that goes into the residual stream and the norm of that for what follows. */
static bool is_then(const cuda_group *g, const cuda_group *next) {
    return g->add >= 0 && g->op->kind == PLAN_NORM_RMS && next->kind == GROUP_NORM &&
           next->add < 0 && next->op->kind == PLAN_NORM_RMS && next->in == g->add;
}

static int run_norm(const pass *p, const cuda_group *g, const cuda_group *then) {
    const plan_op *op = g->op;
    cuda_norm n = {.in = buffer_of(p, g->in),
                   .w = cuda_bound(op->w)->gpu,
                   .bias = op->bias ? cuda_bound(op->bias)->gpu : NULL,
                   .out = buffer_of(p, g->out),
                   .n_rows = p->n_rows,
                   .width = p->work->plan->buffers[g->in].width,
                   .eps = op->eps,
                   .layer = op->kind == PLAN_NORM_LAYER,
                   .add = buffer_of(p, g->add)};
    if (then) {
        n.out = buffer_of(p, then->out);
        n.then_w = cuda_bound(then->op->w)->gpu;
        n.then_eps = then->op->eps;
    }
    return cuda_norm_rows(p->device, &n);
}

/* One group; *taken: how many it made unnecessary, itself included. */
static int run_group(const pass *p, const cuda_group *g, const cuda_group *end, int32_t *taken) {
    const plan_op *op = g->op;
    const int64_t n = (int64_t)p->n_rows * (g->out >= 0 ? p->work->plan->buffers[g->out].width : 0);
    *taken = 1;
    switch (g->kind) {
    case GROUP_EMBED:
        return cuda_embed(p->device, cuda_bound(op->w), p->step.ids, p->n_rows, op->scale,
                          buffer_of(p, g->out));
    case GROUP_EMBED_AT:
        return cuda_embed_at(p->device, cuda_bound(op->w), p->step.rows, p->n_rows,
                             buffer_of(p, g->out));
    case GROUP_NORM:
        if (g + 1 < end && is_then(g, g + 1)) *taken = 2;
        return run_norm(p, g, *taken == 2 ? g + 1 : NULL);
    case GROUP_PRODUCTS: return run_products(p, g);
    case GROUP_ATTEND: return run_attention(p, g);
    case GROUP_ADD: return cuda_add_rows(p->device, buffer_of(p, g->out), buffer_of(p, g->in), n);
    case GROUP_ACT:
        return cuda_act_mul(p->device, op->kind, buffer_of(p, g->in), buffer_of(p, op->in2),
                            buffer_of(p, g->out), n);
    }
    return KERN_DEVICE;
}

/* ---- one by one ---- */

static int run_eagerly(const pass *p, const cuda_group *g, const cuda_group *end) {
    int code = KERN_OK;
    for (int32_t taken; g < end && !code; g += taken) {
        if (p->batch->stop && *p->batch->stop) return KERN_INTERRUPTED;
        code = run_group(p, g, end, &taken);
    }
    return code;
}

/* Waits after each group: what it cost goes to its first operation. */
static int run_profiled(const pass *p, const cuda_group *g, const cuda_group *end) {
    kern_profile *profile = p->batch->profile;
    int code = cuda_check(p->device, cudaStreamSynchronize(p->device->stream), "a profile");
    const double began = kern_clock();
    double before = began;
    for (int32_t taken; g < end && !code; g += taken) {
        if (p->batch->stop && *p->batch->stop) return KERN_INTERRUPTED;
        code = run_group(p, g, end, &taken);
        if (!code)
            code = cuda_check(p->device, cudaStreamSynchronize(p->device->stream), "a profile");
        const double now = kern_clock();
        profile->ops[g->first_op].seconds += now - before;
        before = now;
    }
    profile->run_s += before - began;
    return code;
}

/* ---- graphs ---- */

void cuda_graphs_drop(kern_work *work) {
    for (int32_t i = 0; i < work->n_graphs; i++)
        if (work->graphs[i].exec) (void)cudaGraphExecDestroy(work->graphs[i].exec);
    work->n_graphs = 0;
}

/* The number of rows that a step of n runs as. */
static int32_t bucket_of(int32_t n) {
    int32_t bucket = 1;
    while (bucket < n) bucket *= 2;
    return bucket;
}

static bool is_graphed(const kern_work *work, const kern_batch *batch) {
    if (batch->profile || batch->n_rows > CUDA_GRAPH_ROWS || !cuda_is_one_each(batch)) return false;
    return bucket_of(batch->n_rows) <= work->max_rows;
}

/* NULL: there is no room for one more. */
static cuda_graph *find_graph(kern_work *work, const graph_key *key) {
    for (int32_t i = 0; i < work->n_graphs; i++)
        if (memcmp(&work->graphs[i].key, key, sizeof *key) == 0) return &work->graphs[i];
    if (work->n_graphs == CUDA_GRAPHS) return NULL;
    cuda_graph *graph = &work->graphs[work->n_graphs];
    *graph = (cuda_graph){.key = *key};
    return graph;
}

static int capture(const pass *p, const cuda_group *g, const cuda_group *end, cuda_graph *graph) {
    kern_device *device = p->device;
    cudaGraph_t captured = NULL;
    const uint64_t before = device->stats.launches;
    int code =
        cuda_check(device, cudaStreamBeginCapture(device->stream, cudaStreamCaptureModeThreadLocal),
                   "capturing a step");
    if (code) return code;
    code = run_eagerly(p, g, end);
    const cudaError_t ended = cudaStreamEndCapture(device->stream, &captured);
    if (!code) code = cuda_check(device, ended, "capturing a step");
    graph->launches = device->stats.launches - before;
    device->stats.launches = before; /* nothing has run yet */
    if (!code)
        code = cuda_check(device, cudaGraphInstantiate(&graph->exec, captured, 0),
                          "making a graph of a step");
    if (captured) (void)cudaGraphDestroy(captured);
    return code;
}

/* The first step of a kind is launched one by one (the driver loads kernels then, which a capture
 * must not), the second is captured. */
static int run_graphed(const pass *p, const cuda_group *g, const cuda_group *end, graph_key key) {
    cuda_graph *graph = find_graph(p->work, &key);
    if (!graph) return run_eagerly(p, g, end);
    if (graph == &p->work->graphs[p->work->n_graphs]) {
        const int code = run_eagerly(p, g, end);
        if (!code) p->work->n_graphs++;
        return code;
    }
    if (!graph->exec) {
        const int code = capture(p, g, end, graph);
        if (code) return code;
    }
    p->device->stats.launches += graph->launches;
    return cuda_check(p->device, cudaGraphLaunch(graph->exec, p->device->stream), "a step");
}

/* ---- the run ---- */

/* The groups of operations first … first + count - 1; NULL where the range cuts one. */
static const cuda_group *find_groups(const kern_work *work, int32_t first, int32_t count,
                                     const cuda_group **end) {
    const cuda_group *g = work->groups, *last = g + work->n_groups;
    while (g < last && g->first_op < first) g++;
    const cuda_group *stop = g;
    while (stop < last && stop->first_op < first + count) stop++;
    *end = stop;
    const int32_t begins = g < last ? g->first_op : work->plan->n_ops;
    const int32_t ends = stop < last ? stop->first_op : work->plan->n_ops;
    return begins == first && ends == first + count ? g : NULL;
}

static int map_rows(kern_device *device, const kern_work *work, const kern_batch *batch) {
    const kern_pages *pages = work->pages;
    const kern_limits most = {work->max_rows, pages ? pages->n_pages : 0,
                              pages ? pages->pages : NULL};
    return kern_map_rows(batch, &most, work->rows, device->message, sizeof device->message);
}

int cuda_run(kern_device *device, kern_work *work, const plan *p, int32_t first, int32_t count,
             const kern_batch *batch) {
    if (batch->stop && *batch->stop) return KERN_INTERRUPTED;
    if (!count || !batch->n_rows) return KERN_OK;
    const cuda_group *end, *g = find_groups(work, first, count, &end);
    if (!g)
        return cuda_fail(device, KERN_DEVICE, "operations %d + %d are not whole layers", first,
                         count);
    int code = map_rows(device, work, batch);
    if (code) return code;
    pass s = {.device = device, .work = work, .batch = batch, .n_rows = batch->n_rows};
    const bool graphed = batch->n_sequences && is_graphed(work, batch);
    if (graphed) s.n_rows = bucket_of(batch->n_rows);
    if (batch->n_sequences) code = cuda_step_send(device, work, batch, s.n_rows, &s.step);
    if (code) return code;
    if (graphed) {
        const graph_key key = {first, count, s.n_rows, s.step.shared_worth};
        code = run_graphed(&s, g, end, key);
    } else {
        code = batch->profile ? run_profiled(&s, g, end) : run_eagerly(&s, g, end);
        if (batch->profile && !code)
            kern_profile_add(batch->profile, work->pages ? &work->pages->shape.kv : NULL, p, first,
                             count, batch, work->rows);
    }
    if (code == KERN_OK) code = cuda_launched(device, "a pass");
    return code;
}
