/* plan.h: a forward pass as data. An architecture builds, once at load, a list of operations on
 * named buffers; a backend runs a range of it. Nothing here knows a model's name, nothing in an
 * architecture knows a backend. Letters: T rows (ids fed), W width of a buffer, N × K a weight's
 * rows × columns. */
#ifndef KERN_PLAN_H
#define KERN_PLAN_H

#include "formats.h"
#include <stdbool.h>
#include <stdint.h>

/* A weight matrix, or a vector (n_rows = 1, always F32). Row-major: n_rows rows of n_columns
 * values, each row whole blocks of its format. `data` points into the mapped file, at any
 * alignment. */
typedef struct kern_weight {
    const char *name;
    const kern_format *format;
    const void *data;
    int64_t n_rows, n_columns;
    void *bound; /* what the backend made of it in bind (repacked, uploaded); NULL: uses data */
    const kern_format *bound_as; /* the format of that, if another than `format`; else NULL */
    bool product;                /* a PLAN_MATMUL multiplies by it */
    bool looked_up; /* PLAN_EMBED or PLAN_EMBED_AT looks rows up; a tied head is both; neither: a
                       vector, or a matrix whose slices are used */
    bool slice;     /* rows of another weight, whose name it borrows */
    void *
        owned; /* core's: `data` where it is no part of the file (vectors made f32); NULL: mapped */
} kern_weight;

typedef enum plan_kind {
    PLAN_EMBED,      /* out[T,W] = scale · w[id(t)]; ids outside the rows never come here */
    PLAN_EMBED_AT,   /* out[T,W] += w[position(t)] (learned positions) */
    PLAN_NORM_RMS,   /* out[T,W] = in / sqrt(mean(in²) + eps) · w */
    PLAN_NORM_LAYER, /* out[T,W] = (in − mean) / sqrt(var + eps) · w + bias */
    PLAN_NORM_HEADS, /* in place: RMS norm of each of n_heads slices of head_dim, by w[head_dim] */
    PLAN_MATMUL,     /* out[T,N] = in[T,K] @ w[N,K]^T (+ bias[N]) */
    PLAN_ROPE, /* in place: rotate the first n_rotary dims of each of n_heads heads (see rope) */
    PLAN_KV_APPEND, /* keys `in` and values `in2` of layer `layer` go to the cache pages */
    PLAN_ATTEND,    /* out = attention of queries `in` over the pages of layer `layer` */
    PLAN_ADD,       /* out[T,W] += in[T,W] */
    PLAN_SILU_MUL,  /* out = silu(in) · in2 */
    PLAN_GELU_MUL,  /* out = gelu_tanh(in) · in2 */
    PLAN_GELU       /* out = gelu_tanh(in) */
} plan_kind;

/* Marks a weight as one that an operation of this kind uses. */
static inline void plan_note_use(kern_weight *w, plan_kind kind) {
    if (kind == PLAN_MATMUL) w->product = true;
    if (kind == PLAN_EMBED || kind == PLAN_EMBED_AT) w->looked_up = true;
}

/* Rotary embedding: frequency i of n_rotary / 2 is freqs[i] (base, factors and interpolation
 * already worked in, in f64 and rounded once), angle = position · freqs[i]; cos and sin are scaled
 * by `magnitude` (YaRN). Pairs are (2i, 2i+1) if interleaved, else (i, i + n_rotary / 2). */
typedef struct plan_rope {
    float *freqs;
    int32_t n_rotary;
    float magnitude;
    bool interleaved;
} plan_rope;

typedef struct plan_op {
    plan_kind kind;
    int32_t layer;        /* 1-based; 0: before the layers; n_layers + 1: the head */
    int32_t in, in2, out; /* buffer numbers; -1: none */
    const kern_weight *w, *bias;
    const plan_rope *rope;
    float eps, scale; /* PLAN_ATTEND: scores are q·k · scale */
    int32_t n_heads, n_heads_kv, head_dim, head_dim_v;
    int32_t window; /* PLAN_ATTEND: a position sees itself and window − 1 before it; 0: all */
} plan_op;

typedef struct plan_buffer {
    const char *name;
    int32_t width; /* f32 values a row */
} plan_buffer;

/* ops[0 … n_ops): embedding (layer 0), layers 1 … n_layers, head (n_layers + 1). The range of layer
 * l is first_op[l] … first_op[l + 1]; first_op has n_layers + 3 entries. The residual stream is
 * buffer `residual`; the head reads it and leaves logits in buffer `logits`, which a backend does
 * not allocate: the caller gives it memory for the rows it asked for. */
typedef struct plan {
    plan_op *ops;
    int32_t n_ops, n_layers;
    int32_t *first_op;
    plan_buffer *buffers;
    int32_t n_buffers;
    int32_t residual, logits;
} plan;

#endif
