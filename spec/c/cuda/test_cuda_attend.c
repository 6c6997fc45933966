/* test_cuda_attend.c: norms of heads, rotation, pages and attention of the CUDA backend. Against
 * ref on the same passes; that a row's bits do not depend on what it is fed with (alone, in a
 * batch, in a step of its own or a prompt, on a branch of a tree); numbers that are not finite;
 * positions as bytes. Queries, keys and values are known functions of a token. */
#include "cuda_device.h"

#include <math.h>

enum { LAYERS = 2, MOST_ROWS = 64, MOST_PAGES = 140, MOST_POSITIONS = 700, MOST_SEQUENCES = 20 };

typedef struct shape {
    int32_t n_heads, n_heads_kv, dim, dim_v, window;
    kern_kv kv;
    bool norm;
    int32_t n_rotary; /* 0: none */
    bool interleaved;
} shape;

enum { B_Q, B_K, B_V, B_OUT, N_BUFFERS };

/* A backend with pages and a plan of one attention, in the second of two layers. */
typedef struct engine {
    shape s;
    const kern_backend *b;
    kern_device *d;
    kern_pages *pages;
    kern_work *work;
    kern_store *store;
    kern_buffer ids;
    plan p;
    plan_op ops[6];
    int32_t first_op[LAYERS + 3];
    plan_buffer buffers[N_BUFFERS];
    kern_weight norms[2];
    float norm_data[2][512], freqs[256];
    plan_rope rope;
} engine;

static void *memory(size_t n) {
    void *p = calloc(n ? n : 1, 1);
    if (!p) abort();
    return p;
}

/* In -1 … 1, the same for the same numbers. */
static float number(int32_t what, int32_t token, int32_t i) {
    uint64_t x = (uint64_t)what * 0x9e3779b97f4a7c15u + (uint64_t)token * 0xbf58476d1ce4e5b9u +
                 (uint64_t)i * 0xd6e8feb86659fd93u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (float)((x ^ x >> 31) >> 40) / 8388608.0f - 1.0f;
}

static int32_t add_op(engine *e, plan_op op) {
    op.layer = LAYERS;
    e->ops[e->p.n_ops] = op;
    return e->p.n_ops++;
}

static void make_plan(engine *e) {
    const shape *s = &e->s;
    const int32_t heads[2] = {s->n_heads, s->n_heads_kv};
    e->buffers[B_Q] = (plan_buffer){"q", s->n_heads * s->dim};
    e->buffers[B_K] = (plan_buffer){"k", s->n_heads_kv * s->dim};
    e->buffers[B_V] = (plan_buffer){"v", s->n_heads_kv * s->dim_v};
    e->buffers[B_OUT] = (plan_buffer){"out", s->n_heads * s->dim_v};
    e->p = (plan){.ops = e->ops,
                  .n_layers = LAYERS,
                  .first_op = e->first_op,
                  .buffers = e->buffers,
                  .n_buffers = N_BUFFERS,
                  .residual = -1,
                  .logits = -1};
    for (int32_t i = 0; i < 2 && s->norm; i++) {
        for (int32_t d = 0; d < s->dim; d++) e->norm_data[i][d] = 1.5f * number(10 + i, 0, d);
        e->norms[i] = (kern_weight){.name = "norm",
                                    .format = kern_format_find(KERN_F32),
                                    .data = e->norm_data[i],
                                    .n_rows = 1,
                                    .n_columns = s->dim};
        add_op(e, (plan_op){PLAN_NORM_HEADS, .in = i, .in2 = -1, .out = i, .w = &e->norms[i],
                            .eps = 1e-2f, .n_heads = heads[i], .head_dim = s->dim});
    }
    for (int32_t i = 0; i < s->n_rotary / 2; i++)
        e->freqs[i] = powf(1e4f, -2.0f * (float)i / (float)s->n_rotary);
    e->rope = (plan_rope){e->freqs, s->n_rotary, 1.1f, s->interleaved};
    for (int32_t i = 0; i < 2 && s->n_rotary; i++)
        add_op(e, (plan_op){PLAN_ROPE, .in = i, .in2 = -1, .out = i, .rope = &e->rope,
                            .n_heads = heads[i], .head_dim = s->dim});
    add_op(e, (plan_op){PLAN_KV_APPEND, .in = B_K, .in2 = B_V, .out = -1,
                        .n_heads_kv = s->n_heads_kv, .head_dim = s->dim, .head_dim_v = s->dim_v});
    add_op(e, (plan_op){PLAN_ATTEND, .in = B_Q, .in2 = -1, .out = B_OUT,
                        .scale = 1.0f / sqrtf((float)s->dim), .n_heads = s->n_heads,
                        .n_heads_kv = s->n_heads_kv, .head_dim = s->dim, .head_dim_v = s->dim_v,
                        .window = s->window});
    e->first_op[LAYERS + 1] = e->first_op[LAYERS + 2] = e->p.n_ops;
}

static engine *engine_open(const kern_backend *b, const shape *s) {
    char message[256] = "";
    engine *e = memory(sizeof *e);
    e->s = *s;
    e->b = b;
    make_plan(e);
    e->d = b->open(&(kern_device_options){.n_threads = 1}, message, sizeof message);
    const kern_kv_shape kv = {LAYERS, s->n_heads_kv, s->dim, s->dim_v, s->kv};
    kern_binding binding = {.weights = e->norms, .n_weights = s->norm ? 2 : 0};
    if (!e->d || b->bind(e->d, &binding, &e->store) ||
        b->pages_open(e->d, &kv, MOST_PAGES, &e->pages) ||
        b->work_open(e->d, &e->p, e->pages, MOST_ROWS, &e->work) ||
        b->alloc(e->d, MOST_ROWS * sizeof(int32_t), &e->ids)) {
        printf("%s %s\n", message, e->d ? b->last_error(e->d) : "");
        abort();
    }
    for (int32_t i = 0; i < MOST_PAGES; i++)
        if (b->page_reserve(e->d, e->pages, i)) abort();
    return e;
}

static void engine_close(engine *e) {
    e->b->free(e->d, &e->ids);
    e->b->work_close(e->d, e->work);
    e->b->pages_close(e->d, e->pages);
    e->b->unbind(e->d, e->store);
    e->b->close(e->d);
    free(e);
}

static void send(engine *e, int32_t buffer, int32_t what, float size, const int32_t *tokens,
                 int32_t n_rows) {
    const int32_t width = e->buffers[buffer].width;
    float *x = memory(sizeof *x * (size_t)(n_rows * width));
    for (int32_t t = 0; t < n_rows; t++)
        for (int32_t i = 0; i < width; i++) x[t * width + i] = size * number(what, tokens[t], i);
    if (e->b->write(e->d, e->b->work_buffer(e->work, buffer), 0, x,
                    (size_t)(n_rows * width) * sizeof *x))
        abort();
    free(x);
}

/* A pass over rows with these tokens; out[rows, n_heads · dim_v] */
static void feed(engine *e, const kern_sequence *sequences, int32_t n_sequences,
                 const int32_t *tokens, const int32_t *parents, float *out) {
    kern_batch batch = {.n_sequences = n_sequences, .sequences = sequences, .parents = parents};
    for (int32_t i = 0; i < n_sequences; i++) batch.n_rows += sequences[i].n_rows;
    batch.ids = (kern_tensor){&e->ids, 0, batch.n_rows, 1};
    send(e, B_Q, 1, 3, tokens, batch.n_rows);
    send(e, B_K, 2, 2, tokens, batch.n_rows);
    send(e, B_V, 3, 2, tokens, batch.n_rows);
    const int code = e->b->run(e->d, e->work, &e->p, 0, e->p.n_ops, &batch);
    CHECK(code == KERN_OK, "%s: %s", e->b->name, e->b->last_error(e->d));
    if (e->b->read(e->d, e->b->work_buffer(e->work, B_OUT), 0, out,
                   (size_t)(batch.n_rows * e->buffers[B_OUT].width) * sizeof *out))
        abort();
}

static const char *name_of(const shape *s) {
    static char name[128];
    snprintf(name, sizeof name, "heads %d/%d of %d and %d, window %d, kv %d, norm %d, rotary %d",
             s->n_heads, s->n_heads_kv, s->dim, s->dim_v, s->window, s->kv, s->norm,
             s->interleaved ? -s->n_rotary : s->n_rotary);
    return name;
}

static double worst_of(const float *got, const float *want, int64_t n) {
    double worst = 0;
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= worst))
            worst = fabs((double)got[i] - (double)want[i]);
    return worst;
}

/* A sequence: its tokens, where they lie. */
typedef struct text {
    int32_t tokens[MOST_POSITIONS], pages[MOST_POSITIONS / 32 + 1];
    int32_t n; /* fed so far */
} text;

static kern_sequence rows_of(const text *t, int32_t n_rows, int32_t first_row) {
    return (kern_sequence){t->pages, t->n, n_rows, first_row};
}

/* Feeds n more tokens in pieces of at most `piece`; out: those of all, or NULL */
static void feed_text(engine *e, text *t, int32_t n, int32_t piece, float *out) {
    const int32_t width = e->buffers[B_OUT].width;
    float *rows = memory(sizeof *rows * (size_t)(MOST_ROWS * width));
    while (n > 0) {
        const int32_t n_rows = n < piece ? n : piece;
        const kern_sequence q = rows_of(t, n_rows, 0);
        feed(e, &q, 1, t->tokens + t->n, NULL, rows);
        if (out) {
            memcpy(out, rows, sizeof *rows * (size_t)(n_rows * width));
            out += n_rows * width;
        }
        t->n += n_rows;
        n -= n_rows;
    }
    free(rows);
}

/* Two sequences that grow together in uneven pieces, as ref's. */
static void check_ref(const shape *s, int32_t n, double most) {
    static const int32_t pieces[2][7] = {{1, 30, 33, 2, 1, 40, 1}, {19, 1, 0, 45, 1, 7, 1}};
    engine *engines[2] = {engine_open(&kern_ref, s), engine_open(llmlua_backend(), s)};
    const int32_t width = s->n_heads * s->dim_v;
    float *out[2] = {memory(sizeof(float) * (size_t)(MOST_ROWS * width)),
                     memory(sizeof(float) * (size_t)(MOST_ROWS * width))};
    text *texts = memory(2 * sizeof *texts);
    for (int32_t i = 0; i < MOST_POSITIONS; i++) {
        texts[0].tokens[i] = 100 + i, texts[1].tokens[i] = 2000 + i;
        texts[0].pages[i / 32] = 63 - i / 32 * 2, texts[1].pages[i / 32] = i / 32 * 2;
    }
    double worst = 0;
    for (int step = 0; texts[0].n < n; step++) {
        kern_sequence q[2];
        int32_t tokens[MOST_ROWS], n_rows = 0;
        for (int32_t i = 0; i < 2; i++) {
            int32_t piece = pieces[i][step % 7];
            if (n_rows + piece > MOST_ROWS) piece = MOST_ROWS - n_rows;
            q[i] = rows_of(&texts[i], piece, n_rows);
            memcpy(tokens + n_rows, texts[i].tokens + texts[i].n, sizeof *tokens * (size_t)piece);
            n_rows += piece;
        }
        for (int32_t i = 0; i < 2; i++) feed(engines[i], q, 2, tokens, NULL, out[i]);
        const double d = worst_of(out[1], out[0], (int64_t)n_rows * width);
        if (!(d <= worst)) worst = d;
        for (int32_t i = 0; i < 2; i++) texts[i].n += q[i].n_rows;
    }
    CHECK(worst < most, "%s: differs from ref by %g", name_of(s), worst);
    for (int i = 0; i < 2; i++) {
        engine_close(engines[i]);
        free(out[i]);
    }
    free(texts);
}

/* Forks of a text of n_common tokens with tails of their own. */
static void fork_texts(engine *e, text *texts, int32_t n, int32_t n_common) {
    int32_t n_pages = 0;
    for (int32_t i = 0; i < n; i++) {
        text *t = &texts[i];
        const int32_t tail = i * 13 % 45;
        memset(t, 0, sizeof *t);
        for (int32_t p = 0; p < n_common + tail + 8; p++) {
            t->tokens[p] = p < n_common ? p + 7 : 1000 * (i + 1) + p;
            const bool shared = i > 0 && p / 32 < n_common / 32;
            if (p % 32 == 0) t->pages[p / 32] = shared ? texts[0].pages[p / 32] : n_pages++;
        }
        t->n = i > 0 ? n_common / 32 * 32 : 0;
        feed_text(e, t, n_common + tail - t->n, MOST_ROWS, NULL);
    }
    if (n_pages > MOST_PAGES) abort();
}

/* The next row of each of n forks: alone and together, whatever is in the batch, twice (the second
 * step is captured, the third replayed); the same bits. */
static void check_forks(const shape *s, int32_t n, int32_t n_common) {
    engine *e = engine_open(llmlua_backend(), s);
    const int32_t width = s->n_heads * s->dim_v;
    text *texts = memory(MOST_SEQUENCES * sizeof *texts);
    float *solo = memory(sizeof *solo * (size_t)(n * width));
    float *together = memory(sizeof *solo * (size_t)(MOST_ROWS * width));
    fork_texts(e, texts, n, n_common);
    for (int32_t i = 0; i < n; i++) {
        const kern_sequence q = rows_of(&texts[i], 1, 0);
        feed(e, &q, 1, texts[i].tokens + texts[i].n, NULL, solo + i * width);
    }
    for (int way = 0; way < 6; way++) { /* forwards, backwards; with a row more: no step */
        const bool backwards = way % 2, more = way >= 4;
        kern_sequence q[MOST_SEQUENCES];
        int32_t tokens[MOST_ROWS], order[MOST_SEQUENCES], n_rows = 0;
        for (int32_t i = 0; i < n; i++) {
            order[i] = backwards ? n - 1 - i : i;
            const text *t = &texts[order[i]];
            const int32_t rows = more && i == n / 2 ? 5 : 1;
            q[i] = rows_of(t, rows, n_rows);
            for (int32_t r = 0; r < rows; r++) tokens[n_rows++] = t->tokens[t->n + r];
        }
        feed(e, q, n, tokens, NULL, together);
        int n_different = 0;
        for (int32_t i = 0; i < n; i++)
            n_different += memcmp(together + q[i].first_row * width, solo + order[i] * width,
                                  sizeof *solo * (size_t)width) != 0;
        CHECK(n_different == 0, "%s: %d of %d forks of %d tokens differ in a batch, way %d",
              name_of(s), n_different, n, n_common, way);
    }
    engine_close(e);
    free(texts);
    free(solo);
    free(together);
}

/* A prompt in pieces of any size, the same bits. */
static void check_pieces(const shape *s, int32_t n) {
    static const int32_t pieces[] = {1, 7, 64};
    const int32_t width = s->n_heads * s->dim_v;
    const size_t bytes = sizeof(float) * (size_t)(n * width);
    float *out[3];
    for (int i = 0; i < 3; i++) {
        engine *e = engine_open(llmlua_backend(), s);
        text *t = memory(sizeof *t);
        for (int32_t p = 0; p < MOST_POSITIONS; p++) t->tokens[p] = p, t->pages[p / 32] = p / 32;
        out[i] = memory(bytes);
        feed_text(e, t, n, pieces[i], out[i]);
        engine_close(e);
        free(t);
    }
    for (int i = 1; i < 3; i++)
        CHECK(memcmp(out[0], out[i], bytes) == 0, "%s: %d tokens in pieces of %d differ by %g",
              name_of(s), n, pieces[i], worst_of(out[0], out[i], n * width));
    for (int i = 0; i < 3; i++) free(out[i]);
}

/* Rows of a tree, the same bits as the text of each path. */
static void check_tree(const shape *s, int32_t n_past) {
    static const int32_t parents[] = {0, 1, 1, 0, 3, 2, 6, 7, 5},
                         depth[] = {0, 1, 1, 0, 2, 2, 3, 4, 3};
    enum { N = sizeof depth / sizeof *depth };
    const int32_t width = s->n_heads * s->dim_v;
    engine *e = engine_open(llmlua_backend(), s);
    text *tree = memory(sizeof *tree), *path = memory(sizeof *path);
    float *out = memory(sizeof *out * (size_t)(MOST_ROWS * width)),
          *want = memory(sizeof *out * (size_t)(MOST_ROWS * width));
    for (int32_t p = 0; p < n_past + N; p++) {
        tree->tokens[p] = path->tokens[p] = p;
        tree->pages[p / 32] = 2 * (p / 32), path->pages[p / 32] = 2 * (p / 32) + 1;
    }
    feed_text(e, tree, n_past, MOST_ROWS, NULL);
    feed_text(e, path, n_past, MOST_ROWS, NULL);
    const kern_sequence q = rows_of(tree, N, 0);
    feed(e, &q, 1, tree->tokens + n_past, parents, out);
    int n_different = 0;
    for (int32_t i = 0; i < N; i++) {
        path->n = n_past;
        for (int32_t j = i; j >= 0; j = parents[j] - 1)
            path->tokens[n_past + depth[j]] = tree->tokens[n_past + j];
        feed_text(e, path, depth[i] + 1, 1, want);
        n_different +=
            memcmp(want + depth[i] * width, out + i * width, sizeof *out * (size_t)width) != 0;
    }
    CHECK(n_different == 0, "%s: %d of %d rows of a tree after %d tokens differ", name_of(s),
          n_different, N, n_past);
    engine_close(e);
    free(tree);
    free(path);
    free(out);
    free(want);
}

/* A position's bytes: as ref's, kept by a page that they are written to, and by a copied page. */
static void check_positions(const shape *like) {
    shape plain = *like; /* what is turned may differ in a last bit */
    plain.norm = false, plain.n_rotary = 0;
    const shape *s = &plain;
    engine *engines[2] = {engine_open(&kern_ref, s), engine_open(llmlua_backend(), s)};
    const kern_kv_shape kv = {LAYERS, s->n_heads_kv, s->dim, s->dim_v, s->kv};
    const size_t bytes = engines[0]->b->position_bytes(&kv);
    CHECK(engines[1]->b->position_bytes(&kv) == bytes, "bytes of a position");
    unsigned char *x[2] = {memory(bytes), memory(bytes)};
    const int32_t width = s->n_heads * s->dim_v;
    float *out = memory(sizeof *out * (size_t)(40 * width));
    for (int i = 0; i < 2; i++) {
        engine *e = engines[i];
        text t = {.pages = {3, 1}};
        for (int32_t p = 0; p < 40; p++) t.tokens[p] = p;
        feed_text(e, &t, 40, 40, out);
        if (e->b->page_read(e->d, e->pages, 1, 5, x[i])) abort();
    }
    CHECK(memcmp(x[0], x[1], bytes) == 0, "%s: a position's bytes differ from ref's", name_of(s));
    engine *e = engines[1];
    for (size_t i = 0; i < bytes; i++) x[0][i] = (unsigned char)(i * 37 + 11);
    if (e->b->page_write(e->d, e->pages, 5, 31, x[0]) ||
        e->b->page_write(e->d, e->pages, 5, 0, x[1]) ||
        e->b->page_read(e->d, e->pages, 5, 31, x[1]))
        abort();
    CHECK(memcmp(x[0], x[1], bytes) == 0, "%s: a position written reads back", name_of(s));
    memset(x[1], 0, bytes);
    if (e->b->page_copy(e->d, e->pages, 6, 5, 32) || e->b->page_read(e->d, e->pages, 6, 31, x[1]))
        abort();
    CHECK(memcmp(x[0], x[1], bytes) == 0, "%s: a copied page reads the same", name_of(s));
    for (int i = 0; i < 2; i++) {
        engine_close(engines[i]);
        free(x[i]);
    }
    free(out);
}

/* More positions than all streams have chunks for at once, written as bytes: a row by itself as
 * ref's, and among others the same bits. */
static void check_long(const shape *s, int32_t n_past, double most) {
    engine *engines[2] = {engine_open(&kern_ref, s), engine_open(llmlua_backend(), s)};
    const kern_kv_shape kv = {LAYERS, s->n_heads_kv, s->dim, s->dim_v, s->kv};
    const int32_t width = s->n_heads * s->dim_v, tokens[3] = {5, 6, 7};
    const size_t bytes = engines[0]->b->position_bytes(&kv), n = bytes / 4;
    int32_t pages[MOST_PAGES];
    float *x = memory(bytes), *out[3];
    for (int i = 0; i < 3; i++) out[i] = memory(sizeof(float) * (size_t)(3 * width));
    for (int32_t p = 0; p < n_past; p++) {
        pages[p / 32] = MOST_PAGES - 1 - p / 32;
        for (size_t j = 0; j < n; j++) x[j] = 2 * number(4, p, (int32_t)j);
        for (int i = 0; i < 2; i++)
            if (engines[i]->b->page_write(engines[i]->d, engines[i]->pages, pages[p / 32], p % 32,
                                          x))
                abort();
    }
    pages[n_past / 32] = MOST_PAGES - 1 - n_past / 32;
    const kern_sequence one = {pages, n_past, 1, 0}, three = {pages, n_past, 3, 0};
    for (int i = 0; i < 2; i++) feed(engines[i], &one, 1, tokens, NULL, out[i]);
    feed(engines[1], &three, 1, tokens, NULL, out[2]);
    const double worst = worst_of(out[1], out[0], width);
    CHECK(worst < most, "%s: row %d differs from ref by %g", name_of(s), n_past, worst);
    CHECK(memcmp(out[1], out[2], sizeof(float) * (size_t)width) == 0,
          "%s: row %d differs among others", name_of(s), n_past);
    for (int i = 0; i < 2; i++) engine_close(engines[i]);
    for (int i = 0; i < 3; i++) free(out[i]);
    free(x);
}

/* A key or a value that is not finite is met by the rows that see it, and by no other. */
static void check_not_finite(kern_kv kv) {
    const shape s = {2, 1, 32, 32, 0, kv, false, 0, false};
    enum { N = 60, AT = 45 };
    const kern_kv_shape kvs = {LAYERS, 1, 32, 32, kv};
    engine *e = engine_open(llmlua_backend(), &s);
    const size_t bytes = e->b->position_bytes(&kvs), half = bytes / 2 / LAYERS;
    unsigned char *x = memory(bytes);
    float *before = memory(sizeof(float) * N * 64), *out = memory(sizeof(float) * N * 64);
    for (int i = 0; i < 4; i++) { /* of keys, of values: NaN, infinity */
        text t = {.pages = {0, 1}};
        for (int32_t p = 0; p < N; p++) t.tokens[p] = p;
        feed_text(e, &t, N, N, before);
        if (e->b->page_read(e->d, e->pages, 1, AT - 32, x)) abort();
        unsigned char *row = x + half * (size_t)(2 * (LAYERS - 1) + i / 2);
        const uint16_t bad = i % 2 ? 0x7C00 : 0x7E00;
        const float wide = i % 2 ? INFINITY : NAN;
        memcpy(row + (kv == KERN_KV_Q8_0 ? 0 : 4), kv == KERN_KV_F32 ? (const void *)&wide : &bad,
               kv == KERN_KV_F32 ? 4 : 2);
        if (e->b->page_write(e->d, e->pages, 1, AT - 32, x)) abort();
        /* all rows but the bad one once more: one tile holds some that see it and some that do not
         */
        int n_wrong = 0, n_changed = 0;
        t.n = AT - 20;
        feed_text(e, &t, 20, 20, out);
        n_changed += memcmp(out, before + (AT - 20) * 64, sizeof(float) * 20 * 64) != 0;
        t.n = AT + 1;
        feed_text(e, &t, N - AT - 1, N, out);
        for (int32_t j = 0; j < (N - AT - 1) * 64; j++) {
            const bool whole_block = kv == KERN_KV_Q8_0, finite = isfinite(out[j]);
            const bool hurt = i < 2 || whole_block || j % 32 == (kv == KERN_KV_F32 ? 1 : 2);
            n_wrong += i == 1 ? 0 : finite == hurt; /* a score of -inf is a weight of 0 */
        }
        CHECK(n_changed == 0, "kv %d: rows before what is not finite differ, way %d", kv, i);
        CHECK(n_wrong == 0, "kv %d: %d numbers after what is not finite are wrong, way %d", kv,
              n_wrong, i);
    }
    engine_close(e);
    free(x);
    free(before);
    free(out);
}

/* Values of a prompt beyond f16: rows before them in the same pass are those of a pass without. */
static void check_overflow(void) {
    const shape s = {4, 2, 32, 16, 0, KERN_KV_F16, false, 0, false};
    enum { N = 30, AT = 13, WIDTH = 64 };
    engine *e = engine_open(llmlua_backend(), &s);
    text t = {.pages = {2}};
    for (int32_t p = 0; p < N; p++) t.tokens[p] = p;
    float *before = memory(sizeof(float) * N * WIDTH), *out = memory(sizeof(float) * N * WIDTH);
    feed_text(e, &t, N, N, before);
    float v[N * 32];
    for (int32_t i = 0; i < N * 32; i++) v[i] = 2 * number(3, i / 32, i % 32);
    v[AT * 32 + 3] = 1e6f;
    const kern_sequence q = {t.pages, 0, N, 0};
    const kern_batch batch = {
        .n_rows = N, .n_sequences = 1, .sequences = &q, .ids = {&e->ids, 0, N, 1}};
    if (e->b->write(e->d, e->b->work_buffer(e->work, B_V), 0, v, sizeof v) ||
        e->b->run(e->d, e->work, &e->p, 0, e->p.n_ops, &batch) ||
        e->b->read(e->d, e->b->work_buffer(e->work, B_OUT), 0, out, sizeof(float) * N * WIDTH))
        abort();
    CHECK(memcmp(out, before, sizeof(float) * AT * WIDTH) == 0,
          "rows before a value beyond f16 in the same pass");
    int n_wrong = 0;
    for (int32_t j = AT * WIDTH; j < N * WIDTH; j++) {
        const int32_t column = j % WIDTH;
        const bool hurt = column < 32 && column % 16 == 3;
        n_wrong += hurt ? out[j] != INFINITY : memcmp(&out[j], &before[j], sizeof *out) != 0;
    }
    CHECK(n_wrong == 0, "%d numbers after a value beyond f16 are wrong", n_wrong);
    engine_close(e);
    free(before);
    free(out);
}

int main(void) {
    static const shape shapes[] = {
        {4, 2, 64, 64, 0, KERN_KV_F32, true, 64, false},
        {9, 3, 64, 64, 0, KERN_KV_F16, false, 64, false},
        {8, 1, 96, 64, 37, KERN_KV_F16, true, 48, true},
        {4, 4, 24, 10, 0, KERN_KV_F16, false, 0, false},
        {2, 1, 256, 256, 100, KERN_KV_F16, true, 256, false},
        {16, 1, 128, 128, 0, KERN_KV_F16, false, 128, false},
        {4, 2, 12, 20, 50, KERN_KV_F32, false, 12, true},
        {6, 2, 128, 128, 0, KERN_KV_Q8_0, true, 128, false},
        {4, 1, 64, 96, 70, KERN_KV_Q8_0, false, 0, false},
        {20, 1, 32, 32, 0, KERN_KV_F16, false, 32, false},
        {5, 5, 8, 8, 0, KERN_KV_F16, false, 8, false},
        {2, 1, 160, 256, 0, KERN_KV_Q8_0, false, 0, false},
    };
    const int n = (int)(sizeof shapes / sizeof *shapes);
    const bool brief = is_brief();
    for (int i = 0; i < n; i++) {
        const shape *s = &shapes[i];
        const bool exact = s->kv == KERN_KV_F32 || (!s->norm && !s->n_rotary);
        const double most = !exact ? 1e-3 : s->kv == KERN_KV_Q8_0 ? 2e-5 : 4e-6;
        check_ref(s, brief ? 60 : i % 3 ? 200 : 330, most);
        check_positions(s);
        if (brief) continue;
        check_pieces(s, 150);
        check_tree(s, (int32_t[]){0, 31, 126, 100}[i % 4]);
    }
    for (int i = 0; i < n; i += 2) {
        check_forks(&shapes[i], brief ? 2 : 3, 40);
        if (!brief) check_forks(&shapes[i], 7, 300);
    }
    if (brief) { /* more chunks than one, a tree, in each form of keys and values */
        for (kern_kv kv = KERN_KV_F32; kv <= KERN_KV_Q8_0; kv++) {
            const shape s = {3, 1, 32, 32, 0, kv, true, 32, false};
            check_tree(&s, 126);
            check_forks(&s, 2, 135);
        }
    } else {
        check_long(&(shape){2, 1, 8, 8, 0, KERN_KV_F32, false, 0, false}, 4300, 2e-6);
        check_long(&(shape){2, 1, 8, 8, 4200, KERN_KV_F32, false, 0, false}, 4410, 2e-6);
    }
    check_not_finite(KERN_KV_F32);
    check_not_finite(KERN_KV_F16);
    check_not_finite(KERN_KV_Q8_0);
    check_overflow();
    return check_end();
}
