/* seq.c: llm.Seq, the ids of one sequence and what sampler stages remember about it. An id that is
 * still on the device (a Tensor) stays one until the ids are read. */
#include "handles.h"
#include <string.h>

enum {
    KEEP_IDS = 1,
    KEEP_FIELDS,
    N_KEEP = KEEP_FIELDS
}; /* user values: list, table of the script's */

typedef struct seq_handle {
    lua_Integer n_prompt;
} seq_handle;

static seq_handle *seq_check(lua_State *L, int arg) {
    return bind_class_check(L, arg, CLASS_SEQ, "self");
}

/* Makes a sequence of the list and the table of fields on top, replacing them. */
static void seq_new(lua_State *L, lua_Integer n_prompt) {
    seq_handle *h = lua_newuserdatauv(L, sizeof *h, N_KEEP);
    h->n_prompt = n_prompt;
    lua_insert(L, -3);
    lua_setiuservalue(L, -3, KEEP_FIELDS);
    lua_setiuservalue(L, -2, KEEP_IDS);
    luaL_setmetatable(L, CLASS_SEQ);
}

/* llm.seq(prompt): prompt is a list of ids (default: none) */
int bind_seq_make(lua_State *L) {
    size_t n = 0;
    const int32_t *ids = lua_isnoneornil(L, 1) ? NULL : bind_ids_check(L, 1, "prompt", &n);
    bind_ids_push(L, ids, n);
    lua_createtable(L, 0, 4);
    lua_pushinteger(L, 1);
    lua_setfield(L, -2, "stream");
    seq_new(L, (lua_Integer)n);
    return 1;
}

/* Appends the id (a number, or a Tensor of one entry) at arg to the list on top. */
static void seq_append(lua_State *L, int arg) {
    const tensor_handle *t = bind_tensor_test(L, arg);
    if (t && bind_ids_count(L, arg, "id") != 1)
        bind_error_raise(L, LLM_MISUSE, "id must be one id, got %I",
                         (LUAI_UACINT)bind_ids_count(L, arg, "id"));
    if (!t) {
        lua_pushinteger(L, bind_check_range(L, arg, "id", 0, INT32_MAX));
    } else {
        /* A copy, so that the script may close or change its tensor. */
        tensor_handle *copy = bind_tensor_new(L);
        ENGINE(L, bind_tensor_device(L, t),
               llm_op_copy(bind_tensor_live(L, t), &copy->tensor, &err));
    }
    lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
}

static int seq_push(lua_State *L) {
    lua_settop(L, 2);
    seq_check(L, 1);
    lua_getiuservalue(L, 1, KEEP_IDS);
    seq_append(L, 2);
    return 0;
}

static void push_copy(lua_State *L, int table) {
    lua_newtable(L);
    for (lua_pushnil(L); lua_next(L, table);) {
        lua_pushvalue(L, -2);
        lua_insert(L, -2);
        lua_rawset(L, -4);
    }
}

/* seq:fork(id): a copy, id appended if one is given; the script's fields are copied, not what they
 * hold */
static int seq_fork(lua_State *L) {
    lua_settop(L, 2);
    const seq_handle *h = seq_check(L, 1);
    lua_getiuservalue(L, 1, KEEP_IDS);
    lua_getiuservalue(L, 1, KEEP_FIELDS);
    push_copy(L, 3);
    if (!lua_isnil(L, 2)) seq_append(L, 2);
    push_copy(L, 4);
    seq_new(L, h->n_prompt);
    return 1;
}

/* Pushes the list, all of it read: ids on the device are a tail of it. */
static int seq_push_ids(lua_State *L) {
    lua_getiuservalue(L, 1, KEEP_IDS);
    int list = lua_gettop(L);
    lua_Integer n = (lua_Integer)lua_rawlen(L, list), first = n + 1;
    while (first > 1 && lua_rawgeti(L, list, first - 1) == LUA_TUSERDATA) {
        lua_settop(L, list);
        first--;
    }
    lua_settop(L, list);
    for (lua_Integer i = first; i <= n; i++) {
        int32_t id;
        lua_rawgeti(L, list, i);
        bind_ids_fill(L, list + 1, "id", &id, 1);
        lua_pushinteger(L, id);
        lua_rawseti(L, list, i);
        lua_settop(L, list);
    }
    return 1;
}

static int seq_fields(lua_State *L) {
    const seq_handle *h = seq_check(L, 1);
    if (lua_type(L, 2) == LUA_TSTRING) {
        const char *key = lua_tostring(L, 2);
        if (strcmp(key, "ids") == 0) return seq_push_ids(L);
        if (strcmp(key, "n_prompt") == 0) {
            lua_pushinteger(L, h->n_prompt);
            return 1;
        }
    }
    lua_getiuservalue(L, 1, KEEP_FIELDS);
    lua_pushvalue(L, 2);
    lua_rawget(L, -2);
    return 1;
}

static int seq_newindex(lua_State *L) {
    static const char *const fixed[] = {"ids", "n_prompt", "push", "fork"};
    seq_check(L, 1);
    if (lua_isnil(L, 2)) bind_error_raise(L, LLM_MISUSE, "the key of a sequence's field is nil");
    if (lua_type(L, 2) == LUA_TNUMBER && lua_tonumber(L, 2) != lua_tonumber(L, 2))
        bind_error_raise(L, LLM_MISUSE, "the key of a sequence's field is nan");
    for (size_t i = 0; lua_type(L, 2) == LUA_TSTRING && i < sizeof fixed / sizeof *fixed; i++)
        if (strcmp(lua_tostring(L, 2), fixed[i]) == 0)
            bind_error_raise(L, LLM_MISUSE, "%s of a sequence cannot be assigned to", fixed[i]);
    lua_settop(L, 3);
    lua_getiuservalue(L, 1, KEEP_FIELDS);
    lua_insert(L, 2);
    lua_rawset(L, 2);
    return 0;
}

static int seq_length(lua_State *L) {
    seq_check(L, 1);
    lua_getiuservalue(L, 1, KEEP_IDS);
    lua_pushinteger(L, (lua_Integer)lua_rawlen(L, -1));
    return 1;
}

static int seq_tostring(lua_State *L) {
    seq_length(L);
    lua_pushfstring(L, CLASS_SEQ " of %I ids", (LUAI_UACINT)lua_tointeger(L, -1));
    return 1;
}

static const luaL_Reg seq_methods[] = {{"fork", seq_fork}, {"push", seq_push}, {NULL, NULL}};

static const luaL_Reg seq_meta[] = {{"__len", seq_length},
                                    {"__newindex", seq_newindex},
                                    {"__tostring", seq_tostring},
                                    {NULL, NULL}};

void bind_seq_register(lua_State *L) {
    bind_class_register(L, CLASS_SEQ, seq_meta, seq_methods, seq_fields);
    lua_pop(L, 2);
}
