/* serve.c: one step of many requests. Chooses what each feeds, takes the pages for it, packs it
 * into passes and commits what they made. */
#include "pass.h"
#include "queue.h"

#include "../kernels/memory.h"
#include <string.h>

/* ---- what is fed ---- */

static bool is_live(const llm_request *r) { return !r->info.is_done && !r->info.is_failed; }
static bool is_fed(const llm_request *r) { return is_live(r) && !r->is_swap; }

static int check_list(llm_request *const *list, size_t n, llm_error *err) {
    for (size_t i = 0; i < n; i++) {
        if (list[i]->info.model != list[0]->info.model)
            return llm_fail(err, LLM_MISUSE, "request %zu is of another model", i + 1);
        if (list[i]->is_listed)
            return llm_fail(err, LLM_MISUSE, "request %zu is in the list twice", i + 1);
        list[i]->is_listed = true;
    }
    return 0;
}

/* Room for one more entry, at least doubled. */
static int grow(void **list, size_t *capacity, size_t n, size_t bytes, llm_error *err) {
    if (n < *capacity) return 0;
    size_t wanted = n < 32 ? 64 : 2 * n;
    void *grown = kern_realloc(*list, wanted * bytes);
    if (!grown) return llm_fail_memory(err, wanted * bytes, "the shares of a pass");
    *list = grown;
    *capacity = wanted;
    return 0;
}

static uint64_t chain_of(const llm_cache *c) { return c->n_chained ? c->chain_serial : 0; }

/* Whether the page that the part would begin is being computed by a share of this serve. */
static bool must_wait(const passes *s, const llm_request *r, const request_part *p) {
    const int32_t *ids;
    if (!s->n_pages || !request_may_reuse(r, p, &ids)) return false;
    if (cache_find_next(p->fed, ids) >= 0) return false;
    for (size_t i = 0; i < s->n_pages; i++)
        if (s->pages[i].parent == chain_of(p->fed) &&
            memcmp(s->pages[i].ids, ids, sizeof s->pages[i].ids) == 0)
            return true;
    return false;
}

/* Notes the page that the part works on, for others to wait for, if it will fill it. */
static int note_page(passes *s, const llm_request *r, const request_part *p, llm_error *err) {
    llm_cache *c = p->fed;
    const int32_t size = KERN_PAGE_POSITIONS;
    int32_t filled = (int32_t)(c->n % size);
    if (!s->model->pages.store || c->is_foreign || r->parents ||
        r->depth != s->model->info.n_layers || p->count - p->n_fed < size - filled || r->late ||
        cache_known(c) < c->n)
        return 0;
    cache_publish(c);
    if (c->n_chained != c->n / size) return 0;
    if (grow((void **)&s->pages, &s->pages_capacity, s->n_pages, sizeof *s->pages, err)) return -1;
    pass_page *page = &s->pages[s->n_pages++];
    page->parent = chain_of(c);
    if (filled) memcpy(page->ids, c->ids + c->n - filled, (size_t)filled * sizeof *c->ids);
    memcpy(page->ids + filled, r->ids + p->first + p->n_fed,
           (size_t)(size - filled) * sizeof *c->ids);
    return 0;
}

/* Pages for the shares from `first` on, all of one request. */
static int take_pages(passes *s, size_t first, llm_error *err) {
    for (size_t i = first; i < s->n_shares; i++)
        if (cache_extend(s->shares[i].part->fed, s->shares[i].n, err)) return -1;
    return 0;
}

/* Without pages for its share the request waits: others are served. */
static int miss_pages(passes *s, size_t first, llm_request *r, const llm_error *why,
                      llm_error *err) {
    for (size_t i = first; i < s->n_shares; i++) cache_trim(s->shares[i].part->fed);
    int64_t n = -(int64_t)pages_available(&s->model->pages);
    for (size_t i = first; i < s->n_shares; i++)
        n += cache_pages_needed(s->shares[i].part->fed, s->shares[i].n, true);
    s->n_shares = first;
    const bool is_short = why->kind == LLM_OUT_OF_MEMORY && s->model->pages.n_lost;
    if (why->kind != LLM_CACHE_FULL && !is_short) {
        if (err) *err = *why;
        return -1;
    }
    r->info.n_pages_missing = n > 1 ? n : 1;
    r->info.error = *why;
    return 0;
}

/* Shares of up to `most` ids of the request; *n counts them. */
static int share_out(passes *s, llm_request *r, int64_t most, int64_t *n, llm_error *err) {
    size_t first = s->n_shares, first_page = s->n_pages;
    llm_error why = {LLM_OK, ""};
    int64_t taken = 0;
    for (int64_t i = 0; i < r->n_parts && taken < most; i++) {
        request_part *p = &r->parts[i];
        int64_t left = p->count - p->n_fed;
        if (left == 0) continue;
        if (must_wait(s, r, p)) break;
        if (left > most - taken) left = most - taken;
        if (grow((void **)&s->shares, &s->shares_capacity, s->n_shares, sizeof *s->shares, err) ||
            note_page(s, r, p, err))
            return -1;
        s->shares[s->n_shares++] = (pass_share){r, p, left};
        taken += left;
    }
    if (take_pages(s, first, &why)) {
        s->n_pages = first_page;
        return miss_pages(s, first, r, &why, err);
    }
    *n += taken;
    return 0;
}

/* Requests with few ids to go are fed whole. The others share what is left of their last pass, or a
 * pass of their own. */
static int plan_all(passes *s, llm_request *const *list, size_t n, llm_error *err) {
    int64_t piece = s->model->piece, few = piece / 8 > 1 ? piece / 8 : 1, n_short = 0, n_long = 0;
    for (size_t i = 0; i < n; i++) {
        int64_t left = request_left(list[i]);
        if (is_fed(list[i]) && left <= few && share_out(s, list[i], left, &n_short, err)) return -1;
    }
    int64_t room = piece - n_short % piece;
    if (room < piece / 2) room = piece;
    for (size_t i = 0; i < n && n_long < room; i++) {
        llm_request *r = list[i];
        int64_t left = request_left(r), most = room - n_long;
        if (!is_fed(r) || left <= few) continue;
        if (r->parents && left > most) { /* trees are not cut */
            if (n_long) continue;
            most = left;
        }
        if (share_out(s, r, left < most ? left : most, &n_long, err)) return -1;
    }
    return 0;
}

/* Ids that could not be made are the request's failure. */
static void check_late(llm_request *r) {
    llm_error why;
    if (r->late && tensor_ready(late_tensor(r->late), &why)) request_fail(r, &why);
}

/* What is queued runs first, whoever's it is: the pass needs ids of it, and then all of a step is
 * under way before anybody waits. */
static int begin_all(llm_request *const *list, size_t n, llm_error *err) {
    if (queue_flush(list[0]->info.model->device, err)) return -1;
    for (size_t i = 0; i < n; i++) {
        if (is_live(list[i])) check_late(list[i]);
        if (!is_live(list[i])) continue;
        list[i]->info.n_pages_missing = 0;
        list[i]->info.error = (llm_error){LLM_OK, ""};
        if (request_begin(list[i], err) || request_reuse(list[i], err) ||
            (list[i]->is_swap && request_swap_in(list[i], err)))
            return -1;
        if (request_left(list[i]) == 0) request_finish(list[i]);
    }
    return 0;
}

/* ---- passes ---- */

static void pass_clear(passes *s) {
    s->n_chunks = s->n_rows = s->n_wanted = 0;
    s->has_parents = false;
}

static void commit(passes *s, double seconds) {
    for (int32_t i = 0; i < s->n_chunks; i++) {
        const pass_chunk *c = &s->chunks[i];
        llm_request *r = c->request;
        if (i == 0 || s->chunks[i - 1].request != r) r->info.n_passes++;
        r->info.share_s += seconds * c->n_rows / s->n_rows;
        request_commit(r, c->part, c->n_rows);
    }
    for (int32_t i = 0; i < s->n_chunks; i++) {
        llm_request *r = s->chunks[i].request;
        if (is_live(r) && request_left(r) == 0) request_finish(r);
    }
}

static int flush(passes *s, llm_error *err) {
    if (s->n_chunks == 0) return 0;
    double started = device_clock();
    int failed = pass_run(s, err);
    s->model->device->passes++;
    if (!failed) commit(s, device_clock() - started);
    pass_clear(s);
    return failed;
}

/* Adds the ids of a share to the pass in hand, and to others as far as it is full. */
static int pack(passes *s, pass_share *share, llm_error *err) {
    int64_t piece = s->model->piece;
    while (share->n) {
        int64_t room = piece - s->n_rows;
        if (room == 0 || (share->request->parents && share->n > room)) {
            if (flush(s, err)) return -1;
            continue;
        }
        int64_t n = share->n < room ? share->n : room;
        pass_add(s, share->request, share->part, (int32_t)n);
        share->n -= n;
    }
    return 0;
}

/* The shares, deepest first, each depth in passes of its own. */
static int run_all(passes *s, llm_error *err) {
    pass_clear(s);
    for (int32_t depth = INT32_MAX;;) {
        int32_t next = 0;
        for (size_t i = 0; i < s->n_shares; i++) {
            int32_t d = s->shares[i].request->depth;
            if (s->shares[i].n && d < depth && d > next) next = d;
        }
        if (next == 0) return 0;
        depth = next;
        for (size_t i = 0; i < s->n_shares; i++)
            if (s->shares[i].request->depth == depth && pack(s, &s->shares[i], err)) return -1;
        if (flush(s, err)) return -1;
    }
}

/* Time between serves is the caller's. */
static int run_timed(passes *s, llm_error *err) {
    llm_device *device = s->model->device;
    double started = device_clock();
    if (device->passes) device->between_s += started - device->last_end;
    int failed = run_all(s, err);
    device->last_end = device_clock();
    device->step_s += device->last_end - started;
    return failed;
}

/* What was fed nothing gives back what it took to begin. */
static void end_all(passes *s, llm_request *const *list, size_t n) {
    for (size_t i = 0; i < s->n_shares; i++)
        if (s->shares[i].part->fed) cache_trim(s->shares[i].part->fed);
    s->n_shares = s->n_pages = 0;
    for (size_t i = 0; i < n; i++) {
        list[i]->is_listed = false;
        if (!list[i]->info.n_fed) llm_request_rewind(list[i]);
    }
}

int llm_serve(llm_request *const *list, size_t n, llm_error *err) {
    if (n == 0) return 0;
    passes *s = passes_of(list[0]->info.model, err);
    if (!s) return -1;
    int failed = check_list(list, n, err) || begin_all(list, n, err) || plan_all(s, list, n, err) ||
                 (s->n_shares && run_timed(s, err));
    end_all(s, list, n);
    return failed ? -1 : 0;
}
