/* profile.c: a model's profile: what the operations of its plan cost. The backend adds to it; what
 * is told is the sum since it began. */
#include "model.h"

#include "../kernels/memory.h"
#include "../kernels/rows.h"

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

/* The sequences of a step that have no page in common. */
typedef struct imagined {
    kern_sequence *sequences;
    kern_row *rows;
    int32_t *pages;
} imagined;

static void imagined_free(imagined *s) {
    kern_free(s->sequences);
    kern_free(s->rows);
    kern_free(s->pages);
}

static bool imagine(imagined *s, size_t n, int32_t n_past) {
    const size_t n_pages = (size_t)n_past / KERN_PAGE_POSITIONS + 1;
    s->sequences = kern_alloc_array(n, sizeof *s->sequences);
    s->rows = kern_alloc_array(n, sizeof *s->rows);
    s->pages = kern_alloc_array(n * n_pages, sizeof *s->pages);
    if (!s->sequences || !s->rows || !s->pages) return false;
    for (size_t i = 0; i < n * n_pages; i++) s->pages[i] = (int32_t)i;
    for (size_t i = 0; i < n; i++) {
        s->rows[i] = (kern_row){.i_sequence = (int32_t)i, .position = n_past};
        s->sequences[i] = (kern_sequence){.pages = s->pages + i * n_pages,
                                          .n_past = n_past,
                                          .n_rows = 1,
                                          .first_row = (int32_t)i};
    }
    return true;
}

int llm_model_count_step(llm_model *m, int64_t n_sequences, int64_t n_past, llm_error *err) {
    if (!m->profile) return llm_fail(err, LLM_MISUSE, "count_step: the profile is off");
    if (n_sequences < 1 || n_sequences > 4096 || n_past < 0 || n_past >= m->info.ctx)
        return llm_fail(err, LLM_MISUSE,
                        "count_step: %lld sequences of %lld positions, at most 4096 of %lld are "
                        "counted",
                        (long long)n_sequences, (long long)n_past, (long long)m->info.ctx - 1);
    imagined s = {0};
    const bool is_made = imagine(&s, (size_t)n_sequences, (int32_t)n_past);
    if (is_made)
        kern_profile_add(m->profile, &m->pages.shape, &m->plan, 0, m->plan.n_ops,
                         &(kern_batch){.n_rows = (int32_t)n_sequences,
                                       .n_sequences = (int32_t)n_sequences,
                                       .sequences = s.sequences},
                         s.rows);
    imagined_free(&s);
    return is_made ? 0 : llm_fail_memory(err, (size_t)n_sequences, "a step");
}
