/* ops_choices.c: argmax, the k best, draws. Their ids are choices: what could not be chosen fails
 * when it is read. */
#include "ops.h"

#include "../kernels/memory.h"
#include "../kernels/noise.h"

#include <inttypes.h>

/* A column of ids, the result of the call. */
static int ids_result(ops_call *c, int64_t n_rows, int64_t n_columns, llm_error *err) {
    if (ops_result(c, NULL, LLM_I32, n_rows, n_columns, false, err)) return -1;
    c->y->is_choice = true;
    c->is_logits = false;
    return 0;
}

int llm_op_argmax(llm_tensor *x, llm_tensor **ids, llm_error *err) {
    ops_call c;
    ops_open(&c, "argmax", x, ids);
    if (ops_check_new(c.name, ids, err)) return -1;
    llm_tensor *a = ops_f32(&c, x, err);
    if (!a || ids_result(&c, x->info.n_rows, 1, err)) return ops_abandon(&c);
    const operation o = {.kind = OPERATION_ARGMAX,
                         .base = ops_base(x),
                         OPERATION_TAKES(tensor_view(a)),
                         OPERATION_MAKES(tensor_view(c.y))};
    return ops_finish(&c, &o, err);
}

/* ---- the k best ---- */

/* Results besides the ids that `c` makes. */
static int finish_topk(ops_call *c, operation o, llm_tensor *scores, llm_tensor **scores_out,
                       llm_tensor *rows, llm_tensor **rows_out, llm_error *err) {
    const kern_tensor out[] = {tensor_view(scores), tensor_view(c->y),
                               rows ? tensor_view(rows) : ops_none()};
    o.out = out;
    o.n_out = 3;
    if (ops_finish(c, &o, err)) {
        llm_tensor_close(scores);
        llm_tensor_close(rows);
        return -1;
    }
    scores->info.step = c->step;
    *scores_out = scores;
    if (rows_out) *rows_out = rows;
    return 0;
}

static int check_k(const char *name, int64_t k, llm_error *err) {
    return k < 1 ? llm_fail(err, LLM_MISUSE, "%s: k must be at least 1, got %" PRId64, name, k) : 0;
}

int llm_op_topk(llm_tensor *x, int64_t k, llm_tensor **scores, llm_tensor **ids, llm_error *err) {
    ops_call c;
    ops_open(&c, "topk", x, ids);
    if (check_k(c.name, k, err) || ops_check_new(c.name, ids, err) ||
        ops_check_new(c.name, scores, err))
        return -1;
    const int64_t n_rows = x->info.n_rows, n = k < x->info.n_columns ? k : x->info.n_columns;
    llm_tensor *a = ops_f32(&c, x, err);
    if (!a || ids_result(&c, n_rows, n, err)) return ops_abandon(&c);
    llm_tensor *s = tensor_alloc_later(c.device, LLM_F32, n_rows, n, err);
    if (!s) return ops_abandon(&c);
    const operation o = {
        .kind = OPERATION_TOPK, .n = n, .base = ops_base(x), OPERATION_TAKES(tensor_view(a))};
    return finish_topk(&c, o, s, scores, NULL, NULL, err);
}

int llm_op_topk_joint(llm_tensor *x, int64_t k, int64_t groups, llm_tensor **scores,
                      llm_tensor **ids, llm_tensor **rows, llm_error *err) {
    ops_call c;
    const int64_t n_rows = x->info.n_rows;
    ops_open(&c, "topk_joint", x, ids);
    if (check_k(c.name, k, err) || ops_check_new(c.name, ids, err) ||
        ops_check_new(c.name, scores, err) || ops_check_new(c.name, rows, err))
        return -1;
    if (groups < 1 || n_rows % groups)
        return llm_fail(err, LLM_MISUSE,
                        "topk_joint: %" PRId64 " rows do not make %" PRId64 " groups", n_rows,
                        groups);
    const int64_t n_each = n_rows / groups, n_all = n_each * x->info.n_columns,
                  n = k < n_all ? k : n_all;
    llm_tensor *a = ops_f32(&c, x, err);
    if (!a || ids_result(&c, groups * n, 1, err)) return ops_abandon(&c);
    c.y->n_group_rows = n_each;
    c.y->n_group_results = n;
    llm_tensor *s = tensor_alloc_later(c.device, LLM_F32, groups * n, 1, err);
    llm_tensor *r = s ? tensor_alloc_later(c.device, LLM_I32, groups * n, 1, err) : NULL;
    if (!r) {
        llm_tensor_close(s);
        return ops_abandon(&c);
    }
    const operation o = {.kind = OPERATION_TOPK_JOINT,
                         .n = n,
                         .groups = groups,
                         .base = ops_base(x),
                         OPERATION_TAKES(tensor_view(a))};
    return finish_topk(&c, o, s, scores, r, rows, err);
}

/* ---- draws ---- */

static kern_key key_of(llm_key key) { return (kern_key){key.seed, key.stream, key.position}; }

double llm_uniform(llm_key key) { return kern_uniform(key_of(key), 0); }

static kern_key *keys_new(const llm_key *keys, int64_t n, llm_error *err) {
    kern_key *copy = kern_alloc_array((size_t)n, sizeof *copy);
    if (!copy) {
        llm_fail_memory(err, (size_t)n * sizeof *copy, "keys of a draw");
        return NULL;
    }
    for (int64_t i = 0; i < n; i++) copy[i] = key_of(keys[i]);
    return copy;
}

/* With a key a row. */
static int draw(ops_call *c, operation_kind kind, llm_tensor *x, llm_tensor *a, const llm_key *keys,
                llm_error *err) {
    kern_key *copy = keys_new(keys, x->info.n_rows, err);
    if (!copy) return ops_abandon(c);
    const operation o = {.kind = kind,
                         .base = ops_base(x),
                         OPERATION_TAKES(tensor_view(a)),
                         OPERATION_MAKES(tensor_view(c->y)),
                         .keys = copy};
    const int failed = ops_finish(c, &o, err);
    kern_free(copy);
    return failed;
}

/* The noise is that of the column's id, counted from 0 in Logits, from 1 else. */
int llm_op_gumbel(llm_tensor *x, const llm_key *keys, llm_tensor **out, llm_error *err) {
    ops_call c;
    ops_open(&c, "gumbel", x, out);
    llm_tensor *a = ops_f32(&c, x, err);
    if (!a || ops_result(&c, x, LLM_F32, x->info.n_rows, x->info.n_columns, false, err))
        return ops_abandon(&c);
    return draw(&c, OPERATION_GUMBEL, x, a, keys, err);
}

int llm_op_sample(llm_tensor *x, const llm_key *keys, llm_tensor **ids, llm_error *err) {
    ops_call c;
    ops_open(&c, "sample", x, ids);
    if (ops_check_new(c.name, ids, err)) return -1;
    llm_tensor *a = ops_f32(&c, x, err);
    if (!a || ids_result(&c, x->info.n_rows, 1, err)) return ops_abandon(&c);
    return draw(&c, OPERATION_SAMPLE, x, a, keys, err);
}
