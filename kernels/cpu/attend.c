/* attend.c: who attends to what, and who computes it. Scores and sums are made in chunks of
 * CPU_CHUNK absolute positions and folded in the order of the chunks, so the result of a row is the
 * same however the chunks are spread and whatever rows are taken together. Rows that share pages (a
 * sequence's own, or forks of one) attend in a tile, which reads a shared page once. A row on a
 * branch of a tree finds its path in chunks as if it had been cached: beyond n_past its keys and
 * values are gathered. The arithmetic is the tier's (attend_ops.h). */
#include "cpu.h"

/* What the query of row t sees: positions *first … *end - 1. All of visibility is here. */
static void visible(const cpu_run *r, const plan_op *op, int32_t t, int32_t *first, int32_t *end) {
    const int32_t position = r->scratch->rows[t].position;
    *end = position + 1;
    *first = op->window > 0 && *end > op->window ? *end - op->window : 0;
}

static int32_t chunk_of(int32_t position) { return position / CPU_CHUNK; }

/* Whether rows t and t + 1 are of one sequence, or of two that begin with the same page. */
static int share_pages(const cpu_scratch *s, const kern_batch *batch, int32_t t) {
    const int32_t i = s->rows[t].i_sequence, j = s->rows[t + 1].i_sequence;
    return i == j || batch->sequences[i].pages[0] == batch->sequences[j].pages[0];
}

void cpu_attend_tiles(cpu_scratch *s, const kern_batch *batch, int32_t band_rows) {
    s->n_tiles = 0;
    for (int32_t t = 0, end; t < batch->n_rows; t = end) {
        end = t + 1;
        if (s->rows[t].i_sequence < 0) continue;
        while (end < batch->n_rows && end - t < s->tile_rows && s->rows[end].i_sequence >= 0 &&
               (band_rows == 0 || end % band_rows != 0) && share_pages(s, batch, end - 1))
            end++;
        s->tiles[s->n_tiles++] = (cpu_tile){.first_row = t, .n_rows = end - t};
    }
}

/* The query heads of one KV head, at most CPU_QUERIES of them, that rows of a tile attend with. */
typedef struct attend_unit {
    const cpu_tile *tile;
    int32_t i_head;              /* of keys and values */
    int32_t first_head, n_heads; /* of queries */
} attend_unit;

static int32_t slices_of(const plan_op *op) {
    return (op->n_heads / op->n_heads_kv + CPU_QUERIES - 1) / CPU_QUERIES;
}
static int64_t units_of(const cpu_run *r, const plan_op *op) {
    return (int64_t)r->scratch->n_tiles * op->n_heads_kv * slices_of(op);
}

/* Unit i of a tile. */
static attend_unit unit_of_tile(const plan_op *op, const cpu_tile *tile, int32_t i) {
    const int32_t group = op->n_heads / op->n_heads_kv, n_slices = slices_of(op);
    const int32_t i_slice = i % n_slices;
    attend_unit u = {.tile = tile, .i_head = i / n_slices};
    u.first_head = u.i_head * group + i_slice * CPU_QUERIES;
    u.n_heads = group - i_slice * CPU_QUERIES;
    if (u.n_heads > CPU_QUERIES) u.n_heads = CPU_QUERIES;
    return u;
}

/* Unit i of all; the last tiles see most: first. */
static attend_unit unit_of(const cpu_run *r, const plan_op *op, int64_t i) {
    const int32_t each = op->n_heads_kv * slices_of(op);
    const cpu_tile *last = &r->scratch->tiles[r->scratch->n_tiles - 1];
    return unit_of_tile(op, last - i / each, (int32_t)(i % each));
}

/* The chunks that rows of a tile see: *first … *end - 1. */
static void tile_chunks(const cpu_run *r, const plan_op *op, const cpu_tile *tile, int32_t *first,
                        int32_t *end) {
    *first = INT32_MAX;
    *end = 0;
    for (int32_t t = tile->first_row; t < tile->first_row + tile->n_rows; t++) {
        int32_t from, to;
        visible(r, op, t, &from, &to);
        if (chunk_of(from) < *first) *first = chunk_of(from);
        if (chunk_of(to - 1) + 1 > *end) *end = chunk_of(to - 1) + 1;
    }
}

/* A thread's own memory while it attends. */
typedef struct attend_memory {
    unsigned char *chunk;     /* what attend_chunk uses */
    float *states, *partials; /* CPU_QUERIES of each */
    unsigned char *gathered;  /* keys, then values, of a chunk's pages of branches */
} attend_memory;

static attend_memory thread_memory(cpu_run *r, const plan_op *op, int i_thread) {
    attend_memory m;
    m.chunk = r->scratch->threads + (size_t)i_thread * r->scratch->thread_bytes;
    m.states = (float *)(void *)(m.chunk + CPU_ATTEND_BYTES);
    m.partials = m.states + CPU_QUERIES * cpu_partial_floats(op->head_dim_v);
    m.gathered = (unsigned char *)(m.partials + CPU_QUERIES * cpu_partial_floats(op->head_dim_v));
    return m;
}

/* Pages that the row c->row[i], row t of the batch, finds from position `cached` on by gathering,
 * into page n_gathered … of the memory. Returns how many there are then. */
static int32_t gather(cpu_run *r, const plan_op *op, cpu_chunk *c, int32_t i, int32_t t,
                      int32_t i_head, int32_t cached, int32_t n_gathered, unsigned char *memory) {
    const kern_pages *kv = c->kv;
    const size_t key_bytes = KERN_PAGE_POSITIONS * kv->key_row_bytes;
    const size_t value_bytes = KERN_PAGE_POSITIONS * kv->value_row_bytes;
    unsigned char *keys = memory + (size_t)n_gathered * key_bytes;
    unsigned char *values = memory + CPU_CHUNK_PAGES * key_bytes + (size_t)n_gathered * value_bytes;
    int32_t end = c->row[i].end, n = 0;
    if (end > c->start + CPU_CHUNK) end = c->start + CPU_CHUNK;
    host_gather_path(kv, r->batch, r->scratch->rows, t, op->layer - 1, i_head, cached, end, keys,
                     values);
    for (; cached + n * KERN_PAGE_POSITIONS < end; n++) {
        const int32_t page = (cached - c->start) / KERN_PAGE_POSITIONS + n;
        c->row[i].keys[page] = keys + (size_t)n * key_bytes;
        c->row[i].values[page] = values + (size_t)n * value_bytes;
    }
    return n_gathered + n;
}

/* From which position on row t finds the positions of the chunk at `start` by gathering. */
static int32_t cached_end(const cpu_run *r, int32_t t, int32_t start) {
    const host_row *row = &r->scratch->rows[t];
    if (!host_row_branches(row)) return INT32_MAX;
    const int32_t cached =
        r->batch->sequences[row->i_sequence].n_past / KERN_PAGE_POSITIONS * KERN_PAGE_POSITIONS;
    return cached < start ? start : cached;
}

/* Where the row c->row[i], row t of the batch, finds what it sees of the chunk before `cached`. */
static void locate(cpu_run *r, const plan_op *op, cpu_chunk *c, int32_t i, int32_t t,
                   int32_t i_head, int32_t cached) {
    const kern_sequence *q = &r->batch->sequences[r->scratch->rows[t].i_sequence];
    int32_t p = c->row[i].first / KERN_PAGE_POSITIONS * KERN_PAGE_POSITIONS;
    if (p < c->start) p = c->start;
    for (; p < c->row[i].end && p < c->start + CPU_CHUNK && p < cached; p += KERN_PAGE_POSITIONS) {
        const int32_t page = (p - c->start) / KERN_PAGE_POSITIONS;
        const int32_t number = q->pages[p / KERN_PAGE_POSITIONS];
        c->row[i].keys[page] = host_keys(c->kv, number, op->layer - 1, i_head);
        c->row[i].values[page] = host_values(c->kv, number, op->layer - 1, i_head);
    }
}

static void chunk_flush(cpu_run *r, cpu_chunk *c, attend_memory *m) {
    if (c->n_rows > 0) r->tier->attend_chunk(c, m->chunk);
    c->n_rows = 0;
}

/* Keys of the first two pages of chunk i_chunk of a unit (or those of its end). */
static void find_soon(cpu_run *r, const plan_op *op, const attend_unit *u, int32_t i_chunk,
                      const unsigned char *soon[2]) {
    const kern_sequence *q = &r->batch->sequences[r->scratch->rows[u->tile->first_row].i_sequence];
    const int32_t last = (q->n_past + q->n_rows - 1) / KERN_PAGE_POSITIONS;
    for (int32_t i = 0, page = i_chunk * CPU_CHUNK_PAGES; i < 2; i++, page++)
        soon[i] = host_keys(r->work->pages, q->pages[page < last ? page : last], op->layer - 1,
                            u->i_head);
}

/* Partial results of chunk i_chunk for the rows of a unit that see any of it: query h of row i of
 * the tile to partials[i · row_stride + h · head_stride …]. `next` of chunk next_chunk probably
 * follows. */
static void attend_at(cpu_run *r, const plan_op *op, const attend_unit *u, int32_t i_chunk,
                      float *partials, int64_t row_stride, int64_t head_stride,
                      const attend_unit *next, int32_t next_chunk, attend_memory *m) {
    cpu_chunk c; /* large: not cleared */
    c.kv = r->work->pages;
    c.start = i_chunk * CPU_CHUNK;
    c.scale = op->scale;
    c.n_heads = u->n_heads;
    c.n_rows = 0;
    find_soon(r, op, next, next_chunk, c.soon);
    int32_t n_gathered = 0;
    for (int32_t i = 0; i < u->tile->n_rows; i++) {
        const int32_t t = u->tile->first_row + i;
        int32_t first, end;
        visible(r, op, t, &first, &end);
        if (i_chunk < chunk_of(first) || i_chunk > chunk_of(end - 1)) continue;
        const int32_t cached = cached_end(r, t, c.start);
        const int32_t last = end < c.start + CPU_CHUNK ? end : c.start + CPU_CHUNK;
        const int32_t pages =
            cached < last ? (last - cached + KERN_PAGE_POSITIONS - 1) / KERN_PAGE_POSITIONS : 0;
        if (n_gathered + pages > CPU_CHUNK_PAGES) {
            chunk_flush(r, &c, m);
            n_gathered = 0;
        }
        c.row[c.n_rows].first = first;
        c.row[c.n_rows].end = end;
        locate(r, op, &c, c.n_rows, t, u->i_head, cached);
        if (pages > 0)
            n_gathered = gather(r, op, &c, c.n_rows, t, u->i_head, cached, n_gathered, m->gathered);
        for (int32_t h = 0; h < u->n_heads; h++) {
            const int32_t query = c.n_rows * u->n_heads + h;
            c.query[query].q = cpu_rows_of(r, op->in) +
                               ((int64_t)t * op->n_heads + u->first_head + h) * op->head_dim;
            c.query[query].partial = partials + i * row_stride + h * head_stride;
        }
        c.n_rows++;
    }
    chunk_flush(r, &c, m);
}

static float *output_of(cpu_run *r, const plan_op *op, int32_t t, int32_t head) {
    return cpu_rows_of(r, op->out) + ((int64_t)t * op->n_heads + head) * op->head_dim_v;
}

/* All chunks of a unit, folded as they come. */
static void attend_unit_whole(cpu_run *r, const plan_op *op, const attend_unit *u,
                              attend_memory *m) {
    const int64_t n = cpu_partial_floats(op->head_dim_v);
    int32_t i_chunk, end_chunk;
    tile_chunks(r, op, u->tile, &i_chunk, &end_chunk);
    for (; i_chunk < end_chunk; i_chunk++) {
        if (cpu_stopped(r)) return;
        attend_at(r, op, u, i_chunk, m->partials, u->n_heads * n, n, u, i_chunk + 1, m);
        for (int32_t i = 0; i < u->tile->n_rows * u->n_heads; i++) {
            int32_t first, end;
            visible(r, op, u->tile->first_row + i / u->n_heads, &first, &end);
            if (i_chunk < chunk_of(first) || i_chunk > chunk_of(end - 1)) continue;
            r->tier->attend_fold(m->states + i * n, m->partials + i * n, op->head_dim_v,
                                 i_chunk == chunk_of(first));
        }
    }
    for (int32_t i = 0; i < u->tile->n_rows * u->n_heads; i++)
        r->tier->attend_finish(
            m->states + i * n, op->head_dim_v,
            output_of(r, op, u->tile->first_row + i / u->n_heads, u->first_head + i % u->n_heads));
}

/* Few units with long contexts: each chunk of a unit is a task, whose partial results are kept and
 * folded when all are there; in rounds of as many chunks as there is memory for. Of a row and query
 * head it holds the state, then the partial results. */
typedef struct attend_split {
    int32_t n_chunks; /* that the tile that sees most of them sees; 0: not so */
    int32_t round;    /* chunks of a round */
} attend_split;

/* It answers all threads alike. */
static attend_split split_of(const cpu_run *r, const plan_op *op, int n_threads) {
    attend_split s = {0};
    if (units_of(r, op) >= 4 * (int64_t)n_threads) return s;
    for (int32_t i = 0; i < r->scratch->n_tiles; i++) {
        int32_t first, end;
        tile_chunks(r, op, &r->scratch->tiles[i], &first, &end);
        if (end - first > s.n_chunks) s.n_chunks = end - first;
    }
    const int64_t each =
        r->batch->n_rows * (int64_t)op->n_heads * cpu_partial_floats(op->head_dim_v);
    const int64_t fit = r->scratch->n_partials / each - 1;
    s.round = fit < s.n_chunks ? (int32_t)fit : s.n_chunks;
    if (s.n_chunks < 2 || s.round < 2) s.n_chunks = 0;
    return s;
}

static float *state_of(const cpu_run *r, const plan_op *op, const attend_split *s, int32_t t,
                       int32_t head) {
    return r->scratch->partials +
           ((int64_t)t * op->n_heads + head) * (s->round + 1) * cpu_partial_floats(op->head_dim_v);
}

/* The chunks from the i_round · round-th of its tile on that a task or a fold may take. */
static void split_compute(cpu_run *r, const plan_op *op, const attend_split *s, int32_t i_round,
                          int n_threads, attend_memory *m) {
    const int64_t n = units_of(r, op) * s->round, floats = cpu_partial_floats(op->head_dim_v);
    int64_t i;
    while ((i = kern_pool_next(r->device->pool, n)) >= 0) {
        if (cpu_stopped(r)) return;
        const attend_unit u = unit_of(r, op, i / s->round);
        const int32_t i_slot = (int32_t)(i % s->round);
        int32_t first, end;
        tile_chunks(r, op, u.tile, &first, &end);
        const int32_t i_chunk = first + i_round * s->round + i_slot;
        if (i_chunk >= end) continue;
        float *to = state_of(r, op, s, u.tile->first_row, u.first_head) + (1 + i_slot) * floats;
        const int64_t stride = (s->round + 1) * floats;
        const int64_t i_next = i + n_threads < n ? i + n_threads : i;
        const attend_unit next = unit_of(r, op, i_next / s->round);
        tile_chunks(r, op, next.tile, &first, &end);
        attend_at(r, op, &u, i_chunk, to, op->n_heads * stride, stride, &next,
                  first + i_round * s->round + (int32_t)(i_next % s->round), m);
    }
}

/* Folds the round of one query head of row t, of a tile that sees chunks from `base` on. */
static void split_fold(cpu_run *r, const plan_op *op, const attend_split *s, int32_t i_round,
                       int32_t base, int32_t t, int32_t head) {
    const int64_t floats = cpu_partial_floats(op->head_dim_v);
    float *state = state_of(r, op, s, t, head);
    int32_t first, end;
    visible(r, op, t, &first, &end);
    for (int32_t i = 0; i < s->round; i++) {
        const int32_t i_chunk = base + i_round * s->round + i;
        if (i_chunk < chunk_of(first) || i_chunk > chunk_of(end - 1)) continue;
        r->tier->attend_fold(state, state + (1 + i) * floats, op->head_dim_v,
                             i_chunk == chunk_of(first));
        if (i_chunk == chunk_of(end - 1))
            r->tier->attend_finish(state, op->head_dim_v, output_of(r, op, t, head));
    }
}

static void attend_in_rounds(cpu_run *r, const plan_op *op, const attend_split *s, int i_thread,
                             int n_threads) {
    kern_pool *pool = r->device->pool;
    attend_memory m = thread_memory(r, op, i_thread);
    const int32_t n_rounds = (s->n_chunks + s->round - 1) / s->round;
    for (int32_t i_round = 0; i_round < n_rounds; i_round++) {
        if (i_round > 0) kern_pool_barrier(pool);
        split_compute(r, op, s, i_round, n_threads, &m);
        kern_pool_barrier(pool);
        int64_t i;
        while ((i = kern_pool_next(pool, r->scratch->n_tiles * (int64_t)op->n_heads)) >= 0) {
            if (cpu_stopped(r)) break;
            const cpu_tile *tile = &r->scratch->tiles[i / op->n_heads];
            int32_t base, end;
            tile_chunks(r, op, tile, &base, &end);
            for (int32_t t = tile->first_row; t < tile->first_row + tile->n_rows; t++)
                split_fold(r, op, s, i_round, base, t, (int32_t)(i % op->n_heads));
        }
    }
}

void cpu_attend(cpu_run *r, const plan_op *op, int i_thread, int n_threads) {
    const attend_split s = split_of(r, op, n_threads);
    if (s.n_chunks > 0) {
        attend_in_rounds(r, op, &s, i_thread, n_threads);
        return;
    }
    attend_memory m = thread_memory(r, op, i_thread);
    int64_t i;
    while ((i = kern_pool_next(r->device->pool, units_of(r, op))) >= 0) {
        if (cpu_stopped(r)) return;
        const attend_unit u = unit_of(r, op, i);
        attend_unit_whole(r, op, &u, &m);
    }
}

void cpu_attend_band(cpu_run *r, const plan_op *op, const cpu_band *band, int i_thread) {
    const cpu_tile *tile = r->scratch->tiles, *end = tile + r->scratch->n_tiles;
    attend_memory m = thread_memory(r, op, i_thread);
    while (tile < end && tile->first_row < band->first) tile++;
    for (; tile < end && tile->first_row < band->end; tile++) {
        for (int32_t i = 0; i < op->n_heads_kv * slices_of(op); i++) {
            if (cpu_stopped(r)) return;
            const attend_unit u = unit_of_tile(op, tile, i);
            attend_unit_whole(r, op, &u, &m);
        }
    }
}
