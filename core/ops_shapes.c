/* ops_shapes.c: matrices, and tensors made of rows and columns of others. These never overlap their
 * operands: in place they exchange memory. */
#include "ops.h"

#include <inttypes.h>

int llm_op_matmul(llm_tensor *a, llm_tensor *b, llm_tensor **out, llm_error *err) {
    ops_call c;
    ops_open(&c, "matmul", a, out);
    if (a->info.n_columns != b->info.n_rows)
        return llm_fail(err, LLM_MISUSE,
                        "cannot multiply %" PRId64 " × %" PRId64 " with %" PRId64 " × %" PRId64,
                        a->info.n_rows, a->info.n_columns, b->info.n_rows, b->info.n_columns);
    c.is_logits = false;
    llm_tensor *x = ops_f32(&c, a, err), *y = x ? ops_f32(&c, b, err) : NULL;
    if (!y || tensor_ready(x, err) || tensor_ready(y, err) ||
        ops_result(&c, a, LLM_F32, a->info.n_rows, b->info.n_columns, true, err))
        return ops_abandon(&c);
    const int code = c.backend->matmul(c.kern, tensor_view(x), tensor_view(y), tensor_view(c.y));
    return ops_close(&c, code, err);
}

int llm_op_transpose(llm_tensor *x, llm_tensor **out, llm_error *err) {
    ops_call c;
    ops_open(&c, "t", x, out);
    if (tensor_settle(x, err) || tensor_ready(x, err) ||
        ops_result(&c, x, x->info.dtype, x->info.n_columns, x->info.n_rows, true, err))
        return ops_abandon(&c);
    c.is_logits = false;
    return ops_close(&c, c.backend->transpose(c.kern, tensor_view(x), tensor_view(c.y)), err);
}

static int copy_bytes(ops_call *c, llm_tensor *to, size_t to_offset, llm_tensor *from,
                      size_t from_offset, size_t bytes) {
    if (!bytes) return KERN_OK;
    return c->backend->copy(c->kern, tensor_view(to).buffer, to_offset, tensor_view(from).buffer,
                            from_offset, bytes);
}

static size_t tensor_bytes(const llm_tensor *t) {
    return (size_t)(t->info.n_rows * t->info.n_columns) * 4;
}

/* Some entries of x are about to be taken: codes among them fail now where the host can see them,
 * so that the row is named as it was chosen; else the new tensor is still a choice. */
static int take(ops_call *c, llm_tensor *x, int64_t first, int64_t count, llm_error *err) {
    return c->backend->host_memory ? tensor_check(x, first, count, err) : 0;
}
static void mark_taken(ops_call *c, const llm_tensor *x) {
    c->y->is_choice = x->is_choice && !c->backend->host_memory;
}

/* All of it, as it is: where tensors have cells nothing is copied. */
static int share(llm_tensor *x, llm_tensor **out, llm_error *err) {
    if (!*out) *out = tensor_share(x, err);
    return *out ? 0 : -1;
}

int llm_op_copy(llm_tensor *x, llm_tensor **out, llm_error *err) {
    ops_call c;
    if (x->cell) return share(x, out, err);
    ops_open(&c, "copy", x, out);
    if (ops_result(&c, x, x->info.dtype, x->info.n_rows, x->info.n_columns, false, err))
        return ops_abandon(&c);
    if (c.y == x) return 0;
    c.y->is_choice = x->is_choice;
    c.y->n_group_rows = x->n_group_rows;
    c.y->n_group_results = x->n_group_results;
    return ops_close(&c, copy_bytes(&c, c.y, 0, x, 0, tensor_bytes(x)), err);
}

/* The tensors of a concatenation, of one type, their choices settled. */
static int cat_operands(ops_call *c, llm_tensor **a, llm_tensor **b, llm_error *err) {
    if (ops_join(c, *a, err) || ops_join(c, *b, err) || tensor_settle(*a, err) ||
        tensor_settle(*b, err))
        return -1;
    if ((*a)->info.dtype != (*b)->info.dtype) {
        *a = ops_f32(c, *a, err);
        if (*a) *b = ops_f32(c, *b, err);
        if (!*a || !*b) return -1;
    }
    return tensor_ready(*a, err) || tensor_ready(*b, err) ? -1 : 0;
}

int llm_op_cat(llm_tensor *a, llm_tensor *b, int dim, llm_tensor **out, llm_error *err) {
    ops_call c;
    ops_open(&c, "cat", a, out);
    if (dim != 1 && dim != 2)
        return llm_fail(err, LLM_MISUSE, "cat: dim must be 1 (rows) or 2 (columns), got %d", dim);
    const llm_tensor_info x = a->info, y = b->info;
    if (dim == 1 ? x.n_columns != y.n_columns : x.n_rows != y.n_rows)
        return llm_fail(
            err, LLM_MISUSE,
            "cat: cannot join %" PRId64 " × %" PRId64 " and %" PRId64 " × %" PRId64 " along %s",
            x.n_rows, x.n_columns, y.n_rows, y.n_columns, dim == 1 ? "rows" : "columns");
    const int64_t n_rows = dim == 1 ? x.n_rows + y.n_rows : x.n_rows;
    const int64_t n_columns = dim == 1 ? x.n_columns : x.n_columns + y.n_columns;
    llm_tensor *first = a, *second = b;
    if (cat_operands(&c, &first, &second, err) ||
        ops_result(&c, a, first->info.dtype, n_rows, n_columns, true, err))
        return ops_abandon(&c);
    c.is_logits = dim == 1 && x.is_logits && y.is_logits;
    int code;
    if (dim == 1) {
        code = copy_bytes(&c, c.y, 0, first, 0, tensor_bytes(first));
        if (code == KERN_OK)
            code = copy_bytes(&c, c.y, tensor_bytes(first), second, 0, tensor_bytes(second));
    } else {
        const kern_tensor to = tensor_view(c.y);
        code = c.backend->columns(c.kern, tensor_view(first), 0, x.n_columns, to, 0);
        if (code == KERN_OK)
            code = c.backend->columns(c.kern, tensor_view(second), 0, y.n_columns, to, x.n_columns);
    }
    return ops_close(&c, code, err);
}

int llm_op_rows(llm_tensor *x, const int64_t *rows, size_t n, llm_tensor **out, llm_error *err) {
    ops_call c;
    ops_open(&c, "rows", x, out);
    for (size_t i = 0; i < n; i++) {
        if (rows[i] < 0 || rows[i] >= x->info.n_rows)
            return llm_fail(err, LLM_MISUSE, "row %" PRId64 " is outside 1 … %" PRId64, rows[i] + 1,
                            x->info.n_rows);
        if (take(&c, x, rows[i] * x->info.n_columns, x->info.n_columns, err)) return -1;
    }
    if (x->cell && n == 1 && x->info.n_rows == 1) return share(x, out, err);
    if (tensor_ready(x, err) ||
        ops_result(&c, x, x->info.dtype, (int64_t)n, x->info.n_columns, true, err))
        return ops_abandon(&c);
    mark_taken(&c, x);
    return ops_close(&c, c.backend->rows(c.kern, tensor_view(x), rows, tensor_view(c.y)), err);
}

int llm_op_narrow(llm_tensor *x, int dim, int64_t first, int64_t count, llm_tensor **out,
                  llm_error *err) {
    ops_call c;
    ops_open(&c, "narrow", x, out);
    if (dim != 1 && dim != 2)
        return llm_fail(err, LLM_MISUSE, "narrow: dim must be 1 (rows) or 2 (columns), got %d",
                        dim);
    const int64_t n = dim == 1 ? x->info.n_rows : x->info.n_columns;
    if (first < 0 || count < 0 || first > n || count > n - first)
        return llm_fail(err, LLM_MISUSE,
                        "narrow: %" PRId64 " %s from %" PRId64 " on are outside 1 … %" PRId64,
                        count, dim == 1 ? "rows" : "columns", first + 1, n);
    if (x->cell && dim == 1 && count == n) return share(x, out, err);
    const int64_t n_rows = dim == 1 ? count : x->info.n_rows;
    const int64_t n_columns = dim == 1 ? x->info.n_columns : count;
    const int64_t width = x->info.n_columns;
    if ((dim == 1 ? take(&c, x, first * width, count * width, err)
                  : take(&c, x, 0, x->info.n_rows * width, err)) ||
        tensor_ready(x, err) || ops_result(&c, x, x->info.dtype, n_rows, n_columns, true, err))
        return ops_abandon(&c);
    mark_taken(&c, x);
    c.is_logits = c.is_logits && dim == 1;
    const size_t row_bytes = (size_t)width * 4;
    const int code =
        dim == 1 ? copy_bytes(&c, c.y, 0, x, (size_t)first * row_bytes, (size_t)count * row_bytes)
                 : c.backend->columns(c.kern, tensor_view(x), first, count, tensor_view(c.y), 0);
    return ops_close(&c, code, err);
}
