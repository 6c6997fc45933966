/* ops_columns.c: operations on columns named by ids: mask, gather, add_at, set_at. */
#include "ops.h"

#include "../kernels/memory.h"

#include <inttypes.h>
#include <string.h>

/* ---- lists of the caller ---- */

/* ids as 0-based columns. NULL on failure. */
static int32_t *columns_new(const llm_tensor *x, const int32_t *ids, int64_t n, llm_error *err) {
    if (ops_check_ids(x, ids, n, err)) return NULL;
    int32_t *columns = kern_alloc_array((size_t)n, sizeof *columns);
    if (!columns) {
        llm_fail_memory(err, (size_t)n * sizeof *columns, "a list of ids");
        return NULL;
    }
    for (int64_t i = 0; i < n; i++) columns[i] = ids[i] - ops_base(x);
    return columns;
}

int llm_op_mask(llm_tensor *x, const int64_t *first, const int32_t *ids, int64_t n_lists, bool only,
                llm_tensor **out, llm_error *err) {
    ops_call c;
    const int64_t n_rows = x->info.n_rows;
    ops_open(&c, only ? "only" : "mask", x, out);
    if (n_lists != 1 && n_lists != n_rows)
        return llm_fail(err, LLM_MISUSE, "%s: %" PRId64 " lists for %" PRId64 " rows", c.name,
                        n_lists, n_rows);
    int32_t *columns = columns_new(x, ids + first[0], first[n_lists] - first[0], err);
    if (!columns) return -1;
    llm_tensor *a = ops_f32(&c, x, err);
    if (!a || ops_result(&c, x, LLM_F32, n_rows, x->info.n_columns, false, err)) {
        kern_free(columns);
        return ops_abandon(&c);
    }
    const operation o = {.kind = OPERATION_MASK,
                         .code = only,
                         OPERATION_TAKES(tensor_view(a)),
                         OPERATION_MAKES(tensor_view(c.y)),
                         .first = first,
                         .columns = columns - first[0],
                         .n_lists = n_lists};
    const int failed = ops_finish(&c, &o, err);
    kern_free(columns);
    return failed;
}

/* ---- tensors of ids ---- */

/* Checks every id of a tensor against the columns of x: in place where the host can see it. */
static int check_tensor(ops_call *c, const llm_tensor *x, llm_tensor *ids, llm_error *err) {
    if (ids->info.dtype != LLM_I32)
        return llm_fail(err, LLM_MISUSE, "%s: ids must be i32, got f32", c->name);
    if (ops_join(c, ids, err) || tensor_settle(ids, err)) return -1;
    int32_t piece[256];
    const int64_t n = ids->info.n_rows * ids->info.n_columns, most = sizeof piece / sizeof *piece;
    for (int64_t first = 0; first < n; first += most) {
        const int64_t count = n - first < most ? n - first : most;
        const int32_t *list = piece;
        if (c->backend->host_memory)
            list = (const int32_t *)ids->buffer.data + first;
        else if (llm_tensor_read(ids, first, count, piece, err))
            return -1;
        if (ops_check_ids(x, list, count, err)) return -1;
    }
    return 0;
}

/* ids as [1|R, n] for x [R,C]; all of them belong to the row if there is but one. */
static int view_ids(ops_call *c, const llm_tensor *x, llm_tensor *ids, kern_tensor *view,
                    llm_error *err) {
    *view = tensor_view(ids);
    if (x->info.n_rows == 1) {
        view->n_columns *= view->n_rows;
        view->n_rows = 1;
    }
    if (view->n_rows != 1 && view->n_rows != x->info.n_rows)
        return llm_fail(err, LLM_MISUSE, "%s: %" PRId64 " rows of ids for %" PRId64 " rows",
                        c->name, view->n_rows, x->info.n_rows);
    return check_tensor(c, x, ids, err);
}

int llm_op_gather(llm_tensor *x, llm_tensor *ids, llm_tensor **out, llm_error *err) {
    ops_call c;
    kern_tensor list;
    ops_open(&c, "gather", x, out);
    if (ops_check_new(c.name, out, err) || view_ids(&c, x, ids, &list, err) ||
        tensor_settle(x, err) ||
        ops_result(&c, NULL, x->info.dtype, x->info.n_rows, list.n_columns, false, err))
        return ops_abandon(&c);
    c.is_logits = false;
    const operation o = {.kind = OPERATION_GATHER,
                         .base = ops_base(x),
                         OPERATION_TAKES(tensor_view(x), list),
                         OPERATION_MAKES(tensor_view(c.y))};
    return ops_finish(&c, &o, err);
}

/* v as [1|R, 1|n] beside ids [.., n] for x of n_rows rows */
static int view_values(ops_call *c, int64_t n_rows, int64_t n, llm_tensor *v, kern_tensor *view,
                       llm_error *err) {
    *view = tensor_view(v);
    if (n_rows == 1 && view->n_rows == n) {
        view->n_columns *= view->n_rows;
        view->n_rows = 1;
    }
    if ((view->n_rows == 1 || view->n_rows == n_rows) &&
        (view->n_columns == 1 || view->n_columns == n))
        return 0;
    return llm_fail(err, LLM_MISUSE,
                    "%s: values must be %" PRId64 " × %" PRId64
                    " as the ids, a row or a column, got %" PRId64 " × %" PRId64,
                    c->name, n_rows, n, v->info.n_rows, v->info.n_columns);
}

static int scatter(const char *name, llm_tensor *x, llm_tensor *ids, llm_operand v, bool add,
                   llm_tensor **out, llm_error *err) {
    ops_call c;
    kern_tensor list, values;
    ops_open(&c, name, x, out);
    if (view_ids(&c, x, ids, &list, err)) return -1;
    llm_tensor *a = ops_f32(&c, x, err), *from = NULL;
    if (a) from = ops_operand(&c, v, err);
    if (!from || view_values(&c, x->info.n_rows, list.n_columns, from, &values, err) ||
        ops_result(&c, x, LLM_F32, x->info.n_rows, x->info.n_columns, false, err))
        return ops_abandon(&c);
    const operation o = {.kind = OPERATION_SCATTER,
                         .code = add,
                         .base = ops_base(x),
                         OPERATION_TAKES(tensor_view(a), list, values),
                         OPERATION_MAKES(tensor_view(c.y))};
    return ops_finish(&c, &o, err);
}

int llm_op_add_at(llm_tensor *x, llm_tensor *ids, llm_operand v, llm_tensor **out, llm_error *err) {
    return scatter("add_at", x, ids, v, true, out, err);
}

int llm_op_set_at(llm_tensor *x, llm_tensor *ids, llm_operand v, llm_tensor **out, llm_error *err) {
    return scatter("set_at", x, ids, v, false, out, err);
}
