/* forward.c: calls that feed at once: a request of their own, served until it is done. */
#include "pass.h"

/* Fails before anything is computed if there are too few pages for the whole feed. */
static int check_pages(const llm_request *r, llm_error *err) {
    page_pool *pool = &r->info.model->pages;
    int64_t n = 0;
    if (pool->store) return 0; /* some may come from there */
    for (int64_t i = 0; i < r->n_parts; i++)
        n += cache_pages_needed(r->parts[i].cache, r->parts[i].count, false);
    return pages_check(pool, n, err);
}

/* Closes the request unless it is done. */
static int serve_alone(llm_request *r, llm_error *err) {
    const llm_watch *w = &r->info.model->watch;
    int failed = check_pages(r, err);
    while (!failed && !r->info.is_done) {
        failed = llm_serve(&r, 1, err);
        if (!failed && (r->info.n_pages_missing || r->info.is_failed)) {
            if (err) *err = r->info.error;
            failed = -1;
        }
        if (!failed && r->kind == REQUEST_FORWARD && w->progress)
            w->progress(w->data, "prefill", r->info.n_fed, r->info.n_ids);
    }
    if (failed) llm_request_close(r);
    return failed;
}

int llm_forward(llm_model *m, const llm_feed *f, llm_tensor **logits, llm_tensor **hidden,
                llm_error *err) {
    if (logits) *logits = NULL;
    for (int64_t i = 0; i < f->n_layers; i++) hidden[i] = NULL;
    llm_request *r = llm_request_open(m, f, err);
    if (!r || serve_alone(r, err)) return -1;
    llm_request_take(r, logits, hidden);
    llm_request_close(r);
    return 0;
}

int llm_score(llm_model *m, llm_cache *c, const int32_t *ids, size_t n, llm_tensor **out,
              llm_error *err) {
    llm_request *r = llm_request_open_score(m, c, ids, n, err);
    if (!r || serve_alone(r, err)) return -1;
    llm_request_take(r, out, NULL);
    llm_request_close(r);
    return 0;
}

/* The rows come to the residual stream a piece at a time. */
static int run_heads(llm_model *m, const llm_tensor *hidden, llm_tensor *out, llm_error *err) {
    kern_buffer *x = m->runner->backend->work_buffer(m->work, m->plan.residual);
    size_t row = (size_t)m->info.width * sizeof(float);
    for (int64_t i = 0; i < hidden->info.n_rows; i += m->piece) {
        int64_t n = hidden->info.n_rows - i < m->piece ? hidden->info.n_rows - i : m->piece;
        int code = m->device->backend->copy(m->device->kern, x, 0,
                                            tensor_view((llm_tensor *)hidden).buffer,
                                            (size_t)i * row, (size_t)n * row);
        if (device_check(m->device, code, "copying hidden states", err) ||
            pass_head(m, n, out, i, err))
            return -1;
    }
    return 0;
}

int llm_logits(llm_model *m, const llm_tensor *hidden, llm_tensor **out, llm_error *err) {
    const llm_tensor_info *info = &hidden->info;
    if (info->dtype != LLM_F32 || info->n_columns != m->info.width)
        return llm_fail(err, LLM_MISUSE,
                        "hidden rows must be f32 of width %lld, got %s %lld × %lld",
                        (long long)m->info.width, info->dtype == LLM_I32 ? "i32" : "f32",
                        (long long)info->n_rows, (long long)info->n_columns);
    llm_tensor *rows = request_rows(m, info->n_rows, m->info.vocab_size, err);
    if (!rows || tensor_ready(hidden, err) || run_heads(m, hidden, rows, err)) {
        llm_tensor_close(rows);
        return -1;
    }
    rows->info.is_logits = true;
    rows->info.step = info->step;
    *out = rows;
    return 0;
}
