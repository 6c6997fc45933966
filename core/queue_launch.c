/* queue_launch.c: operations of a group as one: operands that lie side by side, or that all have in
 * common; keys one after the other; one list of ids if all have the same. */
#include "queue_parts.h"

#include "../kernels/memory.h"

#include <string.h>

/* Whether one row may stand for all rows of operand i. */
static bool may_share(const operation *o, int i) {
    return i > 0 || o->kind == OPERATION_BINARY || o->kind == OPERATION_BINARY_I32 ||
           o->kind == OPERATION_WHERE;
}

static bool follows(kern_tensor a, kern_tensor b) {
    return cell_of(a)->block == cell_of(b)->block &&
           (char *)cell_of(a)->buffer.data + entries_of(a) * 4 == cell_of(b)->buffer.data;
}

int32_t queue_span(const queue *q, const int32_t *list, int32_t n, bool shared[OPERATION_INS]) {
    const waiting *w = &q->operations[list[0]];
    bool rows[OPERATION_INS];
    int32_t m = 1;
    for (int i = 0; i < OPERATION_INS; i++) {
        rows[i] = w->in[i].n_rows == rows_of(w);
        shared[i] = w->in[i].n_rows == 1 && may_share(&w->op, i);
    }
    for (; m < n && w->op.kind != OPERATION_TOPK_JOINT; m++) {
        const waiting *last = &q->operations[list[m - 1]], *next = &q->operations[list[m]];
        bool r[OPERATION_INS], s[OPERATION_INS], fits = true;
        for (int i = 0; i < OPERATION_INS; i++) {
            const kern_tensor a = last->in[i], b = next->in[i];
            r[i] = !b.buffer || (rows[i] && b.n_rows == rows_of(next) && follows(a, b));
            s[i] = b.buffer && shared[i] && b.n_rows == 1 && a.buffer == b.buffer;
            fits = fits && (r[i] || s[i]);
        }
        if (!fits) break;
        memcpy(rows, r, sizeof rows);
        memcpy(shared, s, sizeof s);
    }
    for (int i = 0; i < OPERATION_INS; i++) shared[i] = shared[i] && !rows[i];
    return m;
}

/* Keys of all, one after the other. */
static void join_keys(const queue *q, const int32_t *list, int32_t n, kern_key *to) {
    for (int32_t i = 0; i < n; i++) {
        const waiting *w = &q->operations[list[i]];
        memcpy(to, q->data + w->data_at, (size_t)rows_of(w) * sizeof *to);
        to += rows_of(w);
    }
}

static const int64_t *lists_of(const queue *q, int32_t i) {
    return (const int64_t *)(const void *)(q->data + q->operations[i].data_at);
}

/* Whether all have one list for all rows, the same. */
static bool have_one_list(const queue *q, const int32_t *list, int32_t n) {
    const int64_t *one = lists_of(q, list[0]);
    for (int32_t i = 0; i < n; i++) {
        const int64_t *other = lists_of(q, list[i]);
        if (q->operations[list[i]].op.n_lists != 1 || other[1] != one[1] ||
            memcmp(one + 2, other + 2, (size_t)one[1] * sizeof(int32_t)) != 0)
            return false;
    }
    return true;
}

/* A list a row, of all of them: `first` has room for that many + 1, and for the columns. */
static void join_lists(const queue *q, const int32_t *list, int32_t n, int64_t n_rows,
                       int64_t *first) {
    int32_t *columns = (int32_t *)(void *)(first + n_rows + 1);
    int64_t row = 0, n_columns = 0;
    for (int32_t i = 0; i < n; i++) {
        const waiting *w = &q->operations[list[i]];
        const int64_t *lists = lists_of(q, list[i]), n_lists = w->op.n_lists;
        const int32_t *from = (const int32_t *)(const void *)(lists + n_lists + 1);
        for (int64_t r = 0; r < rows_of(w); r++, row++) {
            const int64_t *l = lists + (n_lists == 1 ? 0 : r);
            first[row] = n_columns;
            memcpy(columns + n_columns, from + l[0], (size_t)(l[1] - l[0]) * sizeof *columns);
            n_columns += l[1] - l[0];
        }
    }
    first[row] = n_columns;
}

static size_t joined_bytes(const queue *q, const int32_t *list, int32_t n, int64_t n_rows) {
    const operation *o = &q->operations[list[0]].op;
    size_t bytes = o->keys ? (size_t)n_rows * sizeof *o->keys : 0;
    if (!o->first) return bytes;
    for (int32_t i = 0; i < n; i++) {
        const waiting *w = &q->operations[list[i]];
        const int64_t n_lists = w->op.n_lists, n_all = lists_of(q, list[i])[n_lists];
        bytes += (size_t)(n_lists == 1 ? n_all * rows_of(w) : n_all) * sizeof(int32_t);
    }
    return bytes + (size_t)(n_rows + 1) * sizeof *o->first;
}

/* Keys or lists of the launch. *owned is to be freed after it. */
static int join_data(const queue *q, const int32_t *list, int32_t n, waiting *w, void **owned,
                     llm_error *err) {
    operation *o = &w->op;
    *owned = NULL;
    if (!o->keys && !o->first) return 0;
    const char *own = q->data + q->operations[list[0]].data_at;
    const bool is_own = n == 1 || (o->first && have_one_list(q, list, n));
    if (!is_own) {
        o->n_lists = rows_of(w);
        const size_t bytes = joined_bytes(q, list, n, rows_of(w));
        *owned = kern_alloc(bytes);
        if (!*owned) return llm_fail_memory(err, bytes, "keys and lists of an operation");
        if (o->keys)
            join_keys(q, list, n, *owned);
        else
            join_lists(q, list, n, rows_of(w), *owned);
    }
    const char *data = is_own ? own : *owned;
    if (o->keys) o->keys = (const kern_key *)(const void *)data;
    if (o->first) {
        o->first = (const int64_t *)(const void *)data;
        o->columns = (const int32_t *)(const void *)(o->first + o->n_lists + 1);
    }
    return 0;
}

int queue_launch(llm_device *device, const int32_t *list, int32_t n,
                 const bool shared[OPERATION_INS], block *const *blocks, const int64_t *first,
                 llm_error *err) {
    const queue *q = device->queue;
    waiting w = q->operations[list[0]];
    kern_buffer in[OPERATION_INS], out[OPERATION_OUTS];
    void *owned;
    for (int32_t i = 1; i < n; i++) {
        const waiting *next = &q->operations[list[i]];
        for (int j = 0; j < OPERATION_INS; j++)
            if (!shared[j]) w.in[j].n_rows += next->in[j].n_rows;
        for (int j = 0; j < OPERATION_OUTS; j++) w.out[j].n_rows += next->out[j].n_rows;
    }
    for (int j = 0; j < OPERATION_INS; j++) {
        if (!w.in[j].buffer) continue;
        in[j] = (kern_buffer){w.in[j].buffer->data, (size_t)entries_of(w.in[j]) * 4};
        w.in[j].buffer = &in[j];
    }
    for (int j = 0; j < OPERATION_OUTS; j++) {
        if (!blocks[j]) continue;
        out[j] = (kern_buffer){(char *)blocks[j]->buffer.data + first[j] * 4,
                               (size_t)entries_of(w.out[j]) * 4};
        w.out[j].buffer = &out[j];
    }
    if (join_data(q, list, n, &w, &owned, err)) return -1;
    w.op.in = w.in;
    w.op.out = w.out;
    w.op.n_in = OPERATION_INS;
    w.op.n_out = OPERATION_OUTS;
    const int code = operation_run(device->backend, device->kern, &w.op);
    kern_free(owned);
    return device_check(device, code, w.name, err);
}
