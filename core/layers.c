/* layers.c: where a model's layers are: all on its device, or the first on a CPU beside a GPU that
 * is too small; and how many would fit there. */
#include "../kernels/memory.h"
#include "../kernels/split.h"
#include "model.h"

#include <stdio.h>
#include <string.h>

/* What attention takes at most to share out long rows, and logits of a pass that are kept. */
#define ATTENTION_BYTES ((size_t)16 << 20)
#define LOGITS_ROWS     64

bool model_is_split(const llm_model *m) { return m->runner != m->device; }

int model_place_layers(llm_model *m, const llm_options *o, llm_error *err) {
    const int32_t n_layers = m->plan.n_layers;
    const bool is_gpu = !m->device->backend->host_memory;
    m->info.gpu_layers = is_gpu ? n_layers : 0;
    if (!o->host) return 0;
    if (!is_gpu)
        return llm_fail(err, LLM_MISUSE, "gpu_layers asks for a GPU: device %s is none",
                        m->device->backend->name);
    if (!o->host->backend->host_memory || o->gpu_layers < 0)
        return llm_fail(err, LLM_MISUSE, "gpu_layers must be at least 0, got %lld, beside a CPU",
                        (long long)o->gpu_layers);
    if (o->gpu_layers >= n_layers) return 0;
    const kern_half halves[2] = {{o->host->backend, o->host->kern},
                                 {m->device->backend, m->device->kern}};
    kern_device *kern = kern_split_open(halves, &m->plan, n_layers - (int32_t)o->gpu_layers);
    if (!kern) return llm_fail_memory(err, sizeof m->plan, "the plan of the model");
    llm_device *split = device_wrap(&kern_split, kern, err);
    if (!split) return -1;
    llm_device_close(m->runner);
    m->runner = split;
    m->host = device_retain(o->host);
    m->info.gpu_layers = o->gpu_layers;
    return 0;
}

void model_part_memory(const llm_model *m, llm_memory *out) {
    out->n_parts = model_is_split(m) ? 2 : 0;
    for (int i = 0; i < out->n_parts; i++) {
        const kern_half_memory half = kern_split_memory(m->runner->kern, i);
        out->parts[i] = (llm_part_memory){.device = half.backend->name,
                                          .first_layer = half.first_layer,
                                          .last_layer = half.last_layer,
                                          .packed_bytes = (int64_t)half.weight_bytes,
                                          .page_bytes = (int64_t)half.page_bytes,
                                          .scratch_bytes = (int64_t)half.scratch_bytes};
    }
}

/* ---- what would fit ---- */

/* The deepest layer that uses each weight, -1: none. NULL: out of memory. */
static int32_t *deepest_layers(const llm_model *m) {
    int32_t *deepest = kern_alloc_array((size_t)m->n_weights, sizeof *deepest);
    for (int32_t i = 0; deepest && i < m->n_weights; i++) deepest[i] = -1;
    for (int32_t i = 0; deepest && i < m->plan.n_ops; i++) {
        const plan_op *op = &m->plan.ops[i];
        if (op->w) deepest[op->w - m->weights] = op->layer;
        if (op->bias) deepest[op->bias - m->weights] = op->layer;
    }
    return deepest;
}

/* Bytes in the file of the weights that the last n layers and the head use; all layers: of the
 * embedding too. */
static size_t file_bytes(const llm_model *m, const int32_t *deepest, int64_t n) {
    const int64_t first = n < m->plan.n_layers ? m->plan.n_layers - n + 1 : 0;
    size_t bytes = 0;
    for (int32_t i = 0; i < m->n_weights; i++) {
        const kern_weight *w = &m->weights[i];
        if (deepest[i] >= first) bytes += kern_format_bytes(w->format, w->n_rows * w->n_columns);
    }
    return bytes;
}

/* What a GPU takes besides weights, with n layers and one full context: at least so much. */
static size_t other_bytes(const llm_model *m, int64_t n) {
    const plan *p = &m->plan;
    const kern_backend *backend = m->device->backend;
    kern_kv_shape shape = m->pages.shape;
    shape.n_layers = (int32_t)n;
    size_t width = 0;
    for (int32_t i = 0; i < p->n_buffers; i++)
        if (i != p->logits) width += (size_t)p->buffers[i].width;
    size_t bytes = ((size_t)m->piece * width + LOGITS_ROWS * (size_t)m->shape.vocab_size) * 4;
    if (n) bytes += (size_t)pages_for(m->info.ctx) * backend->page_bytes(m->device->kern, &shape);
    return bytes + ATTENTION_BYTES;
}

/* Bytes of weights that the GPU has, or was asked for in vain. */
static size_t gpu_bytes(const llm_model *m) {
    return model_is_split(m) ? kern_split_memory(m->runner->kern, 1).weight_bytes
                             : (size_t)m->memory.packed_bytes;
}

/* The most layers below those that were tried that fit into so many bytes, or -1: not even the
 * head does, or the memory that was short was not the GPU's. */
static int64_t fitting(const llm_model *m, const int32_t *deepest, size_t available) {
    const size_t asked = gpu_bytes(m), tried = file_bytes(m, deepest, m->info.gpu_layers);
    const size_t more = asked > tried ? asked - tried : 0; /* padding, and what loading takes */
    int64_t n = m->info.gpu_layers;
    if (model_is_split(m) && kern_split_failed(m->runner->kern) != 1) return -1;
    while (n-- > 0)
        if (file_bytes(m, deepest, n) + more + other_bytes(m, n) <= available) break;
    return n;
}

void model_suggest_layers(const llm_model *m, llm_error *err) {
    const kern_backend *backend = m->device->backend;
    kern_device_info info = {.bytes_free = 0};
    char message[128];
    int n_devices;
    if (backend->host_memory || err->kind != LLM_OUT_OF_MEMORY) return;
    if (backend->probe(m->device->index, &info, &n_devices, message, sizeof message)) return;
    int32_t *deepest = deepest_layers(m);
    if (!deepest) return;
    size_t available = info.bytes_free - info.bytes / 64; /* it is given out in larger pieces */
    if (info.bytes_free < info.bytes / 64) available = 0;
    if (m->store) available += gpu_bytes(m);
    const int64_t n = fitting(m, deepest, available);
    const size_t used = strlen(err->message);
    if (n >= 0)
        snprintf(err->message + used, sizeof err->message - used, "; --gpu-layers %lld would fit",
                 (long long)n);
    kern_free(deepest);
}
