/* profile.c: a model's profile, as a table. */
#include "handles.h"

static void set_count(lua_State *L, const char *name, uint64_t n) {
    lua_pushinteger(L, (lua_Integer)n);
    lua_setfield(L, -2, name);
}

static void set_seconds(lua_State *L, const char *name, double seconds) {
    lua_pushnumber(L, seconds);
    lua_setfield(L, -2, name);
}

static void set_string(lua_State *L, const char *name, const char *text) {
    lua_pushstring(L, text); /* NULL: nil */
    lua_setfield(L, -2, name);
}

static void push_cost(lua_State *L, const llm_cost *c) {
    lua_createtable(L, 0, 11);
    set_string(L, "kind", c->kind);
    set_string(L, "weight", c->weight);
    set_string(L, "format", c->format);
    set_count(L, "layer", (uint64_t)c->layer);
    set_count(L, "calls", c->calls);
    set_count(L, "rows", c->rows);
    set_count(L, "bytes", c->bytes);
    set_count(L, "operations", c->operations);
    set_seconds(L, "seconds", c->seconds);
    set_seconds(L, "input_s", c->input_s);
    set_seconds(L, "wait_s", c->wait_s);
}

int bind_model_set_profile(lua_State *L) {
    lua_settop(L, 2);
    const model_handle *h = bind_model_check(L, 1, "self");
    bool on = bind_check_boolean(L, 2, "on");
    llm_device *device = llm_model_device(bind_model_live(L, h));
    ENGINE(L, device, llm_model_set_profile(bind_model_live(L, h), on, &err));
    return 0;
}

int bind_model_profile(lua_State *L) {
    lua_settop(L, 1);
    const model_handle *h = bind_model_check(L, 1, "self");
    llm_profile p;
    if (!llm_model_get_profile(bind_model_live(L, h), &p)) return 0;
    lua_createtable(L, 0, 3);
    set_seconds(L, "run_s", p.run_s);
    set_seconds(L, "tensor_s", p.tensor_s);
    lua_createtable(L, (int)p.n_costs, 0);
    for (int64_t i = 0; i < p.n_costs; i++) {
        llm_profile still; /* a finalizer may have ended it */
        if (!llm_model_get_profile(bind_model_live(L, h), &still)) return 0;
        llm_cost cost = llm_model_get_cost(bind_model_live(L, h), i);
        push_cost(L, &cost);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "costs");
    return 1;
}
