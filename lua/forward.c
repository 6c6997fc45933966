/* forward.c: model:forward, :logits and :score. A forward is a request, a userdata that holds all
 * its arguments checked and copied, and forward_run, which serves it; nothing on the C side lives
 * between the two, so that a scheduler may come between them. */
#include "handles.h"
#include <string.h>

enum { KEEP_MODEL = 1, KEEP_CACHES, KEEP_IDS, KEEP_LAYERS, KEEP_PARENTS, N_KEEP = KEEP_PARENTS };

typedef struct forward_request { /* user values: what the pointers point into or belong to */
    const model_handle *model;
    size_t n_caches, n_ids, n_layers;
    cache_handle *
        *handles; /* [n_caches] and so for the next two; these four lie behind the struct */
    llm_cache **caches;
    int64_t *counts;
    int32_t *ids;                    /* [n_ids], or NULL and */
    const tensor_handle *ids_tensor; /* used as it is, without waiting for it */
    int64_t rows;
    const int32_t *layers, *parents;
    int32_t exit;
    llm_tensor *hidden[]; /* [n_layers]: results; then the four arrays */
} forward_request;

/* ---- the request ---- */

/* Stack of model_forward. */
enum {
    ARG_MODEL = 1,
    ARG_CACHES,
    ARG_IDS,
    ARG_OPTIONS,
    SLOT_CACHES,
    SLOT_LAYERS,
    SLOT_PARENTS,
    SLOT_REQUEST
};

static size_t option_ids(lua_State *L, const char *name, const int32_t **ids) {
    size_t n = 0;
    if (!bind_check_option(L, ARG_OPTIONS, name)) {
        lua_pushnil(L);
        return 0;
    }
    *ids = bind_ids_check(L, -1, name, &n);
    lua_remove(L, -2);
    return n;
}

/* A list of our own, each entry once, in the order of the first. Returns how many. */
static size_t forget_doubles(int32_t *list, size_t n) {
    size_t n_kept = 0;
    for (size_t i = 0; i < n; i++) {
        size_t j = 0;
        while (j < n_kept && list[j] != list[i]) j++;
        if (j == n_kept) list[n_kept++] = list[i];
    }
    return n_kept;
}

static int64_t option_rows(lua_State *L) {
    if (!bind_check_option(L, ARG_OPTIONS, "rows")) return 1;
    bool all = lua_type(L, -1) == LUA_TSTRING && strcmp(lua_tostring(L, -1), "all") == 0;
    if (!all && lua_type(L, -1) == LUA_TSTRING)
        bind_error_raise(L, LLM_MISUSE, "rows must be an integer or \"all\", got a string");
    int64_t rows = all ? LLM_ROWS_ALL : bind_check_range(L, -1, "rows", 0, LUA_MAXINTEGER);
    lua_pop(L, 1);
    return rows;
}

/* Ids of all caches together, counted before there is memory for them. */
static size_t forward_count_ids(lua_State *L, size_t n_caches, bool is_list) {
    size_t n = bind_ids_count(L, ARG_IDS, "ids");
    if (is_list && n != n_caches)
        bind_error_raise(L, LLM_MISUSE, "%I caches, but ids for %I", (LUAI_UACINT)n_caches,
                         (LUAI_UACINT)n);
    if (!is_list || !lua_istable(L, ARG_IDS)) return n;
    size_t total = 0;
    for (size_t i = 1; i <= n; i++) {
        lua_rawgeti(L, ARG_IDS, (lua_Integer)i);
        total += bind_ids_count(L, -1, "ids[i]");
        lua_pop(L, 1);
    }
    return total;
}

static void forward_fill_ids(lua_State *L, forward_request *r, bool is_list) {
    size_t at = 0;
    if (!is_list || !lua_istable(L, ARG_IDS)) {
        for (size_t i = 0; i < r->n_caches; i++) r->counts[i] = is_list ? 1 : (int64_t)r->n_ids;
        if (!r->ids_tensor) bind_ids_fill(L, ARG_IDS, "ids", r->ids, r->n_ids);
        at = r->n_ids;
    } else {
        for (size_t i = 0; i < r->n_caches; i++) {
            lua_rawgeti(L, ARG_IDS, (lua_Integer)i + 1);
            size_t n = bind_ids_count(L, -1, "ids[i]");
            if (n > r->n_ids - at)
                bind_error_raise(L, LLM_MISUSE, "ids changed while they were read");
            bind_ids_fill(L, lua_gettop(L), "ids[i]", r->ids + at, n);
            r->counts[i] = (int64_t)n;
            at += n;
            lua_pop(L, 1);
        }
    }
    if (at != r->n_ids) bind_error_raise(L, LLM_MISUSE, "ids changed while they were read");
    for (size_t i = 0; i < r->n_caches; i++)
        if (r->counts[i] == 0)
            bind_error_raise(L, LLM_MISUSE, "no ids to feed for cache %I", (LUAI_UACINT)(i + 1));
}

/* Pushes a request with room for everything. */
static forward_request *forward_new(lua_State *L, size_t n_caches, size_t n_ids, size_t n_layers) {
    size_t slots = n_layers + 3 * n_caches;
    forward_request *r = lua_newuserdatauv(L, sizeof *r + slots * 8 + n_ids * 4, N_KEEP);
    memset(r, 0, sizeof *r + slots * 8);
    r->n_caches = n_caches;
    r->n_ids = n_ids;
    r->n_layers = n_layers;
    r->handles = (cache_handle **)(void *)(r->hidden + n_layers);
    r->caches = (llm_cache **)(void *)(r->handles + n_caches);
    r->counts = (int64_t *)(void *)(r->caches + n_caches);
    r->ids = (int32_t *)(void *)(r->counts + n_caches);
    return r;
}

static void forward_keep(lua_State *L, int slot, int keep) {
    lua_pushvalue(L, slot);
    lua_setiuservalue(L, SLOT_REQUEST, keep);
}

static void forward_read_options(lua_State *L, const int32_t **layers, size_t *n_layers,
                                 const int32_t **parents, size_t *n_parents) {
    static const char *const known[] = {"rows", "hidden", "exit", "parents", NULL};
    bind_check_options(L, ARG_OPTIONS, known);
    *n_layers = option_ids(L, "hidden", layers);
    *n_layers = forget_doubles((int32_t *)*layers, *n_layers);
    *n_parents = option_ids(L, "parents", parents);
}

static void forward_take_caches(lua_State *L, forward_request *r, bool is_list) {
    for (size_t i = 0; i < r->n_caches; i++) {
        if (is_list)
            lua_rawgeti(L, SLOT_CACHES, (lua_Integer)i + 1);
        else
            lua_pushvalue(L, SLOT_CACHES);
        r->handles[i] = lua_touserdata(L, -1);
        lua_pop(L, 1);
        if (llm_cache_model(bind_cache_live(L, r->handles[i])) != bind_model_live(L, r->model))
            bind_error_raise(L, LLM_MISUSE, "cache %I belongs to another model",
                             (LUAI_UACINT)(i + 1));
    }
}

/* Checks all arguments and pushes the request at SLOT_REQUEST. */
static void forward_prepare(lua_State *L) {
    const int32_t *layers = NULL, *parents = NULL;
    size_t n_caches = 1, n_layers, n_parents;
    lua_settop(L, ARG_OPTIONS);
    const model_handle *model = bind_model_check(L, ARG_MODEL, "self");
    bool is_list = lua_istable(L, ARG_CACHES);
    if (is_list) {
        n_caches = bind_caches_check(L, ARG_CACHES, "caches");
    } else {
        bind_cache_check(L, ARG_CACHES, "cache");
        lua_pushvalue(L, ARG_CACHES);
    }
    forward_read_options(L, &layers, &n_layers, &parents, &n_parents);
    int64_t rows = option_rows(L);
    int32_t exit = 0;
    if (bind_check_option(L, ARG_OPTIONS, "exit")) {
        exit = (int32_t)bind_check_range(L, -1, "exit", 1, INT32_MAX);
        lua_pop(L, 1);
    }
    const tensor_handle *tensor = bind_tensor_test(L, ARG_IDS);
    size_t n_ids = forward_count_ids(L, n_caches, is_list);
    if (parents && n_parents != n_ids)
        bind_error_raise(L, LLM_MISUSE, "parents has %I entries for %I ids", (LUAI_UACINT)n_parents,
                         (LUAI_UACINT)n_ids);
    forward_request *r = forward_new(L, n_caches, tensor ? 0 : n_ids, n_layers);
    r->n_ids = n_ids;
    r->model = model;
    r->ids_tensor = tensor;
    r->rows = rows;
    r->layers = layers;
    r->parents = parents;
    r->exit = exit;
    forward_keep(L, ARG_MODEL, KEEP_MODEL);
    forward_keep(L, SLOT_CACHES, KEEP_CACHES);
    if (tensor) forward_keep(L, ARG_IDS, KEEP_IDS);
    forward_keep(L, SLOT_LAYERS, KEEP_LAYERS);
    forward_keep(L, SLOT_PARENTS, KEEP_PARENTS);
    forward_take_caches(L, r, is_list);
    forward_fill_ids(L, r, is_list);
}

/* ---- serving it ---- */

static llm_feed forward_feed(lua_State *L, forward_request *r) {
    for (size_t i = 0; i < r->n_caches; i++) r->caches[i] = bind_cache_live(L, r->handles[i]);
    return (llm_feed){
        .caches = r->caches,
        .n_caches = (int64_t)r->n_caches,
        .counts = r->counts,
        .ids = r->ids_tensor ? NULL : r->ids,
        .ids_tensor = r->ids_tensor ? bind_tensor_live(L, r->ids_tensor) : NULL,
        .rows = r->rows,
        .layers = r->layers,
        .n_layers = (int64_t)r->n_layers,
        .exit = r->exit,
        .parents = r->parents,
    };
}

static int forward_call(lua_State *L, forward_request *r, llm_tensor **logits, llm_error *err) {
    llm_feed feed = forward_feed(L, r);
    return llm_forward(bind_model_live(L, r->model), &feed, logits, r->hidden, err);
}

/* Pushes the table of handles for hidden states, by layer. */
static void forward_push_hidden(lua_State *L, const forward_request *r, tensor_handle **handles) {
    lua_createtable(L, 0, (int)r->n_layers);
    for (size_t i = 0; i < r->n_layers; i++) {
        handles[i] = bind_tensor_new(L);
        lua_rawseti(L, -2, r->layers[i]);
    }
}

/* Serves the request at index `request` (absolute); pushes and counts the results of model:forward.
 */
static int forward_run(lua_State *L, int request) {
    forward_request *r = lua_touserdata(L, request);
    tensor_handle *logits = bind_tensor_new(L);
    tensor_handle **hidden = lua_newuserdatauv(L, r->n_layers * sizeof *hidden, 0);
    lua_insert(L, -2);
    if (r->n_layers) forward_push_hidden(L, r, hidden);
    ENGINE(L, llm_model_device(bind_model_live(L, r->model)),
           forward_call(L, r, &logits->tensor, &err));
    for (size_t i = 0; i < r->n_layers; i++) hidden[i]->tensor = r->hidden[i];
    if (r->rows == 0) {
        lua_pushnil(L);
        lua_replace(L, r->n_layers ? -3 : -2);
    }
    return r->n_layers ? 2 : 1;
}

static int forward_open(lua_State *L, forward_request *r, llm_request **out, llm_error *err) {
    llm_feed feed = forward_feed(L, r);
    *out = llm_request_open(bind_model_live(L, r->model), &feed, err);
    return *out ? 0 : -1;
}

/* Leaves it to the scheduler. */
static int forward_wait(lua_State *L) {
    forward_request *r = lua_touserdata(L, SLOT_REQUEST);
    request_handle *h = bind_request_new(L, ARG_MODEL, SLOT_REQUEST);
    h->n_layers = r->n_layers;
    h->layers = r->layers;
    h->wants_logits = r->rows != 0;
    ENGINE(L, llm_model_device(bind_model_live(L, r->model)),
           forward_open(L, r, &h->request, &err));
    return bind_request_yield(L);
}

/* model:forward(kv, ids, {rows =, hidden =, exit =, parents =}) → logits, hidden */
static int model_forward(lua_State *L) {
    forward_prepare(L);
    if (bind_request_wanted(L)) return forward_wait(L);
    return forward_run(L, SLOT_REQUEST);
}

/* model:logits(hidden) → logits */
static int model_logits(lua_State *L) {
    const model_handle *h = bind_model_check(L, 1, "self");
    const tensor_handle *hidden = arg_tensor(L, 2, "hidden");
    tensor_handle *out = bind_tensor_new(L);
    ENGINE(L, llm_model_device(bind_model_live(L, h)),
           llm_logits(bind_model_live(L, h), bind_tensor_live(L, hidden), &out->tensor, &err));
    return 1;
}

static int score_open(lua_State *L, const model_handle *h, const cache_handle *kv,
                      const int32_t *ids, size_t n, llm_request **out, llm_error *err) {
    *out = llm_request_open_score(bind_model_live(L, h), bind_cache_live(L, kv), ids, n, err);
    return *out ? 0 : -1;
}

static int score_wait(lua_State *L, const model_handle *h, const cache_handle *kv,
                      const int32_t *ids, size_t n) {
    request_handle *r = bind_request_new(L, 1, 2);
    ENGINE(L, llm_model_device(bind_model_live(L, h)),
           score_open(L, h, kv, ids, n, &r->request, &err));
    return bind_request_yield(L);
}

/* model:score(kv, ids) → column of log-probabilities */
static int model_score(lua_State *L) {
    size_t n;
    const model_handle *h = bind_model_check(L, 1, "self");
    const cache_handle *kv = bind_cache_check(L, 2, "cache");
    const int32_t *ids = bind_ids_check(L, 3, "ids", &n);
    if (n == 0) bind_error_raise(L, LLM_MISUSE, "no ids to score");
    if (llm_cache_model(bind_cache_live(L, kv)) != bind_model_live(L, h))
        bind_error_raise(L, LLM_MISUSE, "cache belongs to another model");
    if (bind_request_wanted(L)) return score_wait(L, h, kv, ids, n);
    tensor_handle *out = bind_tensor_new(L);
    ENGINE(L, llm_model_device(bind_model_live(L, h)),
           llm_score(bind_model_live(L, h), bind_cache_live(L, kv), ids, n, &out->tensor, &err));
    return 1;
}

static const luaL_Reg forward_methods[] = {
    {"forward", model_forward}, {"logits", model_logits}, {"score", model_score}, {NULL, NULL}};

void bind_model_add_forward(lua_State *L) { luaL_setfuncs(L, forward_methods, 0); }
