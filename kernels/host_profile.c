/* host_profile.c: what the operations of a run must read and compute, for a profile. Their time is
 * the backend's to measure. */
#include "host.h"

#include <time.h>

double host_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Positions of one window that a run's rows see: summed over the rows, and how many keys must be
 * read for that. Pages that a sequence has in common with the one before are read once. */
typedef struct seen {
    uint64_t by_rows, read;
} seen;

static bool shares_page(const kern_sequence *q, const kern_sequence *before, int32_t i_page) {
    return before != NULL && i_page * KERN_PAGE_POSITIONS < before->n_past + before->n_rows &&
           before->pages[i_page] == q->pages[i_page];
}

static seen seen_by(const kern_batch *batch, const host_row *rows, int32_t window) {
    seen s = {0, 0};
    for (int32_t t = 0; t < batch->n_rows; t++) {
        const int32_t end = rows[t].position + 1;
        s.by_rows += (uint64_t)(window > 0 && end > window ? window : end);
    }
    for (int32_t i = 0; i < batch->n_sequences; i++) {
        const kern_sequence *q = &batch->sequences[i];
        const int32_t end = q->n_past + q->n_rows;
        int32_t at = window > 0 && q->n_past >= window ? q->n_past + 1 - window : 0;
        while (at < end) {
            const int32_t i_page = at / KERN_PAGE_POSITIONS;
            int32_t next = (i_page + 1) * KERN_PAGE_POSITIONS;
            if (next > end) next = end;
            if (!shares_page(q, i > 0 ? q - 1 : NULL, i_page)) s.read += (uint64_t)(next - at);
            at = next;
        }
    }
    return s;
}

static uint64_t weight_bytes(const kern_weight *w, int64_t n_rows) {
    return (uint64_t)n_rows * kern_format_bytes(w->format, w->n_columns);
}

/* Keys and values of one position in one layer. */
static uint64_t position_bytes(const kern_pages *kv) {
    const kern_kv_shape *s = &kv->shape;
    return (uint64_t)s->n_heads_kv * (host_kv_row_bytes(s->type, s->head_dim_k) +
                                      host_kv_row_bytes(s->type, s->head_dim_v));
}

void host_profile_add(kern_profile *profile, const kern_work *work, const plan *p, int32_t first,
                      int32_t count, const kern_batch *batch, const host_row *rows) {
    const uint64_t n_rows = (uint64_t)batch->n_rows;
    seen s = {0, 0};
    int32_t window = -1; /* that s is of */
    for (int32_t i = first; i < first + count; i++) {
        const plan_op *op = &p->ops[i];
        kern_cost *cost = &profile->ops[i];
        cost->calls++;
        cost->rows += n_rows;
        switch (op->kind) {
        case PLAN_EMBED:
        case PLAN_EMBED_AT: cost->bytes += weight_bytes(op->w, batch->n_rows); break;
        case PLAN_MATMUL:
            cost->bytes += weight_bytes(op->w, op->w->n_rows);
            cost->operations += 2 * n_rows * (uint64_t)(op->w->n_rows * op->w->n_columns);
            break;
        case PLAN_KV_APPEND: cost->bytes += n_rows * position_bytes(work->pages); break;
        case PLAN_ATTEND:
            if (op->window != window) s = seen_by(batch, rows, window = op->window);
            cost->bytes += s.read * position_bytes(work->pages);
            cost->operations +=
                2 * s.by_rows * (uint64_t)op->n_heads * (uint64_t)(op->head_dim + op->head_dim_v);
            break;
        default: break; /* rows in the caches */
        }
    }
}
