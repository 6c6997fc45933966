/* request.c: feeds as they are opened, held, taken back, finished. serve.c feeds them. */
#include "request.h"

#include "../kernels/memory.h"
#include <string.h>

/* ---- checks ---- */

static int32_t depth_of(const llm_model *m, const llm_feed *f) {
    return f->exit ? f->exit : (int32_t)m->info.n_layers;
}

/* Parents are 0 or an earlier id of the same cache. */
static int check_parents(const llm_feed *f, int64_t i_cache, const int32_t *parents,
                         llm_error *err) {
    for (int64_t i = 0; i < f->counts[i_cache]; i++)
        if (parents[i] < 0 || parents[i] > i)
            return llm_fail(err, LLM_MISUSE, "parent %d of id %lld is outside 0 … %lld", parents[i],
                            (long long)i + 1, (long long)i);
    return 0;
}

static int check_cache(const llm_model *m, const llm_feed *f, int64_t i, llm_error *err) {
    const llm_cache *c = f->caches[i];
    if (c->model != m)
        return llm_fail(err, LLM_MISUSE, "cache %lld belongs to another model", (long long)i + 1);
    if (f->counts[i] < 1)
        return llm_fail(err, LLM_MISUSE, "cache %lld is fed no ids", (long long)i + 1);
    if (cache_check_free(c, i + 1, err)) return -1;
    if (c->tree)
        return llm_fail(err, LLM_MISUSE,
                        "cache %lld ends in a tree of %lld candidates: keep or truncate first",
                        (long long)i + 1, (long long)(c->n - c->n_before_tree));
    if (cache_depth(c) < depth_of(m, f))
        return llm_fail(
            err, LLM_MISUSE,
            "cache %lld holds positions of %d layers, a pass of %d layers needs them truncated",
            (long long)i + 1, cache_depth(c), depth_of(m, f));
    for (int64_t j = 0; j < i; j++)
        if (c == f->caches[j])
            return llm_fail(err, LLM_MISUSE, "cache %lld is cache %lld again", (long long)i + 1,
                            (long long)j + 1);
    return 0;
}

static int check_feed(llm_model *m, const llm_feed *f, int64_t *n_total, llm_error *err) {
    *n_total = 0;
    if (f->n_caches < 1) return llm_fail(err, LLM_MISUSE, "forward needs a cache, got none");
    if (f->exit < 0 || f->exit > m->info.n_layers)
        return llm_fail(err, LLM_MISUSE, "exit %d is outside 1 … %lld", f->exit,
                        (long long)m->info.n_layers);
    for (int64_t i = 0; i < f->n_caches; i++) {
        if (check_cache(m, f, i, err) ||
            (f->parents && check_parents(f, i, f->parents + *n_total, err)))
            return -1;
        *n_total += f->counts[i];
    }
    if (f->parents && *n_total > m->piece)
        return llm_fail(err, LLM_MISUSE,
                        "trees of %lld candidates in one pass, at most %lld (piece)",
                        (long long)*n_total, (long long)m->piece);
    for (int64_t i = 0; i < f->n_layers; i++)
        if (f->layers[i] < 0 || f->layers[i] > depth_of(m, f))
            return llm_fail(err, LLM_MISUSE, "hidden layer %d is outside 0 … %d", f->layers[i],
                            depth_of(m, f));
    if (f->rows < LLM_ROWS_ALL)
        return llm_fail(err, LLM_MISUSE, "rows must be at least 0, got %lld", (long long)f->rows);
    return 0;
}

/* ---- making them ---- */

llm_request *request_new(llm_model *m, request_kind kind, int64_t n_parts, int64_t n_ids,
                         llm_error *err) {
    llm_request *r = kern_alloc(sizeof *r);
    if (!r) {
        llm_fail_memory(err, sizeof *r, "a request");
        return NULL;
    }
    r->kind = kind;
    r->info.model = model_retain(m);
    r->info.n_ids = n_ids;
    r->depth = (int32_t)m->info.n_layers;
    r->parts = kern_alloc_array((size_t)n_parts, sizeof *r->parts);
    r->ids = kern_alloc_array((size_t)n_ids, sizeof *r->ids);
    if (r->parts && r->ids) {
        r->n_parts = n_parts;
        return r;
    }
    llm_fail_memory(err, (size_t)n_ids * sizeof *r->ids, "the ids of a feed");
    llm_request_close(r);
    return NULL;
}

/* From here on the caches are held. */
static void hold(llm_request *r, int64_t i_part, llm_cache *c) {
    request_part *p = &r->parts[i_part];
    p->cache = p->fed = c;
    p->n_before = c->n;
    c->feeding = r;
}

llm_tensor *request_rows(llm_model *m, int64_t n_rows, int64_t n_columns, llm_error *err) {
    if (n_rows > m->info.max_rows) {
        llm_fail(err, LLM_MISUSE, "%lld rows asked, --max-rows is %lld", (long long)n_rows,
                 (long long)m->info.max_rows);
        return NULL;
    }
    return tensor_alloc(m->device, LLM_F32, n_rows, n_columns, err);
}

static int open_parts(llm_request *r, const llm_feed *f, llm_error *err) {
    llm_model *m = r->info.model;
    int64_t first = 0, n_rows = 0;
    for (int64_t i = 0; i < f->n_caches; i++) {
        int64_t n = f->counts[i], wanted = f->rows == LLM_ROWS_ALL || f->rows > n ? n : f->rows;
        r->parts[i] = (request_part){.first = first,
                                     .count = n,
                                     .first_wanted = n - wanted,
                                     .end_wanted = n,
                                     .first_row = n_rows};
        first += n;
        n_rows += wanted;
    }
    if (n_rows && n_rows <= HEAD_ROWS && n_rows <= m->info.max_rows)
        r->logits = tensor_alloc_later(m->device, LLM_F32, n_rows, m->info.vocab_size, err);
    else if (n_rows)
        r->logits = request_rows(m, n_rows, m->info.vocab_size, err);
    if (n_rows && !r->logits) return -1;
    if (f->n_layers == 0) return 0;
    r->layers = kern_alloc_array((size_t)f->n_layers, sizeof *r->layers);
    r->hidden = kern_alloc_array((size_t)f->n_layers, sizeof(llm_tensor *));
    if (!r->layers || !r->hidden)
        return llm_fail_memory(err, (size_t)f->n_layers * sizeof(llm_tensor *), "hidden states");
    memcpy(r->layers, f->layers, (size_t)f->n_layers * sizeof *r->layers);
    for (; r->n_layers < f->n_layers; r->n_layers++)
        if (!(r->hidden[r->n_layers] = request_rows(m, r->info.n_ids, m->info.width, err)))
            return -1;
    return 0;
}

/* A choice that nobody has read is fed as it lies on the device, if each cache gets one id of it.
 * Not to a split model, whose embedding is not there: reading it waits. */
static int take_late(llm_request *r, llm_tensor *t, llm_error *err) {
    const llm_model *m = r->info.model;
    if (!llm_tensor_is_late(t) || t->device != m->device || model_is_split(m) ||
        r->info.n_ids != r->n_parts)
        return 0;
    r->late = llm_late_of(t, err);
    return r->late ? 0 : -1;
}

/* ids come as a host list or as an i32 tensor; the host copy is what caches remember. */
static int take_ids(llm_request *r, const llm_feed *f, llm_error *err) {
    int64_t n = r->info.n_ids;
    if (f->ids) {
        memcpy(r->ids, f->ids, (size_t)n * sizeof *r->ids);
    } else {
        llm_tensor *t = (llm_tensor *)f->ids_tensor;
        if (t->info.dtype != LLM_I32 || t->info.n_rows * t->info.n_columns != n)
            return llm_fail(err, LLM_MISUSE,
                            "ids must be an i32 tensor of %lld entries, got %s %lld × %lld",
                            (long long)n, t->info.dtype == LLM_I32 ? "i32" : "f32",
                            (long long)t->info.n_rows, (long long)t->info.n_columns);
        if (!f->parents && take_late(r, t, err)) return -1;
        if (r->late) return 0;
        if (llm_tensor_read(t, 0, n, r->ids, err)) return -1;
    }
    return model_check_ids(r->info.model, r->ids, (size_t)n, err);
}

static int copy_list(const int32_t *from, int64_t n, int32_t **to, llm_error *err) {
    *to = kern_alloc_array((size_t)n, sizeof **to);
    if (!*to) return llm_fail_memory(err, (size_t)n * sizeof **to, "a tree of candidates");
    memcpy(*to, from, (size_t)n * sizeof **to);
    return 0;
}

/* Copies of the parents for the pass and for the caches to keep. A tree that is a chain is none. */
static int take_trees(llm_request *r, const int32_t *parents, llm_error *err) {
    bool is_tree = false;
    for (int64_t i = 0; parents && i < r->n_parts; i++) {
        request_part *p = &r->parts[i];
        const int32_t *own = parents + p->first;
        bool is_chain = true;
        for (int64_t j = 0; j < p->count; j++) is_chain = is_chain && own[j] == j;
        if (!is_chain && copy_list(own, p->count, &p->tree, err)) return -1;
        is_tree = is_tree || !is_chain;
    }
    return is_tree ? copy_list(parents, r->info.n_ids, &r->parents, err) : 0;
}

static int check_contexts(const llm_request *r, const llm_feed *f, llm_error *err) {
    for (int64_t i = 0; i < r->n_parts; i++)
        if (cache_check_context(f->caches[i], f->counts[i], err) ||
            (r->late && cache_reserve_late(f->caches[i], err)))
            return -1;
    return 0;
}

llm_request *llm_request_open(llm_model *m, const llm_feed *f, llm_error *err) {
    int64_t n_ids;
    if (check_feed(m, f, &n_ids, err)) return NULL;
    llm_request *r = request_new(m, REQUEST_FORWARD, f->n_caches, n_ids, err);
    if (!r) return NULL;
    r->depth = depth_of(m, f);
    if (open_parts(r, f, err) || take_ids(r, f, err) || take_trees(r, f->parents, err) ||
        check_contexts(r, f, err)) {
        llm_request_close(r);
        return NULL;
    }
    for (int64_t i = 0; i < r->n_parts; i++) hold(r, i, f->caches[i]);
    return r;
}

/* ---- score ---- */

static int check_score(llm_model *m, llm_cache *c, const int32_t *ids, size_t n, llm_error *err) {
    if (c->model != m) return llm_fail(err, LLM_MISUSE, "the cache belongs to another model");
    if (cache_check_free(c, 0, err)) return -1;
    if (c->n < 1)
        return llm_fail(err, LLM_MISUSE,
                        "score needs a cache that holds a token, this one is empty");
    if (n < 1) return llm_fail(err, LLM_MISUSE, "score needs ids, got none");
    if (c->tree || cache_depth(c) < m->info.n_layers)
        return llm_fail(
            err, LLM_MISUSE,
            "score needs a cache without a tree and with all %lld layers of each position",
            (long long)m->info.n_layers);
    return model_check_ids(m, ids, n, err) || cache_check_context(c, (int64_t)n, err) ? -1 : 0;
}

/* The cache's last id is fed again, so that its row predicts the first of ids, to a fork that takes
 * the cache's place in the end. The last row predicts nothing that was asked for. */
llm_request *llm_request_open_score(llm_model *m, llm_cache *c, const int32_t *ids, size_t n,
                                    llm_error *err) {
    if (check_score(m, c, ids, n, err)) return NULL;
    int64_t count = (int64_t)n;
    llm_request *r = request_new(m, REQUEST_SCORE, 1, count + 1, err);
    if (!r) return NULL;
    if (cache_settle(c, err)) {
        llm_request_close(r);
        return NULL;
    }
    r->ids[0] = c->ids[c->n - 1];
    memcpy(r->ids + 1, ids, n * sizeof *ids);
    r->targets = llm_tensor_new(m->device, LLM_I32, count, 1, ids, err);
    r->logits = r->targets ? tensor_alloc(m->device, LLM_F32, count, 1, err) : NULL;
    if (!r->logits) {
        llm_request_close(r);
        return NULL;
    }
    r->parts[0] = (request_part){.count = count + 1, .end_wanted = count};
    hold(r, 0, c);
    return r;
}

/* A score without its fork waits for one. */
static bool has_fork(const request_part *p) { return p->fed != p->cache; }

int request_begin(llm_request *r, llm_error *err) {
    for (int64_t i = 0; i < r->n_parts; i++) {
        request_part *p = &r->parts[i];
        if (r->kind != REQUEST_REFILL && cache_check_whole(p->cache, i + 1, err)) return -1;
    }
    if (r->kind != REQUEST_SCORE || has_fork(r->parts)) return 0;
    request_part *p = r->parts;
    llm_cache *fork = cache_fork(p->cache, p->cache->n - 1, err);
    if (!fork) return -1;
    p->fed = fork;
    p->n_before = fork->n;
    return 0;
}

/* ---- taking back ---- */

static void part_undo(const llm_request *r, request_part *p) {
    if (!p->cache) return;
    if (has_fork(p)) {
        llm_cache_close(p->fed);
        p->fed = p->cache;
    } else if (p->n_fed) {
        cache_undo(p->fed, p->n_before, r->kind == REQUEST_REFILL);
    }
    p->n_fed = 0;
}

static void let_go(llm_request *r, request_part *p) {
    if (!p->cache) return;
    if (r->kind == REQUEST_REFILL)
        p->cache->refill = NULL;
    else
        p->cache->feeding = NULL;
    p->cache = p->fed = NULL;
}

void llm_request_rewind(llm_request *r) {
    if (r->info.is_done || r->info.is_failed) return;
    for (int64_t i = 0; i < r->n_parts; i++) part_undo(r, &r->parts[i]);
    r->info.n_fed = 0;
    r->info.n_reused = 0;
}

void request_fail(llm_request *r, const llm_error *why) {
    llm_request_rewind(r);
    for (int64_t i = 0; i < r->n_parts; i++) let_go(r, &r->parts[i]);
    r->info.is_failed = true;
    r->info.error = *why;
}

void request_lose_cache(llm_request *r, llm_cache *c) {
    llm_error why;
    int64_t i_lost = 0;
    for (int64_t i = 0; i < r->n_parts; i++)
        if (r->parts[i].cache == c) i_lost = i;
    llm_fail(&why, LLM_MISUSE, "cache %lld was closed while it was fed", (long long)i_lost + 1);
    request_fail(r, &why);
}

void llm_request_close(llm_request *r) {
    if (!r) return;
    llm_request_rewind(r);
    for (int64_t i = 0; i < r->n_parts; i++) {
        let_go(r, &r->parts[i]);
        kern_free(r->parts[i].tree);
    }
    for (int64_t i = 0; i < r->n_layers; i++) llm_tensor_close(r->hidden[i]);
    llm_tensor_close(r->logits);
    llm_tensor_close(r->targets);
    kern_free(r->hidden);
    kern_free(r->layers);
    kern_free(r->parents);
    kern_free(r->parts);
    kern_free(r->ids);
    llm_late_close(r->late);
    llm_model_close(r->info.model);
    kern_free(r);
}

/* ---- going on ---- */

bool request_may_reuse(const llm_request *r, const request_part *p, const int32_t **ids) {
    const llm_model *m = r->info.model;
    bool begins = r->kind == REQUEST_REFILL || (r->kind == REQUEST_FORWARD && p->n_before == 0);
    int64_t most = p->first_wanted < p->end_wanted ? p->first_wanted : p->count;
    *ids = r->ids + p->first + p->n_fed;
    return begins && !r->is_swap && m->pages.store && !r->parents && !r->n_layers &&
           r->depth == m->info.n_layers && p->fed->n % KERN_PAGE_POSITIONS == 0 &&
           p->n_fed + KERN_PAGE_POSITIONS <= most;
}

int request_reuse(llm_request *r, llm_error *err) {
    const int32_t *ids;
    for (int64_t i = 0; i < r->n_parts; i++) {
        request_part *p = &r->parts[i];
        while (request_may_reuse(r, p, &ids)) {
            int32_t page = cache_find_next(p->fed, ids);
            if (page < 0) break;
            if (cache_append_page(p->fed, page, ids, r->depth, err)) return -1;
            p->n_fed += KERN_PAGE_POSITIONS;
            r->info.n_fed += KERN_PAGE_POSITIONS;
            r->info.n_reused += KERN_PAGE_POSITIONS;
            r->info.model->device->prefix_tokens += KERN_PAGE_POSITIONS;
        }
    }
    return 0;
}

void request_commit(llm_request *r, request_part *p, int64_t n) {
    const int32_t *known = r->late ? late_known(r->late) : r->ids;
    cache_commit(p->fed, (known ? known : r->ids) + p->first + p->n_fed, n, r->depth);
    if (!known) cache_add_late(p->fed, r->late, p->first);
    p->n_fed += n;
    r->info.n_fed += n;
    if (!r->parents) cache_publish(p->fed);
}

static void part_finish(llm_request *r, request_part *p) {
    llm_cache *c = p->fed;
    if (r->kind != REQUEST_REFILL) {
        c->n_before_tree = p->n_before;
        c->tree = p->tree;
        c->n_passes++;
        p->tree = NULL;
    }
    if (has_fork(p)) {
        cache_swap(p->cache, p->fed);
        llm_cache_close(p->fed);
    }
    let_go(r, p);
}

void request_finish(llm_request *r) {
    int64_t step = 0;
    for (int64_t i = 0; i < r->n_parts; i++) {
        if (step <= r->parts[i].fed->n_passes) step = r->parts[i].fed->n_passes + 1;
        part_finish(r, &r->parts[i]);
    }
    if (r->logits) r->logits->info.is_logits = r->kind == REQUEST_FORWARD;
    if (r->logits) r->logits->info.step = step;
    for (int64_t i = 0; i < r->n_layers; i++) r->hidden[i]->info.step = step;
    r->info.is_done = true;
}

const llm_request_info *llm_request_get_info(const llm_request *r) { return &r->info; }

void llm_request_take(llm_request *r, llm_tensor **logits, llm_tensor **hidden) {
    if (logits) *logits = NULL;
    for (int64_t i = 0; i < r->n_layers; i++) hidden[i] = NULL;
    if (!r->info.is_done) return;
    if (logits) {
        *logits = r->logits;
        r->logits = NULL;
    }
    for (int64_t i = 0; i < r->n_layers; i++) {
        hidden[i] = r->hidden[i];
        r->hidden[i] = NULL;
    }
}
