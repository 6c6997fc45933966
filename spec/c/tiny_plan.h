/* tiny_plan.h: a plan with every kind of operation, on random weights of a chosen format, for tests
 * of backends. Two layers: one with RMS norms, head norms, grouped heads and SiLU; one with layer
 * norms, biases, a sliding window, partial interleaved rotation and GELU. */
#ifndef SPEC_TINY_PLAN_H
#define SPEC_TINY_PLAN_H

#include "kern.h"
#include "tiny_blocks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTH = 256,
    N_HEADS = 4,
    N_HEADS_KV = 2,
    HEAD_DIM = 96,
    HEAD_DIM_V = 64,
    N_FF = 256,
    N_VOCAB = 77
};
enum { N_POSITIONS = 256, WINDOW = 37 };
enum { B_RESIDUAL, B_NORMED, B_Q, B_K, B_V, B_ATTENDED, B_GATE, B_UP, B_DOWN, B_LOGITS, N_BUFFERS };

typedef struct tiny_plan {
    plan plan;
    plan_buffer buffers[N_BUFFERS];
    plan_op ops[64];
    int32_t first_op[5];
    kern_weight weights[64];
    int n_weights;
    plan_rope ropes[2];
    float freqs[2][HEAD_DIM / 2];
    uint64_t random;
} tiny_plan;

static kern_weight *tiny_weight(tiny_plan *t, int32_t format, int64_t n_rows, int64_t n_columns,
                                float size) {
    kern_weight *w = &t->weights[t->n_weights++];
    *w = (kern_weight){.name = "weight",
                       .format = kern_format_find(format),
                       .n_rows = n_rows,
                       .n_columns = n_columns};
    unsigned char *data = malloc(kern_format_bytes(w->format, n_rows * n_columns) + 1);
    if (!data) abort();
    tiny_blocks(&t->random, w->format, data + 1, n_rows * n_columns, size);
    w->data = data + 1; /* an odd address, as in a file */
    return w;
}

static const kern_weight *tiny_vector(tiny_plan *t, int64_t n, float size) {
    return tiny_weight(t, KERN_F32, 1, n, size);
}

static void tiny_op(tiny_plan *t, plan_op op) { t->ops[t->plan.n_ops++] = op; }

static void tiny_matmul(tiny_plan *t, int32_t format, int32_t layer, int32_t in, int32_t out,
                        bool bias) {
    const int32_t k = t->buffers[in].width, n = t->buffers[out].width;
    kern_weight *w = tiny_weight(t, format, n, k, 1.7f / sqrtf((float)k));
    w->product = true;
    tiny_op(t, (plan_op){PLAN_MATMUL, .layer = layer, .in = in, .in2 = -1, .out = out, .w = w,
                         .bias = bias ? tiny_vector(t, n, 0.3f) : NULL});
}

static void tiny_norm(tiny_plan *t, int32_t layer, plan_kind kind, int32_t in, int32_t out) {
    tiny_op(t,
            (plan_op){kind, .layer = layer, .in = in, .in2 = -1, .out = out, .eps = 1e-2f,
                      .w = tiny_vector(t, t->buffers[in].width, 1.5f),
                      .bias = kind == PLAN_NORM_LAYER ? tiny_vector(t, t->buffers[in].width, 0.5f)
                                                      : NULL});
}

static void tiny_head_op(tiny_plan *t, plan_kind kind, int32_t layer, int32_t buffer,
                         int32_t n_heads) {
    const bool norm = kind == PLAN_NORM_HEADS;
    tiny_op(t, (plan_op){kind, .layer = layer, .in = buffer, .in2 = -1, .out = buffer, .eps = 1e-2f,
                         .w = norm ? tiny_vector(t, HEAD_DIM, 1.5f) : NULL, .n_heads = n_heads,
                         .rope = norm ? NULL : &t->ropes[layer - 1], .head_dim = HEAD_DIM});
}

static void tiny_attention(tiny_plan *t, int32_t format, int32_t layer, bool bias) {
    tiny_matmul(t, format, layer, B_NORMED, B_Q, bias);
    tiny_matmul(t, format, layer, B_NORMED, B_K, bias);
    tiny_matmul(t, format, layer, B_NORMED, B_V, bias);
    if (!bias) tiny_head_op(t, PLAN_NORM_HEADS, layer, B_Q, N_HEADS);
    if (!bias) tiny_head_op(t, PLAN_NORM_HEADS, layer, B_K, N_HEADS_KV);
    tiny_head_op(t, PLAN_ROPE, layer, B_Q, N_HEADS);
    tiny_head_op(t, PLAN_ROPE, layer, B_K, N_HEADS_KV);
    tiny_op(t, (plan_op){PLAN_KV_APPEND, .layer = layer, .in = B_K, .in2 = B_V, .out = -1,
                         .n_heads_kv = N_HEADS_KV, .head_dim = HEAD_DIM, .head_dim_v = HEAD_DIM_V});
    tiny_op(t,
            (plan_op){PLAN_ATTEND, .layer = layer, .in = B_Q, .in2 = -1, .out = B_ATTENDED,
                      .scale = 0.4f, .n_heads = N_HEADS, .n_heads_kv = N_HEADS_KV,
                      .head_dim = HEAD_DIM, .head_dim_v = HEAD_DIM_V, .window = bias ? WINDOW : 0});
    tiny_matmul(t, format, layer, B_ATTENDED, B_DOWN, bias);
    tiny_op(t, (plan_op){PLAN_ADD, .layer = layer, .in = B_DOWN, .in2 = -1, .out = B_RESIDUAL});
}

static void tiny_feed_forward(tiny_plan *t, int32_t format, int32_t layer, plan_kind gate) {
    tiny_matmul(t, format, layer, B_NORMED, B_GATE, gate == PLAN_GELU);
    if (gate != PLAN_GELU) tiny_matmul(t, format, layer, B_NORMED, B_UP, false);
    tiny_op(t, (plan_op){gate, .layer = layer, .in = B_GATE, .in2 = gate == PLAN_GELU ? -1 : B_UP,
                         .out = B_GATE});
    tiny_matmul(t, format, layer, B_GATE, B_DOWN, gate == PLAN_GELU);
    tiny_op(t, (plan_op){PLAN_ADD, .layer = layer, .in = B_DOWN, .in2 = -1, .out = B_RESIDUAL});
}

static tiny_plan *tiny_open(int32_t format, uint64_t seed) {
    static const plan_buffer buffers[N_BUFFERS] = {{"residual", WIDTH},
                                                   {"normed", WIDTH},
                                                   {"q", N_HEADS * HEAD_DIM},
                                                   {"k", N_HEADS_KV * HEAD_DIM},
                                                   {"v", N_HEADS_KV * HEAD_DIM_V},
                                                   {"attended", N_HEADS * HEAD_DIM_V},
                                                   {"gate", N_FF},
                                                   {"up", N_FF},
                                                   {"down", WIDTH},
                                                   {"logits", N_VOCAB}};
    tiny_plan *t = calloc(1, sizeof *t);
    if (!t) abort();
    t->random = seed;
    memcpy(t->buffers, buffers, sizeof buffers);
    t->plan = (plan){.ops = t->ops,
                     .n_layers = 2,
                     .first_op = t->first_op,
                     .buffers = t->buffers,
                     .n_buffers = N_BUFFERS,
                     .residual = B_RESIDUAL,
                     .logits = B_LOGITS};
    for (int r = 0; r < 2; r++) {
        const int32_t n_rotary = r ? HEAD_DIM / 2 : HEAD_DIM;
        for (int i = 0; i < n_rotary / 2; i++)
            t->freqs[r][i] = powf(1e4f, -2.0f * (float)i / (float)n_rotary);
        t->ropes[r] = (plan_rope){t->freqs[r], n_rotary, r ? 1.1f : 1.0f, r == 1};
    }
    tiny_op(t, (plan_op){PLAN_EMBED, .in = -1, .in2 = -1, .out = B_RESIDUAL, .scale = 1.25f,
                         .w = tiny_weight(t, format, N_VOCAB, WIDTH, 1)});
    tiny_op(t, (plan_op){PLAN_EMBED_AT, .in = -1, .in2 = -1, .out = B_RESIDUAL,
                         .w = tiny_weight(t, KERN_F32, N_POSITIONS, WIDTH, 0.2f)});
    for (int32_t layer = 1; layer <= 2; layer++) {
        t->first_op[layer] = t->plan.n_ops;
        const plan_kind norm = layer == 1 ? PLAN_NORM_RMS : PLAN_NORM_LAYER;
        tiny_norm(t, layer, norm, B_RESIDUAL, B_NORMED);
        tiny_attention(t, format, layer, layer == 2);
        tiny_norm(t, layer, norm, B_RESIDUAL, B_NORMED);
        tiny_feed_forward(t, format, layer, layer == 1 ? PLAN_SILU_MUL : PLAN_GELU_MUL);
        if (layer == 1) continue;
        tiny_norm(t, layer, norm, B_RESIDUAL, B_NORMED);
        tiny_feed_forward(t, format, layer, PLAN_GELU);
    }
    t->first_op[3] = t->plan.n_ops;
    tiny_norm(t, 3, PLAN_NORM_RMS, B_RESIDUAL, B_NORMED);
    tiny_matmul(t, format, 3, B_NORMED, B_LOGITS, true);
    t->first_op[4] = t->plan.n_ops;
    return t;
}

static void tiny_close(tiny_plan *t) {
    for (int i = 0; i < t->n_weights; i++) free((char *)(uintptr_t)t->weights[i].data - 1);
    free(t);
}

#endif
