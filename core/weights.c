/* weights.c: how the weights of a model come from its file to the backend. */
#include "device.h"
#include "model.h"

static int64_t bytes_of(const kern_weight *w) {
    return (int64_t)kern_format_bytes(w->format, w->n_rows * w->n_columns);
}

/* What the model's info says of weights, and which of them products use. */
static void count_weights(llm_model *m) {
    llm_model_info *info = &m->info;
    const plan *p = &m->plan;
    for (int32_t i = 0; i < m->n_weights; i++) {
        const kern_weight *w = &m->weights[i];
        if (w->slice) continue;
        info->n_params += w->n_rows * w->n_columns;
        info->weight_bytes += bytes_of(w);
    }
    for (int32_t i = 0; i < p->n_ops; i++) {
        const kern_weight *w = p->ops[i].w;
        bool looked_up = p->ops[i].kind == PLAN_EMBED || p->ops[i].kind == PLAN_EMBED_AT;
        if (w && !looked_up) info->weight_bytes_step += bytes_of(w);
        if (p->ops[i].kind == PLAN_MATMUL) m->weights[w - m->weights].product = true;
    }
}

static void tell_progress(void *data, int64_t done, int64_t total) {
    const llm_watch *watch = &((const llm_model *)data)->watch;
    if (watch->progress) watch->progress(watch->data, "loading", done, total);
}

static void release(void *data, const kern_weight *w) {
    gguf_release(((const llm_model *)data)->file, w->data, (size_t)bytes_of(w));
}

int model_bind_weights(llm_model *m, llm_error *err) {
    count_weights(m);
    kern_binding binding = {.weights = m->weights,
                            .n_weights = m->n_weights,
                            .stop = m->watch.stop,
                            .progress = tell_progress,
                            .spent = release,
                            .data = m};
    int code = m->device->backend->bind(m->device->kern, &binding, &m->store);
    if (code == KERN_INTERRUPTED)
        return llm_fail(err, LLM_INTERRUPTED, "interrupted while loading %s", m->path);
    return device_check(m->device, code, "the weights", err);
}
