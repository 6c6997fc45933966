/* requests.c: forward passes of jobs. Under a job (a state of the host, not of a coroutine) a call
 * that feeds a model yields a request, and whoever resumes it serves it first, in passes with those
 * of other jobs. The module `llm.requests` is the scheduler's side of that; no script needs it. */
#include "handles.h"

enum { KEEP_MODEL = 1, KEEP_STAGING, N_KEEP = KEEP_STAGING }; /* user values */

static void request_drop(request_handle *h) {
    llm_request *request = h->request;
    h->request = NULL;
    llm_request_close(request);
}

static int request_gc(lua_State *L) {
    request_drop(lua_touserdata(L, 1));
    return 0;
}

request_handle *bind_request_new(lua_State *L, int model, int staging) {
    model = lua_absindex(L, model);
    staging = lua_absindex(L, staging);
    request_handle *h = lua_newuserdatauv(L, sizeof *h, N_KEEP);
    *h = (request_handle){.wants_logits = true};
    luaL_setmetatable(L, CLASS_REQUEST);
    lua_pushvalue(L, model);
    lua_setiuservalue(L, -2, KEEP_MODEL);
    lua_pushvalue(L, staging);
    lua_setiuservalue(L, -2, KEEP_STAGING);
    return h;
}

/* ---- the side of the caller ---- */

bool bind_request_wanted(lua_State *L) {
    return binding_get_state(L)->in_job && lua_isyieldable(L);
}

/* Pushes logits (nil if none were asked for) and, where there are any, hidden states by layer. */
static int request_push_results(lua_State *L, request_handle *h) {
    tensor_handle *logits = bind_tensor_new(L);
    tensor_handle **hidden = lua_newuserdatauv(L, (h->n_layers + 1) * sizeof *hidden, 0);
    llm_tensor **taken = lua_newuserdatauv(L, (h->n_layers + 1) * sizeof *taken, 0);
    int first = lua_gettop(L) - 2;
    lua_createtable(L, 0, (int)h->n_layers);
    for (size_t i = 0; i < h->n_layers; i++) {
        hidden[i] = bind_tensor_new(L);
        lua_rawseti(L, -2, h->layers[i]);
    }
    llm_request_take(h->request, &logits->tensor, taken);
    for (size_t i = 0; i < h->n_layers; i++) hidden[i]->tensor = taken[i];
    if (h->wants_logits)
        lua_pushvalue(L, first);
    else
        lua_pushnil(L);
    lua_insert(L, -2);
    if (h->n_layers) return 2;
    lua_pop(L, 1);
    return 1;
}

/* After the yield: the request stands at index ctx. What resume was given follows it: an error, or
 * nothing. */
static int request_continue(lua_State *L, int status, lua_KContext ctx) {
    (void)status;
    int slot = (int)ctx;
    request_handle *h = lua_touserdata(L, slot);
    if (lua_gettop(L) > slot && !lua_isnil(L, slot + 1)) {
        request_drop(h);
        lua_settop(L, slot + 1);
        bind_error_raise_again(L);
    }
    const llm_request_info *info = h->request ? llm_request_get_info(h->request) : NULL;
    if (info && info->is_done) {
        int n = request_push_results(L, h);
        request_drop(h);
        return n;
    }
    llm_error err = {LLM_MISUSE, "the forward pass was given up"};
    if (info && info->error.kind != LLM_OK) err = info->error;
    request_drop(h);
    bind_error_raise_engine(L, &err);
}

int bind_request_yield(lua_State *L) {
    lua_pushvalue(L, -1);
    return lua_yieldk(L, 1, lua_gettop(L) - 1, request_continue);
}

/* ---- ids that the host does not know yet ---- */

typedef struct late_handle {
    llm_late *late;
} late_handle;

static int late_gc(lua_State *L) {
    late_handle *h = lua_touserdata(L, 1);
    llm_late *late = h->late;
    h->late = NULL;
    llm_late_close(late);
    return 0;
}

/* late(tensor) → what late_id reads of a choice of one entry; nil if reading it now waits for
 * nothing */
static int f_late(lua_State *L) {
    lua_settop(L, 1);
    llm_tensor *tensor = bind_tensor_live(L, arg_tensor(L, 1, "tensor"));
    const llm_tensor_info *info = llm_tensor_get_info(tensor);
    if (!llm_tensor_is_late(tensor) || info->n_rows * info->n_columns != 1) {
        lua_pushnil(L);
        return 1;
    }
    late_handle *h = lua_newuserdatauv(L, sizeof *h, 0);
    h->late = NULL;
    luaL_setmetatable(L, CLASS_LATE);
    llm_error err = {LLM_OK, ""};
    int n_tries = 0;
    while (!(h->late = llm_late_of(tensor, &err)))
        if (!bind_engine_retry(L, &err, &n_tries)) bind_error_raise_engine(L, &err);
    return 1;
}

/* late_id(late) → the id */
static int f_late_id(lua_State *L) {
    const late_handle *h = bind_class_check(L, 1, CLASS_LATE, "late");
    llm_error err = {LLM_OK, ""};
    const int32_t *ids;
    int n_tries = 0;
    while (!h->late || !(ids = llm_late_read(h->late, &err)))
        if (!bind_engine_retry(L, &err, &n_tries)) bind_error_raise_engine(L, &err);
    lua_pushinteger(L, *ids);
    return 1;
}

/* ---- the side of the scheduler ---- */

static request_handle *request_check(lua_State *L, int arg) {
    request_handle *h = bind_class_check(L, arg, CLASS_REQUEST, "request");
    if (!h->request) bind_error_raise(L, LLM_MISUSE, "request is closed");
    return h;
}

/* is(value) → whether it is a request */
static int f_is(lua_State *L) {
    lua_settop(L, 1);
    lua_pushboolean(L, bind_class_test(L, 1, CLASS_REQUEST) != NULL);
    return 1;
}

/* job(on): whether calls of coroutines yield requests from now on; → as it was */
static int f_job(lua_State *L) {
    binding_state *state = binding_get_state(L);
    bool was = state->in_job;
    state->in_job = lua_toboolean(L, 1);
    lua_pushboolean(L, was);
    return 1;
}

/* relieve(f or nil): f() is called when a call that cannot wait finds no page; true: try again */
static int f_relieve(lua_State *L) {
    lua_settop(L, 1);
    lua_setfield(L, LUA_REGISTRYINDEX, BIND_RELIEVE);
    return 0;
}

/* Request i (1-based) of the list at index 1. */
static llm_request *listed_request(lua_State *L, size_t i) {
    lua_rawgeti(L, 1, (lua_Integer)i);
    llm_request *request = request_check(L, -1)->request;
    lua_pop(L, 1);
    return request;
}

/* serve(requests) → true, or nil and the error of the pass. All are of one model. Short of memory it
 * collects garbage, but sets nobody aside: the list would change. */
static int f_serve(lua_State *L) {
    lua_settop(L, 1);
    bind_check_table(L, 1, "requests");
    size_t n = lua_rawlen(L, 1);
    llm_request **list = lua_newuserdatauv(L, (n + 1) * sizeof *list, 0);
    llm_error err = {LLM_OK, ""};
    int n_tries = 0;
    if (n) {
        const llm_request_info *first = llm_request_get_info(listed_request(L, 1));
        bind_engine_prepare(L, llm_model_device(first->model));
    }
    for (size_t i = 0; i < n; i++) list[i] = listed_request(L, i + 1);
    while (llm_serve(list, n, &err)) {
        if (err.kind == LLM_OUT_OF_MEMORY && n_tries == 0 && bind_engine_retry(L, &err, &n_tries))
            continue;
        lua_pushnil(L);
        bind_error_push_engine(L, &err);
        return 2;
    }
    lua_pushboolean(L, 1);
    return 1;
}

/* state(request) → "done", "failed" or "waiting"; pages missing, ids, of them fed, of them re-used,
 * passes, seconds of passes */
static int f_state(lua_State *L) {
    const llm_request_info *info = llm_request_get_info(request_check(L, 1)->request);
    lua_pushstring(L, info->is_done ? "done" : info->is_failed ? "failed" : "waiting");
    lua_pushinteger(L, info->n_pages_missing);
    lua_pushinteger(L, info->n_ids);
    lua_pushinteger(L, info->n_fed);
    lua_pushinteger(L, info->n_reused);
    lua_pushinteger(L, info->n_passes);
    lua_pushnumber(L, info->share_s);
    return 7;
}

/* error(request) → what it failed of, or what it lacks */
static int f_error(lua_State *L) {
    bind_error_push_engine(L, &llm_request_get_info(request_check(L, 1)->request)->error);
    return 1;
}

/* model(request) → its llm.Model */
static int f_model(lua_State *L) {
    request_check(L, 1);
    lua_getiuservalue(L, 1, KEEP_MODEL);
    return 1;
}

static int f_rewind(lua_State *L) {
    llm_request_rewind(request_check(L, 1)->request);
    return 0;
}

static int f_close(lua_State *L) {
    request_drop(bind_class_check(L, 1, CLASS_REQUEST, "request"));
    return 0;
}

/* evict(kv) → true, or false if it is closed or empty. No request that was begun may hold it. */
static int f_evict(lua_State *L) {
    const cache_handle *h = bind_class_check(L, 1, CLASS_CACHE, "cache");
    bool holds = h->cache && llm_cache_length(h->cache) > 0;
    llm_error err = {LLM_OK, ""};
    if (holds && llm_cache_evict(h->cache, &err)) bind_error_raise_engine(L, &err);
    lua_pushboolean(L, holds);
    return 1;
}

/* refill(kv, whole) → a request that makes the next positions of an evicted cache anew, or nil if
 * it is whole. whole: a list of caches whose pages it may share. */
static int f_refill(lua_State *L) {
    lua_settop(L, 2);
    const cache_handle *h = bind_class_check(L, 1, CLASS_CACHE, "cache");
    bind_check_table(L, 2, "whole");
    if (!h->cache || !llm_cache_is_evicted(h->cache)) {
        lua_pushnil(L);
        return 1;
    }
    lua_getiuservalue(L, 1, 1);
    request_handle *r = bind_request_new(L, 3, 1);
    size_t n = lua_rawlen(L, 2), n_like = 0;
    llm_cache **like = lua_newuserdatauv(L, (n + 1) * sizeof *like, 0);
    for (size_t i = 0; i < n; i++) {
        lua_rawgeti(L, 2, (lua_Integer)i + 1);
        const cache_handle *other = bind_class_check(L, -1, CLASS_CACHE, "cache");
        if (other->cache && llm_cache_model(other->cache) == llm_cache_model(h->cache) &&
            !llm_cache_is_evicted(other->cache))
            like[n_like++] = other->cache;
        lua_pop(L, 1);
    }
    llm_error err = {LLM_OK, ""};
    r->request = llm_request_open_refill(h->cache, like, n_like, &err);
    if (!r->request) bind_error_raise_engine(L, &err);
    lua_settop(L, 4);
    return 1;
}

/* hold(model, on): while a run of jobs holds it the model cannot be closed */
static int f_hold(lua_State *L) {
    model_handle *h = bind_model_check(L, 1, "model");
    h->n_held += lua_toboolean(L, 2) ? 1 : -1;
    return 0;
}

/* share(model, on): requests that begin a cache take pages of earlier ones with the same ids */
static int f_share(lua_State *L) {
    llm_error err = {LLM_OK, ""};
    llm_model *model = bind_model_live(L, bind_model_check(L, 1, "model"));
    if (llm_model_share_prefixes(model, lua_toboolean(L, 2), &err))
        bind_error_raise_engine(L, &err);
    return 0;
}

/* pages(model) → pages that can be taken, all pages */
static int f_pages(lua_State *L) {
    int64_t n_free, n_pages;
    llm_model_pages(bind_model_live(L, bind_model_check(L, 1, "model")), &n_free, &n_pages);
    lua_pushinteger(L, n_free);
    lua_pushinteger(L, n_pages);
    return 2;
}

static const luaL_Reg functions[] = {
    {"hold", f_hold},     {"close", f_close},     {"error", f_error},   {"evict", f_evict},
    {"late", f_late},     {"late_id", f_late_id}, {"is", f_is},         {"job", f_job},
    {"model", f_model},   {"pages", f_pages},     {"refill", f_refill}, {"relieve", f_relieve},
    {"rewind", f_rewind}, {"serve", f_serve},     {"share", f_share},   {"state", f_state},
    {NULL, NULL}};

static const luaL_Reg late_meta[] = {{"__gc", late_gc}, {NULL, NULL}};
static const luaL_Reg request_meta[] = {{"__gc", request_gc}, {NULL, NULL}};

__attribute__((visibility("default"))) int luaopen_llm_requests(lua_State *L) {
    bind_class_register(L, CLASS_REQUEST, request_meta, NULL, NULL);
    lua_pop(L, 2);
    bind_class_register(L, CLASS_LATE, late_meta, NULL, NULL);
    lua_pop(L, 2);
    luaL_newlib(L, functions);
    return 1;
}
