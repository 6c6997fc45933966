/* rows.c: where the rows of a batch stand, and what a run costs by its shapes. */
#include "rows.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

double kern_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- where rows stand ---- */

typedef struct message {
    char *text;
    size_t bytes;
} message;

__attribute__((format(printf, 2, 3))) static int fail(message m, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(m.text, m.bytes, format, arguments);
    va_end(arguments);
    return KERN_DEVICE;
}

/* Rows, pages and parents of sequence i are within what was opened and reserved. */
static int check_sequence(const kern_batch *batch, const kern_limits *most, int32_t i, message m) {
    const kern_sequence *q = &batch->sequences[i];
    if (q->n_past < 0 || q->n_rows < 0 || q->first_row < 0 ||
        q->first_row > batch->n_rows - q->n_rows)
        return fail(m, "sequence %d: rows %d + %d of %d", i + 1, q->first_row, q->n_rows,
                    batch->n_rows);
    const int64_t n_positions = (int64_t)q->n_past + q->n_rows;
    for (int64_t j = 0; j * KERN_PAGE_POSITIONS < n_positions; j++) {
        const int32_t page = q->pages[j];
        if (page < 0 || page >= most->n_pages || !most->pages[page])
            return fail(m, "page %d of sequence %d is not reserved", page, i + 1);
    }
    for (int32_t j = 0; batch->parents && j < q->n_rows; j++) {
        const int32_t parent = batch->parents[q->first_row + j];
        if (parent < 0 || parent > j)
            return fail(m, "parent %d of row %d of sequence %d", parent, j + 1, i + 1);
    }
    return KERN_OK;
}

/* A position is that of the row before it on the path, and one more. */
static void map_sequence(const kern_batch *batch, int32_t i, kern_row *rows) {
    const kern_sequence *q = &batch->sequences[i];
    for (int32_t j = 0; j < q->n_rows; j++) {
        const int32_t parent = batch->parents ? batch->parents[q->first_row + j] : j;
        rows[q->first_row + j] = (kern_row){
            .i_sequence = i,
            .position = parent ? rows[q->first_row + parent - 1].position + 1 : q->n_past,
            .slot = q->n_past + j,
            .parent = parent ? q->first_row + parent - 1 : -1,
        };
    }
}

int kern_map_rows(const kern_batch *batch, const kern_limits *most, kern_row *rows, char *text,
                  size_t text_bytes) {
    const message m = {text, text_bytes};
    if (batch->n_rows < 0 || batch->n_rows > most->max_rows)
        return fail(m, "%d rows in a pass of at most %d", batch->n_rows, most->max_rows);
    for (int32_t t = 0; t < batch->n_rows; t++)
        rows[t] = (kern_row){.i_sequence = -1, .parent = -1};
    int64_t n_rows = 0;
    for (int32_t i = 0; i < batch->n_sequences; i++) {
        const int code = check_sequence(batch, most, i, m);
        if (code) return code;
        n_rows += batch->sequences[i].n_rows;
        if (n_rows > batch->n_rows)
            return fail(m, "sequences of %lld rows in a pass of %d", (long long)n_rows,
                        batch->n_rows);
        map_sequence(batch, i, rows);
    }
    return KERN_OK;
}

/* ---- what they cost ---- */

size_t kern_kv_row_bytes(kern_kv type, int32_t head_dim) {
    const size_t n = (size_t)head_dim;
    switch (type) {
    case KERN_KV_F32: return n * 4;
    case KERN_KV_F16: return n * 2;
    case KERN_KV_Q8_0: return n / 32 * 34;
    }
    return 0;
}

size_t kern_position_bytes(const kern_kv_shape *shape) {
    const size_t bytes = kern_kv_row_bytes(shape->type, shape->head_dim_k) +
                         kern_kv_row_bytes(shape->type, shape->head_dim_v);
    size_t heads, all;
    if (__builtin_mul_overflow((size_t)shape->n_layers, (size_t)shape->n_heads_kv, &heads) ||
        __builtin_mul_overflow(heads, bytes, &all))
        return SIZE_MAX;
    return all;
}

int kern_kv_check(const kern_kv_shape *shape, char *text, size_t text_bytes) {
    enum { block = 32 };
    if (shape->type != KERN_KV_Q8_0 ||
        (shape->head_dim_k % block == 0 && shape->head_dim_v % block == 0))
        return KERN_OK;
    snprintf(text, text_bytes,
             "kv q8_0 asks head sizes that are multiples of %d, these are %d and %d", block,
             shape->head_dim_k, shape->head_dim_v);
    return KERN_UNSUPPORTED;
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

static seen seen_by(const kern_batch *batch, const kern_row *rows, int32_t window) {
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
static uint64_t position_bytes(const kern_kv_shape *s) {
    return (uint64_t)s->n_heads_kv *
           (kern_kv_row_bytes(s->type, s->head_dim_k) + kern_kv_row_bytes(s->type, s->head_dim_v));
}

void kern_profile_add(kern_profile *profile, const kern_kv_shape *kv, const plan *p, int32_t first,
                      int32_t count, const kern_batch *batch, const kern_row *rows) {
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
        case PLAN_KV_APPEND: cost->bytes += n_rows * position_bytes(kv); break;
        case PLAN_ATTEND:
            if (op->window != window) s = seen_by(batch, rows, window = op->window);
            cost->bytes += s.read * position_bytes(kv);
            cost->operations +=
                2 * s.by_rows * (uint64_t)op->n_heads * (uint64_t)(op->head_dim + op->head_dim_v);
            break;
        default: break; /* rows in the caches */
        }
    }
}
