/* late.c: ids of choices, read from the device at most once. */
#include "late.h"

#include "../kernels/memory.h"

struct llm_late {
    int32_t references;
    kern_fetch *fetch; /* NULL, or of the copy: on its way to the host */
    int64_t n;
    llm_tensor *copy; /* until they are known */
    int32_t *ids;     /* once they are known */
};

static int64_t entries_of(const llm_tensor *t) { return t->info.n_rows * t->info.n_columns; }

static llm_late *late_open(llm_tensor *t, llm_error *err) {
    if (t->late) return t->late;
    llm_late *late = kern_alloc(sizeof *late);
    if (!late) {
        llm_fail_memory(err, sizeof *late, "ids");
        return NULL;
    }
    late->references = 1;
    late->n = entries_of(t);
    t->late = late;
    return late;
}

/* The ids set out for the host at once, so that whoever waits for them does not wait for what is
 * queued later. */
static int set_out(llm_late *late, llm_error *err) {
    llm_device *device = late->copy->device;
    const size_t bytes = (size_t)late->n * sizeof *late->ids;
    if (bytes > KERN_FETCH_MOST) return 0;
    const int code =
        device->backend->fetch(device->kern, &late->copy->buffer, 0, bytes, &late->fetch);
    return device_check(device, code, "reading ids", err);
}

bool llm_tensor_is_late(const llm_tensor *t) {
    return t->is_choice && !t->device->backend->host_memory && !(t->late && t->late->ids);
}

llm_late *llm_late_of(llm_tensor *t, llm_error *err) {
    llm_late *late = late_open(t, err);
    if (!late) return NULL;
    if (!late->ids && !late->copy && (llm_op_copy(t, &late->copy, err) || set_out(late, err)))
        return NULL;
    return late_retain(late);
}

llm_late *late_retain(llm_late *late) {
    late->references++;
    return late;
}

static void forget_copy(llm_late *late) {
    llm_tensor *copy = late->copy;
    if (late->fetch) (void)copy->device->backend->fetched(copy->device->kern, late->fetch, NULL);
    late->fetch = NULL;
    late->copy = NULL;
    llm_tensor_close(copy);
}

void llm_late_close(llm_late *late) {
    if (!late || --late->references > 0) return;
    forget_copy(late);
    kern_free(late->ids);
    kern_free(late);
}

const int32_t *late_known(const llm_late *late) { return late->ids; }

llm_tensor *late_tensor(const llm_late *late) { return late->copy; }

/* What has set out arrives. */
static int arrive(llm_late *late, int32_t *ids, llm_error *err) {
    llm_tensor *copy = late->copy;
    kern_fetch *fetch = late->fetch;
    late->fetch = NULL;
    const int code = copy->device->backend->fetched(copy->device->kern, fetch, ids);
    return device_check(copy->device, code, "reading ids", err) ||
                   tensor_check_codes(copy, 0, late->n, ids, err)
               ? -1
               : 0;
}

/* Reads them from a tensor that holds them. */
static const int32_t *learn(llm_late *late, llm_tensor *from, llm_error *err) {
    int32_t *ids = kern_alloc_array((size_t)late->n, sizeof *ids);
    if (!ids) {
        llm_fail_memory(err, (size_t)late->n * sizeof *ids, "ids");
        return NULL;
    }
    if (late->fetch ? arrive(late, ids, err) : tensor_read(from, 0, late->n, ids, err)) {
        kern_free(ids);
        return NULL;
    }
    late->ids = ids;
    forget_copy(late);
    return ids;
}

const int32_t *llm_late_read(llm_late *late, llm_error *err) {
    return late->ids ? late->ids : learn(late, late->copy, err);
}

const int32_t *late_read_tensor(llm_tensor *t, llm_error *err) {
    llm_late *late = late_open(t, err);
    if (!late) return NULL;
    return late->ids ? late->ids : learn(late, t, err);
}

void late_forget(llm_tensor *t) {
    llm_late_close(t->late);
    t->late = NULL;
}
