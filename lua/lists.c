/* lists.c: lists of Lua as arrays. The arrays are userdata without a metatable, so that an error on
 * the way leaks nothing. Lists are read raw. */
#include "handles.h"
#include <limits.h>

/* ---- ids ---- */

static int32_t id_check(lua_State *L, int arg, const char *name, size_t i) {
    lua_Integer id = 0;
    if (!bind_check_is_integer(L, arg, &id))
        bind_error_raise(L, LLM_MISUSE, "%s[%I] must be an integer, got %s", name, (LUAI_UACINT)i,
                         bind_check_text(L, arg));
    if (id < INT32_MIN || id > INT32_MAX)
        bind_error_raise(L, LLM_MISUSE, "%s[%I] does not fit 32 bits: %I", name, (LUAI_UACINT)i,
                         (LUAI_UACINT)id);
    return (int32_t)id;
}

size_t bind_ids_count(lua_State *L, int arg, const char *name) {
    const tensor_handle *t = bind_tensor_test(L, arg);
    if (t) {
        const llm_tensor_info *info = bind_tensor_info(L, t);
        if (info->dtype != LLM_I32)
            bind_error_raise(L, LLM_MISUSE, "%s must be an i32 tensor, got one of f32", name);
        return (size_t)(info->n_rows * info->n_columns);
    }
    if (lua_type(L, arg) == LUA_TNUMBER) return 1;
    if (!lua_istable(L, arg))
        bind_error_raise(L, LLM_MISUSE,
                         "%s must be an integer, a list of integers or an i32 tensor, got %s", name,
                         bind_check_text(L, arg));
    return lua_rawlen(L, arg);
}

void bind_ids_fill(lua_State *L, int arg, const char *name, int32_t *to, size_t n) {
    const tensor_handle *t = bind_tensor_test(L, arg);
    if (bind_ids_count(L, arg, name) != n)
        bind_error_raise(L, LLM_MISUSE, "%s changed while it was read", name);
    if (t) {
        ENGINE(L, bind_tensor_device(L, t),
               llm_tensor_read(bind_tensor_live(L, t), 0, (int64_t)n, to, &err));
    } else if (lua_type(L, arg) == LUA_TNUMBER) {
        lua_Integer id = bind_check_integer(L, arg, name);
        if (id < INT32_MIN || id > INT32_MAX)
            bind_error_raise(L, LLM_MISUSE, "%s does not fit 32 bits: %I", name, (LUAI_UACINT)id);
        to[0] = (int32_t)id;
    } else {
        for (size_t i = 0; i < n; i++) {
            lua_rawgeti(L, arg, (lua_Integer)i + 1);
            to[i] = id_check(L, -1, name, i + 1);
            lua_pop(L, 1);
        }
    }
}

int32_t *bind_ids_check(lua_State *L, int arg, const char *name, size_t *n) {
    arg = lua_absindex(L, arg);
    *n = bind_ids_count(L, arg, name);
    int32_t *ids = lua_newuserdatauv(L, *n * sizeof *ids, 0);
    bind_ids_fill(L, arg, name, ids, *n);
    return ids;
}

void bind_ids_push(lua_State *L, const int32_t *ids, size_t n) {
    lua_createtable(L, n < INT_MAX ? (int)n : 0, 0);
    for (size_t i = 0; i < n; i++) {
        lua_pushinteger(L, ids[i]);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
}

/* ---- tensors ---- */

typedef struct list_shape {
    int64_t n_rows, n_columns;
    bool is_nested, is_i32;
} list_shape;

/* The n entries of the list at arg are numbers. i_row: of a list of lists, or 0. */
static bool entries_are_i32(lua_State *L, int arg, const char *name, int64_t i_row, int64_t n) {
    bool all = true;
    for (int64_t i = 1; i <= n; i++) {
        if (lua_rawgeti(L, arg, i) != LUA_TNUMBER) {
            const char *text = bind_check_text(L, -1);
            if (i_row)
                bind_error_raise(L, LLM_MISUSE, "%s[%I][%I] must be a number, got %s", name,
                                 (LUAI_UACINT)i_row, (LUAI_UACINT)i, text);
            bind_error_raise(L, LLM_MISUSE, "%s[%I] must be a number, got %s", name, (LUAI_UACINT)i,
                             text);
        }
        lua_Integer v = lua_isinteger(L, -1) ? lua_tointeger(L, -1) : LUA_MAXINTEGER;
        all = all && v >= INT32_MIN && v <= INT32_MAX;
        lua_pop(L, 1);
    }
    return all;
}

static list_shape list_measure(lua_State *L, int arg, const char *name, list_form form) {
    list_shape s = {0};
    int64_t n = (int64_t)lua_rawlen(L, arg);
    if (n == 0) bind_error_raise(L, LLM_MISUSE, "%s is an empty list", name);
    s.is_nested = lua_rawgeti(L, arg, 1) == LUA_TTABLE;
    lua_pop(L, 1);
    if (!s.is_nested) {
        s.is_i32 = entries_are_i32(L, arg, name, 0, n);
        s.n_rows = form == LIST_COLUMN ? n : 1;
        s.n_columns = form == LIST_COLUMN ? 1 : n;
        return s;
    }
    s.n_rows = n;
    s.is_i32 = true;
    for (int64_t i = 1; i <= n; i++) {
        lua_rawgeti(L, arg, i);
        if (!lua_istable(L, -1))
            bind_error_raise(L, LLM_MISUSE, "%s[%I] must be a list as %s[1] is, got %s", name,
                             (LUAI_UACINT)i, name, bind_check_text(L, -1));
        int64_t n_row = (int64_t)lua_rawlen(L, -1);
        if (n_row == 0)
            bind_error_raise(L, LLM_MISUSE, "%s[%I] is an empty list", name, (LUAI_UACINT)i);
        if (i == 1) s.n_columns = n_row;
        if (n_row != s.n_columns)
            bind_error_raise(L, LLM_MISUSE, "%s[1] has %I entries, %s[%I] has %I", name,
                             (LUAI_UACINT)s.n_columns, name, (LUAI_UACINT)i, (LUAI_UACINT)n_row);
        s.is_i32 &= entries_are_i32(L, lua_gettop(L), name, i, n_row);
        lua_pop(L, 1);
    }
    return s;
}

/* Entries 1 … n of the list on top, measured before, as f32 or i32. */
static void entries_fill(lua_State *L, const char *name, int64_t n, llm_dtype dtype, void *to) {
    for (int64_t i = 0; i < n; i++) {
        lua_rawgeti(L, -1, i + 1);
        if (dtype == LLM_I32)
            ((int32_t *)to)[i] = id_check(L, -1, name, (size_t)i + 1);
        else
            ((float *)to)[i] = (float)lua_tonumber(L, -1);
        lua_pop(L, 1);
    }
}

tensor_handle *bind_list_tensor(lua_State *L, int arg, const char *name, llm_device *device,
                                list_form form, int dtype) {
    arg = lua_absindex(L, arg);
    bind_check_table(L, arg, name);
    list_shape s = list_measure(L, arg, name, form);
    llm_dtype type = dtype >= 0 ? (llm_dtype)dtype : s.is_i32 ? LLM_I32 : LLM_F32;
    int64_t n = s.n_rows * s.n_columns, n_list = s.is_nested ? s.n_columns : n;
    tensor_handle *t = bind_tensor_new(L);
    char *data = lua_newuserdatauv(L, (size_t)n * 4, 0);
    for (int64_t i = 0; i < n; i += n_list) {
        if (s.is_nested)
            lua_rawgeti(L, arg, i / n_list + 1);
        else
            lua_pushvalue(L, arg);
        if (!lua_istable(L, -1))
            bind_error_raise(L, LLM_MISUSE, "%s changed while it was read", name);
        entries_fill(L, name, n_list, type, data + (size_t)i * 4);
        lua_pop(L, 1);
    }
    ENGINE(L, device,
           (t->tensor = llm_tensor_new(device, type, s.n_rows, s.n_columns, data, &err)) ? 0 : -1);
    lua_pop(L, 1);
    return t;
}
