/* late.c: ids of choices that leave for the host as soon as they are made. */
#include "late.h"
#include "queue.h"

#include "../kernels/memory.h"

struct llm_late {
    int32_t references;
    llm_tensor *copy; /* of the choice as it was */
};

static int64_t entries_of(const llm_tensor *t) { return t->info.n_rows * t->info.n_columns; }

static const int32_t *known_of(const llm_tensor *t) {
    const cell *c = t->cell;
    const int32_t *known = c && c->block ? c->block->known : NULL;
    return known ? known + cell_first(c) : NULL;
}

bool llm_tensor_is_late(const llm_tensor *t) { return t->is_choice && t->cell && !known_of(t); }

/* At once if they are there. */
static int set_out(llm_tensor *t, llm_error *err) {
    t->cell->is_wanted = true;
    return t->cell->block ? block_set_out(t->device, t->cell->block, err) : 0;
}

llm_late *llm_late_of(llm_tensor *t, llm_error *err) {
    llm_late *late = kern_alloc(sizeof *late);
    if (!late) {
        llm_fail_memory(err, sizeof *late, "ids");
        return NULL;
    }
    late->references = 1;
    if (llm_op_copy(t, &late->copy, err) || (t->cell && set_out(t, err))) {
        llm_late_close(late);
        return NULL;
    }
    return late;
}

llm_late *late_retain(llm_late *late) {
    late->references++;
    return late;
}

void llm_late_close(llm_late *late) {
    if (!late || --late->references > 0) return;
    llm_tensor_close(late->copy);
    kern_free(late);
}

const int32_t *late_known(const llm_late *late) {
    const int32_t *ids = known_of(late->copy);
    return ids && !tensor_check_codes(late->copy, 0, entries_of(late->copy), ids, NULL) ? ids
                                                                                        : NULL;
}

llm_tensor *late_tensor(const llm_late *late) { return late->copy; }

const int32_t *llm_late_read(llm_late *late, llm_error *err) {
    llm_tensor *t = late->copy;
    if (tensor_ready(t, err)) return NULL;
    const int32_t *ids = block_learn(t->device, t->cell->block, err);
    if (!ids) return NULL;
    ids += cell_first(t->cell);
    return tensor_check_codes(t, 0, entries_of(t), ids, err) ? NULL : ids;
}
