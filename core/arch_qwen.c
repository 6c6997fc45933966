/* arch_qwen.c: Qwen 2 and 2.5 (biases on q, k and v) and Qwen 3 (RMS norm of each q and k head).
 *
 *   x ── RMS ── q k v (+ bias | head norms) ── rope (pairs i, i+d/2) ── attention ── o ──(+)── RMS ── gate up ── SwiGLU ── down ──(+)── x
 */
#include "arch.h"

static void qwen_build(builder *b, bool norm_heads) {
    builder_shape(b, "attention.layer_norm_rms_epsilon");
    int32_t width = b->shape.width;
    int32_t x = builder_buffer(b, "x", width), h = builder_buffer(b, "h", width);
    int32_t y = builder_buffer(b, "y", width);
    const kern_weight *embedding = builder_weight(b, b->shape.vocab_size, width, "token_embd.weight");
    attention_parts parts = {.rope = builder_rope_table(b, false), .norm_heads = norm_heads};

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

void arch_qwen2_build(builder *b) { qwen_build(b, false); }
void arch_qwen3_build(builder *b) { qwen_build(b, true); }
