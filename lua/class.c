/* class.c: metatables of the userdata, all of one form: __index finds methods, then fields; nothing
 * can be assigned unless the class says so. */
#include "handles.h"

static int class_index(lua_State *L) {
    if (lua_type(L, 2) == LUA_TSTRING) {
        lua_pushvalue(L, 2);
        if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return 1;
        lua_pop(L, 1);
    }
    lua_CFunction fields = lua_tocfunction(L, lua_upvalueindex(2));
    return fields ? fields(L) : 0;
}

static int class_newindex(lua_State *L) {
    luaL_getmetafield(L, 1, "__name");
    bind_error_raise(L, LLM_MISUSE, "%s cannot be assigned to", lua_tostring(L, -1));
}

void bind_class_register(lua_State *L, const char *name, const luaL_Reg *meta,
                         const luaL_Reg *methods, lua_CFunction fields) {
    luaL_newmetatable(L, name);
    lua_pushcfunction(L, class_newindex);
    lua_setfield(L, -2, "__newindex");
    lua_newtable(L);
    if (methods) luaL_setfuncs(L, methods, 0);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, "__methods"); /* for specs */
    lua_pushvalue(L, -1);
    if (fields)
        lua_pushcfunction(L, fields);
    else
        lua_pushnil(L);
    lua_pushcclosure(L, class_index, 2);
    lua_setfield(L, -3, "__index");
    lua_insert(L, -2);
    luaL_setfuncs(L, meta, 0);
    lua_insert(L, -2);
}

void *bind_class_test(lua_State *L, int arg, const char *name) {
    return lua_type(L, arg) == LUA_TUSERDATA ? luaL_testudata(L, arg, name) : NULL;
}

void *bind_class_check(lua_State *L, int arg, const char *name, const char *what) {
    void *object = bind_class_test(L, arg, name);
    if (!object)
        bind_error_raise(L, LLM_MISUSE, "%s must be an %s, got %s", what, name,
                         bind_check_text(L, arg));
    return object;
}

/* llm.type(value): the name of its class, or nil for what is not llm's. */
int bind_class_type(lua_State *L) {
    static const char *const names[] = {CLASS_MODEL, CLASS_METADATA, CLASS_CACHE, CLASS_TENSOR,
                                        CLASS_RNG,   CLASS_SEQ,      CLASS_ERROR};
    lua_settop(L, 1);
    if (!lua_getmetatable(L, 1)) {
        lua_pushnil(L);
        return 1;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        luaL_getmetatable(L, names[i]);
        bool same = lua_rawequal(L, 2, -1);
        lua_pop(L, 1);
        if (!same) continue;
        const tensor_handle *t = bind_tensor_test(L, 1);
        bool is_logits = t && t->tensor && llm_tensor_get_info(t->tensor)->is_logits;
        lua_pushstring(L, is_logits ? "llm.Logits" : names[i]);
        return 1;
    }
    lua_pushnil(L);
    return 1;
}
