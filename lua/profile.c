/* profile.c: a model's profile, as a table, and the peaks of its device. */
#include "handles.h"
#include <string.h>

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

int bind_model_count_step(lua_State *L) {
    lua_settop(L, 3);
    const model_handle *h = bind_model_check(L, 1, "self");
    int64_t n_sequences = bind_check_range(L, 2, "n_sequences", 1, INT32_MAX);
    int64_t n_past = bind_check_range(L, 3, "n_past", 0, INT32_MAX);
    llm_device *device = llm_model_device(bind_model_live(L, h));
    ENGINE(L, device, llm_model_count_step(bind_model_live(L, h), n_sequences, n_past, &err));
    return 0;
}

/* model:peak("read" | "products", size) → a second, or nil */
int bind_model_peak(lua_State *L) {
    lua_settop(L, 3);
    const model_handle *h = bind_model_check(L, 1, "self");
    const char *what = bind_check_path(L, 2, "what");
    const bool reads = strcmp(what, "read") == 0;
    double rate = 0;
    if (!reads && strcmp(what, "products") != 0)
        bind_error_raise(L, LLM_MISUSE, "what must be read or products, got %s", what);
    int64_t size = bind_check_range(L, 3, "size", 1, reads ? (lua_Integer)1 << 40 : 65536);
    if (!reads) size = (size + 63) / 64 * 64;
    llm_device *device = llm_model_device(bind_model_live(L, h));
    ENGINE(L, device,
           llm_device_peak(device, reads ? LLM_PEAK_READ : LLM_PEAK_PRODUCTS, size, &rate, &err));
    if (rate <= 0) return 0;
    lua_pushnumber(L, rate);
    return 1;
}
