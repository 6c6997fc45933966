/* tensor_filters.c: operations that set what is cut off to −inf. */
#include "handles.h"

/* ---- by a number or a column of them ---- */

typedef int filter_function(llm_tensor *, llm_operand, llm_tensor **, llm_error *);
static const struct {
    filter_function *f;
    const char *parameter;
    bool is_count;
} filters[] = {{llm_op_top_k, "k", true},
               {llm_op_top_p, "p", false},
               {llm_op_min_p, "p", false},
               {llm_op_cut_below, "least", false}};
enum { FILTER_TOP_K, FILTER_TOP_P, FILTER_MIN_P, FILTER_CUT_BELOW };

static int filters_simple(lua_State *L) {
    lua_settop(L, 2);
    const tensor_handle *x = arg_tensor(L, 1, "self");
    int code = TENSOR_CODE(L);
    if (filters[code].is_count && lua_type(L, 2) == LUA_TNUMBER)
        bind_check_range(L, 2, filters[code].parameter, 0, LUA_MAXINTEGER);
    operand p =
        bind_operand_check(L, 2, filters[code].parameter, bind_tensor_device(L, x), LIST_COLUMN);
    tensor_handle *out = bind_tensor_result(L);
    ENGINE(L, bind_tensor_device(L, x),
           filters[code].f(bind_tensor_live(L, x), bind_operand_live(L, &p), &out->tensor, &err));
    return 1;
}

typedef int threshold_function(llm_tensor *, llm_operand, llm_tensor *, llm_tensor **, llm_error *);
static threshold_function *const thresholds[] = {llm_op_threshold_k, llm_op_threshold_mass};
enum { THRESHOLD_K, THRESHOLD_MASS };

/* x:threshold_k(k, key), x:threshold_mass(p, key): the first in ascending key (default: −x) */
static int filters_threshold(lua_State *L) {
    lua_settop(L, 3);
    const tensor_handle *x = arg_tensor(L, 1, "self");
    int code = TENSOR_CODE(L);
    if (code == THRESHOLD_K && lua_type(L, 2) == LUA_TNUMBER)
        bind_check_range(L, 2, "k", 0, LUA_MAXINTEGER);
    operand p = bind_operand_check(L, 2, code == THRESHOLD_K ? "k" : "p", bind_tensor_device(L, x),
                                   LIST_COLUMN);
    const tensor_handle *key = lua_isnil(L, 3) ? NULL : arg_tensor(L, 3, "key");
    threshold_function *f = thresholds[code];
    tensor_handle *out = bind_tensor_result(L);
    ENGINE(L, bind_tensor_device(L, x),
           f(bind_tensor_live(L, x), bind_operand_live(L, &p),
             key ? bind_tensor_live(L, key) : NULL, &out->tensor, &err));
    return 1;
}

/* ---- by lists of ids ---- */

typedef struct id_lists {
    int64_t n, *first; /* [n + 1] */
    int32_t *ids;
} id_lists;

/* One list for all rows: a list, one id, or what a tensor of one row, or of one column for a tensor
 * of one row, holds. */
static id_lists lists_flat(lua_State *L, int arg) {
    size_t n;
    id_lists lists = {.n = 1, .ids = bind_ids_check(L, arg, "ids", &n)};
    lists.first = lua_newuserdatauv(L, 2 * sizeof *lists.first, 0);
    lists.first[0] = 0;
    lists.first[1] = (int64_t)n;
    return lists;
}

/* A tensor with a row of ids for each row. */
static id_lists lists_of_tensor(lua_State *L, int arg, int64_t n_rows, int64_t n_columns) {
    size_t n;
    id_lists lists = {.n = n_rows, .ids = bind_ids_check(L, arg, "ids", &n)};
    lists.first = lua_newuserdatauv(L, ((size_t)n_rows + 1) * sizeof *lists.first, 0);
    for (int64_t r = 0; r <= n_rows; r++) lists.first[r] = r * n_columns;
    return lists;
}

/* A list of lists, one a row, of any lengths. */
static id_lists lists_nested(lua_State *L, int arg) {
    id_lists lists = {.n = (int64_t)lua_rawlen(L, arg)};
    lists.first = lua_newuserdatauv(L, ((size_t)lists.n + 1) * sizeof *lists.first, 0);
    lists.first[0] = 0;
    for (int64_t r = 0; r < lists.n; r++) {
        lua_rawgeti(L, arg, r + 1);
        bind_check_table(L, -1, "every entry of a list of lists");
        lists.first[r + 1] = lists.first[r] + (int64_t)lua_rawlen(L, -1);
        lua_pop(L, 1);
    }
    lists.ids = lua_newuserdatauv(L, (size_t)lists.first[lists.n] * sizeof *lists.ids, 0);
    for (int64_t r = 0; r < lists.n; r++) {
        lua_rawgeti(L, arg, r + 1);
        bind_ids_fill(L, lua_gettop(L), "ids", lists.ids + lists.first[r],
                      (size_t)(lists.first[r + 1] - lists.first[r]));
        lua_pop(L, 1);
    }
    return lists;
}

/* Pushes the arrays. */
static id_lists lists_check(lua_State *L, int arg, int64_t n_rows) {
    const tensor_handle *t = bind_tensor_test(L, arg);
    if (t) {
        llm_tensor_info info = *bind_tensor_info(L, t);
        if (info.n_rows == 1 || n_rows == 1) return lists_flat(L, arg);
        return lists_of_tensor(L, arg, info.n_rows, info.n_columns);
    }
    if (lua_istable(L, arg)) {
        bool is_nested = lua_rawgeti(L, arg, 1) == LUA_TTABLE;
        lua_pop(L, 1);
        if (is_nested) return lists_nested(L, arg);
    }
    return lists_flat(L, arg);
}

/* x:mask(ids): these to −inf; x:only(ids): all but these */
static int filters_lists(lua_State *L) {
    lua_settop(L, 2);
    const tensor_handle *x = arg_tensor(L, 1, "self");
    int64_t n_rows = bind_tensor_info(L, x)->n_rows;
    id_lists lists = lists_check(L, 2, n_rows);
    if (lists.n != 1 && lists.n != n_rows)
        bind_error_raise(L, LLM_MISUSE, "%I lists of ids for %I rows", (LUAI_UACINT)lists.n,
                         (LUAI_UACINT)n_rows);
    bool only = TENSOR_CODE(L);
    tensor_handle *out = bind_tensor_result(L);
    ENGINE(L, bind_tensor_device(L, x),
           llm_op_mask(bind_tensor_live(L, x), lists.first, lists.ids, lists.n, only, &out->tensor,
                       &err));
    return 1;
}

static const tensor_op filters_ops[] = {
    {"top_k", filters_simple, FILTER_TOP_K, true},
    {"top_p", filters_simple, FILTER_TOP_P, true},
    {"min_p", filters_simple, FILTER_MIN_P, true},
    {"cut_below", filters_simple, FILTER_CUT_BELOW, true},
    {"threshold_k", filters_threshold, THRESHOLD_K, true},
    {"threshold_mass", filters_threshold, THRESHOLD_MASS, true},
    {"mask", filters_lists, false, true},
    {"only", filters_lists, true, true},
    {NULL, NULL, 0, false},
};

void bind_tensor_add_filters(lua_State *L) { bind_tensor_add(L, filters_ops); }
