/* tensor.c: llm.Tensor: the handle, making one of lists, and reading. Logits are tensors whose
 * columns are named by token ids, from 0. The operations are in tensor_values.c, tensor_shapes.c,
 * tensor_choices.c and tensor_filters.c. */
#include "handles.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* ---- the handle ---- */

static int tensor_close(lua_State *L) {
    tensor_handle *h = bind_class_check(L, 1, CLASS_TENSOR, "self");
    llm_tensor *t = h->tensor;
    h->tensor = NULL;
    llm_tensor_close(t);
    return 0;
}

tensor_handle *bind_tensor_new(lua_State *L) {
    tensor_handle *h = lua_newuserdatauv(L, sizeof *h, 0);
    h->tensor = NULL;
    luaL_setmetatable(L, CLASS_TENSOR);
    return h;
}

tensor_handle *bind_tensor_test(lua_State *L, int arg) {
    return bind_class_test(L, arg, CLASS_TENSOR);
}

llm_tensor *bind_tensor_live(lua_State *L, const tensor_handle *h) {
    if (!h->tensor) bind_error_raise(L, LLM_MISUSE, "tensor is closed");
    return h->tensor;
}

tensor_handle *arg_tensor(lua_State *L, int arg, const char *name) {
    tensor_handle *h = bind_class_check(L, arg, CLASS_TENSOR, name);
    bind_tensor_live(L, h);
    return h;
}

const llm_tensor_info *bind_tensor_info(lua_State *L, const tensor_handle *h) {
    return llm_tensor_get_info(bind_tensor_live(L, h));
}

llm_device *bind_tensor_device(lua_State *L, const tensor_handle *h) {
    return llm_tensor_device(bind_tensor_live(L, h));
}

/* ---- operations ---- */

void bind_tensor_add(lua_State *L, const tensor_op *ops) {
    for (; ops->name; ops++)
        for (int in_place = 0; in_place <= ops->in_place; in_place++) {
            lua_pushfstring(L, in_place ? "%s_" : "%s", ops->name);
            lua_pushboolean(L, in_place);
            lua_pushinteger(L, ops->code);
            lua_pushcclosure(L, ops->f, 2);
            lua_rawset(L, -3);
        }
}

tensor_handle *bind_tensor_result(lua_State *L) {
    if (!lua_toboolean(L, lua_upvalueindex(1))) return bind_tensor_new(L);
    lua_pushvalue(L, 1);
    return lua_touserdata(L, 1);
}

operand bind_operand_check(lua_State *L, int arg, const char *name, llm_device *device,
                           list_form form) {
    operand o = {0};
    if (lua_type(L, arg) == LUA_TNUMBER) {
        lua_Integer n = lua_isinteger(L, arg) ? lua_tointeger(L, arg) : LUA_MAXINTEGER;
        o.is_integer = n >= INT32_MIN && n <= INT32_MAX;
        o.x = lua_tonumber(L, arg);
    } else if (lua_istable(L, arg)) {
        o.tensor = bind_list_tensor(L, arg, name, device, form, -1);
        lua_replace(L, arg);
    } else if ((o.tensor = bind_tensor_test(L, arg))) {
        bind_tensor_live(L, o.tensor);
    } else {
        bind_error_raise(L, LLM_MISUSE, "%s must be a number, a tensor or a list, got %s", name,
                         bind_check_text(L, arg));
    }
    return o;
}

llm_operand bind_operand_live(lua_State *L, const operand *o) {
    return (llm_operand){o->tensor ? bind_tensor_live(L, o->tensor) : NULL, o->x, o->is_integer};
}

/* ---- making ---- */

static int tensor_from(lua_State *L, list_form form, int dtype, bool is_logits) {
    const tensor_handle *from = bind_tensor_test(L, 1);
    tensor_handle *t;
    if (from) {
        llm_dtype has = bind_tensor_info(L, from)->dtype;
        if (dtype >= 0 && has != (llm_dtype)dtype)
            bind_error_raise(L, LLM_MISUSE, "the tensor given is of the other type, not of %s",
                             dtype == LLM_F32 ? "f32" : "i32");
        t = bind_tensor_new(L);
        ENGINE(L, bind_tensor_device(L, from),
               llm_op_copy(bind_tensor_live(L, from), &t->tensor, &err));
    } else {
        t = bind_list_tensor(L, 1, "list", bind_device_default(L), form, dtype);
    }
    llm_tensor_set_logits(t->tensor, is_logits);
    return 1;
}

/* llm.tensor(list or tensor, dtype): a flat list is a column */
int bind_tensor_make(lua_State *L) {
    int dtype = -1;
    lua_settop(L, 2);
    if (!lua_isnil(L, 2)) {
        const char *name = bind_check_string(L, 2, "dtype", NULL);
        dtype = strcmp(name, "f32") == 0 ? LLM_F32 : strcmp(name, "i32") == 0 ? LLM_I32 : -1;
        if (dtype < 0) bind_error_raise(L, LLM_MISUSE, "unknown dtype %s; known: f32, i32", name);
    }
    return tensor_from(L, LIST_COLUMN, dtype, false);
}

/* llm.logits(list or tensor): a flat list is a row */
int bind_tensor_make_logits(lua_State *L) {
    lua_settop(L, 1);
    return tensor_from(L, LIST_ROW, LLM_F32, true);
}

/* ---- reading: the only wait ---- */

static void push_entry(lua_State *L, const void *data, llm_dtype dtype, int64_t i) {
    if (dtype == LLM_I32)
        lua_pushinteger(L, ((const int32_t *)data)[i]);
    else
        lua_pushnumber(L, (lua_Number)((const float *)data)[i]);
}

/* Reads count entries from the 0-based first into a buffer that it pushes. */
static const void *tensor_read(lua_State *L, const tensor_handle *h, int64_t first, int64_t count) {
    void *data = lua_newuserdatauv(L, (size_t)count * 4, 0);
    ENGINE(L, bind_tensor_device(L, h),
           llm_tensor_read(bind_tensor_live(L, h), first, count, data, &err));
    return data;
}

static int push_list(lua_State *L, const void *data, llm_dtype dtype, int64_t first, int64_t n) {
    lua_createtable(L, n < INT_MAX ? (int)n : 0, 0);
    for (int64_t i = 0; i < n; i++) {
        push_entry(L, data, dtype, first + i);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

static int tensor_lists(lua_State *L) {
    const tensor_handle *h = arg_tensor(L, 1, "self");
    llm_tensor_info info = *bind_tensor_info(L, h);
    const void *data = tensor_read(L, h, 0, info.n_rows * info.n_columns);
    lua_createtable(L, (int)info.n_rows, 0);
    for (int64_t r = 0; r < info.n_rows; r++) {
        push_list(L, data, info.dtype, r * info.n_columns, info.n_columns);
        lua_rawseti(L, -2, r + 1);
    }
    return 1;
}

/* flat when there is one row or one column */
static int tensor_tolist(lua_State *L) {
    const tensor_handle *h = arg_tensor(L, 1, "self");
    llm_tensor_info info = *bind_tensor_info(L, h);
    if (info.n_rows > 1 && info.n_columns > 1) return tensor_lists(L);
    int64_t n = info.n_rows * info.n_columns;
    return push_list(L, tensor_read(L, h, 0, n), info.dtype, 0, n);
}

static int tensor_item(lua_State *L) {
    const tensor_handle *h = arg_tensor(L, 1, "self");
    llm_tensor_info info = *bind_tensor_info(L, h);
    if (info.n_rows * info.n_columns != 1)
        bind_error_raise(L, LLM_MISUSE, "item() of a tensor of %I x %I entries",
                         (LUAI_UACINT)info.n_rows, (LUAI_UACINT)info.n_columns);
    push_entry(L, tensor_read(L, h, 0, 1), info.dtype, 0);
    return 1;
}

static int64_t info_length(const llm_tensor_info *info) {
    return info->n_rows == 1 ? info->n_columns : info->n_rows;
}

/* t[i]: a number where there is one row (of Logits: by token id) or one column, else row i */
static int tensor_entry(lua_State *L) {
    const tensor_handle *h = arg_tensor(L, 1, "self");
    llm_tensor_info info = *bind_tensor_info(L, h);
    bool is_row = info.n_rows == 1, is_flat = is_row || info.n_columns == 1;
    lua_Integer base = is_row && info.is_logits ? 0 : 1;
    lua_Integer i = bind_check_range(L, 2, "index", base, info_length(&info) - 1 + base) - base;
    if (is_flat) {
        push_entry(L, tensor_read(L, h, i, 1), info.dtype, 0);
    } else {
        tensor_handle *row = bind_tensor_new(L);
        ENGINE(L, bind_tensor_device(L, h),
               llm_op_narrow(bind_tensor_live(L, h), 1, i, 1, &row->tensor, &err));
    }
    return 1;
}

static int tensor_fields(lua_State *L) {
    if (lua_type(L, 2) == LUA_TNUMBER) return tensor_entry(L);
    const llm_tensor_info *info = bind_tensor_info(L, bind_class_check(L, 1, CLASS_TENSOR, "self"));
    if (lua_type(L, 2) != LUA_TSTRING) return 0;
    const char *key = lua_tostring(L, 2);
    if (strcmp(key, "n_rows") == 0)
        lua_pushinteger(L, info->n_rows);
    else if (strcmp(key, "n_columns") == 0)
        lua_pushinteger(L, info->n_columns);
    else if (strcmp(key, "dtype") == 0)
        lua_pushstring(L, info->dtype == LLM_F32 ? "f32" : "i32");
    else if (strcmp(key, "is_logits") == 0)
        lua_pushboolean(L, info->is_logits);
    else
        return 0;
    return 1;
}

static int tensor_length(lua_State *L) {
    lua_pushinteger(L,
                    info_length(bind_tensor_info(L, bind_class_check(L, 1, CLASS_TENSOR, "self"))));
    return 1;
}

static void add_entry(luaL_Buffer *text, const void *data, llm_dtype dtype, int64_t i) {
    char number[32];
    if (dtype == LLM_I32)
        snprintf(number, sizeof number, "%d", ((const int32_t *)data)[i]);
    else
        snprintf(number, sizeof number, "%.6g", (double)((const float *)data)[i]);
    luaL_addstring(text, number);
}

/* "llm.Tensor 2 x 3 f32 {{1, 2, 3}, {4, 5, 6}}", with the first rows and columns of large ones */
static int tensor_tostring(lua_State *L) {
    enum { MAX_ROWS = 4, MAX_COLUMNS = 8 };
    float data[MAX_COLUMNS];
    const tensor_handle *h = bind_class_check(L, 1, CLASS_TENSOR, "self");
    if (!h->tensor) {
        lua_pushstring(L, CLASS_TENSOR " (closed)");
        return 1;
    }
    llm_tensor_info info = *bind_tensor_info(L, h);
    luaL_Buffer text;
    luaL_buffinit(L, &text);
    lua_pushfstring(L, "%s %I x %I %s {", info.is_logits ? "llm.Logits" : CLASS_TENSOR,
                    (LUAI_UACINT)info.n_rows, (LUAI_UACINT)info.n_columns,
                    info.dtype == LLM_F32 ? "f32" : "i32");
    luaL_addvalue(&text);
    int64_t n = info.n_columns < MAX_COLUMNS ? info.n_columns : MAX_COLUMNS;
    for (int64_t r = 0; r < info.n_rows && r < MAX_ROWS; r++) {
        ENGINE(L, bind_tensor_device(L, h),
               llm_tensor_read(bind_tensor_live(L, h), r * info.n_columns, n, data, &err));
        luaL_addstring(&text, r > 0 ? ", {" : "{");
        for (int64_t c = 0; c < n; c++) {
            if (c > 0) luaL_addstring(&text, ", ");
            add_entry(&text, data, info.dtype, c);
        }
        luaL_addstring(&text, n < info.n_columns ? ", …}" : "}");
    }
    luaL_addstring(&text, info.n_rows > MAX_ROWS ? ", …}" : "}");
    luaL_pushresult(&text);
    return 1;
}

static const luaL_Reg tensor_methods[] = {{"close", tensor_close},
                                          {"item", tensor_item},
                                          {"lists", tensor_lists},
                                          {"tolist", tensor_tolist},
                                          {NULL, NULL}};

static const luaL_Reg tensor_meta[] = {{"__gc", tensor_close},
                                       {"__close", tensor_close},
                                       {"__len", tensor_length},
                                       {"__tostring", tensor_tostring},
                                       {NULL, NULL}};

void bind_tensor_register(lua_State *L) {
    bind_class_register(L, CLASS_TENSOR, tensor_meta, tensor_methods, tensor_fields);
    bind_tensor_add_values(L);
    bind_tensor_add_shapes(L);
    bind_tensor_add_choices(L);
    bind_tensor_add_filters(L);
    bind_tensor_set_operators(L);
    lua_pop(L, 2);
}
