/* arch_gpt2.c: GPT-2 (Radford et al. 2019).
 *
 *   x = embedding + position
 *   x ── LayerNorm ── q k v (one matrix, + bias) ── attention ── o ──(+)── LayerNorm ── up ──
 * GELU(tanh) ── down ──(+)── x
 */
#include "arch.h"

/* Rows first … first + n of a matrix or entries of a vector, as a weight of its own. */
static const kern_weight *slice(builder *b, const kern_weight *w, int64_t first, int64_t n) {
    if (b->failed || !w) return NULL;
    kern_weight *part = &b->weights[b->n_weights++];
    *part = *w;
    part->slice = true;
    part->owned = NULL;
    bool vector = w->n_rows == 1;
    int64_t values = first * (vector ? 1 : w->n_columns);
    if (values % w->format->block_size) {
        builder_fail(b, "%s: row %lld is inside a block", w->name, (long long)first);
        return NULL;
    }
    part->data = (const char *)w->data + kern_format_bytes(w->format, values);
    *(vector ? &part->n_columns : &part->n_rows) = n;
    return part;
}

static void attention(builder *b, int32_t in, int32_t out, int32_t l) {
    const arch_shape *s = &b->shape;
    int64_t n_q = (int64_t)s->n_heads * s->head_dim, n_k = (int64_t)s->n_heads_kv * s->head_dim;
    int64_t n_v = (int64_t)s->n_heads_kv * s->head_dim_v, n = n_q + n_k + n_v;
    int64_t n_out = (int64_t)s->n_heads * s->head_dim_v;
    const kern_weight *w = builder_weight(b, n, s->width, "blk.%d.attn_qkv.weight", l);
    const kern_weight *bias = builder_weight(b, 1, n, "blk.%d.attn_qkv.bias", l);
    int32_t q = builder_buffer(b, "q", n_q), k = builder_buffer(b, "k", n_k);
    int32_t v = builder_buffer(b, "v", n_v), a = builder_buffer(b, "a", n_out);
    builder_matmul(b, in, q, slice(b, w, 0, n_q), slice(b, bias, 0, n_q));
    builder_matmul(b, in, k, slice(b, w, n_q, n_k), slice(b, bias, n_q, n_k));
    builder_matmul(b, in, v, slice(b, w, n_q + n_k, n_v), slice(b, bias, n_q + n_k, n_v));
    builder_append(b, k, v);
    builder_attend(b, q, a, 0, 0);
    builder_matmul(b, a, out, builder_weight(b, s->width, n_out, "blk.%d.attn_output.weight", l),
                   builder_weight(b, 1, s->width, "blk.%d.attn_output.bias", l));
}

void arch_gpt2_build(builder *b) {
    builder_shape(b, "attention.layer_norm_epsilon");
    int32_t width = b->shape.width, n_ffn = b->shape.n_ffn;
    int32_t x = builder_buffer(b, "x", width), h = builder_buffer(b, "h", width);
    int32_t y = builder_buffer(b, "y", width), f = builder_buffer(b, "ffn", n_ffn);
    const kern_weight *embedding =
        builder_weight(b, b->shape.vocab_size, width, "token_embd.weight");
    const kern_weight *positions =
        builder_weight(b, b->shape.ctx_train, width, "position_embd.weight");

    builder_layer(b, 0);
    builder_embed(b, x, embedding, 1);
    builder_embed_at(b, x, positions);
    for (int32_t l = 0; l < b->shape.n_layers && !b->failed; l++) {
        builder_layer(b, l + 1);
        builder_norm_layer(b, x, h, builder_weight(b, 1, width, "blk.%d.attn_norm.weight", l),
                           builder_weight(b, 1, width, "blk.%d.attn_norm.bias", l));
        attention(b, h, y, l);
        builder_add(b, y, x);
        builder_norm_layer(b, x, h, builder_weight(b, 1, width, "blk.%d.ffn_norm.weight", l),
                           builder_weight(b, 1, width, "blk.%d.ffn_norm.bias", l));
        builder_matmul(b, h, f, builder_weight(b, n_ffn, width, "blk.%d.ffn_up.weight", l),
                       builder_weight(b, 1, n_ffn, "blk.%d.ffn_up.bias", l));
        builder_map(b, PLAN_GELU, f, -1, f);
        builder_matmul(b, f, y, builder_weight(b, width, n_ffn, "blk.%d.ffn_down.weight", l),
                       builder_weight(b, 1, width, "blk.%d.ffn_down.bias", l));
        builder_add(b, y, x);
    }
    builder_head(b, x, builder_weight(b, 1, width, "output_norm.weight"),
                 builder_weight(b, 1, width, "output_norm.bias"));
}
