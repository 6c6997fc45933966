/* ops_filters.c: filters by rank, mass and value. Parameters are numbers or one a row. */
#include "ops.h"

#include <inttypes.h>
#include <math.h>

/* y[R,C] = kind(x, p[1|R,1], key[1|R,C] or none) */
static int filter(ops_call *c, operation_kind kind, llm_tensor *x, llm_tensor *a, llm_tensor *p,
                  llm_tensor *key, llm_error *err) {
    if (ops_result(c, x, LLM_F32, x->info.n_rows, x->info.n_columns, false, err))
        return ops_abandon(c);
    const operation o = {
        .kind = kind,
        OPERATION_TAKES(tensor_view(a), tensor_view(p), key ? tensor_view(key) : ops_none()),
        OPERATION_MAKES(tensor_view(c->y))};
    return ops_finish(c, &o, err);
}

int llm_op_min_p(llm_tensor *x, llm_operand p, llm_tensor **out, llm_error *err) {
    ops_call c;
    ops_open(&c, "min_p", x, out);
    llm_tensor *a = ops_f32(&c, x, err), *least = NULL;
    if (a) least = ops_parameter(&c, p, x->info.n_rows, (ops_range){0, 1, false, false}, err);
    if (!least) return ops_abandon(&c);
    return filter(&c, OPERATION_MIN_P, x, a, least, NULL, err);
}

/* A bound that is NaN (of a row without a finite entry, say) cuts nothing, in a column; as a number
 * it is misuse. */
int llm_op_cut_below(llm_tensor *x, llm_operand least, llm_tensor **out, llm_error *err) {
    ops_call c;
    const int64_t n_rows = x->info.n_rows;
    ops_open(&c, "cut_below", x, out);
    if (!least.t && isnan(least.x))
        return llm_fail(err, LLM_MISUSE, "cut_below: the bound must be a number, got nan");
    llm_tensor *a = ops_f32(&c, x, err), *bound = NULL;
    if (a) bound = ops_operand(&c, least, err);
    if (!bound) return ops_abandon(&c);
    if (bound->info.n_columns != 1 || (bound->info.n_rows != 1 && bound->info.n_rows != n_rows)) {
        llm_fail(err, LLM_MISUSE,
                 "cut_below: one number, or a column of one a row: %" PRId64 " rows, got %" PRId64
                 " × %" PRId64,
                 n_rows, bound->info.n_rows, bound->info.n_columns);
        return ops_abandon(&c);
    }
    return filter(&c, OPERATION_CUT_BELOW, x, a, bound, NULL, err);
}

/* key: NULL for −x, else [1 or R, C] */
static int threshold(const char *name, llm_tensor *x, llm_operand parameter, ops_range range,
                     llm_tensor *key, operation_kind kind, llm_tensor **out, llm_error *err) {
    ops_call c;
    const int64_t n_rows = x->info.n_rows, n_columns = x->info.n_columns;
    ops_open(&c, name, x, out);
    llm_tensor *a = ops_f32(&c, x, err), *p = NULL, *k = NULL;
    if (a) p = ops_parameter(&c, parameter, n_rows, range, err);
    if (!p) return ops_abandon(&c);
    if (key && !(k = ops_f32(&c, key, err))) return ops_abandon(&c);
    if (k &&
        (k->info.n_columns != n_columns || (k->info.n_rows != 1 && k->info.n_rows != n_rows))) {
        llm_fail(err, LLM_MISUSE,
                 "%s: the key must be %" PRId64 " × %" PRId64
                 " as the tensor, or one row, got %" PRId64 " × %" PRId64,
                 name, n_rows, n_columns, k->info.n_rows, k->info.n_columns);
        return ops_abandon(&c);
    }
    return filter(&c, kind, x, a, p, k, err);
}

#define COUNT_RANGE ((ops_range){0, INFINITY, true, true})
#define MASS_RANGE  ((ops_range){0, 1, false, false})

int llm_op_top_k(llm_tensor *x, llm_operand k, llm_tensor **out, llm_error *err) {
    return threshold("top_k", x, k, COUNT_RANGE, NULL, OPERATION_THRESHOLD_K, out, err);
}

int llm_op_top_p(llm_tensor *x, llm_operand p, llm_tensor **out, llm_error *err) {
    return threshold("top_p", x, p, MASS_RANGE, NULL, OPERATION_THRESHOLD_MASS, out, err);
}

int llm_op_threshold_k(llm_tensor *x, llm_operand k, llm_tensor *key, llm_tensor **out,
                       llm_error *err) {
    return threshold("threshold_k", x, k, COUNT_RANGE, key, OPERATION_THRESHOLD_K, out, err);
}

int llm_op_threshold_mass(llm_tensor *x, llm_operand p, llm_tensor *key, llm_tensor **out,
                          llm_error *err) {
    return threshold("threshold_mass", x, p, MASS_RANGE, key, OPERATION_THRESHOLD_MASS, out, err);
}
