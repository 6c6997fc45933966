/* weights.c: how the weights of a model come from its file, or an image, to the backend. */
#include "../kernels/memory.h"
#include "../kernels/random.h"
#include "model.h"

#include <string.h>

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
        if (w) plan_note_use(&m->weights[w - m->weights], p->ops[i].kind);
    }
}

/* Of tables that are looked up only, where the backend packs; of all, where it does not. What a
 * split model looks up is read where it is, even if its GPU multiplies by it. */
static int64_t mapped_bytes(const llm_model *m, bool packs) {
    int64_t bytes = 0;
    for (int32_t i = 0; i < m->n_weights; i++) {
        const kern_weight *w = &m->weights[i];
        const bool packed = packs && w->product && !(model_is_split(m) && w->looked_up);
        if (!w->slice && !w->owned && !packed) bytes += bytes_of(w);
    }
    return bytes;
}

static void tell_progress(void *data, int64_t done, int64_t total) {
    const llm_watch *watch = &((const llm_model *)data)->watch;
    if (watch->progress) watch->progress(watch->data, "loading", done, total);
}

static void release(void *data, const kern_weight *w) {
    gguf_release(((const llm_model *)data)->file, w->data, (size_t)bytes_of(w));
}

static void take_stock(llm_model *m, const kern_binding *binding, double seconds) {
    m->memory.packed_bytes = (int64_t)binding->bytes;
    m->memory.mapped_bytes = mapped_bytes(m, binding->bytes > 0);
    m->memory.weights_from = binding->from_image ? "image" : "file";
    m->memory.hash_s = image_hash_s(m->image);
    m->memory.weights_s = seconds - m->memory.hash_s;
    const uint64_t *hash = image_hash(m->image);
    if (hash) memcpy(m->hash, hash, sizeof m->hash);
}

/* Random matrices in memory of the model's own, for devices that read there; they may pack a second
 * copy of them. */
static int make_random(llm_model *m, uint64_t seed, llm_error *err) {
    const size_t available = kern_memory_available();
    if ((size_t)m->info.weight_bytes > available / 2)
        return llm_fail(err, LLM_OUT_OF_MEMORY,
                        "random weights for device %s: out of memory, they take twice %lld bytes, "
                        "%zu are available",
                        m->device->backend->name, (long long)m->info.weight_bytes, available);
    for (int32_t i = 0; i < m->n_weights; i++) {
        kern_weight *w = &m->weights[i];
        if (w->n_rows == 1 && !w->product) continue;
        if (w->slice)
            return llm_fail(err, LLM_MISUSE, "random weights: %s is cut up, which only a GPU takes",
                            w->name);
        w->owned = kern_alloc((size_t)bytes_of(w));
        if (!w->owned) return llm_fail_memory(err, (size_t)bytes_of(w), "random weights");
        w->data = w->owned;
        kern_random_blocks(w->format, seed + (uint64_t)i, w->owned, w->n_rows * w->n_columns);
    }
    return 0;
}

int model_bind_weights(llm_model *m, const llm_options *o, llm_error *err) {
    const double started = device_clock();
    const bool host = model_is_split(m) || m->device->backend->host_memory;
    count_weights(m);
    if (o->random && host && make_random(m, o->random, err)) return -1;
    m->image = image_open(m->file, o->random ? "off" : o->weight_cache, m->watch.stop);
    kern_binding binding = {.weights = m->weights,
                            .n_weights = m->n_weights,
                            .f16_as_bf16 = o->f16_as_bf16,
                            .stop = m->watch.stop,
                            .progress = tell_progress,
                            .spent = release,
                            .data = m,
                            .random = host ? 0 : o->random,
                            .image = image_calls(m->image)};
    int code = m->runner->backend->bind(m->runner->kern, &binding, &m->store);
    image_settle(m->image);
    take_stock(m, &binding, device_clock() - started);
    if (code == KERN_INTERRUPTED)
        return llm_fail(err, LLM_INTERRUPTED, "interrupted while loading %s", m->path);
    return device_check(m->runner, code, o->f16_as_bf16 ? "f16_as_bf16" : "the weights", err);
}

void model_unbind_weights(llm_model *m) {
    image_close(m->image); /* its thread reads what the backend made */
    if (m->store) m->runner->backend->unbind(m->runner->kern, m->store);
}

void llm_model_memory(llm_model *m, llm_memory *out) {
    image_finish(m->image, false);
    *out = m->memory;
    out->note = image_note(m->image);
    out->pages_used = m->pages.n_used;
    out->pages_most = m->pages.n_most;
    model_part_memory(m, out);
}
