/* builder_blocks.c: the parts of a decoder layer that architectures share. */
#include "arch.h"

void builder_attention(builder *b, int32_t in, int32_t out, const attention_parts *parts) {
    const arch_shape *s = &b->shape;
    int32_t l = b->layer - 1;
    int64_t n_q = (int64_t)s->n_heads * s->head_dim, n_k = (int64_t)s->n_heads_kv * s->head_dim;
    int64_t n_v = (int64_t)s->n_heads_kv * s->head_dim_v,
            n_out = (int64_t)s->n_heads * s->head_dim_v;
    int32_t q = builder_buffer(b, "q", n_q), k = builder_buffer(b, "k", n_k);
    int32_t v = builder_buffer(b, "v", n_v), a = builder_buffer(b, "a", n_out);

    builder_matmul(b, in, q, builder_weight(b, n_q, s->width, "blk.%d.attn_q.weight", l),
                   builder_weight_optional(b, 1, n_q, "blk.%d.attn_q.bias", l));
    builder_matmul(b, in, k, builder_weight(b, n_k, s->width, "blk.%d.attn_k.weight", l),
                   builder_weight_optional(b, 1, n_k, "blk.%d.attn_k.bias", l));
    builder_matmul(b, in, v, builder_weight(b, n_v, s->width, "blk.%d.attn_v.weight", l),
                   builder_weight_optional(b, 1, n_v, "blk.%d.attn_v.bias", l));
    if (parts->norm_heads) {
        builder_norm_heads(b, q, builder_weight(b, 1, s->head_dim, "blk.%d.attn_q_norm.weight", l),
                           s->n_heads);
        builder_norm_heads(b, k, builder_weight(b, 1, s->head_dim, "blk.%d.attn_k_norm.weight", l),
                           s->n_heads_kv);
    }
    builder_rope(b, q, parts->rope, s->n_heads);
    builder_rope(b, k, parts->rope, s->n_heads_kv);
    builder_append(b, k, v);
    builder_attend(b, q, a, parts->scale, parts->window);
    builder_matmul(b, a, out, builder_weight(b, s->width, n_out, "blk.%d.attn_output.weight", l),
                   builder_weight_optional(b, 1, s->width, "blk.%d.attn_output.bias", l));
}

void builder_gated_ffn(builder *b, int32_t in, int32_t out, plan_kind activation) {
    const arch_shape *s = &b->shape;
    int32_t l = b->layer - 1;
    int32_t gate = builder_buffer(b, "gate", s->n_ffn), up = builder_buffer(b, "up", s->n_ffn);
    builder_matmul(b, in, gate, builder_weight(b, s->n_ffn, s->width, "blk.%d.ffn_gate.weight", l),
                   NULL);
    builder_matmul(b, in, up, builder_weight(b, s->n_ffn, s->width, "blk.%d.ffn_up.weight", l),
                   NULL);
    builder_map(b, activation, gate, up, gate);
    builder_matmul(b, gate, out, builder_weight(b, s->width, s->n_ffn, "blk.%d.ffn_down.weight", l),
                   NULL);
}

void builder_decoder(builder *b, const attention_parts *parts) {
    int32_t width = b->shape.width;
    int32_t x = builder_buffer(b, "x", width), h = builder_buffer(b, "h", width);
    int32_t y = builder_buffer(b, "y", width);
    builder_layer(b, 0);
    builder_embed(b, x, builder_weight(b, b->shape.vocab_size, width, "token_embd.weight"), 1);
    for (int32_t l = 1; l <= b->shape.n_layers && !b->failed; l++) {
        builder_layer(b, l);
        builder_norm(b, x, h, builder_weight(b, 1, width, "blk.%d.attn_norm.weight", l - 1));
        builder_attention(b, h, y, parts);
        builder_add(b, y, x);
        builder_norm(b, x, h, builder_weight(b, 1, width, "blk.%d.ffn_norm.weight", l - 1));
        builder_gated_ffn(b, h, y, PLAN_SILU_MUL);
        builder_add(b, y, x);
    }
    builder_head(b, x, builder_weight(b, 1, width, "output_norm.weight"), NULL);
}
