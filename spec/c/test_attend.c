/* test_attend.c: attention of the cpu backend, every tier that the machine has: against sums in
 * f64, that rows which share pages get the bits that they get alone, and numbers that are not
 * finite. Keys and values are known functions of a token and its position. */
#include "check.h"
#include "host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, LAYER = 2, MOST_POSITIONS = 1200, MOST_SEQUENCES = 20, MOST_ROWS = 64 };

typedef struct shape {
    int32_t n_heads, n_heads_kv, dim, dim_v, window;
    kern_kv kv;
} shape;

/* A sequence: its tokens, the pages they lie in, and how many of the last ones attend. */
typedef struct text {
    int32_t tokens[MOST_POSITIONS], pages[MOST_POSITIONS / KERN_PAGE_POSITIONS + 1];
    int32_t n, n_rows;
} text;

typedef struct scene {
    shape s;
    kern_device *d;
    kern_pages *pages;
    int32_t n_pages;
    plan_buffer buffers[2];
    plan_op op;
    plan p;
} scene;

/* In -1 … 1, the same for the same numbers. */
static float number(int32_t what, int32_t token, int32_t position, int32_t i) {
    uint64_t x = (uint64_t)what * 0x9e3779b97f4a7c15u + (uint64_t)token * 0xbf58476d1ce4e5b9u +
                 (uint64_t)position * 0x94d049bb133111ebu + (uint64_t)i * 0xd6e8feb86659fd93u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (float)((x ^ x >> 31) >> 40) / 8388608.0f - 1.0f;
}

static void *memory(size_t n) {
    void *p = calloc(n, 1);
    if (!p) abort();
    return p;
}

/* A row of a head's keys (what = 1) or values (2) as the cache holds it. */
static void cache_row(const shape *s, int32_t what, int32_t token, int32_t position, int32_t head,
                      unsigned char *row) {
    const int32_t n = what == 1 ? s->dim : s->dim_v;
    float x[512];
    for (int32_t i = 0; i < n; i++) x[i] = 2 * number(what, token, position, head * n + i);
    host_kv_store(s->kv, x, n, row);
}

static scene scene_open(const char *tier, int n_threads, const shape *s, int32_t n_pages) {
    char message[200] = "";
    scene z = {.s = *s, .n_pages = n_pages};
    z.d = kern_cpu.open(&(kern_device_options){.n_threads = n_threads, .tier = tier}, message,
                        sizeof message);
    const kern_kv_shape kv = {LAYERS, s->n_heads_kv, s->dim, s->dim_v, s->kv};
    if (!z.d || kern_cpu.pages_open(z.d, &kv, n_pages, &z.pages) != KERN_OK) abort();
    for (int32_t i = 0; i < n_pages; i++) {
        if (kern_cpu.page_reserve(z.d, z.pages, i) != KERN_OK) abort();
        memset(z.pages->pages[i], 0xff, z.pages->page_bytes); /* NaN */
    }
    z.buffers[0] = (plan_buffer){"q", s->n_heads * s->dim};
    z.buffers[1] = (plan_buffer){"out", s->n_heads * s->dim_v};
    z.op = (plan_op){.kind = PLAN_ATTEND,
                     .layer = LAYER,
                     .in = 0,
                     .in2 = -1,
                     .out = 1,
                     .scale = 1.0f / sqrtf((float)s->dim),
                     .n_heads = s->n_heads,
                     .n_heads_kv = s->n_heads_kv,
                     .head_dim = s->dim,
                     .head_dim_v = s->dim_v,
                     .window = s->window};
    z.p = (plan){.n_ops = 1, .n_layers = LAYERS, .n_buffers = 2, .residual = 0, .logits = -1};
    return z;
}

static void scene_close(scene *z) {
    kern_cpu.pages_close(z->d, z->pages);
    kern_cpu.close(z->d);
}

/* Puts the key and the value of a token into slot `slot` of a sequence. */
static void put(scene *z, const text *t, int32_t slot, int32_t token, int32_t position) {
    const shape *s = &z->s;
    const kern_kv_shape kv = {LAYERS, s->n_heads_kv, s->dim, s->dim_v, s->kv};
    const size_t keys = kern_kv_row_bytes(s->kv, s->dim),
                 values = kern_kv_row_bytes(s->kv, s->dim_v);
    unsigned char *bytes = memory(kern_cpu.position_bytes(&kv));
    unsigned char *at = bytes + (LAYER - 1) * (size_t)s->n_heads_kv * (keys + values);
    for (int32_t h = 0; h < s->n_heads_kv; h++, at += keys) cache_row(s, 1, token, position, h, at);
    for (int32_t h = 0; h < s->n_heads_kv; h++, at += values)
        cache_row(s, 2, token, position, h, at);
    if (kern_cpu.page_write(z->d, z->pages, t->pages[slot / KERN_PAGE_POSITIONS],
                            slot % KERN_PAGE_POSITIONS, bytes) != KERN_OK)
        abort();
    free(bytes);
}

/* Rows of n texts in one pass. The query of a row is that of its token and position; parents as in
 * kern_batch, then row i of the only text has depth[i]. out[rows, n_heads · dim_v] */
static void attend(scene *z, const text *texts, const int32_t *which, int32_t n,
                   const int32_t *parents, const int32_t *depth, float *out) {
    const int32_t width = z->s.n_heads * z->s.dim;
    kern_sequence sequences[MOST_SEQUENCES];
    kern_batch batch = {.n_sequences = n, .sequences = sequences, .parents = parents};
    for (int32_t i = 0; i < n; i++) {
        const text *t = &texts[which[i]];
        sequences[i] = (kern_sequence){t->pages, t->n - t->n_rows, t->n_rows, batch.n_rows};
        batch.n_rows += t->n_rows;
    }
    z->p.ops = &z->op;
    z->p.buffers = z->buffers;
    kern_work *work;
    if (kern_cpu.work_open(z->d, &z->p, z->pages, batch.n_rows, &work) != KERN_OK) abort();
    float *q = kern_cpu.work_buffer(work, 0)->data;
    for (int32_t i = 0; i < n; i++) {
        const text *t = &texts[which[i]];
        for (int32_t r = 0; r < t->n_rows; r++) {
            const int32_t slot = t->n - t->n_rows + r;
            const int32_t position = depth ? t->n - t->n_rows + depth[r] : slot;
            for (int32_t j = 0; j < width; j++, q++)
                *q = 3 * number(0, t->tokens[slot], position, j);
        }
    }
    const int code = kern_cpu.run(z->d, work, &z->p, 0, 1, &batch);
    CHECK(code == KERN_OK, "%s", kern_cpu.last_error(z->d));
    memcpy(out, kern_cpu.work_buffer(work, 1)->data,
           (size_t)batch.n_rows * (size_t)z->buffers[1].width * sizeof *out);
    kern_cpu.work_close(z->d, work);
}

/* What a head of the row at `position` should be, in f64. */
static void expected(const scene *z, const text *t, int32_t position, int32_t head, double *out) {
    const shape *s = &z->s;
    unsigned char row[512 * 4];
    float x[512];
    double *weights = memory(sizeof *weights * MOST_POSITIONS), largest = -INFINITY, sum = 0;
    const int32_t kv_head = head / (s->n_heads / s->n_heads_kv);
    const int32_t first = s->window > 0 && position >= s->window ? position - s->window + 1 : 0;
    for (int32_t p = first; p <= position; p++) {
        cache_row(s, 1, t->tokens[p], p, kv_head, row);
        host_kv_load(s->kv, row, s->dim, x);
        for (int32_t i = 0; i < s->dim; i++)
            weights[p] += (double)x[i] *
                          (double)(3 * number(0, t->tokens[position], position, head * s->dim + i));
        weights[p] *= (double)z->op.scale;
        largest = fmax(largest, weights[p]);
    }
    for (int32_t i = 0; i < s->dim_v; i++) out[i] = 0;
    for (int32_t p = first; p <= position; p++) {
        const double e = exp(weights[p] - largest);
        cache_row(s, 2, t->tokens[p], p, kv_head, row);
        host_kv_load(s->kv, row, s->dim_v, x);
        sum += e;
        for (int32_t i = 0; i < s->dim_v; i++) out[i] += e * (double)x[i];
    }
    for (int32_t i = 0; i < s->dim_v; i++) out[i] /= sum;
    free(weights);
}

/* Forks of one text of n_common tokens, each with a tail of its own; those from the third on share
 * more with the one two before. Whole common pages are shared. */
static int32_t fork_texts(scene *z, text *texts, int32_t n, int32_t n_common) {
    int32_t n_used = 0, n_rows = 0;
    for (int32_t i = 0; i < n; i++) {
        text *t = &texts[i];
        const text *from = i == 0 ? NULL : i == 1 ? &texts[0] : &texts[i - 2];
        int32_t shared = i == 0 ? 0 : n_common;
        if (i >= 2) shared = from->n - from->n_rows;
        t->n_rows = 1 + i * i % 3;
        t->n = shared + (i == 0 ? n_common : 0) + i * 13 % 45 + t->n_rows;
        n_rows += t->n_rows;
        for (int32_t p = 0; p < t->n; p++)
            t->tokens[p] = p < shared ? from->tokens[p] : p < n_common ? 7 : 100 + i;
        for (int32_t p = 0; p < t->n; p += KERN_PAGE_POSITIONS) {
            const int32_t page = p / KERN_PAGE_POSITIONS;
            if (p + KERN_PAGE_POSITIONS <= shared) {
                t->pages[page] = from->pages[page];
                continue;
            }
            t->pages[page] = z->n_pages - 1 - n_used++;
            for (int32_t j = p; j < t->n && j < p + KERN_PAGE_POSITIONS; j++)
                put(z, t, j, t->tokens[j], j);
        }
    }
    if (n_used > z->n_pages) abort();
    return n_rows;
}

static const char *name_of(const shape *s) {
    static char name[100];
    snprintf(name, sizeof name, "heads %d/%d of %d and %d, window %d, kv %d", s->n_heads,
             s->n_heads_kv, s->dim, s->dim_v, s->window, s->kv);
    return name;
}

/* Rows of forks: alone against f64, and together, in two orders and with 1, 2 and 5 threads, the
 * same bits. */
static void check_forks(const char *tier, const shape *s, int32_t n, int32_t n_common) {
    static const int threads[] = {1, 2, 5};
    const int64_t width = (int64_t)s->n_heads * s->dim_v;
    text *texts = memory(sizeof *texts * MOST_SEQUENCES);
    float *solo = memory(sizeof *solo * (size_t)(MOST_ROWS * width));
    float *together = memory(sizeof *solo * (size_t)(MOST_ROWS * width));
    double *want = memory(sizeof *want * (size_t)s->dim_v), worst = 0;
    for (int i = 0; i < 3; i++) {
        scene z = scene_open(tier, threads[i], s, n_common / 32 + 8 * n + 1);
        const int32_t n_rows = fork_texts(&z, texts, n, n_common);
        int32_t order[MOST_SEQUENCES], at[MOST_SEQUENCES], row = 0;
        for (int32_t j = 0; j < n; j++) {
            if (i == 0) attend(&z, texts, (int32_t[]){j}, 1, NULL, NULL, solo + row * width);
            at[j] = row;
            row += texts[j].n_rows;
        }
        if (n_rows > MOST_ROWS) abort();
        for (int backwards = 0; backwards < 2; backwards++) {
            for (int32_t j = 0; j < n; j++) order[j] = backwards ? n - 1 - j : j;
            attend(&z, texts, order, n, NULL, NULL, together);
            int n_different = 0;
            for (int32_t j = 0, r = 0; j < n; r += texts[order[j++]].n_rows)
                n_different += memcmp(together + r * width, solo + at[order[j]] * width,
                                      (size_t)(texts[order[j]].n_rows * width) * sizeof *solo) != 0;
            CHECK(n_different == 0, "%s, %s: %d of %d forks of %d tokens differ in a batch, way %d",
                  tier, name_of(s), n_different, n, n_common, 2 * i + backwards);
        }
        for (int32_t j = 0; j < n && i == 0; j += n - 1 + (n == 1)) { /* the first, the last */
            const text *t = &texts[j];
            for (int32_t h = 0; h < s->n_heads; h += 1 + s->n_heads / 4) {
                expected(&z, t, t->n - 1, h, want);
                const float *got = solo + (at[j] + t->n_rows - 1) * width + h * s->dim_v;
                for (int32_t k = 0; k < s->dim_v; k++)
                    if (!(fabs((double)got[k] - want[k]) <= worst))
                        worst = fabs((double)got[k] - want[k]);
            }
        }
        scene_close(&z);
    }
    CHECK(worst < 4e-6, "%s, %s: differs from f64 by %g", tier, name_of(s), worst);
    free(texts);
    free(solo);
    free(together);
    free(want);
}

/* Rows of a tree, the same bits as the text of each path. */
static void check_tree(const char *tier, const shape *s, int32_t n_past) {
    static const int32_t parents[] = {0, 1, 1, 0, 3, 2, 6, 7, 5},
                         depth[] = {0, 1, 1, 0, 2, 2, 3, 4, 3};
    enum { N = sizeof depth / sizeof *depth };
    const int64_t width = (int64_t)s->n_heads * s->dim_v;
    text *tree = memory(sizeof *tree), *path = memory(sizeof *path);
    float *out = memory(sizeof *out * (size_t)(N * width)),
          *want = memory(sizeof *out * (size_t)width);
    const int32_t n_pages = (n_past + N) / KERN_PAGE_POSITIONS + 1;
    scene z = scene_open(tier, 2, s, 2 * n_pages);
    *tree = (text){.n = n_past + N, .n_rows = N};
    for (int32_t i = 0; i < n_pages; i++) tree->pages[i] = 2 * i, path->pages[i] = 2 * i + 1;
    for (int32_t i = 0; i < tree->n; i++) {
        tree->tokens[i] = path->tokens[i] = i;
        put(&z, tree, i, i, i < n_past ? i : n_past + depth[i - n_past]);
        if (i < n_past) put(&z, path, i, i, i);
    }
    attend(&z, tree, (int32_t[]){0}, 1, parents, depth, out);
    int n_different = 0;
    for (int32_t i = 0; i < N; i++) {
        path->n = n_past + depth[i] + 1;
        path->n_rows = 1;
        for (int32_t j = i; j >= 0; j = parents[j] - 1) {
            path->tokens[n_past + depth[j]] = tree->tokens[n_past + j];
            put(&z, path, n_past + depth[j], tree->tokens[n_past + j], n_past + depth[j]);
        }
        attend(&z, path, (int32_t[]){0}, 1, NULL, NULL, want);
        n_different += memcmp(want, out + i * width, (size_t)width * sizeof *out) != 0;
    }
    CHECK(n_different == 0, "%s, %s: %d of %d rows of a tree after %d tokens differ", tier,
          name_of(s), n_different, N, n_past);
    scene_close(&z);
    free(tree);
    free(path);
    free(out);
    free(want);
}

/* A key or a value that is not finite is seen by the rows that attend to it, and by no other. */
static void check_not_finite(const char *tier) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const shape s = {3, 1, 32, 32, 0, KERN_KV_F32};
    enum { N = 300, SEEN_FROM = 280, AT = 270 };
    text *t = memory(sizeof *t);
    float *out = memory(sizeof *out * 30 * 96), *before = memory(sizeof *out * 30 * 96);
    for (int i = 0; i < 6; i++) {
        scene z = scene_open(tier, 2, &s, N / 32 + 1);
        *t = (text){.n = N, .n_rows = 30};
        for (int32_t p = 0; p < N; p++) {
            t->pages[p / 32] = p / 32;
            t->tokens[p] = p;
            put(&z, t, p, p, p);
        }
        attend(&z, t, (int32_t[]){0}, 1, NULL, NULL, before);
        const int32_t at = SEEN_FROM % 32;
        float *keys = (float *)(void *)host_keys(z.pages, SEEN_FROM / 32, LAYER - 1, 0);
        float *values = (float *)(void *)host_values(z.pages, SEEN_FROM / 32, LAYER - 1, 0);
        if (i < 3)
            keys[4 * 32 + at] = bad[i];
        else
            values[at * 32 + 4] = bad[i - 3];
        attend(&z, t, (int32_t[]){0}, 1, NULL, NULL, out);
        const int32_t n_before = SEEN_FROM - AT;
        CHECK(memcmp(out, before, (size_t)n_before * 96 * sizeof *out) == 0,
              "%s: rows before a key or value of %g", tier, (double)bad[i % 3]);
        int n_wrong = 0;
        for (int32_t j = n_before * 96; j < 30 * 96; j++) {
            const int finite = isfinite(out[j]) != 0;
            /* a score of -inf is a weight of 0; of a value only its own column is hurt */
            if (i < 3 && isinf(bad[i]) ? 0 : finite != (i >= 3 && j % 32 != 4)) n_wrong++;
            if (i > 3 && j % 32 == 4 && out[j] != bad[i - 3]) n_wrong++;
            if (i == 1 || i == 2) n_wrong += isinf(out[j]) != 0;
        }
        CHECK(n_wrong == 0, "%s, case %d: %d numbers are wrong", tier, i, n_wrong);
        scene_close(&z);
    }
    free(t);
    free(out);
    free(before);
}

static void check_tier(const char *tier) {
    static const shape shapes[] = {
        {9, 3, 64, 64, 0, KERN_KV_F16},     {9, 3, 64, 64, 0, KERN_KV_F32},
        {9, 3, 64, 64, 0, KERN_KV_Q8_0},    {4, 1, 256, 256, 300, KERN_KV_F16},
        {4, 1, 256, 256, 40, KERN_KV_Q8_0}, {8, 2, 80, 80, 0, KERN_KV_F16},
        {5, 5, 20, 20, 33, KERN_KV_F16},    {6, 3, 13, 21, 0, KERN_KV_F32},
        {2, 1, 24, 72, 5, KERN_KV_F16},     {50, 1, 32, 32, 0, KERN_KV_F16},
        {10, 2, 96, 32, 270, KERN_KV_Q8_0}, {7, 1, 128, 128, 0, KERN_KV_F32}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_forks(tier, &shapes[i], 1, 1);
        check_forks(tier, &shapes[i], 9, 20);
        check_forks(tier, &shapes[i], 5, 256);
        check_forks(tier, &shapes[i], 17, 300);
        check_tree(tier, &shapes[i], 0);
        check_tree(tier, &shapes[i], 250);
        check_tree(tier, &shapes[i], 318);
    }
    check_forks(tier, &shapes[0], 8, 1000);
    check_forks(tier, &shapes[1], 1, 1100);
    check_not_finite(tier);
}

int main(void) {
    static const char *const tiers[] = {"plain", "neon", "avx2", "avxvnni", "avx512"};
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++) {
        kern_tier tier;
        char message[200];
        kern_device *d = kern_cpu.open(&(kern_device_options){.n_threads = 1, .tier = tiers[i]},
                                       message, sizeof message);
        if (d && kern_tier_parse(tiers[i], &tier) == 0 && d->tier == tier) check_tier(tiers[i]);
        kern_cpu.close(d);
    }
    return check_end();
}
