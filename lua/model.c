/* model.c: llm.Model: loading, tokens, what the file says. forward.c holds the passes. */
#include "handles.h"
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static int model_gc(lua_State *L) {
    model_handle *h = lua_touserdata(L, 1);
    llm_model *model = h->model;
    h->model = NULL;
    llm_model_close(model);
    return 0;
}

static int model_close(lua_State *L) {
    const model_handle *h = bind_class_check(L, 1, CLASS_MODEL, "self");
    if (h->n_held > 0)
        bind_error_raise(L, LLM_MISUSE, "the model serves jobs: it cannot be closed");
    return model_gc(L);
}

model_handle *bind_model_check(lua_State *L, int arg, const char *name) {
    model_handle *h = bind_class_check(L, arg, CLASS_MODEL, name);
    bind_model_live(L, h);
    return h;
}

llm_model *bind_model_live(lua_State *L, const model_handle *h) {
    if (!h->model) bind_error_raise(L, LLM_MISUSE, "model is closed");
    return h->model;
}

/* ---- memory that the engine allocates for an answer: held by a userdata while Lua copies it ----
 */

typedef struct answer {
    llm_ids ids;
    llm_bytes bytes;
} answer;

static int answer_gc(lua_State *L) {
    answer *a = lua_touserdata(L, 1);
    llm_ids_free(&a->ids);
    llm_bytes_free(&a->bytes);
    *a = (answer){0};
    return 0;
}

static answer *answer_new(lua_State *L) {
    answer *a = lua_newuserdatauv(L, sizeof *a, 0);
    *a = (answer){0};
    if (luaL_newmetatable(L, "llm.answer")) {
        lua_pushcfunction(L, answer_gc);
        lua_setfield(L, -2, "__gc");
    }
    lua_setmetatable(L, -2);
    return a;
}

/* Pushes what the answer holds and frees it. */
static int answer_push_bytes(lua_State *L, answer *a) {
    lua_pushlstring(L, a->bytes.n ? a->bytes.data : "", a->bytes.n);
    llm_bytes_free(&a->bytes);
    a->bytes = (llm_bytes){0};
    return 1;
}

static int answer_push_ids(lua_State *L, answer *a) {
    bind_ids_push(L, a->ids.data, a->ids.n);
    llm_ids_free(&a->ids);
    a->ids = (llm_ids){0};
    return 1;
}

/* ---- loading ---- */

typedef struct load_request {
    const char *path;
    llm_device_options device;
    llm_options options;
    bool has_gpu_layers;
} load_request;

static bool option_boolean(lua_State *L, int arg, const char *name, bool otherwise) {
    if (!bind_check_option(L, arg, name)) return otherwise;
    bool b = bind_check_boolean(L, -1, name);
    lua_pop(L, 1);
    return b;
}

static int64_t load_integer(lua_State *L, const char *name, lua_Integer least, lua_Integer most) {
    if (!bind_check_option(L, 2, name)) return 0;
    int64_t n = bind_check_range(L, -1, name, least, most);
    lua_pop(L, 1);
    return n;
}

/* The string is left on the stack, which keeps it. */
static const char *load_string(lua_State *L, const char *name, const char *otherwise) {
    return bind_check_option(L, 2, name) ? bind_check_path(L, -1, name) : otherwise;
}

static void load_read_options(lua_State *L, load_request *r) {
    static const char *const known[] = {"device",      "threads",      "ctx",        "kv",
                                        "pages",       "swap_pages",   "max_rows",   "piece",
                                        "eog",         "weight_cache", "cuda_lib",   "invariant",
                                        "f16_as_bf16", "random",       "gpu_layers", NULL};
    bind_check_options(L, 2, known);
    r->device.name = load_string(L, "device", "auto");
    r->device.n_threads = (int)load_integer(L, "threads", 0, 4096);
    r->device.cuda_lib = load_string(L, "cuda_lib", NULL);
    r->device.invariant = option_boolean(L, 2, "invariant", false);
    r->options.ctx = load_integer(L, "ctx", 1, INT32_MAX);
    r->options.kv = load_string(L, "kv", NULL);
    r->options.n_pages = load_integer(L, "pages", 1, INT32_MAX);
    if (bind_check_option(L, 2, "swap_pages")) { /* left on the stack */
        const int64_t n = bind_check_range(L, -1, "swap_pages", 0, INT32_MAX);
        r->options.swap_pages = n ? n : -1;
    }
    r->options.max_rows = load_integer(L, "max_rows", 1, INT32_MAX);
    r->options.piece = load_integer(L, "piece", 1, INT32_MAX);
    r->options.weight_cache = load_string(L, "weight_cache", NULL);
    r->options.random = (uint64_t)load_integer(L, "random", 0, LUA_MAXINTEGER);
    r->options.f16_as_bf16 = option_boolean(L, 2, "f16_as_bf16", false);
    r->has_gpu_layers = bind_check_option(L, 2, "gpu_layers");
    if (r->has_gpu_layers) {
        r->options.gpu_layers = bind_check_range(L, -1, "gpu_layers", 0, INT32_MAX);
        lua_pop(L, 1);
    }
    r->options.n_eog = -1;
    if (bind_check_option(L, 2,
                          "eog")) { /* list and buffer stay on the stack until the load is over */
        size_t n;
        r->options.eog = bind_ids_check(L, -1, "eog", &n);
        r->options.n_eog = (int64_t)n;
    }
    const llm_watch *watch = binding_get_state(L)->watch;
    if (watch) r->options.watch = *watch;
}

/* The CPU that takes layers which the device is not to have. Where "auto" found no GPU none is
 * asked for. */
static int open_host(lua_State *L, load_request *r, const llm_device *device, llm_error *err) {
    const llm_device_options host = {.name = "cpu", .n_threads = r->device.n_threads};
    if (!r->has_gpu_layers) return 0;
    if (!llm_device_is_gpu(device) && strcmp(r->device.name, "auto") == 0) return 0;
    r->options.host = bind_device_get(L, &host, err);
    return r->options.host ? 0 : -1;
}

static llm_model *load_once(lua_State *L, load_request *r, llm_error *err) {
    const binding_state *state = binding_get_state(L);
    llm_device *device = bind_device_get(L, &r->device, err);
    if (!device || open_host(L, r, device, err)) return NULL;
    if (r->path) return llm_load(r->path, device, &r->options, err);
    return llm_load_memory(state->builtin, state->builtin_bytes, "built-in model", device,
                           &r->options, err);
}

int bind_model_load(lua_State *L) {
    load_request r = {0};
    llm_error err = {LLM_OK, ""};
    int n_tries = 0;
    lua_settop(L, 2);
    if (!lua_isnil(L, 1)) r.path = bind_check_path(L, 1, "path");
    load_read_options(L, &r);
    if (!r.path && !binding_get_state(L)->builtin) {
        lua_pushnil(L);
        lua_pushstring(L, "no built-in model in this build");
        return 2;
    }
    model_handle *h = lua_newuserdatauv(L, sizeof *h, 0);
    *h = (model_handle){0};
    luaL_setmetatable(L, CLASS_MODEL);
    while (!(h->model = load_once(L, &r, &err))) {
        if (bind_engine_retry(L, &err, &n_tries)) continue;
        lua_pushnil(L);
        lua_pushstring(L, err.message);
        return 2;
    }
    return 1;
}

/* ---- tokens ---- */

/* model:encode(text, {add_special = true, parse_special = false}) → list of ids */
static int model_encode(lua_State *L) {
    static const char *const known[] = {"add_special", "parse_special", NULL};
    size_t n;
    const model_handle *h = bind_model_check(L, 1, "self");
    const char *text = bind_check_string(L, 2, "text", &n);
    bind_check_options(L, 3, known);
    bool add_special = option_boolean(L, 3, "add_special", true);
    bool parse_special = option_boolean(L, 3, "parse_special", false);
    answer *a = answer_new(L);
    ENGINE(L, llm_model_device(bind_model_live(L, h)),
           llm_encode(bind_model_live(L, h), text, n, add_special, parse_special, &a->ids, &err));
    return answer_push_ids(L, a);
}

/* model:decode(ids, {render_special = true}) → bytes */
static int model_decode(lua_State *L) {
    static const char *const known[] = {"render_special", NULL};
    size_t n;
    const model_handle *h = bind_model_check(L, 1, "self");
    const int32_t *ids = (lua_settop(L, 3), bind_ids_check(L, 2, "ids", &n));
    bind_check_options(L, 3, known);
    bool render_special = option_boolean(L, 3, "render_special", true);
    answer *a = answer_new(L);
    ENGINE(L, llm_model_device(bind_model_live(L, h)),
           llm_decode(bind_model_live(L, h), ids, n, render_special, &a->bytes, &err));
    return answer_push_bytes(L, a);
}

/* An id as one number or a tensor of one entry. */
static int32_t model_check_id(lua_State *L, int arg) {
    size_t n;
    const int32_t *id = bind_ids_check(L, arg, "id", &n);
    if (n != 1) bind_error_raise(L, LLM_MISUSE, "id must be one id, got %I", (LUAI_UACINT)n);
    return *id;
}

/* model:token(id) → its bytes */
static int model_token(lua_State *L) {
    const char *bytes;
    size_t n;
    const model_handle *h = bind_model_check(L, 1, "self");
    int32_t id = model_check_id(L, 2);
    ENGINE(L, llm_model_device(bind_model_live(L, h)),
           llm_token(bind_model_live(L, h), id, &bytes, &n, &err));
    lua_pushlstring(L, bytes, n);
    return 1;
}

/* model:prefix_mask(bytes) → a row of logits to add: 0 where a text that begins so may begin */
static int model_prefix_mask(lua_State *L) {
    size_t n;
    const model_handle *h = bind_model_check(L, 1, "self");
    const char *bytes = bind_check_string(L, 2, "bytes", &n);
    tensor_handle *out = bind_tensor_new(L);
    ENGINE(L, llm_model_device(bind_model_live(L, h)),
           llm_prefix_mask(bind_model_live(L, h), bytes, n, &out->tensor, &err));
    return 1;
}

static int model_is_eog(lua_State *L) {
    const model_handle *h = bind_model_check(L, 1, "self");
    int32_t id = model_check_id(L, 2);
    lua_pushboolean(L, llm_model_is_eog(bind_model_live(L, h), id));
    return 1;
}

static int model_describe(lua_State *L) {
    const model_handle *h = bind_model_check(L, 1, "self");
    answer *a = answer_new(L);
    ENGINE(L, llm_model_device(bind_model_live(L, h)),
           llm_model_describe(bind_model_live(L, h), &a->bytes, &err));
    return answer_push_bytes(L, a);
}

static void set_integer(lua_State *L, const char *name, int64_t n) {
    lua_pushinteger(L, n);
    lua_setfield(L, -2, name);
}

static void set_seconds(lua_State *L, const char *name, double seconds) {
    lua_pushnumber(L, seconds);
    lua_setfield(L, -2, name);
}

/* Sets the field `parts`. */
static void push_parts(lua_State *L, const llm_memory *memory) {
    lua_createtable(L, memory->n_parts, 0);
    for (int i = 0; i < memory->n_parts; i++) {
        const llm_part_memory *part = &memory->parts[i];
        lua_createtable(L, 0, 6);
        lua_pushstring(L, part->device);
        lua_setfield(L, -2, "device");
        set_integer(L, "first_layer", part->first_layer);
        set_integer(L, "last_layer", part->last_layer);
        set_integer(L, "packed_bytes", part->packed_bytes);
        set_integer(L, "page_bytes", part->page_bytes);
        set_integer(L, "scratch_bytes", part->scratch_bytes);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "parts");
}

/* model:memory() → what it takes, as a table */
static int model_memory(lua_State *L) {
    llm_memory memory;
    const model_handle *h = bind_model_check(L, 1, "self");
    llm_model_memory(bind_model_live(L, h), &memory);
    lua_createtable(L, 0, 9);
    set_integer(L, "packed_bytes", memory.packed_bytes);
    set_integer(L, "mapped_bytes", memory.mapped_bytes);
    set_integer(L, "scratch_bytes", memory.scratch_bytes);
    set_integer(L, "pages_used", memory.pages_used);
    set_integer(L, "pages_most", memory.pages_most);
    set_seconds(L, "hash_s", memory.hash_s);
    set_seconds(L, "weights_s", memory.weights_s);
    lua_pushstring(L, memory.weights_from);
    lua_setfield(L, -2, "weights_from");
    lua_pushstring(L, memory.note); /* NULL: nil */
    lua_setfield(L, -2, "note");
    if (memory.n_parts) push_parts(L, &memory);
    return 1;
}

/* ---- caches ---- */

static int model_cache(lua_State *L) {
    const model_handle *h = bind_model_check(L, 1, "self");
    cache_handle *kv = bind_cache_new(L, 1);
    ENGINE(L, llm_model_device(bind_model_live(L, h)),
           (kv->cache = llm_cache_new(bind_model_live(L, h), &err)) ? 0 : -1);
    return 1;
}

/* model:restore(path) → cache, or nil and a message */
static int model_restore(lua_State *L) {
    llm_error err = {LLM_OK, ""};
    int n_tries = 0;
    const model_handle *h = bind_model_check(L, 1, "self");
    const char *path = bind_check_path(L, 2, "path");
    cache_handle *kv = bind_cache_new(L, 1);
    while (!(kv->cache = llm_cache_restore(bind_model_live(L, h), path, &err))) {
        if (bind_engine_retry(L, &err, &n_tries)) continue;
        lua_pushnil(L);
        lua_pushstring(L, err.message);
        return 2;
    }
    return 1;
}

/* ---- fields ---- */

typedef enum field_type { FIELD_INT, FIELD_TEXT, FIELD_SECONDS } field_type;

static const struct {
    const char *name;
    field_type type;
    size_t offset;
} info_fields[] = {
#define FIELD(name, type)                                                                          \
    { #name, type, offsetof(llm_model_info, name) }
    FIELD(arch, FIELD_TEXT),
    FIELD(name, FIELD_TEXT),
    FIELD(path, FIELD_TEXT),
    FIELD(kv, FIELD_TEXT),
    FIELD(chat_template, FIELD_TEXT),
    FIELD(warning, FIELD_TEXT),
    FIELD(device_info, FIELD_TEXT),
    FIELD(gpu_layers, FIELD_INT),
    FIELD(vocab_size, FIELD_INT),
    FIELD(n_layers, FIELD_INT),
    FIELD(width, FIELD_INT),
    FIELD(n_params, FIELD_INT),
    FIELD(weight_bytes, FIELD_INT),
    FIELD(weight_bytes_step, FIELD_INT),
    FIELD(ctx, FIELD_INT),
    FIELD(ctx_train, FIELD_INT),
    FIELD(n_pages, FIELD_INT),
    FIELD(page_bytes, FIELD_INT),
    FIELD(position_bytes, FIELD_INT),
    FIELD(max_rows, FIELD_INT),
    FIELD(piece, FIELD_INT),
    FIELD(load_s, FIELD_SECONDS),
#undef FIELD
};

static bool push_info_field(lua_State *L, const llm_model_info *info, const char *key) {
    for (size_t i = 0; i < sizeof info_fields / sizeof *info_fields; i++) {
        if (strcmp(key, info_fields[i].name) != 0) continue;
        const char *at = (const char *)info + info_fields[i].offset;
        if (info_fields[i].type == FIELD_INT)
            lua_pushinteger(L, *(const int64_t *)(const void *)at);
        else if (info_fields[i].type == FIELD_SECONDS)
            lua_pushnumber(L, *(const double *)(const void *)at);
        else
            lua_pushstring(L, *(const char *const *)(const void *)at); /* NULL: nil */
        return true;
    }
    return false;
}

static int model_fields(lua_State *L) {
    const model_handle *h = bind_model_check(L, 1, "self");
    if (lua_type(L, 2) != LUA_TSTRING) return 0;
    const char *key = lua_tostring(L, 2);
    const llm_model_info *info = llm_model_get_info(bind_model_live(L, h));
    if (push_info_field(L, info, key)) return 1;
    if (strcmp(key, "metadata") == 0) return bind_metadata_new(L, 1);
    if (strcmp(key, "bos") == 0 && info->bos >= 0) {
        lua_pushinteger(L, info->bos);
    } else if (strcmp(key, "eog") == 0) {
        bind_ids_push(L, info->eog, (size_t)info->n_eog);
    } else if (strcmp(key, "hash") == 0) {
        char text[33];
        uint64_t hash[2];
        llm_model_hash(bind_model_live(L, h), hash);
        snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, hash[0], hash[1]);
        lua_pushstring(L, text);
    } else if (strcmp(key, "device_note") == 0) {
        lua_pushstring(L, llm_device_note(llm_model_device(bind_model_live(L, h))));
    } else if (strcmp(key, "device") == 0) {
        const char *text = llm_device_describe(llm_model_device(bind_model_live(L, h)));
        lua_pushlstring(L, text, strcspn(text, ":"));
    } else {
        return 0;
    }
    return 1;
}

static int model_tostring(lua_State *L) {
    const model_handle *h = bind_class_check(L, 1, CLASS_MODEL, "self");
    if (!h->model) {
        lua_pushstring(L, CLASS_MODEL " (closed)");
    } else {
        const llm_model_info *info = llm_model_get_info(h->model);
        lua_pushfstring(L, CLASS_MODEL " %s (%s)", info->path, info->arch);
    }
    return 1;
}

static const luaL_Reg model_methods[] = {{"cache", model_cache},
                                         {"close", model_close},
                                         {"count_step", bind_model_count_step},
                                         {"decode", model_decode},
                                         {"describe", model_describe},
                                         {"encode", model_encode},
                                         {"is_eog", model_is_eog},
                                         {"memory", model_memory},
                                         {"peak", bind_model_peak},
                                         {"prefix_mask", model_prefix_mask},
                                         {"profile", bind_model_profile},
                                         {"restore", model_restore},
                                         {"set_profile", bind_model_set_profile},
                                         {"token", model_token},
                                         {NULL, NULL}};

static const luaL_Reg model_meta[] = {
    {"__gc", model_gc}, {"__close", model_close}, {"__tostring", model_tostring}, {NULL, NULL}};

void bind_model_register(lua_State *L) {
    bind_class_register(L, CLASS_MODEL, model_meta, model_methods, model_fields);
    bind_model_add_forward(L);
    lua_pop(L, 2);
}
