/* attend.c: who attends to what, and who computes it. Scores and sums are made in chunks of
 * CPU_CHUNK absolute positions and folded in the order of the chunks, so the result of a row is the
 * same however the chunks are spread. A row on a branch of a tree finds its path in chunks as if it
 * had been cached: beyond n_past its keys and values are gathered. The arithmetic is the tier's
 * (row_ops.h). */
#include "cpu.h"

/* What the query of row t sees: positions *first … *end - 1. All of visibility is here. */
static void visible(const cpu_run *r, const plan_op *op, int32_t t, int32_t *first, int32_t *end) {
    int32_t position = r->scratch->rows[t].position;
    *end = position + 1;
    *first = op->window > 0 && *end > op->window ? *end - op->window : 0;
}

typedef struct attend_shape {
    int32_t group,
        n_slices; /* query heads of a KV head, and how many times CPU_QUERIES they take */
    int32_t dim_k, dim_v;
    int64_t n_partial; /* floats */
} attend_shape;

static attend_shape shape_of(const plan_op *op) {
    attend_shape s = {
        .group = op->n_heads / op->n_heads_kv, .dim_k = op->head_dim, .dim_v = op->head_dim_v};
    s.n_slices = (s.group + CPU_QUERIES - 1) / CPU_QUERIES;
    s.n_partial = cpu_partial_floats(s.dim_v);
    return s;
}

/* A thread's own memory while it attends. */
typedef struct attend_memory {
    unsigned char *chunk;     /* what attend_chunk uses */
    float *states, *partials; /* CPU_QUERIES of each */
    unsigned char *gathered;  /* keys, then values, of a chunk's positions of a branch */
} attend_memory;

static attend_memory thread_memory(cpu_run *r, const plan_op *op, int i_thread) {
    attend_shape s = shape_of(op);
    attend_memory m;
    m.chunk = r->scratch->threads + (size_t)i_thread * r->scratch->thread_bytes;
    m.states = (float *)(void *)(m.chunk + cpu_attend_bytes(s.dim_k, s.dim_v));
    m.partials = m.states + CPU_QUERIES * s.n_partial;
    m.gathered = (unsigned char *)(m.partials + CPU_QUERIES * s.n_partial);
    return m;
}

/* Query i of a chunk is row first_row + i / heads, head first_head + i % heads. */
static void chunk_begin(cpu_run *r, const plan_op *op, cpu_chunk *c, int32_t first_row,
                        int32_t n_rows, int32_t first_head, int32_t heads) {
    c->kv = r->work->pages;
    c->scale = op->scale;
    c->n_queries = n_rows * heads;
    for (int32_t i = 0; i < c->n_queries; i++) {
        int32_t t = first_row + i / heads, h = first_head + i % heads;
        c->query[i].q = cpu_rows_of(r, op->in) + ((int64_t)t * op->n_heads + h) * op->head_dim;
        visible(r, op, t, &c->query[i].first, &c->query[i].end);
    }
}

/* Whether row t sees positions of the chunk at `start` elsewhere than in the cache's pages. */
static int gathers(const cpu_run *r, int32_t t, int32_t start) {
    const host_row *row = &r->scratch->rows[t];
    return host_row_branches(row) &&
           start + CPU_CHUNK > r->batch->sequences[row->i_sequence].n_past;
}

/* Where row t, and all other queries of the chunk, find the keys and values of a KV head. */
static void chunk_locate(cpu_run *r, const plan_op *op, cpu_chunk *c, int32_t t, int32_t i_head,
                         unsigned char *gathered) {
    const kern_pages *kv = r->work->pages;
    const kern_sequence *q = &r->batch->sequences[r->scratch->rows[t].i_sequence];
    int32_t end = 0, i_layer = op->layer - 1;
    for (int32_t i = 0; i < c->n_queries; i++)
        if (c->query[i].end > end) end = c->query[i].end;
    if (end > c->start + CPU_CHUNK) end = c->start + CPU_CHUNK;
    int32_t cached = end; /* the rest is gathered, from a page's beginning on */
    if (gathers(r, t, c->start)) cached = q->n_past / KERN_PAGE_POSITIONS * KERN_PAGE_POSITIONS;
    if (cached < c->start) cached = c->start;
    int32_t i = 0;
    for (; c->start + i * KERN_PAGE_POSITIONS < cached; i++) {
        int32_t page = q->pages[c->start / KERN_PAGE_POSITIONS + i];
        c->keys[i] = host_keys(kv, page, i_layer, i_head);
        c->values[i] = host_values(kv, page, i_layer, i_head);
    }
    if (cached >= end) return;
    unsigned char *keys = gathered, *values = gathered + CPU_CHUNK * kv->key_row_bytes;
    host_gather_path(kv, r->batch, r->scratch->rows, t, i_layer, i_head, cached, end, keys, values);
    for (int32_t from = 0; cached + from < end; from += KERN_PAGE_POSITIONS, i++) {
        c->keys[i] = keys + (size_t)from * kv->key_row_bytes;
        c->values[i] = values + (size_t)from * kv->value_row_bytes;
    }
}

static float *output_of(cpu_run *r, const plan_op *op, int32_t t, int32_t head) {
    return cpu_rows_of(r, op->out) + ((int64_t)t * op->n_heads + head) * op->head_dim_v;
}

/* Of queries i … end - 1 of `all`, whose keys are those of row t, those that see any of the chunk
 * at `start`. */
static void attend_queries(cpu_run *r, const plan_op *op, const cpu_chunk *all, int32_t i,
                           int32_t end, int32_t t, int32_t i_head, int32_t start,
                           attend_memory *m) {
    attend_shape s = shape_of(op);
    cpu_chunk c = {.kv = all->kv, .scale = all->scale, .start = start};
    int32_t of[CPU_QUERIES], n = 0;
    for (; i < end; i++) {
        if (all->query[i].end <= start || all->query[i].first >= start + CPU_CHUNK) continue;
        c.query[n] = all->query[i];
        c.query[n].partial = m->partials + n * s.n_partial;
        of[n++] = i;
    }
    if (n == 0) return;
    c.n_queries = n;
    chunk_locate(r, op, &c, t, i_head, m->gathered);
    r->tier->attend_chunk(&c, m->chunk);
    for (i = 0; i < n; i++)
        r->tier->attend_fold(m->states + of[i] * s.n_partial, c.query[i].partial, s.dim_v,
                             c.query[i].first / CPU_CHUNK * CPU_CHUNK == start);
}

/* All chunks of a tile of rows for one KV head, folded as they come. */
static void attend_tile(cpu_run *r, const plan_op *op, const cpu_tile *tile, int32_t i_head,
                        int32_t i_slice, int i_thread) {
    attend_shape s = shape_of(op);
    attend_memory m = thread_memory(r, op, i_thread);
    int32_t heads = s.group - i_slice * CPU_QUERIES;
    if (heads > CPU_QUERIES) heads = CPU_QUERIES;
    int32_t first_head = i_head * s.group + i_slice * CPU_QUERIES;
    cpu_chunk all;
    chunk_begin(r, op, &all, tile->first_row, tile->n_rows, first_head, heads);
    int32_t low = all.query[0].first, high = all.query[0].end;
    for (int32_t i = 1; i < all.n_queries; i++) {
        if (all.query[i].first < low) low = all.query[i].first;
        if (all.query[i].end > high) high = all.query[i].end;
    }
    for (int32_t start = low / CPU_CHUNK * CPU_CHUNK; start < high; start += CPU_CHUNK) {
        for (int32_t row = 0, end; row < tile->n_rows; row = end) {
            int32_t t = tile->first_row + row;
            end = row + 1;
            if (!gathers(r, t, start))
                while (end < tile->n_rows && !gathers(r, tile->first_row + end, start)) end++;
            attend_queries(r, op, &all, row * heads, end * heads, t, i_head, start, &m);
        }
    }
    for (int32_t i = 0; i < all.n_queries; i++)
        r->tier->attend_finish(
            m.states + i * s.n_partial, s.dim_v,
            output_of(r, op, tile->first_row + i / heads, first_head + i % heads));
}

/* Few rows with long contexts: each chunk of a row and KV head is a task, its partials are kept and
 * folded by cpu_attend_merge. Returns the chunks a row, or 0: not so. It must answer all threads
 * alike. */
static int32_t split_chunks(const cpu_run *r, const plan_op *op) {
    attend_shape s = shape_of(op);
    int32_t most = 0;
    if ((int64_t)r->scratch->n_tiles * op->n_heads_kv >= 4 * kern_pool_threads(r->device->pool))
        return 0;
    for (int32_t t = 0; t < r->batch->n_rows; t++) {
        int32_t first, end;
        visible(r, op, t, &first, &end);
        int32_t n = (end - 1) / CPU_CHUNK - first / CPU_CHUNK + 1;
        if (n > most) most = n;
    }
    if (most < 2 ||
        r->batch->n_rows * (int64_t)op->n_heads * most * s.n_partial > r->scratch->n_partials)
        return 0;
    return most;
}

static float *partial_of(const cpu_run *r, const plan_op *op, int32_t t, int32_t head,
                         int32_t i_chunk, int32_t n_chunks) {
    return r->scratch->partials + (((int64_t)t * op->n_heads + head) * n_chunks + i_chunk) *
                                      cpu_partial_floats(op->head_dim_v);
}

/* Chunk i_chunk of what row t sees, for one KV head. */
static void attend_piece(cpu_run *r, const plan_op *op, int32_t t, int32_t i_head, int32_t i_chunk,
                         int32_t n_chunks, int i_thread) {
    attend_shape s = shape_of(op);
    attend_memory m = thread_memory(r, op, i_thread);
    for (int32_t i_slice = 0; i_slice < s.n_slices; i_slice++) {
        int32_t heads = s.group - i_slice * CPU_QUERIES;
        if (heads > CPU_QUERIES) heads = CPU_QUERIES;
        int32_t first_head = i_head * s.group + i_slice * CPU_QUERIES;
        cpu_chunk c;
        chunk_begin(r, op, &c, t, 1, first_head, heads);
        c.start = (c.query[0].first / CPU_CHUNK + i_chunk) * CPU_CHUNK;
        if (c.start >= c.query[0].end) return;
        for (int32_t i = 0; i < heads; i++)
            c.query[i].partial = partial_of(r, op, t, first_head + i, i_chunk, n_chunks);
        chunk_locate(r, op, &c, t, i_head, m.gathered);
        r->tier->attend_chunk(&c, m.chunk);
    }
}

void cpu_attend(cpu_run *r, const plan_op *op, int i_thread) {
    kern_pool *pool = r->device->pool;
    attend_shape s = shape_of(op);
    int32_t n_chunks = split_chunks(r, op);
    int64_t i, n_heads = op->n_heads_kv;
    if (n_chunks > 0) {
        int64_t n = r->batch->n_rows * n_heads * n_chunks;
        while ((i = kern_pool_next(pool, n)) >= 0) {
            if (cpu_stopped(r)) return;
            int64_t task = i / n_chunks;
            attend_piece(r, op, (int32_t)(task / n_heads), (int32_t)(task % n_heads),
                         (int32_t)(i % n_chunks), n_chunks, i_thread);
        }
        return;
    }
    int64_t n = r->scratch->n_tiles * n_heads * s.n_slices;
    while ((i = kern_pool_next(pool, n)) >= 0) {
        if (cpu_stopped(r)) return;
        int64_t task = i / s.n_slices;
        /* the last tiles see most: first */
        const cpu_tile *tile = &r->scratch->tiles[r->scratch->n_tiles - 1 - task / n_heads];
        attend_tile(r, op, tile, (int32_t)(task % n_heads), (int32_t)(i % s.n_slices), i_thread);
    }
}

void cpu_attend_merge(cpu_run *r, const plan_op *op, int i_thread, int32_t first_row,
                      int32_t end_row) {
    int32_t n_chunks = split_chunks(r, op);
    if (n_chunks == 0) return;
    float *state = thread_memory(r, op, i_thread).states;
    for (int32_t t = first_row; t < end_row; t++) {
        int32_t first, end;
        visible(r, op, t, &first, &end);
        int32_t n = (end - 1) / CPU_CHUNK - first / CPU_CHUNK + 1;
        for (int32_t h = 0; h < op->n_heads; h++) {
            for (int32_t c = 0; c < n; c++)
                r->tier->attend_fold(state, partial_of(r, op, t, h, c, n_chunks), op->head_dim_v,
                                     c == 0);
            r->tier->attend_finish(state, op->head_dim_v, output_of(r, op, t, h));
        }
    }
}
