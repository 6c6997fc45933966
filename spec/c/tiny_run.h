/* tiny_run.h: runs a tiny_plan on a backend: device, pages, buffers, and batches of sequences. */
#ifndef SPEC_TINY_RUN_H
#define SPEC_TINY_RUN_H

#include "tiny_plan.h"

enum { RUN_PAGES = 64, RUN_ROWS = 160 };

typedef struct tiny_run {
    const kern_backend *backend;
    kern_device *device;
    const kern_backend *runner; /* of weights, pages and passes: the same, or a split */
    kern_device *on;
    kern_store *store;
    kern_pages *pages;
    kern_work *work;
    kern_buffer ids, logits;
    tiny_plan *t;
} tiny_run;

static kern_kv_shape tiny_shape(kern_kv type) {
    return (kern_kv_shape){2, N_HEADS_KV, HEAD_DIM, HEAD_DIM_V, type};
}

static kern_device *run_device(const kern_backend *backend, int n_threads) {
    char message[256];
    kern_device *device =
        backend->open(&(kern_device_options){.n_threads = n_threads}, message, sizeof message);
    if (!device) abort();
    return device;
}

/* Weights, pages, buffers on devices that are open. */
static void run_begin(tiny_run *r, kern_kv type) {
    const kern_kv_shape shape = tiny_shape(type);
    tiny_plan *t = r->t;
    kern_binding binding = {.weights = t->weights, .n_weights = t->n_weights};
    if (r->runner->bind(r->on, &binding, &r->store) ||
        r->runner->pages_open(r->on, &shape, RUN_PAGES, &r->pages) ||
        r->runner->work_open(r->on, &t->plan, r->pages, RUN_ROWS, &r->work) ||
        r->backend->alloc(r->device, RUN_ROWS * 4, &r->ids) ||
        r->backend->alloc(r->device, RUN_ROWS * N_VOCAB * 4, &r->logits))
        abort();
    for (int32_t page = 0; page < RUN_PAGES; page++)
        if (r->runner->page_reserve(r->on, r->pages, page)) abort();
}

static tiny_run run_open(const kern_backend *backend, tiny_plan *t, int n_threads, kern_kv type) {
    tiny_run r = {.backend = backend, .runner = backend, .t = t};
    r.device = r.on = run_device(backend, n_threads);
    run_begin(&r, type);
    return r;
}

static void run_end(tiny_run *r) {
    r->runner->unbind(r->on, r->store);
    r->backend->free(r->device, &r->ids);
    r->backend->free(r->device, &r->logits);
    r->runner->work_close(r->on, r->work);
    r->runner->pages_close(r->on, r->pages);
}

static void run_close(tiny_run *r) {
    run_end(r);
    r->backend->close(r->device);
}

static kern_batch run_batch(tiny_run *r, const kern_sequence *sequences, int n_sequences,
                            int n_rows) {
    return (kern_batch){.n_rows = n_rows,
                        .n_sequences = n_sequences,
                        .sequences = sequences,
                        .ids = {&r->ids, 0, n_rows, 1},
                        .logits = {&r->logits, 0, n_rows, N_VOCAB}};
}

/* All operations; logits[n_rows][N_VOCAB] of every row. The code of the run. */
static int run_all(tiny_run *r, const kern_sequence *sequences, int n_sequences, const int32_t *ids,
                   int n_rows, float *logits) {
    kern_batch batch = run_batch(r, sequences, n_sequences, n_rows);
    batch.host_ids = ids;
    if (r->backend->write(r->device, &r->ids, 0, ids, (size_t)n_rows * 4)) abort();
    const int code = r->runner->run(r->on, r->work, &r->t->plan, 0, r->t->plan.n_ops, &batch);
    if (!code && r->backend->read(r->device, &r->logits, 0, logits, (size_t)n_rows * N_VOCAB * 4))
        abort();
    return code;
}

/* One sequence on pages first_page …, in pieces of at most n_piece ids. */
static void run_sequence(tiny_run *r, int32_t first_page, const int32_t *ids, int n, int n_piece,
                         float *logits) {
    int32_t pages[N_POSITIONS / KERN_PAGE_POSITIONS];
    for (int i = 0; i < N_POSITIONS / KERN_PAGE_POSITIONS; i++) pages[i] = first_page + i;
    for (int past = 0; past < n; past += n_piece) {
        const int n_rows = n - past < n_piece ? n - past : n_piece;
        const kern_sequence sequence = {pages, past, n_rows, 0};
        if (run_all(r, &sequence, 1, ids + past, n_rows, logits + (size_t)past * N_VOCAB)) abort();
    }
}

/* Three sequences of n ids that grow together in uneven pieces, on pages that lie scattered; their
 * logits go to logits[sequence][n][N_VOCAB]. */
static void run_together(tiny_run *r, int32_t *const ids[3], int n, float *const logits[3]) {
    static const int pieces[3][4] = {{1, 17, 2, 40}, {23, 1, 1, 31}, {5, 50, 3, 1}};
    int32_t pages[3][N_POSITIONS / KERN_PAGE_POSITIONS], fed[RUN_ROWS];
    float *out = malloc(sizeof(float) * RUN_ROWS * N_VOCAB);
    int past[3] = {0};
    if (!out) abort();
    for (int s = 0; s < 3; s++) /* pages out of order */
        for (int i = 0; i < N_POSITIONS / KERN_PAGE_POSITIONS; i++) pages[s][i] = (7 - i) * 3 + s;
    for (int step = 0; past[0] < n || past[1] < n || past[2] < n; step++) {
        kern_sequence sequences[3];
        int n_sequences = 0, n_rows = 0, of[3];
        for (int s = 0; s < 3; s++) {
            int piece = pieces[s][step % 4];
            if (piece > n - past[s]) piece = n - past[s];
            if (piece == 0) continue;
            memcpy(fed + n_rows, ids[s] + past[s], sizeof(int32_t) * (size_t)piece);
            of[n_sequences] = s;
            sequences[n_sequences++] = (kern_sequence){pages[s], past[s], piece, n_rows};
            n_rows += piece;
        }
        if (run_all(r, sequences, n_sequences, fed, n_rows, out)) abort();
        for (int i = 0; i < n_sequences; i++) {
            const kern_sequence *q = &sequences[i];
            memcpy(logits[of[i]] + (size_t)past[of[i]] * N_VOCAB,
                   out + (size_t)q->first_row * N_VOCAB,
                   sizeof(float) * (size_t)q->n_rows * N_VOCAB);
            past[of[i]] += q->n_rows;
        }
    }
    free(out);
}

#endif
