/* tensor_shapes.c: operations of tensors that change the shape, and matrix products. Rows count
 * from 1, columns from 1 or, of Logits, from token id 0; the engine counts both from 0. */
#include "handles.h"

/* ---- matrices ---- */

/* A tensor, or a list that becomes one in the argument's place. */
static const tensor_handle *matrix_check(lua_State *L, int arg, const char *name,
                                         llm_device *device) {
    if (lua_istable(L, arg)) {
        bind_list_tensor(L, arg, name, device, LIST_COLUMN, -1);
        lua_replace(L, arg);
    }
    return arg_tensor(L, arg, name);
}

static int shapes_matmul(lua_State *L) {
    lua_settop(L, 2);
    const tensor_handle *a = arg_tensor(L, 1, "self");
    const tensor_handle *b = matrix_check(L, 2, "b", bind_tensor_device(L, a));
    tensor_handle *out = bind_tensor_new(L);
    ENGINE(L, bind_tensor_device(L, a),
           llm_op_matmul(bind_tensor_live(L, a), bind_tensor_live(L, b), &out->tensor, &err));
    return 1;
}

static int shapes_transpose(lua_State *L) {
    const tensor_handle *x = arg_tensor(L, 1, "self");
    tensor_handle *out = bind_tensor_new(L);
    ENGINE(L, bind_tensor_device(L, x),
           llm_op_transpose(bind_tensor_live(L, x), &out->tensor, &err));
    return 1;
}

static int shapes_copy(lua_State *L) {
    const tensor_handle *x = arg_tensor(L, 1, "self");
    tensor_handle *out = bind_tensor_new(L);
    ENGINE(L, bind_tensor_device(L, x), llm_op_copy(bind_tensor_live(L, x), &out->tensor, &err));
    return 1;
}

/* ---- parts ---- */

/* x:cat(b, dim): dim 1 (the default) puts b's rows below, 2 its columns beside */
static int shapes_cat(lua_State *L) {
    lua_settop(L, 3);
    const tensor_handle *a = arg_tensor(L, 1, "self");
    const tensor_handle *b = matrix_check(L, 2, "b", bind_tensor_device(L, a));
    int dim = lua_isnil(L, 3) ? 1 : (int)bind_check_range(L, 3, "dim", 1, 2);
    tensor_handle *out = bind_tensor_new(L);
    ENGINE(L, bind_tensor_device(L, a),
           llm_op_cat(bind_tensor_live(L, a), bind_tensor_live(L, b), dim, &out->tensor, &err));
    return 1;
}

/* x:rows(list): those rows, in that order, any of them repeatedly */
static int shapes_rows(lua_State *L) {
    size_t n;
    const tensor_handle *x = arg_tensor(L, 1, "self");
    const int32_t *ids = bind_ids_check(L, 2, "rows", &n);
    int64_t n_rows = bind_tensor_info(L, x)->n_rows;
    if (n == 0) bind_error_raise(L, LLM_MISUSE, "rows is an empty list");
    int64_t *rows = lua_newuserdatauv(L, n * sizeof *rows, 0);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 1 || ids[i] > n_rows)
            bind_error_raise(L, LLM_MISUSE, "rows[%I] must be 1 to %I, got %d",
                             (LUAI_UACINT)(i + 1), (LUAI_UACINT)n_rows, (int)ids[i]);
        rows[i] = ids[i] - 1;
    }
    tensor_handle *out = bind_tensor_new(L);
    ENGINE(L, bind_tensor_device(L, x),
           llm_op_rows(bind_tensor_live(L, x), rows, n, &out->tensor, &err));
    return 1;
}

static int shapes_row(lua_State *L) {
    const tensor_handle *x = arg_tensor(L, 1, "self");
    int64_t i = bind_check_range(L, 2, "row", 1, bind_tensor_info(L, x)->n_rows) - 1;
    tensor_handle *out = bind_tensor_new(L);
    ENGINE(L, bind_tensor_device(L, x),
           llm_op_narrow(bind_tensor_live(L, x), 1, i, 1, &out->tensor, &err));
    return 1;
}

/* x:narrow(dim, first, count): count rows (dim 1) or columns (dim 2; of Logits first is a token id)
 */
static int shapes_narrow(lua_State *L) {
    const tensor_handle *x = arg_tensor(L, 1, "self");
    llm_tensor_info info = *bind_tensor_info(L, x);
    int dim = (int)bind_check_range(L, 2, "dim", 1, 2);
    int64_t size = dim == 1 ? info.n_rows : info.n_columns,
            base = dim == 2 && info.is_logits ? 0 : 1;
    int64_t first = bind_check_range(L, 3, "first", base, size - 1 + base) - base;
    int64_t count = bind_check_range(L, 4, "count", 1, size - first);
    tensor_handle *out = bind_tensor_new(L);
    ENGINE(L, bind_tensor_device(L, x),
           llm_op_narrow(bind_tensor_live(L, x), dim, first, count, &out->tensor, &err));
    return 1;
}

static const tensor_op shapes_ops[] = {
    {"matmul", shapes_matmul, 0, false}, {"t", shapes_transpose, 0, false},
    {"copy", shapes_copy, 0, false},     {"cat", shapes_cat, 0, false},
    {"rows", shapes_rows, 0, false},     {"row", shapes_row, 0, false},
    {"narrow", shapes_narrow, 0, false}, {NULL, NULL, 0, false},
};

void bind_tensor_add_shapes(lua_State *L) { bind_tensor_add(L, shapes_ops); }
