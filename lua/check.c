/* check.c: checks of arguments. They raise llm.Error of kind misuse, name the argument and say what
 * was got. Integers may come as 4.0, never as strings. */
#include "handles.h"
#include <string.h>

const char *bind_check_text(lua_State *L, int arg) {
    int type = lua_type(L, arg);
    if (type == LUA_TNUMBER || type == LUA_TBOOLEAN) return luaL_tolstring(L, arg, NULL);
    if (type == LUA_TNONE || type == LUA_TNIL) return lua_pushstring(L, "nil");
    int named = luaL_getmetafield(L, arg, "__name");
    if (named == LUA_TSTRING) return lua_tostring(L, -1);
    if (named != LUA_TNIL) lua_pop(L, 1);
    return lua_pushfstring(L, "a %s", lua_typename(L, type));
}

bool bind_check_is_integer(lua_State *L, int arg, lua_Integer *out) {
    int ok = 0;
    if (lua_type(L, arg) == LUA_TNUMBER) *out = lua_tointegerx(L, arg, &ok);
    return ok;
}

lua_Integer bind_check_integer(lua_State *L, int arg, const char *name) {
    lua_Integer n = 0;
    if (!bind_check_is_integer(L, arg, &n))
        bind_error_raise(L, LLM_MISUSE, "%s must be an integer, got %s", name,
                         bind_check_text(L, arg));
    return n;
}

lua_Integer bind_check_range(lua_State *L, int arg, const char *name, lua_Integer least,
                             lua_Integer most) {
    lua_Integer n = bind_check_integer(L, arg, name);
    if (n < least && most == LUA_MAXINTEGER)
        bind_error_raise(L, LLM_MISUSE, "%s must be at least %I, got %I", name, (LUAI_UACINT)least,
                         (LUAI_UACINT)n);
    if (n < least || n > most)
        bind_error_raise(L, LLM_MISUSE, "%s must be %I to %I, got %I", name, (LUAI_UACINT)least,
                         (LUAI_UACINT)most, (LUAI_UACINT)n);
    return n;
}

double bind_check_number(lua_State *L, int arg, const char *name) {
    if (lua_type(L, arg) != LUA_TNUMBER)
        bind_error_raise(L, LLM_MISUSE, "%s must be a number, got %s", name,
                         bind_check_text(L, arg));
    return lua_tonumber(L, arg);
}

const char *bind_check_string(lua_State *L, int arg, const char *name, size_t *n) {
    if (lua_type(L, arg) != LUA_TSTRING)
        bind_error_raise(L, LLM_MISUSE, "%s must be a string, got %s", name,
                         bind_check_text(L, arg));
    return lua_tolstring(L, arg, n);
}

const char *bind_check_path(lua_State *L, int arg, const char *name) {
    size_t n;
    const char *path = bind_check_string(L, arg, name, &n);
    if (strlen(path) != n) bind_error_raise(L, LLM_MISUSE, "%s holds a zero byte", name);
    return path;
}

bool bind_check_boolean(lua_State *L, int arg, const char *name) {
    if (!lua_isboolean(L, arg))
        bind_error_raise(L, LLM_MISUSE, "%s must be true or false, got %s", name,
                         bind_check_text(L, arg));
    return lua_toboolean(L, arg);
}

void bind_check_table(lua_State *L, int arg, const char *name) {
    if (!lua_istable(L, arg))
        bind_error_raise(L, LLM_MISUSE, "%s must be a table, got %s", name,
                         bind_check_text(L, arg));
}

static bool is_known(lua_State *L, int key, const char *const *known) {
    if (lua_type(L, key) != LUA_TSTRING) return false;
    for (; *known; known++)
        if (strcmp(lua_tostring(L, key), *known) == 0) return true;
    return false;
}

void bind_check_options(lua_State *L, int arg, const char *const *known) {
    if (lua_isnoneornil(L, arg)) return;
    bind_check_table(L, arg, "options");
    for (lua_pushnil(L); lua_next(L, arg); lua_pop(L, 1)) {
        if (is_known(L, -2, known)) continue;
        luaL_Buffer list;
        const char *key = luaL_tolstring(L, -2, NULL);
        luaL_buffinit(L, &list);
        for (size_t i = 0; known[i]; i++) {
            if (i > 0) luaL_addstring(&list, ", ");
            luaL_addstring(&list, known[i]);
        }
        luaL_pushresult(&list);
        bind_error_raise(L, LLM_MISUSE, "unknown option %s; known: %s", key, lua_tostring(L, -1));
    }
}

bool bind_check_option(lua_State *L, int arg, const char *name) {
    if (!lua_istable(L, arg)) return false;
    lua_pushstring(L, name);
    if (lua_rawget(L, arg) != LUA_TNIL) return true;
    lua_pop(L, 1);
    return false;
}
