/* tensor_choices.c: operations that choose columns (argmax, top-k, the draw) or take what columns
 * hold. The engine names columns as the script does: from 1, of Logits by token id. */
#include "handles.h"

/* ---- choosing ---- */

static int choices_argmax(lua_State *L) {
    const tensor_handle *x = arg_tensor(L, 1, "self");
    tensor_handle *ids = bind_tensor_new(L);
    ENGINE(L, bind_tensor_device(L, x), llm_op_argmax(bind_tensor_live(L, x), &ids->tensor, &err));
    return 1;
}

/* x:topk(k) → scores, ids: a row each, best first */
static int choices_topk(lua_State *L) {
    const tensor_handle *x = arg_tensor(L, 1, "self");
    int64_t k = bind_check_range(L, 2, "k", 1, LUA_MAXINTEGER);
    tensor_handle *scores = bind_tensor_new(L), *ids = bind_tensor_new(L);
    ENGINE(L, bind_tensor_device(L, x),
           llm_op_topk(bind_tensor_live(L, x), k, &scores->tensor, &ids->tensor, &err));
    return 2;
}

/* x:topk_joint(k, {groups = g}) → scores, ids, rows: columns, best first, group after group */
static int choices_topk_joint(lua_State *L) {
    static const char *const known[] = {"groups", NULL};
    int64_t groups = 1;
    const tensor_handle *x = arg_tensor(L, 1, "self");
    int64_t k = bind_check_range(L, 2, "k", 1, LUA_MAXINTEGER);
    lua_settop(L, 3);
    bind_check_options(L, 3, known);
    if (bind_check_option(L, 3, "groups"))
        groups = bind_check_range(L, -1, "groups", 1, LUA_MAXINTEGER);
    tensor_handle *scores = bind_tensor_new(L), *ids = bind_tensor_new(L),
                  *rows = bind_tensor_new(L);
    ENGINE(L, bind_tensor_device(L, x),
           llm_op_topk_joint(bind_tensor_live(L, x), k, groups, &scores->tensor, &ids->tensor,
                             &rows->tensor, &err));
    return 3;
}

typedef int draw_fn(llm_tensor *, const llm_key *, llm_tensor **, llm_error *);

/* One draw a row of x into the handle on top of the stack; the rng at 2 moves on. */
static int choices_draw(lua_State *L, draw_fn *draw, tensor_handle *out, const llm_key *keys) {
    const tensor_handle *x = arg_tensor(L, 1, "self");
    ENGINE(L, bind_tensor_device(L, x), draw(bind_tensor_live(L, x), keys, &out->tensor, &err));
    bind_rng_advance(L, 2);
    return 1;
}

static const llm_key *choices_keys(lua_State *L) {
    lua_settop(L, 2);
    return bind_rng_keys(L, 2, bind_tensor_info(L, arg_tensor(L, 1, "self"))->n_rows);
}

/* x:sample(rng) → column of ids; rng is one, or a list of one a row */
static int choices_sample(lua_State *L) {
    const llm_key *keys = choices_keys(L);
    return choices_draw(L, llm_op_sample, bind_tensor_new(L), keys);
}

/* x:gumbel(rng): x plus the noise that sample adds */
static int choices_gumbel(lua_State *L) {
    const llm_key *keys = choices_keys(L);
    return choices_draw(L, llm_op_gumbel, bind_tensor_result(L), keys);
}

/* ---- columns by name ---- */

/* Ids for gather, add_at and set_at as an i32 tensor: one id, a list for all rows, a list of lists
 * (one a row, of equal length) or a tensor as it is. A list is replaced by its tensor. */
static const tensor_handle *columns_check(lua_State *L, int arg, llm_device *device) {
    if (lua_type(L, arg) == LUA_TNUMBER) {
        lua_createtable(L, 1, 0);
        lua_pushvalue(L, arg);
        lua_rawseti(L, -2, 1);
        lua_replace(L, arg);
    }
    if (lua_istable(L, arg)) {
        bind_list_tensor(L, arg, "ids", device, LIST_ROW, LLM_I32);
        lua_replace(L, arg);
    }
    return arg_tensor(L, arg, "ids");
}

static int choices_gather(lua_State *L) {
    lua_settop(L, 2);
    const tensor_handle *x = arg_tensor(L, 1, "self");
    const tensor_handle *ids = columns_check(L, 2, bind_tensor_device(L, x));
    tensor_handle *out = bind_tensor_new(L);
    ENGINE(L, bind_tensor_device(L, x),
           llm_op_gather(bind_tensor_live(L, x), bind_tensor_live(L, ids), &out->tensor, &err));
    return 1;
}

typedef int at_function(llm_tensor *, llm_tensor *, llm_operand, llm_tensor **, llm_error *);
static at_function *const at_functions[] = {llm_op_add_at, llm_op_set_at};
enum { AT_ADD, AT_SET };

/* x:add_at(ids, v), x:set_at(ids, v). A flat list v with as many entries as ids has columns is a
 * value for each id, unless x has that many rows, more than one: then a value for each row. */
static int choices_at(lua_State *L) {
    lua_settop(L, 3);
    const tensor_handle *x = arg_tensor(L, 1, "self");
    const tensor_handle *ids = columns_check(L, 2, bind_tensor_device(L, x));
    int64_t n_rows = bind_tensor_info(L, x)->n_rows,
            n_columns = bind_tensor_info(L, ids)->n_columns;
    int64_t n = lua_istable(L, 3) ? (int64_t)lua_rawlen(L, 3) : 0;
    list_form form = n == n_columns && (n != n_rows || n_rows == 1) ? LIST_ROW : LIST_COLUMN;
    operand v = bind_operand_check(L, 3, "values", bind_tensor_device(L, x), form);
    at_function *f = at_functions[TENSOR_CODE(L)];
    tensor_handle *out = bind_tensor_result(L);
    ENGINE(L, bind_tensor_device(L, x),
           f(bind_tensor_live(L, x), bind_tensor_live(L, ids), bind_operand_live(L, &v),
             &out->tensor, &err));
    return 1;
}

static const tensor_op choices_ops[] = {
    {"argmax", choices_argmax, 0, false},
    {"topk", choices_topk, 0, false},
    {"topk_joint", choices_topk_joint, 0, false},
    {"sample", choices_sample, 0, false},
    {"gumbel", choices_gumbel, 0, true},
    {"gather", choices_gather, 0, false},
    {"add_at", choices_at, AT_ADD, true},
    {"set_at", choices_at, AT_SET, true},
    {NULL, NULL, 0, false},
};

void bind_tensor_add_choices(lua_State *L) { bind_tensor_add(L, choices_ops); }
