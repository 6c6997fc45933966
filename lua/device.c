/* device.c: what belongs to one Lua state: its devices (opened once each, shared by its models,
 * closed with the state), what the host program set, and the way the engine is called. */
#include "handles.h"
#include <string.h>

static const char state_key = 's', devices_key = 'd';

binding_state *binding_get_state(lua_State *L) {
    binding_state *state;
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, &state_key) == LUA_TNIL) {
        state = lua_newuserdatauv(L, sizeof *state, 0);
        memset(state, 0, sizeof *state);
        lua_rawsetp(L, LUA_REGISTRYINDEX, &state_key);
    } else {
        state = lua_touserdata(L, -1);
    }
    lua_pop(L, 1);
    return state;
}

void binding_set_watch(lua_State *L, const llm_watch *watch) {
    binding_get_state(L)->watch = watch;
}

void binding_set_over(lua_State *L, llm_kind (*over)(void *data, lua_Hook hook), void *data) {
    binding_get_state(L)->over = over;
    binding_get_state(L)->over_data = data;
}

void binding_set_builtin(lua_State *L, const void *data, size_t bytes) {
    binding_state *state = binding_get_state(L);
    state->builtin = data;
    state->builtin_bytes = bytes;
}

/* ---- devices ---- */

typedef struct device_handle {
    llm_device *device;
} device_handle;

static int device_gc(lua_State *L) {
    device_handle *h = lua_touserdata(L, 1);
    llm_device_close(h->device);
    h->device = NULL;
    return 0;
}

/* Pushes a closed handle. */
static device_handle *device_new(lua_State *L) {
    device_handle *h = lua_newuserdatauv(L, sizeof *h, 0);
    h->device = NULL;
    if (luaL_newmetatable(L, "llm.Device")) {
        lua_pushcfunction(L, device_gc);
        lua_setfield(L, -2, "__gc");
    }
    lua_setmetatable(L, -2);
    return h;
}

/* Pushes the table of devices: a list of handles, and the same by what was asked for. */
static void devices_push(lua_State *L) {
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, &devices_key) != LUA_TNIL) return;
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &devices_key);
}

/* Puts the handle at index `handle` into the list, or replaces it by the one of an equal device
 * there
 * ("auto" may be the "cpu" that is open). */
static void device_share(lua_State *L, int devices, int handle) {
    device_handle *h = lua_touserdata(L, handle);
    lua_Integer n = (lua_Integer)lua_rawlen(L, devices);
    for (lua_Integer i = 1; i <= n; i++) {
        lua_rawgeti(L, devices, i);
        const device_handle *old = lua_touserdata(L, -1);
        if (strcmp(llm_device_describe(old->device), llm_device_describe(h->device)) == 0) {
            llm_device_close(h->device);
            h->device = NULL;
            lua_replace(L, handle);
            return;
        }
        lua_pop(L, 1);
    }
    lua_pushvalue(L, handle);
    lua_rawseti(L, devices, n + 1);
}

llm_device *bind_device_get(lua_State *L, const llm_device_options *options, llm_error *err) {
    int top = lua_gettop(L), devices = top + 1, key = top + 2, handle = top + 3;
    devices_push(L);
    lua_pushfstring(L, "%s|%d|%d|%s", options->name ? options->name : "auto", options->n_threads,
                    options->invariant, options->cuda_lib ? options->cuda_lib : "");
    lua_pushvalue(L, key);
    if (lua_rawget(L, devices) == LUA_TNIL) {
        lua_pop(L, 1);
        device_handle *new = device_new(L);
        new->device = llm_device_open(options, err);
        if (!new->device) {
            lua_settop(L, top);
            return NULL;
        }
        device_share(L, devices, handle);
        lua_pushvalue(L, key);
        lua_pushvalue(L, handle);
        lua_rawset(L, devices);
    }
    llm_device *device = ((device_handle *)lua_touserdata(L, handle))->device;
    lua_settop(L, top);
    binding_state *state = binding_get_state(L);
    if (!state->device) state->device = device;
    return device;
}

llm_device *bind_device_default(lua_State *L) {
    llm_error err = {LLM_OK, ""};
    llm_device *device = binding_get_state(L)->device;
    llm_device_options options = {.name = llm_device_default()};
    if (strcmp(options.name, "auto") == 0) options.name = "cpu"; /* no GPU for a few numbers */
    if (!device) device = bind_device_get(L, &options, &err);
    if (!device) bind_error_raise_engine(L, &err);
    return device;
}

static void set_integer(lua_State *L, const char *name, uint64_t n) {
    lua_pushinteger(L, (lua_Integer)n);
    lua_setfield(L, -2, name);
}

int bind_device_stats(lua_State *L) {
    llm_stats all = {0};
    lua_settop(L, 0);
    devices_push(L);
    lua_Integer n = (lua_Integer)lua_rawlen(L, 1);
    for (lua_Integer i = 1; i <= n; i++) {
        llm_stats one = {0};
        lua_rawgeti(L, 1, i);
        llm_device_stats(((device_handle *)lua_touserdata(L, -1))->device, &one);
        lua_pop(L, 1);
        all.launches += one.launches;
        all.syncs += one.syncs;
        all.bytes_up += one.bytes_up;
        all.bytes_down += one.bytes_down;
        all.forward_rows += one.forward_rows;
        all.passes += one.passes;
        all.prefix_tokens += one.prefix_tokens;
        all.pages_used += one.pages_used;
        all.tensor_bytes += one.tensor_bytes;
        all.lua_s += one.lua_s;
        all.step_s += one.step_s;
    }
    lua_createtable(L, 0, 10);
    set_integer(L, "launches", all.launches);
    set_integer(L, "syncs", all.syncs);
    set_integer(L, "bytes_up", all.bytes_up);
    set_integer(L, "bytes_down", all.bytes_down);
    set_integer(L, "forward_rows", all.forward_rows);
    set_integer(L, "passes", all.passes);
    set_integer(L, "prefix_tokens", all.prefix_tokens);
    set_integer(L, "pages_used", (uint64_t)all.pages_used);
    set_integer(L, "tensor_bytes", all.tensor_bytes);
    lua_pushnumber(L, all.lua_s);
    lua_setfield(L, -2, "lua_s");
    lua_pushnumber(L, all.step_s);
    lua_setfield(L, -2, "step_s");
    return 1;
}

/* ---- what there is ---- */

static void set_text(lua_State *L, const char *name, const char *text) {
    if (!*text) return;
    lua_pushstring(L, text);
    lua_setfield(L, -2, name);
}

/* Two numbers with a point between them; 0: none. */
static void set_version(lua_State *L, const char *name, int high, int low) {
    if (!high) return;
    lua_pushfstring(L, "%d.%d", high, low);
    lua_setfield(L, -2, name);
}

/* llm.devices{cuda_lib = …} */
int bind_device_list(lua_State *L) {
    static const char *const known[] = {"cuda_lib", NULL};
    llm_device_info info;
    lua_settop(L, 1);
    bind_check_options(L, 1, known);
    const char *file =
        bind_check_option(L, 1, "cuda_lib") ? bind_check_path(L, -1, "cuda_lib") : NULL;
    lua_newtable(L);
    for (int i = 0; llm_device_list(i, file, &info); i++) {
        lua_createtable(L, 0, 8);
        set_text(L, "device", info.device);
        set_text(L, "name", info.name);
        set_text(L, "reason", info.reason);
        set_version(L, "compute", info.compute / 10, info.compute % 10);
        set_version(L, "driver", info.driver / 1000, info.driver % 1000 / 10);
        set_version(L, "runtime", info.runtime / 1000, info.runtime % 1000 / 10);
        if (!*info.reason) {
            set_integer(L, "memory", info.bytes);
            set_integer(L, "memory_free", info.bytes_free);
        }
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* ---- calls of the engine ---- */

void bind_engine_prepare(lua_State *L, llm_device *device) {
    const binding_state *state = binding_get_state(L);
    /* A guarded coroutine (it has a hook) ends at its next call of the engine; the host goes on. */
    llm_kind over = state->over ? state->over(state->over_data, lua_gethook(L)) : LLM_OK;
    if (over == LLM_TIME) bind_error_raise(L, over, "the job's time is over (--max-seconds)");
    if (over != LLM_OK) bind_error_raise(L, over, "interrupted");
    if (llm_device_pressed(device)) lua_gc(L, LUA_GCCOLLECT);
}

/* Asks the scheduler to set other jobs aside. */
static bool relieve(lua_State *L) {
    luaL_checkstack(L, LUA_MINSTACK, NULL);
    bool helped = false;
    if (lua_getfield(L, LUA_REGISTRYINDEX, BIND_RELIEVE) == LUA_TFUNCTION) {
        lua_call(L, 0, 1);
        helped = lua_toboolean(L, -1);
    }
    lua_pop(L, 1);
    return helped;
}

/* Caches that are garbage hold pages, tensors that are garbage hold memory: one full collection.
 * Then jobs that wait may give their pages. */
bool bind_engine_retry(lua_State *L, llm_error *err, int *n_tries) {
    bool may_help = err->kind == LLM_OUT_OF_MEMORY || err->kind == LLM_CACHE_FULL;
    if (!may_help || binding_get_state(L)->is_final) return false;
    if ((*n_tries)++ == 0)
        lua_gc(L, LUA_GCCOLLECT);
    else if (!relieve(L))
        return false;
    *err = (llm_error){LLM_OK, ""};
    return true;
}
