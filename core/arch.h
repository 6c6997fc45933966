/* arch.h: architectures and what they build with. An architecture reads its hyper-parameters, binds
 * its tensors by name with their shapes checked, and lists its operations; it never runs anything.
 * The builder keeps the first error and makes every later call do nothing, so an architecture is
 * one straight line and is checked once at its end. */
#ifndef LLM_CORE_ARCH_H
#define LLM_CORE_ARCH_H

#include "../kernels/kern.h"
#include "error.h"
#include "gguf.h"

/* Hyper-parameters, from keys "ARCH.name" of the file. */
typedef struct arch_shape {
    int32_t n_layers, width, n_ffn, n_heads, n_heads_kv, head_dim, head_dim_v, n_rotary;
    int32_t window; /* 0: none */
    int64_t ctx_train, vocab_size;
    float eps;
    double rope_base;
} arch_shape;

typedef struct builder {
    const gguf_file *file;
    const char *arch;
    arch_shape shape;
    plan *plan;
    kern_weight *weights; /* capacity: one for each tensor of the file */
    int32_t n_weights;
    plan_rope **ropes;
    int32_t n_ropes;
    int32_t layer; /* of the operations being added */
    bool failed;
    plan_op ignored; /* what calls after a failure write to */
    llm_error *err;
} builder;

typedef struct arch {
    const char *name;
    void (*build)(builder *);
} arch;

/* The table of architectures; ends with a NULL name. */
extern const arch architectures[];
const arch *arch_find(const char *name, size_t n);

/* core/arch_*.c */
void arch_llama_build(builder *);
void arch_qwen2_build(builder *);
void arch_qwen3_build(builder *);
void arch_gemma3_build(builder *);
void arch_gpt2_build(builder *);

/* ---- the builder ---- */

/* Frees what a plan and its ropes own; accepts a zeroed one. */
void builder_free_plan(plan *, plan_rope **ropes, int32_t n_ropes);

/* Records the first failure. */
void builder_fail(builder *, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Number of the key "ARCH.name"; must lie in least … most. `or_else` < least: the key is required.
 */
int64_t builder_int(builder *, const char *name, int64_t least, int64_t most, int64_t or_else);
/* or_else NaN: required. */
double builder_float(builder *, const char *name, double least, double most, double or_else);
/* The string of "ARCH.name", or "" if there is none. */
gguf_string builder_string(builder *, const char *name);

/* Reads what all architectures share: layers, widths, heads, vocabulary (rows of
 * token_embd.weight). */
void builder_shape(builder *, const char *eps_key);

/* The tensor of a printf-formatted name, [n_rows, n_columns] (n_rows 1: a vector). Missing or of
 * another shape: an error naming both. The _optional form gives NULL for a missing one. */
const kern_weight *builder_weight(builder *, int64_t n_rows, int64_t n_columns, const char *format,
                                  ...) __attribute__((format(printf, 4, 5)));
const kern_weight *builder_weight_optional(builder *, int64_t n_rows, int64_t n_columns,
                                           const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* A named buffer of `width` values a row; the same name again gives the same buffer. */
int32_t builder_buffer(builder *, const char *name, int64_t width);

/* What follows belongs to layer l (0: embedding, n_layers + 1: head). Layers come in order. */
void builder_layer(builder *, int32_t layer);

void builder_embed(builder *, int32_t out, const kern_weight *table, float scale);
void builder_embed_at(builder *, int32_t out, const kern_weight *table);
void builder_norm(builder *, int32_t in, int32_t out, const kern_weight *w); /* RMS */
void builder_norm_layer(builder *, int32_t in, int32_t out, const kern_weight *w,
                        const kern_weight *bias);
void builder_norm_heads(builder *, int32_t x, const kern_weight *w, int32_t n_heads);
void builder_matmul(builder *, int32_t in, int32_t out, const kern_weight *w,
                    const kern_weight *bias);
void builder_rope(builder *, int32_t x, const plan_rope *rope, int32_t n_heads);
void builder_append(builder *, int32_t keys, int32_t values);
void builder_attend(builder *, int32_t queries, int32_t out, float scale, int32_t window);
void builder_add(builder *, int32_t in, int32_t out);
void builder_map(builder *, plan_kind kind, int32_t in, int32_t in2, int32_t out); /* SILU_MUL, … */

/* Final norm (RMS, or layer norm with a bias) and the output matrix, tied if there is none. */
void builder_head(builder *, int32_t x, const kern_weight *w, const kern_weight *norm_bias);

/* ---- what decoder layers share (builder_blocks.c) ---- */

typedef struct attention_parts {
    const plan_rope *rope;
    float scale; /* 0: 1 / sqrt(head_dim) */
    int32_t window;
    bool norm_heads; /* RMS norm of each query and key head */
} attention_parts;

/* q, k, v of `in` (with biases where the file has them), norms, rotation, cache, attention, output
 * matrix. */
void builder_attention(builder *, int32_t in, int32_t out, const attention_parts *parts);
/* gate and up of `in`, the activation, down. */
void builder_gated_ffn(builder *, int32_t in, int32_t out, plan_kind activation);

/* A whole decoder of RMS norm, attention, RMS norm, SwiGLU: the layers and the head of most
 * families. */
void builder_decoder(builder *, const attention_parts *parts);

/* ---- rotary tables (rope.c) ---- */

/* Frequencies with the file's scaling (rope_freqs.weight, linear, YaRN) worked in. */
const plan_rope *builder_rope_table(builder *, bool interleaved);
/* Plain ones of another base. */
const plan_rope *builder_rope_plain(builder *, double base, bool interleaved);

#endif
