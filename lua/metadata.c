/* metadata.c: llm.Metadata, the key-value pairs of a model file as a read-only table. Values are
 * made when they are asked for; arrays become lists. User value 1: the model's handle. */
#include "handles.h"
#include <limits.h>
#include <string.h>

int bind_metadata_new(lua_State *L, int model) {
    model = lua_absindex(L, model);
    lua_newuserdatauv(L, 0, 1);
    lua_pushvalue(L, model);
    lua_setiuservalue(L, -2, 1);
    luaL_setmetatable(L, CLASS_METADATA);
    return 1;
}

/* The model's handle; stays reachable by way of the argument. */
static const model_handle *metadata_model(lua_State *L, int arg) {
    bind_class_check(L, arg, CLASS_METADATA, "self");
    lua_getiuservalue(L, arg, 1);
    const model_handle *h = bind_model_check(L, -1, "model");
    lua_pop(L, 1);
    return h;
}

static void push_scalar(lua_State *L, const llm_meta *v) {
    if (v->type == LLM_META_INT)
        lua_pushinteger(L, v->i);
    else if (v->type == LLM_META_FLOAT)
        lua_pushnumber(L, v->f);
    else if (v->type == LLM_META_STRING)
        lua_pushlstring(L, v->s, v->n);
    else
        lua_pushboolean(L, v->type == LLM_META_BOOL && v->i);
}

/* Pushes the value of the key (a string at index `key`), nil if there is none. */
static void push_value(lua_State *L, const model_handle *h, int key) {
    llm_meta v = {0}, entry = {0};
    size_t n;
    const char *name = lua_tolstring(L, key, &n);
    if (strlen(name) != n || !llm_model_meta(bind_model_live(L, h), name, &v) ||
        v.type == LLM_META_NONE) {
        lua_pushnil(L);
    } else if (v.type == LLM_META_ARRAY) {
        lua_createtable(L, v.n < INT_MAX ? (int)v.n : 0, 0);
        for (size_t i = 0;
             i < v.n && llm_model_meta_element(bind_model_live(L, h), name, i, &entry); i++) {
            push_scalar(L, &entry);
            lua_rawseti(L, -2, (lua_Integer)i + 1);
        }
    } else {
        push_scalar(L, &v);
    }
}

static int metadata_fields(lua_State *L) {
    const model_handle *h = metadata_model(L, 1);
    if (lua_type(L, 2) != LUA_TSTRING) return 0;
    push_value(L, h, 2);
    return 1;
}

/* Iterator: upvalue 1 is the metadata, upvalue 2 the number of keys given out. */
static int metadata_next(lua_State *L) {
    size_t n;
    const model_handle *h = metadata_model(L, lua_upvalueindex(1));
    lua_Integer i = lua_tointeger(L, lua_upvalueindex(2));
    const char *key = llm_model_meta_key(bind_model_live(L, h), (size_t)i, &n);
    if (!key) return 0;
    lua_settop(L, 0);
    lua_pushinteger(L, i + 1);
    lua_replace(L, lua_upvalueindex(2));
    lua_pushlstring(L, key, n);
    push_value(L, h, 1);
    return 2;
}

static int metadata_pairs(lua_State *L) {
    metadata_model(L, 1);
    lua_pushvalue(L, 1);
    lua_pushinteger(L, 0);
    lua_pushcclosure(L, metadata_next, 2);
    return 1;
}

static int metadata_tostring(lua_State *L) {
    bind_class_check(L, 1, CLASS_METADATA, "self");
    lua_pushstring(L, CLASS_METADATA);
    return 1;
}

static const luaL_Reg metadata_meta[] = {
    {"__pairs", metadata_pairs}, {"__tostring", metadata_tostring}, {NULL, NULL}};

void bind_metadata_register(lua_State *L) {
    bind_class_register(L, CLASS_METADATA, metadata_meta, NULL, metadata_fields);
    lua_pop(L, 2);
}
