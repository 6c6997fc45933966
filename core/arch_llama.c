/* arch_llama.c: Llama 1–3, Mistral, SmolLM and others of the family (Touvron et al. 2023).
 *
 *   x ── RMS ── q k v ── rope (pairs 2i, 2i+1) ── attention ── o ──(+)── RMS ── gate up ── SwiGLU ── down ──(+)── x
 */
#include "arch.h"

void arch_llama_build(builder *b) {
    builder_shape(b, "attention.layer_norm_rms_epsilon");
    int32_t width = b->shape.width;
    int32_t x = builder_buffer(b, "x", width), h = builder_buffer(b, "h", width);
    int32_t y = builder_buffer(b, "y", width);
    const kern_weight *embedding = builder_weight(b, b->shape.vocab_size, width, "token_embd.weight");
    attention_parts parts = {.rope = builder_rope_table(b, true), .window = b->shape.window};

    builder_layer(b, 0);
    builder_embed(b, x, embedding, 1);
    for (int32_t l = 1; l <= b->shape.n_layers && !b->failed; l++) {
        builder_layer(b, l);
        builder_norm(b, x, h, builder_weight(b, 1, width, "blk.%d.attn_norm.weight", l - 1));
        builder_attention(b, h, y, &parts);
        builder_add(b, y, x);
        builder_norm(b, x, h, builder_weight(b, 1, width, "blk.%d.ffn_norm.weight", l - 1));
        builder_gated_ffn(b, h, y, PLAN_SILU_MUL);
        builder_add(b, y, x);
    }
    builder_head(b, x, builder_weight(b, 1, width, "output_norm.weight"), NULL);
}
