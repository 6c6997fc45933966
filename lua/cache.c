/* cache.c: llm.Cache, the tokens, keys and values of one sequence. */
#include "handles.h"
#include <string.h>

static int cache_close(lua_State *L) {
    cache_handle *h = bind_class_check(L, 1, CLASS_CACHE, "self");
    llm_cache *cache = h->cache;
    h->cache = NULL;
    llm_cache_close(cache);
    return 0;
}

cache_handle *bind_cache_new(lua_State *L, int model) {
    model = lua_absindex(L, model);
    cache_handle *h = lua_newuserdatauv(L, sizeof *h, 1);
    *h = (cache_handle){0};
    lua_pushvalue(L, model);
    lua_setiuservalue(L, -2, 1);
    luaL_setmetatable(L, CLASS_CACHE);
    if (lua_getfield(L, LUA_REGISTRYINDEX, "llm.scope") ==
        LUA_TTABLE) { /* llm.sys: caches of a job */
        lua_pushvalue(L, -2);
        lua_pushboolean(L, 1);
        lua_rawset(L, -3);
    }
    lua_pop(L, 1);
    return h;
}

llm_cache *bind_cache_live(lua_State *L, const cache_handle *h) {
    if (!h->cache) bind_error_raise(L, LLM_MISUSE, "cache is closed");
    return h->cache;
}

cache_handle *bind_cache_check(lua_State *L, int arg, const char *name) {
    cache_handle *h = bind_class_check(L, arg, CLASS_CACHE, name);
    bind_cache_live(L, h);
    return h;
}

static llm_device *cache_device(lua_State *L, const cache_handle *h) {
    return llm_model_device(llm_cache_model(bind_cache_live(L, h)));
}

/* ---- lists of caches ---- */

size_t bind_caches_check(lua_State *L, int arg, const char *name) {
    arg = lua_absindex(L, arg);
    if (!lua_istable(L, arg))
        bind_error_raise(L, LLM_MISUSE, "%s must be a list of caches, got %s", name,
                         bind_check_text(L, arg));
    lua_Integer n = (lua_Integer)lua_rawlen(L, arg), mark = ++binding_get_state(L)->mark;
    if (n == 0) bind_error_raise(L, LLM_MISUSE, "%s is an empty list", name);
    lua_createtable(L, (int)n, 0);
    for (lua_Integer i = 1; i <= n; i++) {
        lua_rawgeti(L, arg, i);
        cache_handle *h = bind_class_test(L, -1, CLASS_CACHE);
        if (!h)
            bind_error_raise(L, LLM_MISUSE, "%s[%I] must be an " CLASS_CACHE ", got %s", name,
                             (LUAI_UACINT)i, bind_check_text(L, -1));
        if (!h->cache)
            bind_error_raise(L, LLM_MISUSE, "%s[%I]: cache is closed", name, (LUAI_UACINT)i);
        if (h->mark == mark)
            bind_error_raise(L, LLM_MISUSE, "%s[%I] and %s[%I] are the same cache", name,
                             (LUAI_UACINT)h->i_mark, name, (LUAI_UACINT)i);
        h->mark = mark;
        h->i_mark = i;
        lua_rawseti(L, -2, i);
    }
    return (size_t)n;
}

/* Rows (1-based) of n caches, as 0-based parents; pushes the buffer. */
static int32_t *parents_check(lua_State *L, int arg, size_t n, size_t *n_out) {
    int32_t *parents = bind_ids_check(L, arg, "rows", n_out);
    for (size_t i = 0; i < *n_out; i++) {
        if (parents[i] < 1 || (size_t)parents[i] > n)
            bind_error_raise(L, LLM_MISUSE, "rows[%I] must be 1 to %I, got %d",
                             (LUAI_UACINT)(i + 1), (LUAI_UACINT)n, (int)parents[i]);
        parents[i]--;
    }
    return parents;
}

typedef struct reorder_request {
    cache_handle **parents,
        **children; /* n handles; n_out handles, of parents where they are first */
    llm_cache **in, **out;
    int32_t *rows;
    size_t n, n_out;
} reorder_request;

static int reorder_run(lua_State *L, const reorder_request *r, llm_error *err) {
    for (size_t i = 0; i < r->n; i++) r->in[i] = bind_cache_live(L, r->parents[i]);
    return llm_cache_reorder(r->in, r->n, r->rows, r->n_out, r->out, err);
}

/* The result table of handles: a parent's own for its first child, new ones for the others. Pushes
 * it. */
static void reorder_push_children(lua_State *L, const reorder_request *r, int caches) {
    lua_Integer mark = ++binding_get_state(L)->mark;
    lua_createtable(L, (int)r->n_out, 0);
    for (size_t i = 0; i < r->n_out; i++) {
        cache_handle *parent = r->parents[r->rows[i]];
        lua_rawgeti(L, caches, r->rows[i] + 1);
        if (parent->mark == mark) {
            lua_getiuservalue(L, -1, 1);
            r->children[i] = bind_cache_new(L, -1);
            lua_replace(L, -3);
            lua_pop(L, 1);
        } else {
            r->children[i] = parent;
            parent->mark = mark;
        }
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
}

/* llm.reorder(kvs, rows) → list of caches, one a row. Consumes kvs. */
int bind_cache_reorder(lua_State *L) {
    reorder_request r = {0};
    int caches = 3;
    lua_settop(L, 2);
    r.n = bind_caches_check(L, 1, "caches");
    r.rows = parents_check(L, 2, r.n, &r.n_out);
    r.parents = lua_newuserdatauv(L, r.n * sizeof *r.parents, 0);
    r.in = lua_newuserdatauv(L, r.n * sizeof *r.in, 0);
    r.children = lua_newuserdatauv(L, r.n_out * sizeof *r.children, 0);
    r.out = lua_newuserdatauv(L, r.n_out * sizeof *r.out, 0);
    for (size_t i = 0; i < r.n; i++) {
        lua_rawgeti(L, caches, (lua_Integer)i + 1);
        r.parents[i] = lua_touserdata(L, -1);
        lua_pop(L, 1);
    }
    reorder_push_children(L, &r, caches);
    ENGINE(L, cache_device(L, r.parents[0]), reorder_run(L, &r, &err));
    for (size_t i = 0; i < r.n; i++) r.parents[i]->cache = NULL;
    for (size_t i = 0; i < r.n_out; i++) r.children[i]->cache = r.out[i];
    return 1;
}

/* ---- methods ---- */

/* kv:fork(n): a cache of the first n tokens (all) */
static int cache_fork(lua_State *L) {
    const cache_handle *h = bind_cache_check(L, 1, "self");
    int64_t n = llm_cache_length(bind_cache_live(L, h));
    if (!lua_isnoneornil(L, 2)) n = bind_check_range(L, 2, "n", 0, n);
    lua_getiuservalue(L, 1, 1);
    cache_handle *fork = bind_cache_new(L, -1);
    ENGINE(L, cache_device(L, h),
           (fork->cache = llm_cache_fork(bind_cache_live(L, h), n, &err)) ? 0 : -1);
    return 1;
}

static int cache_truncate(lua_State *L) {
    const cache_handle *h = bind_cache_check(L, 1, "self");
    int64_t n = bind_check_range(L, 2, "n", 0, llm_cache_length(bind_cache_live(L, h)));
    ENGINE(L, cache_device(L, h), llm_cache_truncate(bind_cache_live(L, h), n, &err));
    return 0;
}

/* kv:keep(positions): of the last pass, a path of its tree */
static int cache_keep(lua_State *L) {
    size_t n;
    const cache_handle *h = bind_cache_check(L, 1, "self");
    const int32_t *list = bind_ids_check(L, 2, "positions", &n);
    int64_t *positions = lua_newuserdatauv(L, n * sizeof *positions, 0);
    for (size_t i = 0; i < n; i++) positions[i] = list[i];
    ENGINE(L, cache_device(L, h), llm_cache_keep(bind_cache_live(L, h), positions, n, &err));
    return 0;
}

/* kv:sync(ids, n) → the ids left to feed, at least n (1) */
static int cache_sync(lua_State *L) {
    size_t n, n_kept = 0;
    lua_settop(L, 3);
    const cache_handle *h = bind_cache_check(L, 1, "self");
    lua_Integer least = lua_isnil(L, 3) ? 1 : bind_check_range(L, 3, "n", 0, LUA_MAXINTEGER);
    const int32_t *ids = bind_ids_check(L, 2, "ids", &n);
    if ((size_t)least > n)
        bind_error_raise(L, LLM_MISUSE, "%I ids to feed asked for, of a list of %I",
                         (LUAI_UACINT)least, (LUAI_UACINT)n);
    ENGINE(L, cache_device(L, h),
           llm_cache_sync(bind_cache_live(L, h), ids, n, (size_t)least, &n_kept, &err));
    bind_ids_push(L, ids + n_kept, n - n_kept);
    return 1;
}

/* kv:save(path) → true, or nil and a message */
static int cache_save(lua_State *L) {
    llm_error err = {LLM_OK, ""};
    int n_tries = 0;
    const cache_handle *h = bind_cache_check(L, 1, "self");
    const char *path = bind_check_path(L, 2, "path");
    while (llm_cache_save(bind_cache_live(L, h), path, &err) != 0) {
        if (bind_engine_retry(L, &err, &n_tries)) continue;
        lua_pushnil(L);
        lua_pushstring(L, err.message);
        return 2;
    }
    lua_pushboolean(L, 1);
    return 1;
}

/* kv:tokens(first, count) → list of ids; default: all, all from first */
static int cache_tokens(lua_State *L) {
    const cache_handle *h = bind_cache_check(L, 1, "self");
    int64_t n = llm_cache_length(bind_cache_live(L, h));
    int64_t first = lua_isnoneornil(L, 2) ? 1 : bind_check_range(L, 2, "first", 1, n + 1);
    int64_t count = n - first + 1;
    if (!lua_isnoneornil(L, 3)) count = bind_check_range(L, 3, "count", 0, count);
    lua_createtable(L, (int)count, 0);
    llm_error err = {LLM_OK, ""};
    for (int64_t i = 0; i < count; i++) {
        const int32_t *ids = llm_cache_tokens(bind_cache_live(L, h), &err);
        if (!ids) bind_error_raise_engine(L, &err);
        lua_pushinteger(L, ids[first - 1 + i]);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

static int cache_length(lua_State *L) {
    lua_pushinteger(L, llm_cache_length(bind_cache_live(L, bind_cache_check(L, 1, "self"))));
    return 1;
}

static int cache_fields(lua_State *L) {
    bind_cache_check(L, 1, "self");
    if (lua_type(L, 2) != LUA_TSTRING || strcmp(lua_tostring(L, 2), "model") != 0) return 0;
    lua_getiuservalue(L, 1, 1);
    return 1;
}

static int cache_tostring(lua_State *L) {
    const cache_handle *h = bind_class_check(L, 1, CLASS_CACHE, "self");
    if (h->cache)
        lua_pushfstring(L, CLASS_CACHE " of %I tokens", (LUAI_UACINT)llm_cache_length(h->cache));
    else
        lua_pushstring(L, CLASS_CACHE " (closed)");
    return 1;
}

static const luaL_Reg cache_methods[] = {{"close", cache_close},       {"fork", cache_fork},
                                         {"keep", cache_keep},         {"save", cache_save},
                                         {"sync", cache_sync},         {"tokens", cache_tokens},
                                         {"truncate", cache_truncate}, {NULL, NULL}};

static const luaL_Reg cache_meta[] = {{"__gc", cache_close},
                                      {"__close", cache_close},
                                      {"__len", cache_length},
                                      {"__tostring", cache_tostring},
                                      {NULL, NULL}};

void bind_cache_register(lua_State *L) {
    bind_class_register(L, CLASS_CACHE, cache_meta, cache_methods, cache_fields);
    lua_pop(L, 2);
}
