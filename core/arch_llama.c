/* arch_llama.c: Llama 1–3, Mistral, SmolLM and others of the family (Touvron et al. 2023).
 *
 *   x ── RMS ── q k v ── rope (pairs 2i, 2i+1) ── attention ── o ──(+)──
 *     ── RMS ── gate up ── SwiGLU ── down ──(+)── x
 */
#include "arch.h"

void arch_llama_build(builder *b) {
    builder_shape(b, "attention.layer_norm_rms_epsilon");
    builder_decoder(
        b, &(attention_parts){.rope = builder_rope_table(b, true), .window = b->shape.window});
}
