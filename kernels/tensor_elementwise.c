/* tensor_elementwise.c: operations entry by entry, with broadcasting of rows and columns. */
#include "tensor_ops.h"
#include "tensor_row.h"

#include <string.h>

/* An operand [1 or R, 1 or C] walked along with a result [R,C]. */
typedef struct operand {
    const char *data; /* entries of 4 bytes */
    int64_t row;      /* from a row to the next */
    bool is_wide;     /* has C columns */
} operand;

static operand operand_of(kern_tensor t, kern_tensor out) {
    const bool is_wide = t.n_columns == out.n_columns;
    return (operand){(const char *)t.buffer->data + t.offset,
                     t.n_rows == 1 && out.n_rows != 1 ? 0 : t.n_columns, is_wide};
}

static const float *operand_f32(const operand *o, int64_t i_row) {
    return (const float *)(const void *)o->data + i_row * o->row;
}
static const int32_t *operand_i32(const operand *o, int64_t i_row) {
    return (const int32_t *)(const void *)o->data + i_row * o->row;
}

typedef struct job {
    const row_functions *f;
    int kind;
    operand x, y, z;
    float a, b;
    kern_tensor out;
} job;

static float *out_row(const job *j, int64_t i_row) {
    return host_f32(j->out) + i_row * j->out.n_columns;
}

/* ---- one operand ---- */

static void unary_row(const void *data, int64_t i_row) {
    const job *j = data;
    const float *x = operand_f32(&j->x, i_row);
    float *out = out_row(j, i_row);
    const int64_t n = j->out.n_columns;
    switch ((kern_unary)j->kind) {
    case KERN_EXP: j->f->exp(x, n, out); break;
    case KERN_LOG:
        for (int64_t i = 0; i < n; i++) out[i] = logf(x[i]);
        break;
    case KERN_ABS:
        for (int64_t i = 0; i < n; i++) out[i] = fabsf(x[i]);
        break;
    case KERN_SQRT:
        for (int64_t i = 0; i < n; i++) out[i] = sqrtf(x[i]);
        break;
    case KERN_NEG:
        for (int64_t i = 0; i < n; i++) out[i] = -x[i];
        break;
    case KERN_CLAMP: /* NaN stays */
        for (int64_t i = 0; i < n; i++) {
            const float v = x[i] < j->a ? j->a : x[i];
            out[i] = v > j->b ? j->b : v;
        }
        break;
    }
}

/* out[R,C] = op(x[R,C]) */
int tensor_unary(kern_device *device, kern_unary op, kern_tensor x, float a, float b,
                 kern_tensor out) {
    const job j = {row_of(device), op, operand_of(x, out), {0}, {0}, a, b, out};
    row_each(device, out.n_rows, (double)out.n_columns * (op == KERN_LOG ? 5 : 0.3), unary_row, &j);
    return KERN_OK;
}

/* ---- two operands ---- */

/* out[i] = value for all columns, a and b being the entries of x and y */
#define EACH(type, value)                                                                          \
    do {                                                                                           \
        if (x_is_wide && y_is_wide) {                                                              \
            for (int64_t i = 0; i < n; i++) {                                                      \
                const type a = (type)x[i], b = (type)y[i];                                         \
                out[i] = value;                                                                    \
            }                                                                                      \
        } else if (x_is_wide) {                                                                    \
            const type b = (type)*y;                                                               \
            for (int64_t i = 0; i < n; i++) {                                                      \
                const type a = (type)x[i];                                                         \
                out[i] = value;                                                                    \
            }                                                                                      \
        } else if (n > 0) {                                                                        \
            const type a = (type)*x;                                                               \
            for (int64_t i = 0; i < n; i++) {                                                      \
                const type b = (type)y[y_is_wide ? i : 0];                                         \
                out[i] = value;                                                                    \
            }                                                                                      \
        }                                                                                          \
    } while (0)

static void binary_row(const void *data, int64_t i_row) {
    const job *j = data;
    const float *x = operand_f32(&j->x, i_row), *y = operand_f32(&j->y, i_row);
    float *out = out_row(j, i_row);
    const int64_t n = j->out.n_columns;
    const bool x_is_wide = j->x.is_wide, y_is_wide = j->y.is_wide;
    if (n == 0) return;
    switch ((kern_binary)j->kind) {
    case KERN_ADD: EACH(float, a + b); break;
    case KERN_SUB: EACH(float, a - b); break;
    case KERN_MUL: EACH(float, a *b); break;
    case KERN_DIV: EACH(float, a / b); break;
    case KERN_POW: EACH(float, b == 2 ? a * a : powf(a, b)); break;
    case KERN_LT: EACH(float, (float)(a < b)); break;
    case KERN_LE: EACH(float, (float)(a <= b)); break;
    case KERN_GT: EACH(float, (float)(a > b)); break;
    case KERN_GE: EACH(float, (float)(a >= b)); break;
    case KERN_EQ: EACH(float, (float)(a == b)); break;
    }
}

/* out[R,C] = x[1|R, 1|C] op y[1|R, 1|C] */
int tensor_binary(kern_device *device, kern_binary op, kern_tensor x, kern_tensor y,
                  kern_tensor out) {
    const job j = {row_of(device), op, operand_of(x, out), operand_of(y, out), {0}, 0, 0, out};
    row_each(device, out.n_rows, (double)out.n_columns * (op == KERN_POW ? 20 : 0.3), binary_row,
             &j);
    return KERN_OK;
}

/* The same for +, − and · of i32, which wrap. */
int tensor_binary_i32(kern_device *device, kern_binary op, kern_tensor x_, kern_tensor y_,
                      kern_tensor out_) {
    if (op != KERN_ADD && op != KERN_SUB && op != KERN_MUL)
        return host_fail(device, KERN_UNSUPPORTED, "i32 operation %d", (int)op);
    const operand ox = operand_of(x_, out_), oy = operand_of(y_, out_);
    const bool x_is_wide = ox.is_wide, y_is_wide = oy.is_wide;
    const int64_t n = out_.n_columns;
    for (int64_t i_row = 0; i_row < out_.n_rows && n > 0; i_row++) {
        const int32_t *x = operand_i32(&ox, i_row), *y = operand_i32(&oy, i_row);
        int32_t *out = host_i32(out_) + i_row * n;
        if (op == KERN_ADD)
            EACH(uint32_t, (int32_t)(a + b));
        else if (op == KERN_SUB)
            EACH(uint32_t, (int32_t)(a - b));
        else
            EACH(uint32_t, (int32_t)(a * b));
    }
    return KERN_OK;
}

/* out[R,C] = (float)x[R,C] */
int tensor_to_f32(kern_device *device, kern_tensor x_i32, kern_tensor out) {
    (void)device;
    const int32_t *x = host_i32(x_i32);
    float *y = host_f32(out);
    for (int64_t i = 0; i < out.n_rows * out.n_columns; i++) y[i] = (float)x[i];
    return KERN_OK;
}

static void where_row(const void *data, int64_t i_row) {
    const job *j = data;
    const float *x = operand_f32(&j->x, i_row), *y = operand_f32(&j->y, i_row);
    const float *condition = operand_f32(&j->z, i_row);
    float *out = out_row(j, i_row);
    const int64_t n = j->out.n_columns;
    const bool x_is_wide = j->x.is_wide, y_is_wide = j->y.is_wide, z_is_wide = j->z.is_wide;
    if (x_is_wide && !y_is_wide && z_is_wide && n > 0) {
        const float otherwise = *y;
        for (int64_t i = 0; i < n; i++) out[i] = condition[i] != 0 ? x[i] : otherwise;
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const float a = x[x_is_wide ? i : 0], b = y[y_is_wide ? i : 0];
        out[i] = condition[z_is_wide ? i : 0] != 0 ? a : b;
    }
}

/* out[R,C] = cond ≠ 0 ? x : y, all broadcast */
int tensor_where(kern_device *device, kern_tensor x, kern_tensor cond, kern_tensor y,
                 kern_tensor out) {
    const job j = {row_of(device),
                   0,
                   operand_of(x, out),
                   operand_of(y, out),
                   operand_of(cond, out),
                   0,
                   0,
                   out};
    row_each(device, out.n_rows, (double)out.n_columns * 0.5, where_row, &j);
    return KERN_OK;
}
