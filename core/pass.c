/* pass.c: one pass over the weights. Runs the plan's layers on the rows of all its chunks, copies
 * the residual stream where hidden states are wanted, and runs the head on the rows whose logits
 * are wanted, as many together as there are, so that its weights are read once. */
#include "pass.h"

#include "../kernels/memory.h"
#include <string.h>

/* ---- what passes work with ---- */

static int open_lists(passes *s, size_t n, llm_error *err) {
    s->chunks = kern_alloc_array(n, sizeof *s->chunks);
    s->sequences = kern_alloc_array(n, sizeof *s->sequences);
    s->ids = kern_alloc_array(n, sizeof *s->ids);
    s->parents = kern_alloc_array(n, sizeof *s->parents);
    s->wanted = kern_alloc_array(n, sizeof *s->wanted);
    if (s->chunks && s->sequences && s->ids && s->parents && s->wanted) return 0;
    return llm_fail_memory(err, n * sizeof *s->chunks, "the rows of a pass");
}

passes *passes_of(llm_model *m, llm_error *err) {
    if (m->passes) return m->passes;
    passes *s = kern_alloc(sizeof *s);
    if (!s) {
        llm_fail_memory(err, sizeof *s, "the rows of a pass");
        return NULL;
    }
    s->model = m;
    if (open_lists(s, (size_t)m->piece, err) ||
        !(s->device_ids = tensor_alloc(m->device, LLM_I32, m->piece, 1, err)) ||
        !(s->picked = tensor_alloc(m->device, LLM_F32, HEAD_ROWS, 1, err)) ||
        !(s->sums = tensor_alloc(m->device, LLM_F32, HEAD_ROWS, 1, err))) {
        passes_close(s);
        return NULL;
    }
    m->passes = s;
    return s;
}

void passes_close(passes *s) {
    if (!s) return;
    kern_free(s->chunks);
    kern_free(s->sequences);
    kern_free(s->ids);
    kern_free(s->parents);
    kern_free(s->wanted);
    kern_free(s->shares);
    kern_free(s->pages);
    llm_tensor_close(s->device_ids);
    llm_tensor_close(s->rows);
    llm_tensor_close(s->picked);
    llm_tensor_close(s->sums);
    kern_free(s);
}

/* n rows of a tensor from i_row on. */
static kern_tensor rows_of(llm_tensor *t, int64_t i_row, int64_t n) {
    kern_tensor view = tensor_view(t);
    view.offset = (size_t)(i_row * t->info.n_columns) * 4;
    view.n_rows = n;
    return view;
}

/* ---- the rows ---- */

void pass_add(passes *s, llm_request *r, request_part *p, int32_t n) {
    const llm_cache *c = p->fed;
    int32_t at = s->n_rows;
    s->chunks[s->n_chunks] = (pass_chunk){r, p, n, at};
    s->sequences[s->n_chunks++] = (kern_sequence){c->pages, (int32_t)c->n, n, at};
    memcpy(s->ids + at, r->ids + p->first + p->n_fed, (size_t)n * sizeof *s->ids);
    for (int32_t i = 0; i < n; i++) {
        int64_t id = p->n_fed + i;
        s->parents[at + i] = r->parents ? r->parents[p->first + id] : i;
        if (id >= p->first_wanted && id < p->end_wanted)
            s->wanted[s->n_wanted++] = (pass_row){r, p->first_row + id - p->first_wanted};
    }
    s->has_parents = s->has_parents || r->parents;
    s->n_rows += n;
}

/* ---- the layers ---- */

static int run(llm_model *m, int32_t first, int32_t count, const kern_batch *batch,
               llm_error *err) {
    int code = m->runner->backend->run(m->runner->kern, m->work, &m->plan, first, count, batch);
    return device_check(m->runner, code, "a forward pass", err);
}

static bool wants_layer(const llm_request *r, int32_t layer) {
    for (int64_t i = 0; i < r->n_layers; i++)
        if (r->layers[i] == layer) return true;
    return false;
}

static bool any_wants_layer(const passes *s, int32_t layer) {
    for (int32_t i = 0; i < s->n_chunks; i++)
        if (wants_layer(s->chunks[i].request, layer)) return true;
    return false;
}

static int copy_hidden(const llm_model *m, const pass_chunk *c, int32_t layer, llm_error *err) {
    const llm_request *r = c->request;
    kern_buffer *x = m->runner->backend->work_buffer(m->work, m->plan.residual);
    size_t row = (size_t)m->info.width * sizeof(float);
    int64_t to = c->part->first + c->part->n_fed;
    for (int64_t i = 0; i < r->n_layers; i++) {
        if (r->layers[i] != layer) continue;
        int code = m->device->backend->copy(m->device->kern, tensor_view(r->hidden[i]).buffer,
                                            (size_t)to * row, x, (size_t)c->first_row * row,
                                            (size_t)c->n_rows * row);
        if (device_check(m->device, code, "copying hidden states", err)) return -1;
    }
    return 0;
}

/* The layers of the pass, in as few runs as the hidden states asked for allow. */
static int run_layers(passes *s, const kern_batch *batch, llm_error *err) {
    const llm_model *m = s->model;
    int32_t first = 0, depth = s->chunks[0].request->depth;
    for (int32_t layer = 0; layer <= depth; layer++) {
        bool wanted = any_wants_layer(s, layer);
        if (layer < depth && !wanted) continue;
        int32_t end = m->plan.first_op[layer + 1];
        if (run(s->model, first, end - first, batch, err)) return -1;
        for (int32_t i = 0; wanted && i < s->n_chunks; i++)
            if (copy_hidden(m, &s->chunks[i], layer, err)) return -1;
        first = end;
    }
    return 0;
}

/* ---- the head ---- */

int pass_head(llm_model *m, int64_t n, llm_tensor *out, int64_t i_row, llm_error *err) {
    int32_t first = m->plan.first_op[m->plan.n_layers + 1];
    kern_batch batch = {.n_rows = (int32_t)n, .stop = m->watch.stop, .profile = m->profile};
    batch.logits = rows_of(out, i_row, n);
    return run(m, first, m->plan.first_op[m->plan.n_layers + 2] - first, &batch, err);
}

/* Moves rows [from, from + n) of the residual stream up to `to`. */
static int move_rows(const llm_model *m, int64_t to, int64_t from, int64_t n, llm_error *err) {
    if (to == from || n == 0) return 0;
    kern_buffer *x = m->runner->backend->work_buffer(m->work, m->plan.residual);
    size_t row = (size_t)m->info.width * sizeof(float);
    int64_t most = from - to; /* more would overlap */
    int code = 0;
    for (int64_t i = 0; i < n && !code; i += most) {
        int64_t count = n - i < most ? n - i : most;
        code = m->device->backend->copy(m->device->kern, x, (size_t)(to + i) * row, x,
                                        (size_t)(from + i) * row, (size_t)count * row);
    }
    return device_check(m->device, code, "copying hidden states", err);
}

/* The rows that are wanted come to the beginning of the residual stream. */
static int gather_wanted(passes *s, llm_error *err) {
    int64_t n = 0;
    for (int32_t i = 0; i < s->n_chunks; i++) {
        const pass_chunk *c = &s->chunks[i];
        const request_part *p = c->part;
        int64_t first = p->first_wanted > p->n_fed ? p->first_wanted - p->n_fed : 0;
        int64_t end = p->end_wanted - p->n_fed;
        if (end > c->n_rows) end = c->n_rows;
        if (first >= end) continue;
        if (move_rows(s->model, n, c->first_row + first, end - first, err)) return -1;
        n += end - first;
    }
    return 0;
}

/* Wanted rows from i on that are neighbours in one request's tensor. */
static int64_t run_length(const passes *s, int64_t i) {
    int64_t n = 1;
    while (i + n < s->n_wanted && s->wanted[i + n].request == s->wanted[i].request &&
           s->wanted[i + n].i_row == s->wanted[i].i_row + n)
        n++;
    return n;
}

/* Log-probabilities of the targets of n rows of logits, into the column from i_row on. */
static int score_rows(passes *s, llm_request *r, kern_tensor rows, int64_t i_row, llm_error *err) {
    llm_device *device = s->model->device;
    const kern_backend *backend = device->backend;
    kern_tensor picked = rows_of(s->picked, 0, rows.n_rows),
                sums = rows_of(s->sums, 0, rows.n_rows);
    int code =
        backend->gather(device->kern, rows, rows_of(r->targets, i_row, rows.n_rows), 0, picked);
    if (!code) code = backend->reduce(device->kern, KERN_LOGSUMEXP, rows, sums);
    if (!code)
        code = backend->binary(device->kern, KERN_SUB, picked, sums,
                               rows_of(r->logits, i_row, rows.n_rows));
    return device_check(device, code, "scoring", err);
}

/* A request that gets all its rows of one head shares their memory where that is no matter of
 * copying. */
static bool share_rows(passes *s, const pass_row *to, int64_t from, int64_t n) {
    llm_tensor *logits = to->request->logits;
    const int64_t n_columns = logits->info.n_columns;
    if (!logits->cell || to->request->kind == REQUEST_SCORE || n != logits->info.n_rows)
        return false;
    cell_place(logits->device, logits->cell, s->rows->cell->block, from * n_columns, n * n_columns);
    return true;
}

/* Rows [from, from + n) of the shared logits go to their request. */
static int deliver(passes *s, const pass_row *to, int64_t from, int64_t n, llm_error *err) {
    llm_device *device = s->model->device;
    kern_tensor rows = rows_of(s->rows, from, n);
    if (to->request->kind == REQUEST_SCORE) return score_rows(s, to->request, rows, to->i_row, err);
    if (share_rows(s, to, from, n)) return 0;
    if (tensor_fill(to->request->logits, err)) return -1;
    kern_tensor out = rows_of(to->request->logits, to->i_row, n);
    int code = device->backend->copy(device->kern, out.buffer, out.offset, rows.buffer, rows.offset,
                                     (size_t)(n * rows.n_columns) * sizeof(float));
    return device_check(device, code, "copying logits", err);
}

/* Those that were shared belong to their requests. */
static int reserve_rows(passes *s, int64_t n, llm_error *err) {
    if (s->rows && !s->rows->cell && s->rows->info.n_rows >= n) return 0;
    llm_tensor_close(s->rows);
    s->rows = tensor_alloc(s->model->device, LLM_F32, n, s->model->info.vocab_size, err);
    return s->rows ? 0 : -1;
}

/* Rows i … i + n - 1 of the wanted, of several requests or of a score. */
static int head_shared(passes *s, int64_t i, int64_t n, llm_error *err) {
    if (reserve_rows(s, n, err) || move_rows(s->model, 0, i, n, err) ||
        pass_head(s->model, n, s->rows, 0, err))
        return -1;
    for (int64_t done = 0; done < n;) {
        int64_t length = run_length(s, i + done);
        if (length > n - done) length = n - done;
        if (deliver(s, &s->wanted[i + done], done, length, err)) return -1;
        done += length;
    }
    if (s->rows->cell) { /* nothing holds them longer than the requests do */
        llm_tensor_close(s->rows);
        s->rows = NULL;
    }
    return 0;
}

static int run_heads(passes *s, llm_error *err) {
    if (gather_wanted(s, err)) return -1;
    for (int64_t i = 0; i < s->n_wanted;) {
        const pass_row *row = &s->wanted[i];
        int64_t left = s->n_wanted - i, n = run_length(s, i);
        int64_t shared = left < HEAD_ROWS ? left : HEAD_ROWS;
        bool alone = row->request->kind != REQUEST_SCORE && n >= shared;
        int failed = alone ? tensor_fill(row->request->logits, err) ||
                                 move_rows(s->model, 0, i, n, err) ||
                                 pass_head(s->model, n, row->request->logits, row->i_row, err)
                           : head_shared(s, i, shared, err);
        if (failed) return -1;
        i += alone ? n : shared;
    }
    return 0;
}

/* The cell of a chunk's id and its place in it, if the host does not know it; else NULL. */
static const cell *late_cell(const pass_chunk *c, int64_t *first) {
    const llm_late *late = c->request->late;
    if (!late || late_known(late)) return NULL;
    const cell *ids = late_tensor(late)->cell;
    *first = cell_first(ids) + c->part->first;
    return ids;
}

/* Ids that only the device knows go to their rows there, with those beside them in one copy. */
static int place_late(passes *s, llm_error *err) {
    llm_device *device = s->model->device;
    for (int32_t i = 0, n = 1; i < s->n_chunks; i += n, n = 1) {
        int64_t first, next;
        const cell *ids = late_cell(&s->chunks[i], &first), *other;
        if (!ids) continue;
        while (i + n < s->n_chunks && (other = late_cell(&s->chunks[i + n], &next)) &&
               other->block == ids->block && next == first + n)
            n++;
        int code = device->backend->copy(device->kern, tensor_view(s->device_ids).buffer,
                                         (size_t)s->chunks[i].first_row * sizeof(int32_t),
                                         &ids->block->buffer, (size_t)first * sizeof(int32_t),
                                         (size_t)n * sizeof(int32_t));
        if (device_check(device, code, "the ids of a pass", err)) return -1;
    }
    return 0;
}

/* The ids that the host knows. */
static int write_ids(passes *s, llm_error *err) {
    llm_device *device = s->model->device;
    bool any = false;
    for (int32_t i = 0; i < s->n_chunks; i++) {
        const pass_chunk *c = &s->chunks[i];
        const llm_late *late = c->request->late;
        const int32_t *known = late ? late_known(late) : NULL;
        if (known) memcpy(s->ids + c->first_row, known + c->part->first, sizeof *known);
        any = any || !late || known;
    }
    if (!any) return 0;
    int code = device->backend->write(device->kern, tensor_view(s->device_ids).buffer, 0, s->ids,
                                      (size_t)s->n_rows * sizeof *s->ids);
    return device_check(device, code, "the ids of a pass", err);
}

int pass_run(passes *s, llm_error *err) {
    llm_model *m = s->model;
    kern_batch batch = {.n_rows = s->n_rows,
                        .n_sequences = s->n_chunks,
                        .sequences = s->sequences,
                        .ids = rows_of(s->device_ids, 0, s->n_rows),
                        .host_ids = model_is_split(m) ? s->ids : NULL,
                        .parents = s->has_parents ? s->parents : NULL,
                        .stop = m->watch.stop,
                        .profile = m->profile};
    if (write_ids(s, err) || place_late(s, err)) return -1;
    m->device->forward_rows += (uint64_t)s->n_rows;
    return run_layers(s, &batch, err) || run_heads(s, err) ? -1 : 0;
}
