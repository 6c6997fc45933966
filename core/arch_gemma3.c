/* arch_gemma3.c: Gemma 3 (text). Norm weights in the file already hold 1 + w.
 *
 *   x ── RMS ── q k v ── head norms ── rope (pairs i, i+d/2) ── attention ── o ── RMS ──(+)──
 *     ── RMS ── gate up ── GELU(tanh)·up ── down ── RMS ──(+)── x
 *
 * The embedding is scaled by sqrt(width). Five layers of six look back one window only and rotate
 * by a base of their own without scaling; every sixth sees everything. */
#include "arch.h"

#include <math.h>

#define PATTERN 6 /* the family's constant, where the file has no pattern */

void arch_gemma3_build(builder *b) {
    builder_shape(b, "attention.layer_norm_rms_epsilon");
    int32_t width = b->shape.width;
    int32_t x = builder_buffer(b, "x", width), h = builder_buffer(b, "h", width);
    int32_t y = builder_buffer(b, "y", width);
    int64_t pattern = builder_int(b, "attention.sliding_window_pattern", 1, 1 << 20, PATTERN);
    double local_base = builder_float(b, "rope.freq_base_swa", 1, 1e12, 10000);
    const kern_weight *embedding =
        builder_weight(b, b->shape.vocab_size, width, "token_embd.weight");
    /* The 27B model (62 layers) divides scores by sqrt(width / heads), all others by
     * sqrt(head_dim). */
    float scale = b->shape.n_layers == 62 ? 1 / sqrtf((float)width / (float)b->shape.n_heads) : 0;
    attention_parts global = {builder_rope_table(b, false), scale, 0, true};
    attention_parts local = {builder_rope_plain(b, local_base, false), scale, b->shape.window,
                             true};

    builder_layer(b, 0);
    builder_embed(b, x, embedding, sqrtf((float)width));
    for (int32_t l = 1; l <= b->shape.n_layers && !b->failed; l++) {
        builder_layer(b, l);
        builder_norm(b, x, h, builder_weight(b, 1, width, "blk.%d.attn_norm.weight", l - 1));
        builder_attention(b, h, y, l % pattern == 0 ? &global : &local);
        builder_norm(b, y, y,
                     builder_weight(b, 1, width, "blk.%d.post_attention_norm.weight", l - 1));
        builder_add(b, y, x);
        builder_norm(b, x, h, builder_weight(b, 1, width, "blk.%d.ffn_norm.weight", l - 1));
        builder_gated_ffn(b, h, y, PLAN_GELU_MUL);
        builder_norm(b, y, y, builder_weight(b, 1, width, "blk.%d.post_ffw_norm.weight", l - 1));
        builder_add(b, y, x);
    }
    builder_head(b, x, builder_weight(b, 1, width, "output_norm.weight"), NULL);
}
