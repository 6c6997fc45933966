/* llm.c: the module table. */
#include "handles.h"

/* llm.fault_sharing(on): caches write into pages that others hold too. Only in builds for specs. */
static int llm_lua_fault_sharing(lua_State *L) {
    llm_fault_sharing(lua_toboolean(L, 1));
    return 0;
}

/* llm.fault(n, retry): the n-th allocation of the engine from now fails (0: none). Unless retry is
 * true the binding does not try again until n is 0. Only in builds for specs of faults. */
static int llm_lua_fault(lua_State *L) {
    lua_settop(L, 2);
    lua_Integer n = bind_check_range(L, 1, "n", 0, LUA_MAXINTEGER);
    bool retry = !lua_isnil(L, 2) && bind_check_boolean(L, 2, "retry");
    binding_get_state(L)->is_final = n > 0 && !retry;
    llm_fail_allocation(n);
    return 0;
}

static int llm_lua_allocations(lua_State *L) {
    lua_pushinteger(L, llm_allocations());
    return 1;
}

static const luaL_Reg functions[] = {{"devices", bind_device_list},
                                     {"error", bind_error_new},
                                     {"load", bind_model_load},
                                     {"logits", bind_tensor_make_logits},
                                     {"reorder", bind_cache_reorder},
                                     {"rng", bind_rng_make},
                                     {"seq", bind_seq_make},
                                     {"stats", bind_device_stats},
                                     {"tensor", bind_tensor_make},
                                     {"type", bind_class_type},
                                     {NULL, NULL}};

__attribute__((visibility("default"))) int luaopen_llm(lua_State *L) {
    luaL_checkversion(L);
    bind_error_register(L);
    bind_model_register(L);
    bind_metadata_register(L);
    bind_cache_register(L);
    bind_tensor_register(L);
    bind_rng_register(L);
    bind_seq_register(L);
    luaL_newlib(L, functions);
    lua_pushstring(L, LLM_VERSION);
    lua_setfield(L, -2, "version");
    if (llm_faults_built()) {
        lua_pushcfunction(L, llm_lua_fault);
        lua_setfield(L, -2, "fault");
        lua_pushcfunction(L, llm_lua_fault_sharing);
        lua_setfield(L, -2, "fault_sharing");
        lua_pushcfunction(L, llm_lua_allocations);
        lua_setfield(L, -2, "allocations");
    }
    return 1;
}
