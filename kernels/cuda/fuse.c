/* fuse.c: which operations of a plan become one launch. What is fused leaves some buffers
 * unwritten (a product that goes straight into the residual stream), so a fusion asks first whether
 * anything reads them later. */
#include "fuse.h"

#include <stddef.h>

typedef struct range {
    const plan *plan;
    int32_t at, end;
} range;

static const plan_op *op_at(const range *r, int32_t i) {
    return i < r->end ? &r->plan->ops[i] : NULL;
}

static bool reads(const plan_op *op, int32_t buffer) {
    if (op->in == buffer || op->in2 == buffer) return true;
    /* these work on what `out` holds */
    return op->out == buffer && (op->kind == PLAN_ADD || op->kind == PLAN_EMBED_AT ||
                                 op->kind == PLAN_ROPE || op->kind == PLAN_NORM_HEADS);
}

/* Whether nothing from operation i on reads what the buffer holds now. Between layers only the
 * residual stream lives, and the plan's order is that of all layers, so looking to its end is
 * enough. */
static bool is_dead(const range *r, int32_t i, int32_t buffer) {
    if (buffer == r->plan->residual || buffer == r->plan->logits) return false;
    for (; i < r->plan->n_ops; i++) {
        const plan_op *op = &r->plan->ops[i];
        if (reads(op, buffer)) return false;
        if (op->out == buffer) return true;
    }
    return true;
}

static bool is_act_mul(plan_kind kind) { return kind == PLAN_SILU_MUL || kind == PLAN_GELU_MUL; }

/* Products of one input from r->at on: at most so many, into buffers of their own. */
static int32_t count_products(const range *r) {
    const plan_op *first = op_at(r, r->at);
    int32_t n = 1;
    while (n < CUDA_MOST_PRODUCTS) {
        const plan_op *op = op_at(r, r->at + n);
        if (!op || op->kind != PLAN_MATMUL || op->in != first->in || op->out == first->in) break;
        bool again = false;
        for (int32_t i = 0; i < n; i++) again = again || op_at(r, r->at + i)->out == op->out;
        if (again) break;
        n++;
    }
    return n;
}

static void fuse_products(const range *r, cuda_group *g) {
    const plan_op *first = op_at(r, r->at), *second = op_at(r, r->at + 1);
    const int32_t n = count_products(r);
    g->kind = GROUP_PRODUCTS;
    g->op = first;
    g->in = first->in;
    g->out = first->out;
    g->n_products = g->n_ops = n;
    g->epilogue = CUDA_STORE;
    if (n == 2) {
        const plan_op *act = op_at(r, r->at + 2);
        const bool pair = act && is_act_mul(act->kind) && act->in == first->out &&
                          act->in2 == second->out && first->w->n_rows == second->w->n_rows &&
                          !first->bias && !second->bias && is_dead(r, r->at + 3, second->out) &&
                          (act->out == first->out || is_dead(r, r->at + 3, first->out));
        if (!pair) return;
        g->n_ops = 3;
        g->out = act->out;
        g->epilogue = act->kind == PLAN_SILU_MUL ? CUDA_SILU_MUL : CUDA_GELU_MUL;
    }
    if (n != 1 || !second) return;
    if (second->kind == PLAN_ADD && second->in == first->out && second->out != first->in &&
        is_dead(r, r->at + 2, first->out)) {
        g->n_ops = 2;
        g->out = second->out;
        g->epilogue = CUDA_ADD;
    } else if (second->kind == PLAN_GELU && second->in == first->out && second->out == first->out) {
        g->n_ops = 2;
        g->epilogue = CUDA_GELU;
    }
}

static void fuse_norm(const range *r, cuda_group *g) {
    const plan_op *norm = op_at(r, r->at), *add = op_at(r, r->at + 1);
    g->kind = GROUP_NORM;
    g->op = norm;
    g->in = norm->in;
    g->out = norm->out;
    if (!add || add->kind != PLAN_ADD || add->in != norm->out || add->out == norm->in ||
        !is_dead(r, r->at + 2, norm->out))
        return;
    g->n_ops = 2;
    g->out = -1;
    g->add = add->out;
}

/* Takes the next operation if it is of this kind and works in place on the buffer. */
static const plan_op *take(const range *r, int32_t *n, plan_kind kind, int32_t buffer) {
    const plan_op *op = op_at(r, r->at + *n);
    if (!op || op->kind != kind || op->out != buffer) return NULL;
    ++*n;
    return op;
}

/* [norm q] [norm k] [rotate q, rotate k] append attend */
static bool fuse_attention(const range *r, cuda_group *g) {
    int32_t i = r->at;
    while (i < r->end && r->plan->ops[i].kind != PLAN_KV_APPEND) i++;
    const plan_op *append = op_at(r, i), *attend = op_at(r, i + 1);
    if (!append || !attend || attend->kind != PLAN_ATTEND) return false;
    const int32_t q = attend->in, k = append->in;
    int32_t n = 0;
    g->q_norm = take(r, &n, PLAN_NORM_HEADS, q);
    g->k_norm = take(r, &n, PLAN_NORM_HEADS, k);
    g->rope = take(r, &n, PLAN_ROPE, q);
    const plan_op *k_rope = take(r, &n, PLAN_ROPE, k);
    if ((g->rope != NULL) != (k_rope != NULL) || (k_rope && k_rope->rope != g->rope->rope) ||
        r->at + n != i)
        return false;
    g->kind = GROUP_ATTEND;
    g->append = append;
    g->op = attend;
    g->in = q;
    g->out = attend->out;
    g->n_ops = n + 2;
    return true;
}

static bool fuse_next(const range *r, cuda_group *g) {
    const plan_op *op = op_at(r, r->at);
    *g = (cuda_group){
        .first_op = r->at, .n_ops = 1, .op = op, .in = op->in, .out = op->out, .add = -1};
    switch (op->kind) {
    case PLAN_EMBED: g->kind = GROUP_EMBED; return true;
    case PLAN_EMBED_AT: g->kind = GROUP_EMBED_AT; return true;
    case PLAN_MATMUL: fuse_products(r, g); return true;
    case PLAN_NORM_RMS:
    case PLAN_NORM_LAYER: fuse_norm(r, g); return true;
    case PLAN_ADD: g->kind = GROUP_ADD; return true;
    case PLAN_SILU_MUL:
    case PLAN_GELU_MUL:
    case PLAN_GELU: g->kind = GROUP_ACT; return true;
    case PLAN_NORM_HEADS:
    case PLAN_ROPE:
    case PLAN_KV_APPEND:
    case PLAN_ATTEND: return fuse_attention(r, g);
    }
    return false;
}

int32_t cuda_fuse(const plan *p, int32_t first, int32_t end, cuda_group *groups, int32_t *failed) {
    range r = {p, first, end};
    int32_t n = 0;
    for (; r.at < end; r.at += groups[n++].n_ops) {
        if (fuse_next(&r, &groups[n])) continue;
        *failed = r.at;
        return -1;
    }
    return n;
}
