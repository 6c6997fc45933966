/* model_text.c: what a model says of itself (metadata, description) and its tokenizer's public
 * calls. */
#include "model.h"

#include "lists.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- tokenizer ---- */

int llm_encode(llm_model *m, const char *text, size_t n, bool add_special, bool parse_special,
               llm_ids *out, llm_error *err) {
    return tokenizer_encode(m->tokenizer, text, n, add_special, parse_special, out, err);
}

/* Rows of the embedding beyond the tokenizer's tokens (padding) are ids without bytes. */
int llm_decode(llm_model *m, const int32_t *ids, size_t n, bool render_special, llm_bytes *out,
               llm_error *err) {
    if (model_check_ids(m, ids, n, err)) return -1;
    int32_t n_tokens = tokenizer_n_tokens(m->tokenizer);
    size_t n_known = 0;
    while (n_known < n && ids[n_known] < n_tokens) n_known++;
    if (n_known == n) return tokenizer_decode(m->tokenizer, ids, n, render_special, out, err);
    llm_ids known = {0};
    int failed = 0;
    for (size_t i = 0; i < n && !failed; i++)
        if (ids[i] < n_tokens) failed = llm_ids_push(&known, ids[i], err);
    if (!failed)
        failed = tokenizer_decode(m->tokenizer, known.data, known.n, render_special, out, err);
    llm_ids_free(&known);
    return failed;
}

int llm_token(llm_model *m, int32_t id, const char **bytes, size_t *n, llm_error *err) {
    if (model_check_ids(m, &id, 1, err)) return -1;
    gguf_string s = {"", 0};
    if (id < tokenizer_n_tokens(m->tokenizer)) s = tokenizer_token_bytes(m->tokenizer, id);
    *bytes = s.data;
    *n = s.n;
    return 0;
}

/* ---- metadata ---- */

static llm_meta_type meta_type(gguf_type type) {
    if (type == GGUF_STRING) return LLM_META_STRING;
    if (type == GGUF_ARRAY) return LLM_META_ARRAY;
    if (type == GGUF_BOOL) return LLM_META_BOOL;
    return gguf_is_float(type) ? LLM_META_FLOAT : LLM_META_INT;
}

static void meta_fill(const gguf_value *v, gguf_type type, size_t i, llm_meta *out) {
    *out = (llm_meta){.type = meta_type(type), .n = v->n, .element = meta_type(v->item_type)};
    switch (out->type) {
    case LLM_META_INT:
    case LLM_META_BOOL:
        out->i = gguf_item_int(v, i);
        out->u = (uint64_t)out->i;
        if (type == GGUF_UINT64) memcpy(&out->u, v->data + 8 * i, 8);
        break;
    case LLM_META_FLOAT: out->f = gguf_item_float(v, i); break;
    default: break;
    }
}

static void meta_fill_string(const char **at, llm_meta *out) {
    gguf_string s = gguf_next_string(at);
    *out = (llm_meta){.type = LLM_META_STRING, .s = s.data, .n = s.n};
}

const char *llm_model_meta_key(const llm_model *m, size_t i, size_t *n) {
    if (i >= gguf_n_values(m->file)) return NULL;
    gguf_string key = gguf_value_at(m->file, i)->key;
    *n = key.n;
    return key.data;
}

bool llm_model_meta(const llm_model *m, const char *key, llm_meta *out) {
    const gguf_value *v = gguf_find(m->file, key);
    if (!v) return false;
    const char *at = v->data;
    if (v->type == GGUF_STRING)
        meta_fill_string(&at, out);
    else
        meta_fill(v, v->type, 0, out);
    return true;
}

bool llm_model_meta_element(llm_model *m, const char *key, size_t i, llm_meta *out) {
    const gguf_value *v = gguf_find(m->file, key);
    if (!v || i >= v->n) return false;
    if (v->item_type != GGUF_STRING) {
        meta_fill(v, v->item_type, i, out);
        return true;
    }
    if (m->meta_cursor.value != v || m->meta_cursor.i > i) {
        m->meta_cursor.value = v;
        m->meta_cursor.i = 0;
        m->meta_cursor.at = v->data;
    }
    for (; m->meta_cursor.i < i; m->meta_cursor.i++) gguf_next_string(&m->meta_cursor.at);
    meta_fill_string(&m->meta_cursor.at, out);
    m->meta_cursor.i++;
    return true;
}

/* ---- description ---- */

static int print(llm_bytes *out, llm_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static int print(llm_bytes *out, llm_error *err, const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (n >= (int)sizeof line) n = (int)sizeof line - 1;
    return llm_bytes_append(out, line, (size_t)n, err);
}

const char *model_kind_name(plan_kind kind) {
    static const char *const names[] = {
        "embed",  "embed_at", "norm_rms", "norm_layer", "norm_heads", "matmul", "rope",
        "append", "attend",   "add",      "silu_mul",   "gelu_mul",   "gelu"};
    return names[kind];
}

static int describe_op(const llm_model *m, const plan_op *op, llm_bytes *out, llm_error *err) {
    const plan_buffer *buffers = m->plan.buffers;
    if (print(out, err, "  %3d  %-10s", op->layer, model_kind_name(op->kind)) ||
        (op->out >= 0 && print(out, err, " %s =", buffers[op->out].name)) ||
        (op->in >= 0 && print(out, err, " %s", buffers[op->in].name)) ||
        (op->in2 >= 0 && print(out, err, ", %s", buffers[op->in2].name)))
        return -1;
    if (op->w && print(out, err, "  %.100s %lld × %lld %s", op->w->name, (long long)op->w->n_rows,
                       (long long)op->w->n_columns, op->w->format->name))
        return -1;
    if (op->kind == PLAN_MATMUL && op->w->bound_as &&
        print(out, err, " as %s", op->w->bound_as->name))
        return -1;
    if (op->bias && print(out, err, " + bias")) return -1;
    if (op->kind == PLAN_ATTEND && op->window && print(out, err, "  window %d", op->window))
        return -1;
    return print(out, err, "\n");
}

int llm_model_describe(const llm_model *m, llm_bytes *out, llm_error *err) {
    const llm_model_info *i = &m->info;
    const arch_shape *s = &m->shape;
    size_t n_before = out->n;
    int failed =
        print(out, err, "%s: %s, %s, %.2f M parameters, %.1f MB of weights (%.1f MB read a step)\n",
              i->path, *i->name ? i->name : "unnamed", i->arch, (double)i->n_params / 1e6,
              (double)i->weight_bytes / 1e6, (double)i->weight_bytes_step / 1e6) ||
        print(out, err, "device %s\n", i->device_info) ||
        print(out, err,
              "layers %d, width %d, ffn %d, heads %d on %d of %d values, vocabulary %lld\n",
              s->n_layers, s->width, s->n_ffn, s->n_heads, s->n_heads_kv, s->head_dim,
              (long long)s->vocab_size) ||
        print(out, err,
              "trained context %lld, context %lld, cache %s: %lld bytes a token, %lld pages of 32 "
              "tokens\n",
              (long long)i->ctx_train, (long long)i->ctx, i->kv, (long long)i->position_bytes,
              (long long)i->n_pages) ||
        print(out, err, "rope base %g on %d values, epsilon %g, window %d\n", s->rope_base,
              s->n_rotary, (double)s->eps, s->window) ||
        print(out, err, "tokenizer %s\nplan:\n", tokenizer_describe(m->tokenizer));
    for (int32_t k = 0; k < m->plan.n_ops && !failed; k++)
        failed = describe_op(m, &m->plan.ops[k], out, err);
    if (failed) out->n = n_before;
    return failed ? -1 : 0;
}
