/* builder.c: reads hyper-parameters, binds tensors by name and appends operations to a plan. */
#include "arch.h"

#include "../kernels/memory.h"
#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define WIDTH_MAX                                                                                  \
    (1 << 24) /* of any matrix side but the vocabulary; keeps every product in range */

void builder_fail(builder *b, const char *format, ...) {
    if (b->failed) return;
    b->failed = true;
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    llm_fail(b->err, LLM_INPUT, "%s: %s", gguf_name(b->file), text);
}

static void fail_memory(builder *b, size_t bytes) {
    if (!b->failed) llm_fail_memory(b->err, bytes, "the plan of the model");
    b->failed = true;
}

/* ---- hyper-parameters ---- */

static const char *key_of(const builder *b, const char *name, char *buffer, size_t n) {
    snprintf(buffer, n, "%s.%s", b->arch, name);
    return buffer;
}

/* What a getter said: 1 found, 0 absent (required or not), -1 wrong (err is filled). */
static void check_got(builder *b, int got, bool required, const char *key) {
    if (got > 0 || (got == 0 && !required)) return;
    if (got == 0) gguf_missing(b->file, key, b->err);
    b->failed = true;
}

int64_t builder_int(builder *b, const char *name, int64_t least, int64_t most, int64_t or_else) {
    if (b->failed) return least;
    char key[160];
    int64_t value = or_else;
    key_of(b, name, key, sizeof key);
    check_got(b, gguf_get_int(b->file, key, least, most, &value, b->err), or_else < least, key);
    return b->failed ? least : value;
}

double builder_float(builder *b, const char *name, double least, double most, double or_else) {
    if (b->failed) return least;
    char key[160];
    double value = or_else;
    key_of(b, name, key, sizeof key);
    check_got(b, gguf_get_float(b->file, key, least, most, &value, b->err), isnan(or_else), key);
    return b->failed ? least : value;
}

gguf_string builder_string(builder *b, const char *name) {
    gguf_string value = {"", 0};
    char key[160];
    if (!b->failed)
        check_got(b, gguf_get_string(b->file, key_of(b, name, key, sizeof key), &value, b->err),
                  false, key);
    return value;
}

/* A count that may be given for each layer; the cache's shape asks that all layers agree. */
static int32_t uniform_count(builder *b, const char *name, int32_t or_else) {
    char key[160];
    key_of(b, name, key, sizeof key);
    const gguf_value *value = b->failed ? NULL : gguf_find(b->file, key);
    if (!value || value->type != GGUF_ARRAY)
        return (int32_t)builder_int(b, name, 1, 65536, or_else);
    if (!gguf_is_int(value->item_type) || value->n < (size_t)b->shape.n_layers) {
        builder_fail(b, "%s: needs %d integers, has %zu items of type %s", key, b->shape.n_layers,
                     value->n, gguf_type_name(value->item_type));
        return 1;
    }
    int64_t first = gguf_item_int(value, 0);
    for (size_t i = 0; i < (size_t)b->shape.n_layers; i++) {
        int64_t n = gguf_item_int(value, i);
        if (n != first || n < 1 || n > 65536) {
            builder_fail(b,
                         "%s: %lld in layer 1 and %lld in layer %zu: layers of different shape are "
                         "not supported",
                         key, (long long)first, (long long)n, i + 1);
            return 1;
        }
    }
    return (int32_t)first;
}

void builder_shape(builder *b, const char *eps_key) {
    arch_shape *s = &b->shape;
    s->n_layers = (int32_t)builder_int(b, "block_count", 1, 4096, 0);
    s->width = (int32_t)builder_int(b, "embedding_length", 1, WIDTH_MAX, 0);
    s->n_ffn = (int32_t)builder_int(b, "feed_forward_length", 1, WIDTH_MAX, 0);
    s->n_heads = uniform_count(b, "attention.head_count", 0);
    s->n_heads_kv = uniform_count(b, "attention.head_count_kv", s->n_heads);
    s->head_dim = (int32_t)builder_int(b, "attention.key_length", 1, 65536,
                                       b->failed ? 1 : s->width / s->n_heads);
    s->head_dim_v = (int32_t)builder_int(b, "attention.value_length", 1, 65536, s->head_dim);
    s->n_rotary = (int32_t)builder_int(b, "rope.dimension_count", 2, 65536,
                                       s->head_dim > 1 ? s->head_dim : 2);
    s->ctx_train = builder_int(b, "context_length", 1, INT32_MAX, 0);
    s->window = (int32_t)builder_int(b, "attention.sliding_window", 0, INT32_MAX, 0);
    s->eps = (float)builder_float(b, eps_key, 0, 1, NAN);
    s->rope_base = builder_float(b, "rope.freq_base", 1, 1e12, 10000);
    if (b->failed) return;
    if (s->n_heads % s->n_heads_kv)
        builder_fail(b, "%d query heads are not a multiple of %d key/value heads", s->n_heads,
                     s->n_heads_kv);
    if (s->n_rotary > s->head_dim || s->n_rotary % 2)
        builder_fail(b, "rope.dimension_count %d must be even and at most the head's %d",
                     s->n_rotary, s->head_dim);
    if ((int64_t)s->n_heads * s->head_dim > WIDTH_MAX ||
        (int64_t)s->n_heads * s->head_dim_v > WIDTH_MAX)
        builder_fail(b, "%d heads of %d values are too wide", s->n_heads, s->head_dim);
    const gguf_tensor *embedding = gguf_tensor_find(b->file, "token_embd.weight");
    if (!embedding) {
        builder_fail(b, "tensor token_embd.weight is missing");
    } else {
        s->vocab_size = embedding->dims[1];
        if (s->vocab_size > INT32_MAX)
            builder_fail(b, "token_embd.weight has %lld rows, at most %d", (long long)s->vocab_size,
                         INT32_MAX);
    }
}

/* ---- tensors ---- */

static kern_weight *weight_bind(builder *b, int64_t n_rows, int64_t n_columns, const char *name,
                                bool required) {
    if (b->failed) return NULL;
    const gguf_tensor *t = gguf_tensor_find(b->file, name);
    if (!t) {
        if (required) builder_fail(b, "tensor %s is missing", name);
        return NULL;
    }
    int64_t rows = t->dims[1] * t->dims[2] * t->dims[3];
    if (t->dims[0] != n_columns || rows != n_rows) {
        builder_fail(b, "tensor %s is %lld × %lld, expected %lld × %lld", name, (long long)rows,
                     (long long)t->dims[0], (long long)n_rows, (long long)n_columns);
        return NULL;
    }
    for (int32_t i = 0; i < b->n_weights; i++) /* a tied head */
        if (b->weights[i].data == t->data && b->weights[i].n_rows == n_rows &&
            b->weights[i].n_columns == n_columns && b->weights[i].format == t->format)
            return &b->weights[i];
    kern_weight *w = &b->weights[b->n_weights++];
    w->name = t->name.data; /* inside the file, not terminated: made a string by builder_weight */
    w->format = t->format;
    w->data = t->data;
    w->n_rows = n_rows;
    w->n_columns = n_columns;
    return w;
}

/* A vector is read as f32, whatever the file holds, so that kernels see one type. */
static void vector_convert(builder *b, kern_weight *w) {
    float *values = kern_alloc_array((size_t)w->n_columns, sizeof *values);
    if (!values) {
        fail_memory(b, (size_t)w->n_columns * sizeof *values);
        return;
    }
    w->format->dequantise(w->data, values, w->n_columns);
    for (int64_t i = 0; i < w->n_columns; i++) {
        if (isfinite(values[i])) continue;
        builder_fail(b, "tensor %s: entry %lld is %g", w->name, (long long)i + 1,
                     (double)values[i]);
        kern_free(values);
        return;
    }
    w->format = kern_format_find(KERN_F32);
    w->data = w->owned = values;
}

static const kern_weight *weight_named(builder *b, int64_t n_rows, int64_t n_columns,
                                       const char *name, bool required) {
    int32_t n_before = b->n_weights;
    kern_weight *w = weight_bind(b, n_rows, n_columns, name, required);
    if (!w || b->n_weights == n_before) return w;
    size_t n = strlen(name) + 1;
    char *copy = kern_alloc(n);
    if (!copy) {
        b->n_weights--;
        memset(w, 0, sizeof *w);
        fail_memory(b, n);
        return NULL;
    }
    w->name = memcpy(copy, name, n);
    if (n_rows == 1) vector_convert(b, w);
    return b->failed ? NULL : w;
}

#define FORMAT_NAME(name)                                                                          \
    char name[96];                                                                                 \
    va_list arguments;                                                                             \
    va_start(arguments, format);                                                                   \
    vsnprintf(name, sizeof name, format, arguments);                                               \
    va_end(arguments)

const kern_weight *builder_weight(builder *b, int64_t n_rows, int64_t n_columns, const char *format,
                                  ...) {
    FORMAT_NAME(name);
    return weight_named(b, n_rows, n_columns, name, true);
}

const kern_weight *builder_weight_optional(builder *b, int64_t n_rows, int64_t n_columns,
                                           const char *format, ...) {
    FORMAT_NAME(name);
    return weight_named(b, n_rows, n_columns, name, false);
}

/* ---- operations ---- */

#define BUFFERS_MAX 32

int32_t builder_buffer(builder *b, const char *name, int64_t width) {
    plan *p = b->plan;
    if (b->failed) return 0;
    for (int32_t i = 0; i < p->n_buffers; i++)
        if (strcmp(p->buffers[i].name, name) == 0) return i;
    assert(p->n_buffers < BUFFERS_MAX); /* architectures are ours and use about ten */
    if (!p->buffers && !(p->buffers = kern_alloc_array(BUFFERS_MAX, sizeof *p->buffers))) {
        fail_memory(b, BUFFERS_MAX * sizeof *p->buffers);
        return 0;
    }
    p->buffers[p->n_buffers] = (plan_buffer){name, (int32_t)width};
    return p->n_buffers++;
}

void builder_layer(builder *b, int32_t layer) {
    plan *p = b->plan;
    if (b->failed) return;
    if (!p->first_op) {
        p->n_layers = b->shape.n_layers;
        p->first_op = kern_alloc_array((size_t)p->n_layers + 3, sizeof *p->first_op);
        if (!p->first_op) {
            fail_memory(b, ((size_t)p->n_layers + 3) * sizeof *p->first_op);
            return;
        }
    }
    b->layer = layer;
    p->first_op[layer] = p->n_ops;
}

#define OPS_STEP 64

static plan_op *op_add(builder *b, plan_kind kind, int32_t in, int32_t in2, int32_t out) {
    plan *p = b->plan;
    if (b->failed) return &b->ignored;
    if (p->n_ops % OPS_STEP == 0) {
        size_t bytes = (size_t)(p->n_ops + OPS_STEP) * sizeof *p->ops;
        plan_op *ops = kern_realloc(p->ops, bytes);
        if (!ops) {
            fail_memory(b, bytes);
            return &b->ignored;
        }
        p->ops = ops;
    }
    plan_op *op = &p->ops[p->n_ops++];
    const arch_shape *s = &b->shape;
    *op = (plan_op){.kind = kind,
                    .layer = b->layer,
                    .in = in,
                    .in2 = in2,
                    .out = out,
                    .eps = s->eps,
                    .scale = 1,
                    .n_heads = s->n_heads,
                    .n_heads_kv = s->n_heads_kv,
                    .head_dim = s->head_dim,
                    .head_dim_v = s->head_dim_v};
    return op;
}

void builder_embed(builder *b, int32_t out, const kern_weight *table, float scale) {
    plan_op *op = op_add(b, PLAN_EMBED, -1, -1, out);
    op->w = table;
    op->scale = scale;
    b->plan->residual = out;
}

void builder_embed_at(builder *b, int32_t out, const kern_weight *table) {
    op_add(b, PLAN_EMBED_AT, -1, -1, out)->w = table;
}

static void op_add_weighted(builder *b, plan_kind kind, int32_t in, int32_t out,
                            const kern_weight *w, const kern_weight *bias) {
    plan_op *op = op_add(b, kind, in, -1, out);
    op->w = w;
    op->bias = bias;
}

void builder_norm(builder *b, int32_t in, int32_t out, const kern_weight *w) {
    op_add_weighted(b, PLAN_NORM_RMS, in, out, w, NULL);
}

void builder_norm_layer(builder *b, int32_t in, int32_t out, const kern_weight *w,
                        const kern_weight *bias) {
    op_add_weighted(b, PLAN_NORM_LAYER, in, out, w, bias);
}

void builder_norm_heads(builder *b, int32_t x, const kern_weight *w, int32_t n_heads) {
    plan_op *op = op_add(b, PLAN_NORM_HEADS, x, -1, x);
    op->w = w;
    op->n_heads = n_heads;
}

void builder_matmul(builder *b, int32_t in, int32_t out, const kern_weight *w,
                    const kern_weight *bias) {
    op_add_weighted(b, PLAN_MATMUL, in, out, w, bias);
}

void builder_rope(builder *b, int32_t x, const plan_rope *rope, int32_t n_heads) {
    plan_op *op = op_add(b, PLAN_ROPE, x, -1, x);
    op->rope = rope;
    op->n_heads = n_heads;
}

void builder_append(builder *b, int32_t keys, int32_t values) {
    op_add(b, PLAN_KV_APPEND, keys, values, -1);
}

void builder_attend(builder *b, int32_t queries, int32_t out, float scale, int32_t window) {
    plan_op *op = op_add(b, PLAN_ATTEND, queries, -1, out);
    op->scale = scale > 0 ? scale : 1 / sqrtf((float)b->shape.head_dim);
    op->window = window;
}

void builder_add(builder *b, int32_t in, int32_t out) { op_add(b, PLAN_ADD, in, -1, out); }

void builder_map(builder *b, plan_kind kind, int32_t in, int32_t in2, int32_t out) {
    op_add(b, kind, in, in2, out);
}

void builder_head(builder *b, int32_t x, const kern_weight *w, const kern_weight *norm_bias) {
    int64_t vocab = b->shape.vocab_size, width = b->shape.width;
    builder_layer(b, b->shape.n_layers + 1);
    int32_t h = builder_buffer(b, "h", width), logits = builder_buffer(b, "logits", vocab);
    if (norm_bias)
        builder_norm_layer(b, x, h, w, norm_bias);
    else
        builder_norm(b, x, h, w);
    const kern_weight *output = builder_weight_optional(b, vocab, width, "output.weight");
    if (!output) output = builder_weight(b, vocab, width, "token_embd.weight");
    builder_matmul(b, h, logits, output, NULL);
    if (b->failed) return;
    b->plan->logits = logits;
    b->plan->first_op[b->shape.n_layers + 2] = b->plan->n_ops;
}

void builder_free_plan(plan *p, plan_rope **ropes, int32_t n_ropes) {
    for (int32_t i = 0; i < n_ropes; i++) {
        kern_free(ropes[i]->freqs);
        kern_free(ropes[i]);
    }
    kern_free(ropes);
    kern_free(p->ops);
    kern_free(p->first_op);
    kern_free(p->buffers);
    memset(p, 0, sizeof *p);
}
