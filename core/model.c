/* model.c: loads a model: file, tokenizer, plan, weights, pages; and gives it back. */
#include "model.h"
#include "pass.h"
#include "swap.h"

#include "../kernels/memory.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CTX_DEFAULT       4096
#define ROWS_DEFAULT      1024
#define PIECE_DEFAULT     256
#define PIECE_MAX         4096
#define PAGES_MAX         (1 << 24) /* of tables alone a gigabyte */
#define SEQUENCES_DEFAULT 32        /* full contexts that the default page budget holds */
#define RESTING_PART      8         /* 1/8 of the pages may rest in the store of prefixes */

static char *copy_text(const char *text, size_t n) {
    char *copy = kern_alloc(n + 1);
    if (copy) memcpy(copy, text, n);
    return copy;
}

/* ---- options ---- */

static int parse_kv(const char *name, kern_kv or_else, kern_kv *out, llm_error *err) {
    *out = or_else;
    if (!name) return 0;
    for (size_t i = 0; kv_names[i]; i++)
        if (strcmp(name, kv_names[i]) == 0) {
            *out = (kern_kv)i;
            return 0;
        }
    return llm_fail(err, LLM_MISUSE, "kv \"%.40s\" is unknown: known are f32, f16, q8_0", name);
}

static int check_range(const char *name, int64_t value, int64_t least, int64_t most,
                       llm_error *err) {
    if (value >= least && value <= most) return 0;
    return llm_fail(err, LLM_MISUSE, "%s must be %lld … %lld, got %lld", name, (long long)least,
                    (long long)most, (long long)value);
}

static bool plan_has(const plan *p, plan_kind kind) {
    for (int32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == kind) return true;
    return false;
}

static int64_t default_pages(const llm_model *m, size_t page_bytes) {
    int64_t memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE);
    int64_t wanted = SEQUENCES_DEFAULT * pages_for(m->info.ctx);
    int64_t fitting = memory / 2 / (int64_t)page_bytes;
    if (wanted > fitting) wanted = fitting;
    return wanted < pages_for(m->info.ctx) ? pages_for(m->info.ctx) : wanted;
}

static int choose_limits(llm_model *m, const llm_options *o, llm_error *err) {
    llm_model_info *info = &m->info;
    info->ctx_train = m->shape.ctx_train;
    info->ctx = o->ctx ? o->ctx : info->ctx_train < CTX_DEFAULT ? info->ctx_train : CTX_DEFAULT;
    info->max_rows = o->max_rows ? o->max_rows : ROWS_DEFAULT;
    info->piece = m->piece = o->piece ? o->piece : PIECE_DEFAULT;
    if (check_range("ctx", info->ctx, 1, 1 << 24, err) ||
        check_range("max_rows", info->max_rows, 1, 1 << 20, err) ||
        check_range("piece", m->piece, 1, PIECE_MAX, err))
        return -1;
    if (info->ctx > info->ctx_train) {
        if (plan_has(&m->plan, PLAN_EMBED_AT))
            return llm_fail(err, LLM_MISUSE,
                            "ctx %lld is beyond the model's %lld learned positions",
                            (long long)info->ctx, (long long)info->ctx_train);
        snprintf(m->warning, sizeof m->warning,
                 "a context of %lld positions is beyond the %lld that the model was trained for",
                 (long long)info->ctx, (long long)info->ctx_train);
    }
    return 0;
}

/* ---- the stages of loading ---- */

static int build_plan(llm_model *m, llm_error *err) {
    gguf_string name = {"", 0};
    int got = gguf_get_string(m->file, "general.architecture", &name, err);
    if (got < 0) return -1;
    if (got == 0) return gguf_missing(m->file, "general.architecture", err);
    const arch *a = arch_find(name.data, name.n);
    if (!a) {
        char known[128] = "";
        for (const arch *k = architectures; k->name; k++)
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s",
                     *known ? ", " : "", k->name);
        return llm_fail(err, LLM_INPUT, "%s: architecture \"%.*s\" is unknown: known are %s",
                        m->path, (int)(name.n < 40 ? name.n : 40), name.data, known);
    }
    snprintf(m->arch_name, sizeof m->arch_name, "%s", a->name);
    size_t capacity = 4 * gguf_n_tensors(m->file) + 16; /* slices of one tensor are weights too */
    m->weights = kern_alloc_array(capacity, sizeof *m->weights);
    if (!m->weights)
        return llm_fail_memory(err, capacity * sizeof *m->weights, "the table of weights");
    builder b = {
        .file = m->file, .arch = a->name, .plan = &m->plan, .weights = m->weights, .err = err};
    a->build(&b);
    m->n_weights = b.n_weights;
    m->ropes = b.ropes;
    m->n_ropes = b.n_ropes;
    m->shape = b.shape;
    return b.failed ? -1 : 0;
}

static int choose_kv(llm_model *m, const llm_options *o, llm_error *err) {
    kern_kv_shape *s = &m->pages.shape;
    *s = (kern_kv_shape){m->shape.n_layers, m->shape.n_heads_kv, m->shape.head_dim,
                         m->shape.head_dim_v, 0};
    if (parse_kv(o->kv, m->device->backend->kv_default, &s->type, err)) return -1;
    if (s->type == KERN_KV_Q8_0 && (s->head_dim_k % 32 || s->head_dim_v % 32))
        return llm_fail(
            err, LLM_MISUSE,
            "kv q8_0 needs heads of a multiple of 32 values, this model's have %d and %d",
            s->head_dim_k, s->head_dim_v);
    return 0;
}

static int open_cache(llm_model *m, const llm_options *o, llm_error *err) {
    const kern_backend *backend = m->runner->backend;
    const kern_kv_shape shape = m->pages.shape;
    size_t page_bytes = backend->page_bytes(m->runner->kern, &shape);
    int64_t n_pages = o->n_pages ? o->n_pages : default_pages(m, page_bytes);
    if (check_range("pages", n_pages, 1, PAGES_MAX, err)) return -1;
    if (pages_open(&m->pages, m->runner, m->device, &shape, (int32_t)n_pages, err) ||
        swap_open(&m->pages, o->swap_pages, err))
        return -1;
    m->info.n_pages = n_pages;
    m->info.page_bytes = (int64_t)page_bytes;
    m->info.position_bytes = (int64_t)backend->position_bytes(&shape);
    m->info.kv = kv_names[shape.type];
    int code =
        backend->work_open(m->runner->kern, &m->plan, m->pages.kern, (int32_t)m->piece, &m->work);
    if (code == KERN_OK) m->memory.scratch_bytes = (int64_t)backend->work_bytes(m->work);
    return device_check(m->runner, code, "the buffers of a forward pass", err);
}

static int take_texts(llm_model *m, llm_error *err) {
    gguf_string name = {"", 0}, template = tokenizer_chat_template(m->tokenizer);
    if (gguf_get_string(m->file, "general.name", &name, err) < 0) return -1;
    m->name = copy_text(name.data, name.n);
    if (template.n) m->chat_template = copy_text(template.data, template.n);
    if (!m->name || (template.n && !m->chat_template))
        return llm_fail_memory(err, name.n + template.n, "the model's texts");
    const char *warning = tokenizer_warning(m->tokenizer);
    if (warning && !*m->warning) snprintf(m->warning, sizeof m->warning, "%s", warning);
    return 0;
}

static int take_eog(llm_model *m, const llm_options *o, llm_error *err) {
    int32_t ids[3];
    const int32_t *from = ids;
    int64_t n = tokenizer_eog(m->tokenizer, ids);
    if (o->n_eog >= 0) {
        from = o->eog;
        n = o->n_eog;
    }
    if (model_check_ids(m, from, (size_t)n, err)) return -1;
    m->eog = kern_alloc_array((size_t)n + 1, sizeof *m->eog);
    if (!m->eog)
        return llm_fail_memory(err, ((size_t)n + 1) * sizeof *m->eog, "the end-of-generation ids");
    if (n) memcpy(m->eog, from, (size_t)n * sizeof *m->eog);
    m->info.eog = m->eog;
    m->info.n_eog = n;
    return 0;
}

static int check_vocabulary(llm_model *m, llm_error *err) {
    int64_t n_tokens = tokenizer_n_tokens(m->tokenizer), rows = m->shape.vocab_size;
    if (n_tokens <= rows) return 0;
    return llm_fail(err, LLM_INPUT,
                    "%s: the tokenizer has %lld tokens, token_embd.weight only %lld rows", m->path,
                    (long long)n_tokens, (long long)rows);
}

static int load(llm_model *m, const llm_options *o, llm_error *err) {
    llm_model_info *info = &m->info;
    if (build_plan(m, err) || model_place_layers(m, o, err)) return -1;
    m->tokenizer = tokenizer_new(m->file, err);
    if (!m->tokenizer) return -1;
    info->vocab_size = m->shape.vocab_size;
    if (check_vocabulary(m, err) || take_eog(m, o, err) || choose_limits(m, o, err) ||
        choose_kv(m, o, err) || take_texts(m, err))
        return -1;
    if (model_bind_weights(m, o, err) || open_cache(m, o, err)) {
        if (err) model_suggest_layers(m, err);
        return -1;
    }
    info->arch = m->arch_name;
    info->name = m->name;
    info->path = m->path;
    info->chat_template = m->chat_template;
    info->warning = *m->warning ? m->warning : NULL;
    info->device_info = llm_device_describe(m->runner);
    info->n_layers = m->shape.n_layers;
    info->width = m->shape.width;
    info->bos = tokenizer_bos(m->tokenizer);
    return 0;
}

static llm_model *model_open(gguf_file *file, const char *path, llm_device *device,
                             const llm_options *options, double started, llm_error *err) {
    static const llm_options defaults = {.n_eog = -1};
    const llm_options *o = options ? options : &defaults;
    llm_model *m = file ? kern_alloc(sizeof *m) : NULL;
    if (!m) {
        if (file) llm_fail_memory(err, sizeof *m, "a model");
        gguf_close(file);
        return NULL;
    }
    m->references = 1;
    m->file = file;
    m->device = device_retain(device);
    m->runner = device_retain(device);
    m->watch = o->watch;
    m->path = copy_text(path, strlen(path));
    int failed = !m->path ? llm_fail_memory(err, strlen(path) + 1, "a path") : load(m, o, err);
    if (failed) {
        llm_model_close(m);
        return NULL;
    }
    m->info.load_s = device_clock() - started;
    return m;
}

llm_model *llm_load(const char *path, llm_device *device, const llm_options *options,
                    llm_error *err) {
    double started = device_clock();
    return model_open(gguf_open(path, err), path, device, options, started, err);
}

llm_model *llm_load_memory(const void *data, size_t bytes, const char *name, llm_device *device,
                           const llm_options *options, llm_error *err) {
    double started = device_clock();
    return model_open(gguf_open_memory(data, bytes, name, err), name, device, options, started,
                      err);
}

llm_model *model_retain(llm_model *m) {
    m->references++;
    return m;
}

void llm_model_close(llm_model *m) {
    if (!m || --m->references > 0) return;
    passes_close(m->passes);
    profile_close(m);
    if (m->work) m->runner->backend->work_close(m->runner->kern, m->work);
    pages_close(&m->pages);
    model_unbind_weights(m);
    for (int32_t i = 0; i < m->n_weights; i++) {
        kern_free(m->weights[i].owned);
        if (!m->weights[i].slice) kern_free((char *)m->weights[i].name);
    }
    kern_free(m->weights);
    builder_free_plan(&m->plan, m->ropes, m->n_ropes);
    tokenizer_free(m->tokenizer);
    gguf_close(m->file);
    kern_free(m->eog);
    kern_free(m->path);
    kern_free(m->name);
    kern_free(m->chat_template);
    llm_device_close(m->runner);
    llm_device_close(m->host);
    llm_device_close(m->device);
    kern_free(m);
}

/* ---- questions ---- */

const llm_model_info *llm_model_get_info(const llm_model *m) { return &m->info; }
llm_device *llm_model_device(const llm_model *m) { return m->device; }

bool llm_model_is_eog(const llm_model *m, int32_t id) {
    for (int64_t i = 0; i < m->info.n_eog; i++)
        if (m->eog[i] == id) return true;
    return false;
}

int model_check_ids(const llm_model *m, const int32_t *ids, size_t n, llm_error *err) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= m->info.vocab_size)
            return llm_fail(err, LLM_MISUSE, "id %d is outside the vocabulary 0 … %lld", ids[i],
                            (long long)m->info.vocab_size - 1);
    return 0;
}

int llm_model_share_prefixes(llm_model *m, bool on, llm_error *err) {
    int64_t context = pages_for(m->info.ctx), part = m->info.n_pages / RESTING_PART;
    return pages_share(&m->pages, on, (int32_t)(part > context ? part : context), err);
}

void llm_model_pages(const llm_model *m, int64_t *n_free, int64_t *n_pages) {
    *n_free = pages_available(&m->pages);
    *n_pages = m->pages.n_pages;
}

const uint64_t *model_hash(llm_model *m) {
    if (!m->hash[0] && !m->hash[1]) gguf_hash(m->file, NULL, m->hash);
    return m->hash;
}

void llm_model_hash(llm_model *m, uint64_t hash[2]) {
    memcpy(hash, model_hash(m), 2 * sizeof *hash);
}
