/* profile.c: a model's profile: what the operations of its plan cost. The backend adds to it; what
 * is told is the sum since it began. */
#include "model.h"

#include "../kernels/memory.h"

/* tensor_s is the device's: what it was when the profile began is subtracted. */
typedef struct model_profile {
    kern_profile kern;
    double tensor_began;
    kern_cost costs[];
} model_profile;

static const model_profile *profile_of(const llm_model *m) {
    return (const model_profile *)(const void *)m->profile;
}

void profile_close(llm_model *m) {
    if (!m->profile) return;
    m->device->n_profiles--;
    kern_free(m->profile);
    m->profile = NULL;
}

int llm_model_set_profile(llm_model *m, bool on, llm_error *err) {
    profile_close(m);
    if (!on) return 0;
    const size_t bytes = sizeof(model_profile) + (size_t)m->plan.n_ops * sizeof(kern_cost);
    model_profile *p = kern_alloc(bytes);
    if (!p) return llm_fail_memory(err, bytes, "a profile");
    p->kern.ops = p->costs;
    p->tensor_began = m->device->tensor_s;
    m->profile = &p->kern;
    m->device->n_profiles++;
    return 0;
}

bool llm_model_get_profile(const llm_model *m, llm_profile *out) {
    if (!m->profile) return false;
    *out = (llm_profile){.run_s = m->profile->run_s,
                         .tensor_s = m->device->tensor_s - profile_of(m)->tensor_began,
                         .n_costs = m->plan.n_ops};
    return true;
}

llm_cost llm_model_get_cost(const llm_model *m, int64_t i) {
    const plan_op *op = &m->plan.ops[i];
    const kern_cost *c = &m->profile->ops[i];
    return (llm_cost){.kind = model_kind_name(op->kind),
                      .weight = op->w ? op->w->name : NULL,
                      .format = op->w ? op->w->format->name : NULL,
                      .layer = op->layer,
                      .calls = c->calls,
                      .rows = c->rows,
                      .bytes = c->bytes,
                      .operations = c->operations,
                      .seconds = c->seconds,
                      .input_s = c->input_s,
                      .wait_s = c->wait_s};
}
