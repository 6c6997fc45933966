/* forward.c: passes over the weights. A feed is cut into pieces of bounded memory; each piece runs
 * the plan's layers on all its rows, copies the residual stream where hidden states are wanted, and
 * runs the head on the rows whose logits are wanted. Sequences are committed only when every piece
 * is through. */
#include "cache.h"
#include "tensor.h"

#include "../kernels/memory.h"
#include <string.h>

#define HEAD_ROWS 64 /* rows of logits that score keeps at a time */

/* Where results go: hidden rows (row number in the whole feed), and logits, a few rows at a time.
 */
typedef struct pass {
    llm_model *model;
    const llm_feed *feed;
    int32_t *ids; /* all ids of the feed, host */
    llm_tensor *device_ids;
    llm_tensor **hidden;      /* feed->n_layers of them, or NULL */
    llm_tensor *logits;       /* all rows wanted, or NULL */
    llm_tensor *targets;      /* score: the id that follows each row */
    llm_tensor *scores;       /* score: log-probabilities of the targets */
    llm_tensor *chunk;        /* score: HEAD_ROWS rows of logits */
    int64_t n_rows;           /* of logits done */
    kern_sequence *sequences; /* n_caches */
    int32_t **trees;          /* n_caches, until the caches take them over; or NULL */
    int64_t n_total;
} pass;

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

static int check_feed(llm_model *m, const llm_feed *f, llm_error *err) {
    int64_t n_total = 0;
    if (f->n_caches < 1) return llm_fail(err, LLM_MISUSE, "forward needs a cache, got none");
    if (f->exit < 0 || f->exit > m->info.n_layers)
        return llm_fail(err, LLM_MISUSE, "exit %d is outside 1 … %lld", f->exit,
                        (long long)m->info.n_layers);
    for (int64_t i = 0; i < f->n_caches; i++) {
        if (check_cache(m, f, i, err) ||
            (f->parents && check_parents(f, i, f->parents + n_total, err)))
            return -1;
        n_total += f->counts[i];
    }
    if (f->parents && n_total > m->piece)
        return llm_fail(err, LLM_MISUSE,
                        "trees of %lld candidates in one pass, at most %lld (piece)",
                        (long long)n_total, (long long)m->piece);
    for (int64_t i = 0; i < f->n_layers; i++)
        if (f->layers[i] < 0 || f->layers[i] > depth_of(m, f))
            return llm_fail(err, LLM_MISUSE, "hidden layer %d is outside 0 … %d", f->layers[i],
                            depth_of(m, f));
    if (f->rows < LLM_ROWS_ALL)
        return llm_fail(err, LLM_MISUSE, "rows must be at least 0, got %lld", (long long)f->rows);
    return 0;
}

static int64_t rows_wanted(const llm_feed *f, int64_t i_cache) {
    int64_t n = f->counts[i_cache];
    return f->rows == LLM_ROWS_ALL || f->rows > n ? n : f->rows;
}

/* ids come as a host list or as an i32 tensor; the host copy is what caches remember. */
static int take_ids(pass *p, llm_error *err) {
    const llm_feed *f = p->feed;
    size_t bytes = (size_t)p->n_total * sizeof *p->ids;
    p->ids = kern_alloc(bytes);
    if (!p->ids) return llm_fail_memory(err, bytes, "the ids of a feed");
    if (f->ids) {
        memcpy(p->ids, f->ids, bytes);
    } else {
        llm_tensor *t = (llm_tensor *)f->ids_tensor;
        if (t->info.dtype != LLM_I32 || t->info.n_rows * t->info.n_columns != p->n_total)
            return llm_fail(err, LLM_MISUSE,
                            "ids must be an i32 tensor of %lld entries, got %s %lld × %lld",
                            (long long)p->n_total, t->info.dtype == LLM_I32 ? "i32" : "f32",
                            (long long)t->info.n_rows, (long long)t->info.n_columns);
        if (llm_tensor_read(t, 0, p->n_total, p->ids, err)) return -1;
    }
    if (model_check_ids(p->model, p->ids, (size_t)p->n_total, err)) return -1;
    p->device_ids = llm_tensor_new(p->model->device, LLM_I32, p->n_total, 1, p->ids, err);
    return p->device_ids ? 0 : -1;
}

/* ---- the head ---- */

static int run(pass *p, int32_t first, int32_t count, const kern_batch *batch, llm_error *err) {
    llm_model *m = p->model;
    int code = m->device->backend->run(m->device->kern, m->work, &m->plan, first, count, batch);
    return device_check(m->device, code, "a forward pass", err);
}

/* Final norm and output matrix on rows 0 … n-1 of the residual buffer, into rows of `out` from
 * i_row. */
static int run_head(pass *p, int64_t n, llm_tensor *out, int64_t i_row, llm_error *err) {
    const struct plan *steps = &p->model->plan;
    int32_t first = steps->first_op[steps->n_layers + 1];
    kern_batch batch = {.n_rows = (int32_t)n, .stop = p->model->watch.stop};
    batch.logits = tensor_view(out);
    batch.logits.offset = (size_t)i_row * (size_t)out->info.n_columns * sizeof(float);
    batch.logits.n_rows = n;
    return run(p, first, steps->first_op[steps->n_layers + 2] - first, &batch, err);
}

/* Moves rows [from, from + n) of the residual stream to its beginning. */
static int compact(pass *p, int64_t to, int64_t from, int64_t n, llm_error *err) {
    llm_model *m = p->model;
    if (to == from || n == 0) return 0;
    kern_buffer *x = m->device->backend->work_buffer(m->work, m->plan.residual);
    size_t row = (size_t)m->info.width * sizeof(float);
    int code = 0;
    for (int64_t i = 0; i < n && !code; i++) /* row by row: the ranges may overlap */
        code = m->device->backend->copy(m->device->kern, x, (size_t)(to + i) * row, x,
                                        (size_t)(from + i) * row, row);
    return device_check(m->device, code, "copying hidden states", err);
}

/* log-probability of the target of each of n rows of p->chunk, into p->scores. */
static int score_chunk(pass *p, int64_t n, llm_error *err) {
    llm_model *m = p->model;
    llm_tensor *rows = NULL, *targets = NULL, *picked = NULL, *sums = NULL, *scores = NULL;
    int failed =
        llm_op_narrow(p->chunk, 1, 0, n, &rows, err) ||
        llm_op_narrow(p->targets, 1, p->n_rows, n, &targets, err) ||
        llm_op_gather(rows, targets, &picked, err) ||
        llm_op_reduce(LLM_LOGSUMEXP, rows, &sums, err) ||
        llm_op_binary(LLM_SUB, (llm_operand){.t = picked}, (llm_operand){.t = sums}, &scores, err);
    if (!failed) {
        int code = m->device->backend->copy(m->device->kern, &p->scores->buffer,
                                            (size_t)p->n_rows * sizeof(float), &scores->buffer, 0,
                                            (size_t)n * sizeof(float));
        failed = device_check(m->device, code, "copying scores", err);
    }
    llm_tensor_close(rows);
    llm_tensor_close(targets);
    llm_tensor_close(picked);
    llm_tensor_close(sums);
    llm_tensor_close(scores);
    return failed ? -1 : 0;
}

/* The head for n rows that stand at the beginning of the residual buffer. */
static int finish_rows(pass *p, int64_t n, llm_error *err) {
    if (p->logits && n) {
        if (run_head(p, n, p->logits, p->n_rows, err)) return -1;
        p->n_rows += n;
    }
    for (int64_t i = 0; p->scores && i < n;) {
        int64_t m = n - i < HEAD_ROWS ? n - i : HEAD_ROWS;
        if (compact(p, 0, i, m, err) || run_head(p, m, p->chunk, 0, err) || score_chunk(p, m, err))
            return -1;
        p->n_rows += m;
        i += m;
    }
    return 0;
}

/* ---- the layers ---- */

static int copy_hidden(pass *p, int32_t layer, int64_t i_row, int64_t n, llm_error *err) {
    llm_model *m = p->model;
    kern_buffer *x = m->device->backend->work_buffer(m->work, m->plan.residual);
    size_t row = (size_t)m->info.width * sizeof(float);
    for (int64_t i = 0; i < p->feed->n_layers; i++) {
        if (p->feed->layers[i] != layer || !p->hidden) continue;
        int code = m->device->backend->copy(m->device->kern, &p->hidden[i]->buffer,
                                            (size_t)i_row * row, x, 0, (size_t)n * row);
        if (device_check(m->device, code, "copying hidden states", err)) return -1;
    }
    return 0;
}

static bool wants_layer(const pass *p, int32_t layer) {
    for (int64_t i = 0; p->hidden && i < p->feed->n_layers; i++)
        if (p->feed->layers[i] == layer) return true;
    return false;
}

/* The layers asked for, in as few runs as the hidden states asked for allow. */
static int run_layers(pass *p, const kern_batch *batch, int64_t i_row, llm_error *err) {
    const struct plan *steps = &p->model->plan;
    int32_t first = 0, depth = depth_of(p->model, p->feed);
    for (int32_t layer = 0; layer <= depth; layer++) {
        if (layer < depth && !wants_layer(p, layer)) continue;
        int32_t end = steps->first_op[layer + 1];
        if (run(p, first, end - first, batch, err) ||
            copy_hidden(p, layer, i_row, batch->n_rows, err))
            return -1;
        first = end;
    }
    return 0;
}

/* One piece: rows i_row … of the feed, n_rows of them in the n sequences of p->sequences. */
static int run_piece(pass *p, int64_t n, int64_t i_row, int64_t n_rows, llm_error *err) {
    kern_batch batch = {.n_rows = (int32_t)n_rows,
                        .n_sequences = (int32_t)n,
                        .sequences = p->sequences,
                        .parents = p->feed->parents,
                        .stop = p->model->watch.stop};
    batch.ids = tensor_view(p->device_ids);
    batch.ids.offset = (size_t)i_row * sizeof(int32_t);
    batch.ids.n_rows = n_rows;
    p->model->device->forward_rows += (uint64_t)n_rows;
    return run_layers(p, &batch, i_row, err);
}

/* Of a cache's ids [done, done + n) of a piece, whose rows start at `row`: those whose logits are
 * wanted are moved to the rows from *n_wanted on. */
static int select_rows(pass *p, int64_t i_cache, int64_t done, int64_t n, int64_t row,
                       int64_t *n_wanted, llm_error *err) {
    int64_t first = p->feed->counts[i_cache] - rows_wanted(p->feed, i_cache);
    int64_t skipped = first > done ? first - done : 0;
    if (skipped >= n) return 0;
    if (compact(p, *n_wanted, row + skipped, n - skipped, err)) return -1;
    *n_wanted += n - skipped;
    return 0;
}

static void report(const pass *p, int64_t done) {
    const llm_watch *w = &p->model->watch;
    if (w->progress) w->progress(w->data, "prefill", done, p->n_total);
}

static int run_pieces(pass *p, llm_error *err) {
    const llm_feed *f = p->feed;
    int64_t i_cache = 0, done = 0; /* ids of i_cache that earlier pieces fed */
    for (int64_t i_row = 0; i_row < p->n_total;) {
        int64_t first_cache = i_cache, first_done = done, n = 0, n_rows = 0, n_wanted = 0;
        while (i_cache < f->n_caches && n_rows < p->model->piece) {
            int64_t left = f->counts[i_cache] - done, room = p->model->piece - n_rows;
            int64_t taken = left < room ? left : room;
            const llm_cache *c = f->caches[i_cache];
            p->sequences[n++] =
                (kern_sequence){c->pages, (int32_t)(c->n + done), (int32_t)taken, (int32_t)n_rows};
            n_rows += taken;
            done += taken;
            if (done == f->counts[i_cache]) {
                i_cache++;
                done = 0;
            }
        }
        if (run_piece(p, n, i_row, n_rows, err)) return -1;
        for (int64_t i = 0; i < n; i++) {
            int64_t before = i == 0 ? first_done : 0;
            if (select_rows(p, first_cache + i, before, p->sequences[i].n_rows,
                            p->sequences[i].first_row, &n_wanted, err))
                return -1;
        }
        if (finish_rows(p, n_wanted, err)) return -1;
        i_row += n_rows;
        report(p, i_row);
    }
    return 0;
}

/* ---- whole feeds ---- */

static double clock_begin(llm_device *device) {
    double started = device_clock();
    if (device->passes++) device->between_s += started - device->last_end;
    return started;
}

static void clock_end(llm_device *device, double started) {
    device->last_end = device_clock();
    device->step_s += device->last_end - started;
}

static int extend_all(const llm_feed *f, llm_error *err) {
    for (int64_t i = 0; i < f->n_caches; i++) {
        if (cache_extend(f->caches[i], f->counts[i], err) == 0) continue;
        while (i-- > 0) cache_trim(f->caches[i]);
        return -1;
    }
    return 0;
}

/* Copies of the parents for the caches to keep. A tree that is a chain is none. */
static int take_trees(pass *p, llm_error *err) {
    const llm_feed *f = p->feed;
    const int32_t *parents = f->parents;
    if (!parents) return 0;
    p->trees = kern_alloc_array((size_t)f->n_caches, sizeof *p->trees);
    if (!p->trees)
        return llm_fail_memory(err, (size_t)f->n_caches * sizeof *p->trees, "trees of candidates");
    for (int64_t i = 0; i < f->n_caches; parents += f->counts[i++]) {
        bool chain = true;
        for (int64_t j = 0; j < f->counts[i]; j++) chain = chain && parents[j] == j;
        if (chain) continue;
        size_t bytes = (size_t)f->counts[i] * sizeof *parents;
        p->trees[i] = kern_alloc(bytes);
        if (!p->trees[i]) return llm_fail_memory(err, bytes, "a tree of candidates");
        memcpy(p->trees[i], parents, bytes);
    }
    return 0;
}

static int feed_run(pass *p, llm_error *err) {
    const llm_feed *f = p->feed;
    size_t bytes = (size_t)f->n_caches * sizeof *p->sequences;
    p->sequences = kern_alloc(bytes);
    if (!p->sequences) return llm_fail_memory(err, bytes, "the sequences of a feed");
    if (take_trees(p, err) || extend_all(f, err)) return -1;
    p->model->step++;
    double started = clock_begin(p->model->device);
    int failed = run_pieces(p, err);
    clock_end(p->model->device, started);
    if (failed) {
        for (int64_t i = 0; i < f->n_caches; i++) cache_trim(f->caches[i]);
        return -1;
    }
    const int32_t *ids = p->ids;
    for (int64_t i = 0; i < f->n_caches; i++) {
        cache_commit(f->caches[i], ids, f->counts[i], depth_of(p->model, f),
                     p->trees ? p->trees[i] : NULL);
        ids += f->counts[i];
    }
    kern_free(p->trees);
    p->trees = NULL;
    return 0;
}

static void pass_close(pass *p) {
    kern_free(p->ids);
    kern_free(p->sequences);
    for (int64_t i = 0; p->trees && i < p->feed->n_caches; i++) kern_free(p->trees[i]);
    kern_free(p->trees);
    llm_tensor_close(p->device_ids);
    llm_tensor_close(p->targets);
    llm_tensor_close(p->chunk);
}

static llm_tensor *new_rows(llm_model *m, int64_t n_rows, int64_t n_columns, llm_error *err) {
    if (n_rows > m->info.max_rows) {
        llm_fail(err, LLM_MISUSE, "%lld rows asked, --max-rows is %lld", (long long)n_rows,
                 (long long)m->info.max_rows);
        return NULL;
    }
    return tensor_alloc(m->device, LLM_F32, n_rows, n_columns, err);
}

static int open_results(pass *p, llm_tensor **hidden, llm_error *err) {
    const llm_feed *f = p->feed;
    int64_t n_rows = 0;
    for (int64_t i = 0; i < f->n_caches; i++) {
        p->n_total += f->counts[i];
        n_rows += rows_wanted(f, i);
    }
    if (n_rows && !(p->logits = new_rows(p->model, n_rows, p->model->info.vocab_size, err)))
        return -1;
    for (int64_t i = 0; i < f->n_layers; i++)
        if (!(hidden[i] = new_rows(p->model, p->n_total, p->model->info.width, err))) return -1;
    p->hidden = hidden;
    return 0;
}

int llm_forward(llm_model *m, const llm_feed *f, llm_tensor **logits, llm_tensor **hidden,
                llm_error *err) {
    if (logits) *logits = NULL;
    for (int64_t i = 0; i < f->n_layers; i++) hidden[i] = NULL;
    if (check_feed(m, f, err)) return -1;
    pass p = {.model = m, .feed = f};
    int failed = open_results(&p, hidden, err) || take_ids(&p, err) || feed_run(&p, err);
    pass_close(&p);
    if (failed) {
        llm_tensor_close(p.logits);
        for (int64_t i = 0; i < f->n_layers; i++) {
            llm_tensor_close(hidden[i]);
            hidden[i] = NULL;
        }
        return -1;
    }
    if (p.logits) {
        p.logits->info.is_logits = true;
        p.logits->info.step = m->step;
    }
    for (int64_t i = 0; i < f->n_layers; i++) hidden[i]->info.step = m->step;
    if (logits)
        *logits = p.logits;
    else
        llm_tensor_close(p.logits);
    return 0;
}

int llm_logits(llm_model *m, const llm_tensor *hidden, llm_tensor **out, llm_error *err) {
    const llm_tensor_info *info = &hidden->info;
    if (info->dtype != LLM_F32 || info->n_columns != m->info.width)
        return llm_fail(err, LLM_MISUSE,
                        "hidden rows must be f32 of width %lld, got %s %lld × %lld",
                        (long long)m->info.width, info->dtype == LLM_I32 ? "i32" : "f32",
                        (long long)info->n_rows, (long long)info->n_columns);
    pass p = {.model = m};
    p.logits = new_rows(m, info->n_rows, m->info.vocab_size, err);
    int failed = !p.logits;
    kern_buffer *x = m->device->backend->work_buffer(m->work, m->plan.residual);
    size_t row = (size_t)m->info.width * sizeof(float);
    for (int64_t i = 0; !failed && i < info->n_rows;) {
        int64_t n = info->n_rows - i < m->piece ? info->n_rows - i : m->piece;
        int code = m->device->backend->copy(m->device->kern, x, 0, &hidden->buffer, (size_t)i * row,
                                            (size_t)n * row);
        failed =
            device_check(m->device, code, "copying hidden states", err) || finish_rows(&p, n, err);
        i += n;
    }
    if (failed) {
        llm_tensor_close(p.logits);
        return -1;
    }
    p.logits->info.is_logits = true;
    p.logits->info.step = info->step;
    *out = p.logits;
    return 0;
}

/* ---- score ---- */

static int open_score(pass *p, const int32_t *ids, int64_t count, llm_error *err) {
    llm_device *device = p->model->device;
    p->targets = llm_tensor_new(device, LLM_I32, count + 1, 1, NULL, err);
    p->scores = p->targets ? tensor_alloc(device, LLM_F32, count + 1, 1, err) : NULL;
    p->chunk =
        p->scores ? tensor_alloc(device, LLM_F32, HEAD_ROWS, p->model->info.vocab_size, err) : NULL;
    if (!p->chunk) return -1;
    p->chunk->info.is_logits = true;
    /* the last row's target stays id 0: its score is dropped */
    int code = device->backend->write(device->kern, &p->targets->buffer, 0, ids,
                                      (size_t)count * sizeof *ids);
    return device_check(device, code, "the ids to score", err) || take_ids(p, err) ? -1 : 0;
}

/* Feeds the cache's last id again, so that its row predicts the first of ids, on a fork that takes
 * the cache's place when all went well. */
int llm_score(llm_model *m, llm_cache *c, const int32_t *ids, size_t n, llm_tensor **out,
              llm_error *err) {
    if (c->model != m) return llm_fail(err, LLM_MISUSE, "the cache belongs to another model");
    if (c->n < 1)
        return llm_fail(err, LLM_MISUSE,
                        "score needs a cache that holds a token, this one is empty");
    if (n < 1) return llm_fail(err, LLM_MISUSE, "score needs ids, got none");
    if (c->tree || cache_depth(c) < m->info.n_layers)
        return llm_fail(
            err, LLM_MISUSE,
            "score needs a cache without a tree and with all %lld layers of each position",
            (long long)m->info.n_layers);
    if (model_check_ids(m, ids, n, err)) return -1;
    int64_t count = (int64_t)n, fed = count + 1;
    if (count > m->info.ctx - c->n)
        return llm_fail(err, LLM_CACHE_FULL,
                        "cache full: %lld of %lld positions used, %lld requested", (long long)c->n,
                        (long long)m->info.ctx, (long long)count);
    llm_cache *fork = llm_cache_fork(c, c->n - 1, err);
    int32_t *list = fork ? kern_alloc((n + 1) * sizeof *list) : NULL;
    if (!list) {
        if (fork) llm_fail_memory(err, (n + 1) * sizeof *list, "the ids to score");
        llm_cache_close(fork);
        return -1;
    }
    list[0] = c->ids[c->n - 1];
    memcpy(list + 1, ids, n * sizeof *ids);
    llm_feed feed = {
        .caches = &fork, .n_caches = 1, .counts = &fed, .ids = list, .rows = LLM_ROWS_ALL};
    pass p = {.model = m, .feed = &feed, .n_total = fed};
    int failed = open_score(&p, ids, count, err) || feed_run(&p, err) ||
                 llm_op_narrow(p.scores, 1, 0, count, out, err);
    if (!failed) {
        llm_cache old = *c;
        *c = *fork;
        *fork = old;
    }
    kern_free(list);
    llm_cache_close(fork);
    llm_tensor_close(p.scores);
    pass_close(&p);
    return failed ? -1 : 0;
}
