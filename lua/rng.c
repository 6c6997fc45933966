/* rng.c: llm.Rng, a name for random numbers: seed, stream and position. Draws move the position on.
 */
#include "handles.h"
#include <string.h>

rng_handle *bind_rng_new(lua_State *L, llm_key key) {
    rng_handle *h = lua_newuserdatauv(L, sizeof *h, 0);
    h->key = key;
    luaL_setmetatable(L, CLASS_RNG);
    return h;
}

rng_handle *bind_rng_check(lua_State *L, int arg, const char *name) {
    return bind_class_check(L, arg, CLASS_RNG, name);
}

/* llm.rng(seed): stream 1, position 1 */
int bind_rng_make(lua_State *L) {
    lua_Integer seed = lua_isnoneornil(L, 1) ? 0 : bind_check_integer(L, 1, "seed");
    bind_rng_new(L, (llm_key){(uint64_t)seed, 1, 1});
    return 1;
}

/* ---- keys of a draw ---- */

llm_key *bind_rng_keys(lua_State *L, int arg, int64_t n) {
    llm_key *keys = lua_newuserdatauv(L, (size_t)n * sizeof *keys, 0);
    const rng_handle *one = bind_class_test(L, arg, CLASS_RNG);
    if (!one && !lua_istable(L, arg))
        bind_error_raise(L, LLM_MISUSE,
                         "rng must be an " CLASS_RNG " or a list of one a row, got %s",
                         bind_check_text(L, arg));
    if (!one && (int64_t)lua_rawlen(L, arg) != n)
        bind_error_raise(L, LLM_MISUSE, "%I rngs for %I rows", (LUAI_UACINT)lua_rawlen(L, arg),
                         (LUAI_UACINT)n);
    for (int64_t i = 0; i < n; i++) {
        if (one) {
            keys[i] = one->key;
            keys[i].stream += (uint64_t)i;
        } else {
            lua_rawgeti(L, arg, i + 1);
            keys[i] = bind_rng_check(L, -1, "rng")->key;
            lua_pop(L, 1);
        }
    }
    return keys;
}

void bind_rng_advance(lua_State *L, int arg) {
    rng_handle *one = bind_class_test(L, arg, CLASS_RNG);
    if (one) {
        one->key.position++;
        return;
    }
    lua_Integer n = (lua_Integer)lua_rawlen(L, arg);
    for (lua_Integer i = 1; i <= n; i++) {
        lua_rawgeti(L, arg, i);
        bind_rng_check(L, -1, "rng")->key.position++;
        lua_pop(L, 1);
    }
}

/* ---- methods ---- */

/* rng:at(n): a copy at position n */
static int rng_at(lua_State *L) {
    llm_key key = bind_rng_check(L, 1, "self")->key;
    key.position = (uint32_t)bind_check_range(L, 2, "position", 0, UINT32_MAX);
    bind_rng_new(L, key);
    return 1;
}

/* rng:fork(i): a copy with stream i */
static int rng_fork(lua_State *L) {
    llm_key key = bind_rng_check(L, 1, "self")->key;
    key.stream = (uint64_t)bind_check_range(L, 2, "stream", 0, LUA_MAXINTEGER);
    bind_rng_new(L, key);
    return 1;
}

static int rng_uniform(lua_State *L) {
    rng_handle *h = bind_rng_check(L, 1, "self");
    lua_pushnumber(L, llm_uniform(h->key));
    h->key.position++;
    return 1;
}

static int rng_fields(lua_State *L) {
    const llm_key *key = &bind_rng_check(L, 1, "self")->key;
    if (lua_type(L, 2) != LUA_TSTRING) return 0;
    const char *name = lua_tostring(L, 2);
    if (strcmp(name, "seed") == 0)
        lua_pushinteger(L, (lua_Integer)key->seed);
    else if (strcmp(name, "stream") == 0)
        lua_pushinteger(L, (lua_Integer)key->stream);
    else if (strcmp(name, "position") == 0)
        lua_pushinteger(L, key->position);
    else
        return 0;
    return 1;
}

static int rng_tostring(lua_State *L) {
    const llm_key *key = &bind_rng_check(L, 1, "self")->key;
    lua_pushfstring(L, CLASS_RNG " seed %I, stream %I, position %I", (LUAI_UACINT)key->seed,
                    (LUAI_UACINT)key->stream, (LUAI_UACINT)key->position);
    return 1;
}

static const luaL_Reg rng_methods[] = {
    {"at", rng_at}, {"fork", rng_fork}, {"uniform", rng_uniform}, {NULL, NULL}};

static const luaL_Reg rng_meta[] = {{"__tostring", rng_tostring}, {NULL, NULL}};

void bind_rng_register(lua_State *L) {
    bind_class_register(L, CLASS_RNG, rng_meta, rng_methods, rng_fields);
    lua_pop(L, 2);
}
