/* ops_values.c: operations entry by entry, reductions, softmax, sorting. */
#include "ops.h"

#include <math.h>

/* ---- one operand, one shape ---- */

/* y[R,C] = f(x[R,C]); sorting and summing along a row leave no token ids. */
static int map(const char *name, llm_tensor *x, operation_kind kind, bool keeps_ids,
               llm_tensor **out, llm_error *err) {
    ops_call c;
    ops_open(&c, name, x, out);
    llm_tensor *a = ops_f32(&c, x, err);
    if (!a || ops_result(&c, x, LLM_F32, x->info.n_rows, x->info.n_columns, false, err))
        return ops_abandon(&c);
    c.is_logits = c.is_logits && keeps_ids;
    const operation o = {
        .kind = kind, OPERATION_TAKES(tensor_view(a)), OPERATION_MAKES(tensor_view(c.y))};
    return ops_finish(&c, &o, err);
}

int llm_op_log_softmax(llm_tensor *x, llm_tensor **out, llm_error *err) {
    return map("log_softmax", x, OPERATION_LOG_SOFTMAX, true, out, err);
}

int llm_op_softmax(llm_tensor *x, llm_tensor **out, llm_error *err) {
    return map("softmax", x, OPERATION_SOFTMAX, true, out, err);
}

int llm_op_sort(llm_tensor *x, llm_tensor **out, llm_error *err) {
    return map("sort", x, OPERATION_SORT, false, out, err);
}

int llm_op_cumsum(llm_tensor *x, llm_tensor **out, llm_error *err) {
    return map("cumsum", x, OPERATION_CUMSUM, false, out, err);
}

int llm_op_normalize(llm_tensor *x, llm_tensor **out, llm_error *err) {
    return map("normalize", x, OPERATION_NORMALIZE, true, out, err);
}

static int unary(const char *name, kern_unary op, llm_tensor *x, float a, float b, llm_tensor **out,
                 llm_error *err) {
    ops_call c;
    ops_open(&c, name, x, out);
    llm_tensor *from = ops_f32(&c, x, err);
    if (!from || ops_result(&c, x, LLM_F32, x->info.n_rows, x->info.n_columns, false, err))
        return ops_abandon(&c);
    const operation o = {.kind = OPERATION_UNARY,
                         .code = op,
                         .a = a,
                         .b = b,
                         OPERATION_TAKES(tensor_view(from)),
                         OPERATION_MAKES(tensor_view(c.y))};
    return ops_finish(&c, &o, err);
}

int llm_op_unary(llm_unary op, llm_tensor *x, llm_tensor **out, llm_error *err) {
    static const struct {
        const char *name;
        kern_unary op;
    } table[] = {[LLM_EXP] = {"exp", KERN_EXP},
                 [LLM_LOG] = {"log", KERN_LOG},
                 [LLM_ABS] = {"abs", KERN_ABS},
                 [LLM_SQRT] = {"sqrt", KERN_SQRT},
                 [LLM_NEG] = {"negation", KERN_NEG}};
    if (op == LLM_NEG && x->info.dtype == LLM_I32) /* −x of i32 stays i32, as 0 − x does */
        return llm_op_binary(LLM_SUB, (llm_operand){.x = 0, .is_integer = true},
                             (llm_operand){.t = x}, out, err);
    return unary(table[op].name, table[op].op, x, 0, 0, out, err);
}

int llm_op_clamp(llm_tensor *x, double least, double most, llm_tensor **out, llm_error *err) {
    if (!(least <= most))
        return llm_fail(err, LLM_MISUSE, "clamp: the bounds must be in order, got %g and %g", least,
                        most);
    return unary("clamp", KERN_CLAMP, x, (float)least, (float)most, out, err);
}

/* ---- two operands ---- */

static const struct {
    const char *name;
    kern_binary op;
} binaries[] = {
    [LLM_ADD] = {"+", KERN_ADD}, [LLM_SUB] = {"-", KERN_SUB}, [LLM_MUL] = {"*", KERN_MUL},
    [LLM_DIV] = {"/", KERN_DIV}, [LLM_POW] = {"^", KERN_POW}, [LLM_LT] = {"lt", KERN_LT},
    [LLM_LE] = {"le", KERN_LE},  [LLM_GT] = {"gt", KERN_GT},  [LLM_GE] = {"ge", KERN_GE},
    [LLM_EQ] = {"eq", KERN_EQ}};

static bool is_i32(llm_operand o) {
    if (o.t) return o.t->info.dtype == LLM_I32;
    return o.is_integer && o.x >= INT32_MIN && o.x <= INT32_MAX;
}

/* An operand of an i32 operation. */
static llm_tensor *operand_i32(ops_call *c, llm_operand o, llm_error *err) {
    if (o.t) return ops_join(c, o.t, err) || tensor_settle(o.t, err) ? NULL : o.t;
    const int32_t value = (int32_t)o.x;
    llm_tensor *t = tensor_number(c->device, LLM_I32, &value, err);
    if (t) c->temps[c->n_temps++] = t;
    return t;
}

/* Columns are still token ids if an operand with all of them was Logits. */
static bool keeps_ids(llm_operand o, int64_t n_columns) {
    return o.t && o.t->info.is_logits && o.t->info.n_columns == n_columns;
}

int llm_op_binary(llm_binary op, llm_operand a, llm_operand b, llm_tensor **out, llm_error *err) {
    ops_call c;
    const bool exact = op <= LLM_MUL && is_i32(a) && is_i32(b);
    ops_open(&c, binaries[op].name, a.t ? a.t : b.t, out);
    llm_tensor *x = exact ? operand_i32(&c, a, err) : ops_operand(&c, a, err);
    llm_tensor *y = !x ? NULL : exact ? operand_i32(&c, b, err) : ops_operand(&c, b, err);
    if (!y) return ops_abandon(&c);
    int64_t n_rows = x->info.n_rows, n_columns = x->info.n_columns;
    llm_tensor *place = *out && *out == b.t ? b.t : a.t ? a.t : b.t;
    if (ops_broadcast(&c, y, &n_rows, &n_columns, err) ||
        ops_result(&c, place, exact ? LLM_I32 : LLM_F32, n_rows, n_columns, false, err))
        return ops_abandon(&c);
    c.is_logits = keeps_ids(a, n_columns) || keeps_ids(b, n_columns);
    const operation o = {.kind = exact ? OPERATION_BINARY_I32 : OPERATION_BINARY,
                         .code = binaries[op].op,
                         OPERATION_TAKES(tensor_view(x), tensor_view(y)),
                         OPERATION_MAKES(tensor_view(c.y))};
    return ops_finish(&c, &o, err);
}

int llm_op_where(llm_tensor *x, llm_operand cond, llm_operand y, llm_tensor **out, llm_error *err) {
    ops_call c;
    ops_open(&c, "where", x, out);
    int64_t n_rows = x->info.n_rows, n_columns = x->info.n_columns;
    llm_tensor *a = ops_f32(&c, x, err), *condition = NULL, *b = NULL;
    if (a) condition = ops_operand(&c, cond, err);
    if (condition) b = ops_operand(&c, y, err);
    if (!b || ops_broadcast(&c, condition, &n_rows, &n_columns, err) ||
        ops_broadcast(&c, b, &n_rows, &n_columns, err) ||
        ops_result(&c, x, LLM_F32, n_rows, n_columns, false, err))
        return ops_abandon(&c);
    c.is_logits = keeps_ids((llm_operand){.t = x}, n_columns) || keeps_ids(y, n_columns);
    const operation o = {.kind = OPERATION_WHERE,
                         OPERATION_TAKES(tensor_view(a), tensor_view(condition), tensor_view(b)),
                         OPERATION_MAKES(tensor_view(c.y))};
    return ops_finish(&c, &o, err);
}

/* ---- a number a row ---- */

int llm_op_reduce(llm_reduce op, llm_tensor *x, llm_tensor **out, llm_error *err) {
    static const struct {
        const char *name;
        kern_reduce op;
    } table[] = {[LLM_MAX] = {"max", KERN_MAX},
                 [LLM_MIN] = {"min", KERN_MIN},
                 [LLM_SUM] = {"sum", KERN_SUM},
                 [LLM_LOGSUMEXP] = {"logsumexp", KERN_LOGSUMEXP},
                 [LLM_ENTROPY] = {"entropy", KERN_ENTROPY},
                 [LLM_STD] = {"std", KERN_STD}};
    ops_call c;
    ops_open(&c, table[op].name, x, out);
    c.is_logits = false;
    if (ops_check_new(c.name, out, err)) return -1;
    llm_tensor *a = ops_f32(&c, x, err);
    if (!a || ops_result(&c, x, LLM_F32, x->info.n_rows, 1, false, err)) return ops_abandon(&c);
    const operation o = {.kind = OPERATION_REDUCE,
                         .code = table[op].op,
                         OPERATION_TAKES(tensor_view(a)),
                         OPERATION_MAKES(tensor_view(c.y))};
    return ops_finish(&c, &o, err);
}
