/* arch_qwen.c: Qwen 2 and 2.5 (biases on q, k and v) and Qwen 3 (RMS norm of each q and k head).
 *
 *   x ── RMS ── q k v (+ bias | head norms) ── rope (pairs i, i+d/2) ── attention ── o ──(+)──
 *     ── RMS ── gate up ── SwiGLU ── down ──(+)── x
 */
#include "arch.h"

static void qwen_build(builder *b, bool norm_heads) {
    builder_shape(b, "attention.layer_norm_rms_epsilon");
    builder_decoder(
        b, &(attention_parts){.rope = builder_rope_table(b, false), .norm_heads = norm_heads});
}

void arch_qwen2_build(builder *b) { qwen_build(b, false); }
void arch_qwen3_build(builder *b) { qwen_build(b, true); }
