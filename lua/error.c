/* error.c: llm.Error, the one thing that this module raises: a table {kind, message, traceback}. */
#include "handles.h"
#include <stdarg.h>
#include <string.h>

/* Makes an error of the message on top, replacing it. The traceback is that of the current call. */
static void error_push(lua_State *L, const char *kind) {
    lua_createtable(L, 0, 3);
    lua_insert(L, -2);
    lua_setfield(L, -2, "message");
    lua_pushstring(L, kind);
    lua_setfield(L, -2, "kind");
    luaL_traceback(L, L, NULL, 1);
    lua_setfield(L, -2, "traceback");
    luaL_setmetatable(L, CLASS_ERROR);
}

void bind_error_raise(lua_State *L, llm_kind kind, const char *format, ...) {
    va_list args;
    lua_checkstack(L, 8);
    va_start(args, format);
    lua_pushvfstring(L, format, args);
    va_end(args);
    error_push(L, llm_kind_name(kind));
    lua_error(L);
    __builtin_unreachable();
}

static llm_kind kind_of(const llm_error *err) {
    return err->kind == LLM_OK ? LLM_DEVICE : err->kind;
}

void bind_error_raise_engine(lua_State *L, const llm_error *err) {
    bind_error_raise(L, kind_of(err), "%s", err->message);
}

void bind_error_push_engine(lua_State *L, const llm_error *err) {
    lua_pushstring(L, err->message);
    error_push(L, llm_kind_name(kind_of(err)));
}

void bind_error_raise_again(lua_State *L) {
    lua_getfield(L, -1, "kind");
    lua_getfield(L, -2, "message");
    error_push(L, lua_tostring(L, -2));
    lua_error(L);
    __builtin_unreachable();
}

static void kind_check(lua_State *L, int arg) {
    const char *kind = bind_check_string(L, arg, "kind", NULL);
    for (int k = LLM_MISUSE; k <= LLM_INPUT; k++)
        if (strcmp(kind, llm_kind_name((llm_kind)k)) == 0) return;
    luaL_Buffer known;
    luaL_buffinit(L, &known);
    for (int k = LLM_MISUSE; k <= LLM_INPUT; k++) {
        if (k > LLM_MISUSE) luaL_addstring(&known, ", ");
        luaL_addstring(&known, llm_kind_name((llm_kind)k));
    }
    luaL_pushresult(&known);
    bind_error_raise(L, LLM_MISUSE, "unknown kind of error; known: %s", lua_tostring(L, -1));
}

int bind_error_new(lua_State *L) {
    lua_settop(L, 3);
    kind_check(L, 1);
    bind_check_string(L, 2, "message", NULL);
    if (!lua_isnil(L, 3)) bind_check_string(L, 3, "traceback", NULL);
    lua_pushvalue(L, 2);
    error_push(L, lua_tostring(L, 1));
    if (!lua_isnil(L, 3)) {
        lua_pushvalue(L, 3);
        lua_setfield(L, -2, "traceback");
    }
    return 1;
}

static int error_tostring(lua_State *L) {
    bind_check_table(L, 1, "error");
    lua_getfield(L, 1, "message");
    luaL_tolstring(L, -1, NULL);
    return 1;
}

static int error_concat(lua_State *L) {
    lua_settop(L, 2);
    luaL_tolstring(L, 1, NULL);
    luaL_tolstring(L, 2, NULL);
    lua_concat(L, 2);
    return 1;
}

static const luaL_Reg error_meta[] = {
    {"__tostring", error_tostring}, {"__concat", error_concat}, {NULL, NULL}};

void bind_error_register(lua_State *L) {
    luaL_newmetatable(L, CLASS_ERROR);
    luaL_setfuncs(L, error_meta, 0);
    lua_pop(L, 1);
}
