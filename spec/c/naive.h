/* naive.h: a plan on one sequence from its start, in f64 and the plainest loops: what backends'
 * results are compared with. Written from plan.h alone. */
#ifndef SPEC_NAIVE_H
#define SPEC_NAIVE_H

#include "plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NAIVE_LAYERS = 4 };

typedef struct naive {
    const plan *plan;
    int n; /* rows */
    double **buffers;
    double *keys[NAIVE_LAYERS + 1], *values[NAIVE_LAYERS + 1];
} naive;

/* Every value of a weight as f64; freed by the caller. */
static double *naive_matrix(const kern_weight *w) {
    const int64_t n = w->n_rows * w->n_columns;
    float *values = malloc((size_t)n * sizeof *values);
    double *m = malloc((size_t)n * sizeof *m);
    if (!values || !m) abort();
    w->format->dequantise(w->data, values, n);
    for (int64_t i = 0; i < n; i++) m[i] = (double)values[i];
    free(values);
    return m;
}

static double naive_gelu(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

static void naive_norm(const double *in, const plan_op *op, const double *w, const double *bias,
                       int width, double *out) {
    double mean = 0, squares = 0;
    if (op->kind == PLAN_NORM_LAYER)
        for (int i = 0; i < width; i++) mean += in[i] / width;
    for (int i = 0; i < width; i++) squares += (in[i] - mean) * (in[i] - mean) / width;
    for (int i = 0; i < width; i++)
        out[i] = (in[i] - mean) / sqrt(squares + (double)op->eps) * w[i] + (bias ? bias[i] : 0);
}

static void naive_rope(double *x, const plan_op *op, int position) {
    const plan_rope *rope = op->rope;
    for (int h = 0; h < op->n_heads; h++) {
        for (int i = 0; i < rope->n_rotary / 2; i++) {
            double *a = x + h * op->head_dim + (rope->interleaved ? 2 * i : i);
            double *b =
                x + h * op->head_dim + (rope->interleaved ? 2 * i + 1 : i + rope->n_rotary / 2);
            const double angle = position * (double)rope->freqs[i], m = (double)rope->magnitude;
            const double turned = *a * cos(angle) * m - *b * sin(angle) * m;
            *b = *a * sin(angle) * m + *b * cos(angle) * m;
            *a = turned;
        }
    }
}

static void naive_attend(const naive *s, const plan_op *op, int t, const double *queries,
                         double *out) {
    const int first = op->window && t - op->window + 1 > 0 ? t - op->window + 1 : 0;
    double *e = malloc(sizeof *e * (size_t)s->n);
    if (!e) abort();
    for (int h = 0; h < op->n_heads; h++) {
        const int g = h / (op->n_heads / op->n_heads_kv);
        const double *q = queries + h * op->head_dim;
        double largest = -INFINITY, sum = 0;
        for (int p = first; p <= t; p++) {
            const double *k = s->keys[op->layer] + (p * op->n_heads_kv + g) * op->head_dim;
            e[p] = 0;
            for (int d = 0; d < op->head_dim; d++) e[p] += q[d] * k[d] * (double)op->scale;
            largest = fmax(largest, e[p]);
        }
        for (int p = first; p <= t; p++) sum += e[p] = exp(e[p] - largest);
        for (int d = 0; d < op->head_dim_v; d++) {
            double *o = out + h * op->head_dim_v + d;
            *o = 0;
            for (int p = first; p <= t; p++)
                *o += e[p] / sum *
                      s->values[op->layer][(p * op->n_heads_kv + g) * op->head_dim_v + d];
        }
    }
    free(e);
}

static void naive_row(naive *s, const plan_op *op, const double *w, const double *bias,
                      const int32_t *ids, int t) {
    const int i_in = op->in >= 0 ? op->in : op->out, i_out = op->out >= 0 ? op->out : op->in;
    const int n_in = s->plan->buffers[i_in].width, n_out = s->plan->buffers[i_out].width;
    double *in = s->buffers[i_in] + t * n_in, *out = s->buffers[i_out] + t * n_out;
    double *in2 = op->in2 >= 0 ? s->buffers[op->in2] + t * s->plan->buffers[op->in2].width : NULL;
    switch (op->kind) {
    case PLAN_EMBED:
        for (int i = 0; i < n_out; i++) out[i] = w[ids[t] * n_out + i] * (double)op->scale;
        break;
    case PLAN_EMBED_AT:
        for (int i = 0; i < n_out; i++) out[i] += w[t * n_out + i];
        break;
    case PLAN_NORM_RMS:
    case PLAN_NORM_LAYER: naive_norm(in, op, w, bias, n_in, out); break;
    case PLAN_NORM_HEADS:
        for (int h = 0; h < op->n_heads; h++)
            naive_norm(in + h * op->head_dim, op, w, NULL, op->head_dim, out + h * op->head_dim);
        break;
    case PLAN_MATMUL:
        for (int i = 0; i < n_out; i++) {
            double sum = bias ? bias[i] : 0;
            for (int j = 0; j < n_in; j++) sum += in[j] * w[i * n_in + j];
            out[i] = sum;
        }
        break;
    case PLAN_ROPE: naive_rope(out, op, t); break;
    case PLAN_KV_APPEND:
        memcpy(s->keys[op->layer] + t * n_in, in, sizeof *in * (size_t)n_in);
        memcpy(s->values[op->layer] + t * s->plan->buffers[op->in2].width, in2,
               sizeof *in * (size_t)s->plan->buffers[op->in2].width);
        break;
    case PLAN_ATTEND: naive_attend(s, op, t, in, out); break;
    case PLAN_ADD:
        for (int i = 0; i < n_out; i++) out[i] += in[i];
        break;
    case PLAN_SILU_MUL:
        for (int i = 0; i < n_out; i++) out[i] = in[i] / (1 + exp(-in[i])) * in2[i];
        break;
    case PLAN_GELU_MUL:
        for (int i = 0; i < n_out; i++) out[i] = naive_gelu(in[i]) * in2[i];
        break;
    case PLAN_GELU:
        for (int i = 0; i < n_out; i++) out[i] = naive_gelu(in[i]);
        break;
    }
}

/* logits[n][vocabulary] of n ids */
static void naive_forward(const plan *p, const int32_t *ids, int n, double *logits) {
    naive s = {.plan = p, .n = n};
    if (p->n_layers > NAIVE_LAYERS) abort();
    s.buffers = calloc((size_t)p->n_buffers, sizeof *s.buffers);
    if (!s.buffers) abort();
    int widest = 0;
    for (int i = 0; i < p->n_buffers; i++) {
        if (p->buffers[i].width > widest) widest = p->buffers[i].width;
        s.buffers[i] = calloc((size_t)(n * p->buffers[i].width), sizeof(double));
        if (!s.buffers[i]) abort();
    }
    for (int i = 1; i <= p->n_layers; i++) {
        s.keys[i] = calloc((size_t)(n * widest), sizeof(double));
        s.values[i] = calloc((size_t)(n * widest), sizeof(double));
        if (!s.keys[i] || !s.values[i]) abort();
    }
    for (int i = 0; i < p->n_ops; i++) {
        const plan_op *op = &p->ops[i];
        double *w = op->w ? naive_matrix(op->w) : NULL,
               *bias = op->bias ? naive_matrix(op->bias) : NULL;
        for (int t = 0; t < n; t++) naive_row(&s, op, w, bias, ids, t);
        free(w);
        free(bias);
    }
    memcpy(logits, s.buffers[p->logits],
           sizeof(double) * (size_t)(n * p->buffers[p->logits].width));
    for (int i = 0; i < p->n_buffers; i++) free(s.buffers[i]);
    for (int i = 1; i <= p->n_layers; i++) free(s.keys[i]), free(s.values[i]);
    free(s.buffers);
}

#endif
