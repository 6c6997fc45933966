/* test_request.c: requests: what several get from shared passes is bit for bit what each gets
 * alone; pieces, rewinding, pages that are short, prefixes that are found again. */
#include "requests.h"

/* ---- together is as alone ---- */

typedef struct sample {
    int64_t n_before, n, n2; /* ids in the cache, to feed, of them to a second cache */
    int64_t rows;
    int32_t n_layers, layers[2], exit;
    bool is_score;
} sample;

static const sample samples[] = {
    {10, 1, 0, 1, 0, {0, 0}, 0, false},         {0, 100, 0, 3, 0, {0, 0}, 0, false},
    {40, 5, 0, 1, 2, {0, 1}, 0, false},         {3, 4, 0, LLM_ROWS_ALL, 1, {1, 0}, 1, false},
    {2, 5, 2, LLM_ROWS_ALL, 0, {0}, 0, false},  {5, 9, 0, 0, 0, {0, 0}, 0, true},
    {0, 70, 0, LLM_ROWS_ALL, 0, {0}, 0, false}, {31, 1, 0, 1, 0, {0, 0}, 0, false},
    {64, 75, 0, 0, 0, {0, 0}, 0, true},         {7, 2, 0, 0, 0, {0, 0}, 0, false},
    {1, 1, 0, 1, 0, {0, 0}, 1, false},          {0, 2, 1, 1, 1, {1, 0}, 0, false},
};
#define N_SAMPLES (sizeof samples / sizeof *samples)

static llm_request *open_sample(llm_model *m, const sample *s, llm_cache **c, const int32_t *ids) {
    const int64_t counts[] = {s->n - s->n2, s->n2};
    if (s->is_score) return llm_request_open_score(m, c[0], ids, (size_t)s->n, &err);
    llm_feed f = {.caches = c,
                  .n_caches = s->n2 ? 2 : 1,
                  .counts = counts,
                  .ids = ids,
                  .rows = s->rows,
                  .layers = s->layers,
                  .n_layers = s->n_layers,
                  .exit = s->exit};
    return llm_request_open(m, &f, &err);
}

static void check_together(llm_model *m) {
    llm_cache *caches[N_SAMPLES][2], *alone[N_SAMPLES][2];
    llm_request *requests[N_SAMPLES];
    const int32_t *ids[N_SAMPLES];
    for (size_t i = 0; i < N_SAMPLES; i++) {
        const int32_t *before = ids_of(m, 100 + (uint32_t)i);
        ids[i] = ids_of(m, 150 + (uint32_t)i);
        for (int j = 0; j < 2; j++) {
            caches[i][j] = cache_of(m);
            if (samples[i].n_before) feed(m, caches[i][j], before + j, samples[i].n_before, 0);
            alone[i][j] = llm_cache_fork(caches[i][j], samples[i].n_before, &err);
        }
        requests[i] = open_sample(m, &samples[i], caches[i], ids[i]);
        CHECK(requests[i] != NULL, "%s", err.message);
    }
    CHECK(serve_all(requests, N_SAMPLES) > 1, "long ones take several steps");
    for (size_t i = 0; i < N_SAMPLES; i++) {
        const sample *s = &samples[i];
        llm_tensor *got[3] = {0}, *want[3] = {0};
        llm_request_take(requests[i], &got[0], got + 1);
        CHECK(llm_request_get_info(requests[i])->n_passes > 0 &&
                  llm_request_get_info(requests[i])->share_s > 0,
              "sample %zu has a share of the passes", i);
        llm_request_close(requests[i]);
        llm_request *r = open_sample(m, s, alone[i], ids[i]);
        serve_all(&r, 1);
        llm_request_take(r, &want[0], want + 1);
        llm_request_close(r);
        for (int j = 0; j < 3; j++)
            CHECK(same(got[j], want[j]), "sample %zu: tensor %d differs", i, j);
        for (int j = 0; j < 2; j++) {
            CHECK(llm_cache_length(caches[i][j]) == llm_cache_length(alone[i][j]),
                  "sample %zu: length", i);
            CHECK(same(next_of(m, caches[i][j], 1, s->exit), next_of(m, alone[i][j], 1, s->exit)),
                  "sample %zu: the cache differs", i);
            llm_cache_close(caches[i][j]);
            llm_cache_close(alone[i][j]);
        }
    }
}

/* ---- pieces, taking back ---- */

static void check_pieces(llm_model *m) {
    const int32_t *a = ids_of(m, 1), *b = ids_of(m, 2);
    llm_cache *cut = fed(m, a, 40), *few = fed(m, b, 3), *first = llm_cache_fork(cut, 40, &err);
    int64_t n_long = 200, n_few = 2, n_kept = 41;
    llm_request *r[2] = {open_feed(m, &cut, &n_long, b, 1), open_feed(m, &few, &n_few, a, 1)};
    llm_tensor *before = next_of(m, first, 5, 0), *logits, *again;
    llm_cache_close(first);
    serve(r, 2);
    const llm_request_info *info = llm_request_get_info(r[0]);
    CHECK(!info->is_done && info->n_fed > 0 && info->n_fed < n_long && info->n_ids == n_long,
          "the long one is cut: %lld fed", (long long)info->n_fed);
    CHECK(is_done(r[1]), "the short one is done in one step");
    size_t n_sync;
    llm_cache *out;
    CHECK(is_misuse(llm_cache_truncate(cut, 0, &err)), "truncate of a held cache");
    CHECK(is_misuse(llm_cache_sync(cut, a, 9, 1, &n_sync, &err)), "sync of a held cache");
    CHECK(is_misuse(llm_cache_fork(cut, 1, &err) == NULL), "fork of a held cache");
    CHECK(is_misuse(llm_cache_keep(cut, &n_kept, 1, &err)), "keep of a held cache");
    CHECK(is_misuse(llm_cache_save(cut, "held.kv", &err)), "save of a held cache");
    CHECK(is_misuse(llm_cache_evict(cut, &err)), "evict of a held cache");
    CHECK(is_misuse(llm_cache_reorder(&cut, 1, (int32_t[]){0}, 1, &out, &err)), "reorder of one");
    CHECK(is_misuse(llm_request_open_score(m, cut, a, 1, &err) == NULL), "score of a held cache");
    CHECK(is_misuse(
              llm_forward(m, &(llm_feed){.caches = &cut, .n_caches = 1, .counts = &n_few, .ids = a},
                          &logits, NULL, &err)),
          "forward of a held cache");
    llm_request_rewind(r[0]);
    CHECK(info->n_fed == 0 && llm_cache_length(cut) == 40, "rewind takes back");
    serve_all(r, 1);
    llm_request_take(r[0], &logits, NULL);
    llm_request_take(r[0], &again, NULL);
    CHECK(again == NULL, "results are taken once");
    llm_request_close(r[0]);
    llm_cache *whole = fed(m, a, 40);
    llm_request *w = open_feed(m, &whole, &n_long, b, 1);
    serve_all(&w, 1);
    llm_request_take(w, &again, NULL);
    CHECK(same(logits, again), "rewound and served again");
    CHECK(llm_cache_keep(cut, &n_kept, 1, &err) == 0 && llm_cache_length(cut) == 41,
          "keep counts from before the whole feed: %s", err.message);
    llm_request_close(w);
    llm_request_close(r[1]);

    llm_cache_truncate(cut, 40, &err);
    r[0] = open_feed(m, &cut, &n_long, b, 1);
    serve(r, 1);
    CHECK(llm_cache_length(cut) > 40, "a piece was fed");
    llm_request_close(r[0]);
    CHECK(llm_cache_length(cut) == 40, "close takes back");
    CHECK(same(before, next_of(m, cut, 5, 0)), "the cache is as it was");

    r[0] = open_feed(m, &cut, &n_long, b, 1);
    serve(r, 1);
    llm_cache_close(cut);
    info = llm_request_get_info(r[0]);
    CHECK(info->is_failed && info->error.kind == LLM_MISUSE &&
              strcmp(info->error.message, "cache 1 was closed while it was fed") == 0,
          "%s", info->error.message);
    serve(r, 1);
    llm_request_take(r[0], &logits, NULL);
    CHECK(!is_done(r[0]) && !logits, "a failed request stays so");
    llm_request_close(r[0]);
    llm_request_close(NULL);

    llm_cache *two[2] = {fed(m, a, 4), fed(m, a, 5)};
    r[0] = llm_request_open(
        m,
        &(llm_feed){
            .caches = two, .n_caches = 2, .counts = (int64_t[]){60, 60}, .ids = a, .rows = 1},
        &err);
    serve(r, 1);
    llm_cache_close(two[1]);
    CHECK(llm_request_get_info(r[0])->is_failed && llm_cache_length(two[0]) == 4,
          "the other cache is as it was");
    llm_request_close(r[0]);
    llm_cache_close(two[0]);
    r[0] = open_feed(m, &few, &n_few, a, 1);
    r[1] = r[0];
    CHECK(llm_serve(r, 2, &err) && err.kind == LLM_MISUSE, "one request twice");
    llm_request_close(r[0]);
    llm_cache_close(few);
    llm_cache_close(whole);
}

/* ---- pages ---- */

static void check_pages(const char *path) {
    llm_model *m = model_of(path, "cpu", 6, 32);
    const int32_t *a = ids_of(m, 3);
    llm_cache *big = fed(m, a, 128), *c = cache_of(m);
    int64_t n = 90, n_free, n_pages;
    llm_model_pages(m, &n_free, &n_pages);
    CHECK(n_free == 2 && n_pages == 6, "%lld of %lld pages free", (long long)n_free,
          (long long)n_pages);
    llm_request *r = open_feed(m, &c, &n, a, 1);
    for (int i = 0; i < 4; i++) serve(&r, 1);
    const llm_request_info *info = llm_request_get_info(r);
    CHECK(info->n_pages_missing == 1 && info->n_fed == 64 && !info->is_failed &&
              info->error.kind == LLM_CACHE_FULL,
          "%lld pages missing, %lld fed: %s", (long long)info->n_pages_missing,
          (long long)info->n_fed, info->error.message);
    llm_cache_close(big);
    serve(&r, 1);
    CHECK(info->is_done && info->n_pages_missing == 0 && info->error.kind == LLM_OK,
          "goes on when there are pages");
    llm_tensor *logits, *again;
    llm_request_take(r, &logits, NULL);
    llm_request_close(r);
    llm_cache_truncate(c, 0, &err);
    llm_feed f = {.caches = &c, .n_caches = 1, .counts = &n, .ids = a, .rows = 1};
    CHECK(llm_forward(m, &f, &again, NULL, &err) == 0, "%s", err.message);
    CHECK(same(logits, again), "waiting for pages changes nothing");
    llm_cache *other = fed(m, a, 70);
    n = 33;
    uint64_t n_rows = stats_of(m).forward_rows;
    CHECK(llm_forward(m, &(llm_feed){.caches = &other, .n_caches = 1, .counts = &n, .ids = a},
                      &logits, NULL, &err) &&
              err.kind == LLM_CACHE_FULL && llm_cache_length(other) == 70,
          "forward without pages: %s", err.message);
    CHECK(stats_of(m).forward_rows == n_rows, "nothing was computed for it");
    llm_cache_close(c);
    llm_cache_close(other);
    check_no_pages(m, "pages");
    llm_model_close(m);
}

/* ---- prefixes ---- */

static void check_prefixes(const char *path) {
    llm_model *m = model_of(path, "cpu", 24, 32), *plain = model_of(path, "cpu", 24, 32);
    const int32_t *a = ids_of(m, 4);
    llm_tensor *got, *want;
    int64_t n = 101, n_free, n_pages;
    CHECK(llm_model_share_prefixes(m, true, &err) == 0, "%s", err.message);
    llm_cache *expected = cache_of(plain);
    llm_feed f = {.caches = &expected, .n_caches = 1, .counts = &n, .ids = a, .rows = 1};
    llm_forward(plain, &f, &want, NULL, &err);
    llm_tensor_close(want);

    llm_cache *c = fed(m, a, n);
    for (int i = 0; i < 2; i++) { /* while the first lives, and when only the store has its pages */
        llm_cache *d = cache_of(m);
        llm_request *r = open_feed(m, &d, &n, a, 1);
        uint64_t rows = stats_of(m).forward_rows, reused = stats_of(m).prefix_tokens;
        serve(&r, 1);
        const llm_request_info *info = llm_request_get_info(r);
        CHECK(info->is_done && info->n_reused == 96 && info->n_fed == n, "%lld reused",
              (long long)info->n_reused);
        CHECK(stats_of(m).forward_rows - rows == 5 && stats_of(m).prefix_tokens - reused == 96,
              "only the last piece is computed");
        llm_request_take(r, &got, NULL);
        llm_request_close(r);
        llm_cache_truncate(expected, 0, &err);
        llm_forward(plain, &f, &want, NULL, &err);
        CHECK(same(got, want), "reused pages give the same bits");
        CHECK(same(next_of(m, d, 7, 0), next_of(plain, expected, 7, 0)), "and the next id too");
        llm_cache_close(d);
        llm_cache_close(i == 0 ? c : NULL);
        CHECK(stats_of(m).pages_used == 0 || i > 0, "pages of the store are not used");
    }
    llm_model_pages(m, &n_free, &n_pages);
    CHECK(n_free == n_pages && stats_of(m).pages_used == 0, "and count as free");

    /* rows and hidden states that are asked for are computed */
    c = cache_of(m);
    f = (llm_feed){.caches = &c, .n_caches = 1, .counts = &n, .ids = a, .rows = 40};
    uint64_t reused = stats_of(m).prefix_tokens;
    llm_forward(m, &f, &got, NULL, &err);
    CHECK(stats_of(m).prefix_tokens - reused == 32, "rows that are wanted are not skipped");
    llm_tensor_close(got);
    llm_cache_truncate(c, 0, &err);
    f.rows = 1;
    f.layers = (int32_t[]){1};
    f.n_layers = 1;
    reused = stats_of(m).prefix_tokens;
    llm_tensor *hidden;
    llm_forward(m, &f, &got, &hidden, &err);
    CHECK(stats_of(m).prefix_tokens == reused, "nor hidden states");
    llm_tensor_close(got);
    llm_tensor_close(hidden);
    /* what follows a page that was changed in the middle is something else */
    llm_cache_truncate(c, 40, &err);
    const int32_t *b = ids_of(m, 5);
    feed(m, c, b, 60, 0);
    llm_cache *e = fed(plain, a, 40);
    feed(plain, e, b, 60, 0);
    CHECK(same(next_of(m, c, 7, 0), next_of(plain, e, 7, 0)),
          "a page is written by its cache only");
    llm_cache_close(c);
    llm_cache_close(e);

    /* two with one prompt: the second waits for the first */
    const int32_t *p = ids_of(m, 6);
    llm_cache *two[2] = {cache_of(m), cache_of(m)};
    llm_request *r[2] = {open_feed(m, &two[0], &n, p, 1), open_feed(m, &two[1], &n, p, 1)};
    uint64_t rows = stats_of(m).forward_rows;
    serve_all(r, 2);
    CHECK(stats_of(m).forward_rows - rows == (uint64_t)n + 5, "%llu rows for two",
          (unsigned long long)(stats_of(m).forward_rows - rows));
    llm_tensor *x, *y;
    llm_request_take(r[0], &x, NULL);
    llm_request_take(r[1], &y, NULL);
    CHECK(same(x, y), "both get the same");
    for (int i = 0; i < 2; i++) llm_request_close(r[i]), llm_cache_close(two[i]);
    rows = stats_of(m).forward_rows;
    two[0] = cache_of(m), two[1] = cache_of(m);
    const int32_t *q = ids_of(m, 7);
    int32_t both[202];
    memcpy(both, q, 101 * 4), memcpy(both + 101, q, 101 * 4);
    f = (llm_feed){
        .caches = two, .n_caches = 2, .counts = (int64_t[]){101, 101}, .ids = both, .rows = 1};
    CHECK(llm_forward(m, &f, &got, NULL, &err) == 0, "%s", err.message);
    CHECK(stats_of(m).forward_rows - rows == 106, "one request, twice the same prompt");
    llm_tensor_close(got);
    llm_cache_close(two[0]), llm_cache_close(two[1]);

    /* the store gives way: pages are taken from it, the oldest first, and results stay right */
    for (uint32_t i = 0; i < 40; i++) {
        const int32_t *t = ids_of(m, i % 11 + 20);
        int64_t length = 40 + (i * 53) % 240;
        c = fed(m, t, length);
        e = fed(plain, t, length);
        CHECK(same(next_of(m, c, 7, 0), next_of(plain, e, 7, 0)), "round %u", i);
        llm_cache *kept = llm_cache_fork(c, length / 2, &err);
        llm_cache_close(c), llm_cache_close(e);
        feed(m, kept, t, 40, 0);
        llm_cache_close(kept);
    }
    CHECK(stats_of(m).pages_used == 0, "pages used: %lld", (long long)stats_of(m).pages_used);
    c = cache_of(m);
    int64_t all = 300;
    llm_cache *d = fed(m, ids_of(m, 20), 300);
    f = (llm_feed){.caches = &c, .n_caches = 1, .counts = &all, .ids = ids_of(m, 90), .rows = 1};
    CHECK(llm_forward(m, &f, &got, NULL, &err) == 0, "the whole budget can be used: %s",
          err.message);
    llm_tensor_close(got);
    llm_cache_close(c), llm_cache_close(d);
    CHECK(llm_model_share_prefixes(m, false, &err) == 0, "%s", err.message);
    llm_model_pages(m, &n_free, &n_pages);
    CHECK(n_free == n_pages, "off drops the store");
    llm_model_share_prefixes(m, true, &err);
    c = fed(m, a, 70);
    llm_cache_close(expected);
    llm_cache_close(c);
    llm_model_close(m); /* with pages in its store */
    llm_model_close(plain);
}

int main(void) {
    llm_model *models[] = {model_of(BUILTIN, "cpu", 0, 32), model_of(TINY, "cpu", 0, 32),
                           model_of(TINY, "ref", 0, 32)};
    for (int i = 0; i < 3; i++) {
        check_together(models[i]);
        check_pieces(models[i]);
        llm_model_share_prefixes(models[i], true, &err);
        check_together(models[i]);
        llm_model_close(models[i]);
    }
    check_pages(TINY);
    check_prefixes(BUILTIN);
    check_prefixes(TINY);
    return check_end();
}
