/* tensor_values.c: operations of tensors entry by entry, and reductions of rows. */
#include "handles.h"
#include <math.h>

/* ---- entry by entry ---- */

static int values_unary(lua_State *L) {
    const tensor_handle *x = arg_tensor(L, 1, "self");
    tensor_handle *out = bind_tensor_result(L);
    ENGINE(L, bind_tensor_device(L, x),
           llm_op_unary((llm_unary)TENSOR_CODE(L), bind_tensor_live(L, x), &out->tensor, &err));
    return 1;
}

/* x:add(b) … x:eq(b) */
static int values_binary(lua_State *L) {
    lua_settop(L, 2);
    const tensor_handle *x = arg_tensor(L, 1, "self");
    operand a = {x, 0, false};
    operand b = bind_operand_check(L, 2, "operand", bind_tensor_device(L, x), LIST_COLUMN);
    tensor_handle *out = bind_tensor_result(L);
    ENGINE(L, bind_tensor_device(L, x),
           llm_op_binary((llm_binary)TENSOR_CODE(L), bind_operand_live(L, &a),
                         bind_operand_live(L, &b), &out->tensor, &err));
    return 1;
}

/* a + b …: either may be the tensor */
static int values_operator(lua_State *L) {
    lua_settop(L, 2);
    const tensor_handle *t = bind_tensor_test(L, 1);
    if (!t) t = arg_tensor(L, 2, "operand");
    operand a = bind_operand_check(L, 1, "left operand", bind_tensor_device(L, t), LIST_COLUMN);
    operand b = bind_operand_check(L, 2, "right operand", bind_tensor_device(L, t), LIST_COLUMN);
    tensor_handle *out = bind_tensor_new(L);
    ENGINE(L, bind_tensor_device(L, t),
           llm_op_binary((llm_binary)TENSOR_CODE(L), bind_operand_live(L, &a),
                         bind_operand_live(L, &b), &out->tensor, &err));
    return 1;
}

/* x:clamp(lo, hi); nil is no bound */
static int values_clamp(lua_State *L) {
    lua_settop(L, 3);
    const tensor_handle *x = arg_tensor(L, 1, "self");
    double least = lua_isnil(L, 2) ? -HUGE_VAL : bind_check_number(L, 2, "lo");
    double most = lua_isnil(L, 3) ? HUGE_VAL : bind_check_number(L, 3, "hi");
    tensor_handle *out = bind_tensor_result(L);
    ENGINE(L, bind_tensor_device(L, x),
           llm_op_clamp(bind_tensor_live(L, x), least, most, &out->tensor, &err));
    return 1;
}

/* x:where(cond, y): x where cond ≠ 0, else y */
static int values_where(lua_State *L) {
    lua_settop(L, 3);
    const tensor_handle *x = arg_tensor(L, 1, "self");
    operand cond = bind_operand_check(L, 2, "cond", bind_tensor_device(L, x), LIST_COLUMN);
    operand y = bind_operand_check(L, 3, "y", bind_tensor_device(L, x), LIST_COLUMN);
    tensor_handle *out = bind_tensor_result(L);
    ENGINE(L, bind_tensor_device(L, x),
           llm_op_where(bind_tensor_live(L, x), bind_operand_live(L, &cond),
                        bind_operand_live(L, &y), &out->tensor, &err));
    return 1;
}

/* ---- rows ---- */

static int values_reduce(lua_State *L) {
    const tensor_handle *x = arg_tensor(L, 1, "self");
    tensor_handle *out = bind_tensor_new(L);
    ENGINE(L, bind_tensor_device(L, x),
           llm_op_reduce((llm_reduce)TENSOR_CODE(L), bind_tensor_live(L, x), &out->tensor, &err));
    return 1;
}

typedef int map_function(llm_tensor *, llm_tensor **, llm_error *);
static map_function *const map_functions[] = {llm_op_log_softmax, llm_op_softmax, llm_op_sort,
                                              llm_op_cumsum, llm_op_normalize};
enum { MAP_LOG_SOFTMAX, MAP_SOFTMAX, MAP_SORT, MAP_CUMSUM, MAP_NORMALIZE };

/* a row to a row */
static int values_map(lua_State *L) {
    const tensor_handle *x = arg_tensor(L, 1, "self");
    map_function *f = map_functions[TENSOR_CODE(L)];
    tensor_handle *out = bind_tensor_result(L);
    ENGINE(L, bind_tensor_device(L, x), f(bind_tensor_live(L, x), &out->tensor, &err));
    return 1;
}

static const tensor_op values_ops[] = {
    {"exp", values_unary, LLM_EXP, true},
    {"log", values_unary, LLM_LOG, true},
    {"abs", values_unary, LLM_ABS, true},
    {"sqrt", values_unary, LLM_SQRT, true},
    {"neg", values_unary, LLM_NEG, true},
    {"add", values_binary, LLM_ADD, true},
    {"sub", values_binary, LLM_SUB, true},
    {"mul", values_binary, LLM_MUL, true},
    {"div", values_binary, LLM_DIV, true},
    {"pow", values_binary, LLM_POW, true},
    {"lt", values_binary, LLM_LT, false},
    {"le", values_binary, LLM_LE, false},
    {"gt", values_binary, LLM_GT, false},
    {"ge", values_binary, LLM_GE, false},
    {"eq", values_binary, LLM_EQ, false},
    {"clamp", values_clamp, 0, true},
    {"where", values_where, 0, true},
    {"max", values_reduce, LLM_MAX, false},
    {"min", values_reduce, LLM_MIN, false},
    {"sum", values_reduce, LLM_SUM, false},
    {"logsumexp", values_reduce, LLM_LOGSUMEXP, false},
    {"entropy", values_reduce, LLM_ENTROPY, false},
    {"std", values_reduce, LLM_STD, false},
    {"log_softmax", values_map, MAP_LOG_SOFTMAX, true},
    {"softmax", values_map, MAP_SOFTMAX, true},
    {"sort", values_map, MAP_SORT, true},
    {"cumsum", values_map, MAP_CUMSUM, true},
    {"normalize", values_map, MAP_NORMALIZE, true},
    {NULL, NULL, 0, false},
};

static const tensor_op operators[] = {
    {"__add", values_operator, LLM_ADD, false},
    {"__sub", values_operator, LLM_SUB, false},
    {"__mul", values_operator, LLM_MUL, false},
    {"__div", values_operator, LLM_DIV, false},
    {"__pow", values_operator, LLM_POW, false},
    {"__unm", values_unary, LLM_NEG, false},
    {NULL, NULL, 0, false},
};

void bind_tensor_add_values(lua_State *L) { bind_tensor_add(L, values_ops); }

void bind_tensor_set_operators(lua_State *L) {
    lua_pushvalue(L, -2);
    bind_tensor_add(L, operators);
    lua_pop(L, 1);
}
