/* tensor_elementwise.cu: operations entry by entry, with broadcasting of rows and columns: one
 * kernel, four entries of the result a thread. Results may lie where an operand lies. */
#include "tensor_parts.h"

#define THREADS 256

/* Arguments of kernels have no padding: they are looked at word by word. */

/* An operand [1 or R, 1 or C] walked along with a result [R,C]; entries of 4 bytes. */
typedef struct operand {
    const uint32_t *data;
    int64_t row;                 /* from a row to the next */
    int64_t column;              /* from a column to the next: 1 or 0 */
    int32_t is_flat, is_aligned; /* lies as the result does; for loads of 16 bytes */
} operand;

/* What is done: a kern_unary, or one of these plus a kern_binary. */
enum { BINARY = 16, BINARY_I32 = 32, TO_F32 = 48, WHERE = 49 };

typedef struct walk {
    operand x, y, z; /* y: from BINARY on; z, the condition: of WHERE */
    uint32_t *out;
    int64_t n, n_columns;
    int32_t op, out_is_aligned;
    float a, b;
} walk;

/* Entries i … i + 3 of the result, the first in row `row` and column `column`. */
GPU_INLINE void operand_load(const operand &o, int64_t i, int64_t n, int64_t row, int64_t column,
                             int64_t n_columns, uint32_t v[4]) {
    if (o.is_flat && o.is_aligned && i + 4 <= n) {
        const uint4 u = gpu_load(o.data + i);
        v[0] = u.x;
        v[1] = u.y;
        v[2] = u.z;
        v[3] = u.w;
        return;
    }
    GPU_UNROLL
    for (int e = 0; e < 4; e++) {
        v[e] = 0;
        if (i + e >= n) continue;
        v[e] = o.is_flat ? o.data[i + e] : o.data[row * o.row + column * o.column];
        if (++column == n_columns) column = 0, row++;
    }
}

#define EACH(value)                                                                                \
    do {                                                                                           \
        GPU_UNROLL                                                                                 \
        for (int e = 0; e < 4; e++) {                                                              \
            const float a = __uint_as_float(x[e]), b = __uint_as_float(y[e]);                      \
            (void)b;                                                                               \
            out[e] = __float_as_uint(value);                                                       \
        }                                                                                          \
    } while (0)
#define EACH_I32(value)                                                                            \
    do {                                                                                           \
        GPU_UNROLL                                                                                 \
        for (int e = 0; e < 4; e++) out[e] = (value);                                              \
    } while (0)

GPU_INLINE float clamp(float x, float least, float most) { /* NaN stays */
    const float v = x < least ? least : x;
    return v > most ? most : v;
}

GPU_INLINE void apply(const walk &w, const uint32_t x[4], const uint32_t y[4], const uint32_t z[4],
                      uint32_t out[4]) {
    switch (w.op) {
    case KERN_EXP: EACH(exp_any(a)); break;
    case KERN_LOG: EACH(logf(a)); break;
    case KERN_ABS: EACH(fabsf(a)); break;
    case KERN_SQRT: EACH(__fsqrt_rn(a)); break;
    case KERN_NEG: EACH(-a); break;
    case KERN_CLAMP: EACH(clamp(a, w.a, w.b)); break;
    case BINARY + KERN_ADD: EACH(__fadd_rn(a, b)); break;
    case BINARY + KERN_SUB: EACH(__fsub_rn(a, b)); break;
    case BINARY + KERN_MUL: EACH(__fmul_rn(a, b)); break;
    case BINARY + KERN_DIV: EACH(__fdiv_rn(a, b)); break;
    case BINARY + KERN_POW: EACH(b == 2.0f ? __fmul_rn(a, a) : powf(a, b)); break;
    case BINARY + KERN_LT: EACH(a < b ? 1.0f : 0.0f); break;
    case BINARY + KERN_LE: EACH(a <= b ? 1.0f : 0.0f); break;
    case BINARY + KERN_GT: EACH(a > b ? 1.0f : 0.0f); break;
    case BINARY + KERN_GE: EACH(a >= b ? 1.0f : 0.0f); break;
    case BINARY + KERN_EQ: EACH(a == b ? 1.0f : 0.0f); break;
    case BINARY_I32 + KERN_ADD: EACH_I32(x[e] + y[e]); break;
    case BINARY_I32 + KERN_SUB: EACH_I32(x[e] - y[e]); break;
    case BINARY_I32 + KERN_MUL: EACH_I32(x[e] * y[e]); break;
    case TO_F32: EACH_I32(__float_as_uint(__int2float_rn((int)x[e]))); break;
    default: EACH_I32(__uint_as_float(z[e]) != 0.0f ? x[e] : y[e]);
    }
}

GPU_KERNEL_BOUNDS(THREADS, 4) walk_entries(walk w) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4;
    if (i >= w.n) return;
    int64_t row = 0, column = 0;
    if (!w.x.is_flat || (w.y.data && !w.y.is_flat) || (w.z.data && !w.z.is_flat)) {
        row = w.n >> 32 ? i / w.n_columns : (int64_t)((uint32_t)i / (uint32_t)w.n_columns);
        column = i - row * w.n_columns;
    }
    uint32_t x[4], y[4] = {0, 0, 0, 0}, z[4] = {0, 0, 0, 0}, out[4];
    operand_load(w.x, i, w.n, row, column, w.n_columns, x);
    if (w.y.data) operand_load(w.y, i, w.n, row, column, w.n_columns, y);
    if (w.z.data) operand_load(w.z, i, w.n, row, column, w.n_columns, z);
    apply(w, x, y, z, out);
    if (w.out_is_aligned && i + 4 <= w.n) {
        *reinterpret_cast<uint4 *>(w.out + i) = make_uint4(out[0], out[1], out[2], out[3]);
        return;
    }
    GPU_UNROLL
    for (int e = 0; e < 4; e++)
        if (i + e < w.n) w.out[i + e] = out[e];
}

static operand operand_of(kern_tensor t, kern_tensor out) {
    operand o;
    o.data = (const uint32_t *)cuda_i32(t);
    o.row = t.n_rows == 1 && out.n_rows != 1 ? 0 : t.n_columns;
    o.column = t.n_columns == out.n_columns;
    o.is_flat = t.n_columns == out.n_columns && t.n_rows == out.n_rows;
    o.is_aligned = ((uintptr_t)o.data & 15) == 0;
    return o;
}

/* y and z: NULL if the operation has none. */
static int run(kern_device *device, int32_t op, kern_tensor x, const kern_tensor *y,
               const kern_tensor *z, float a, float b, kern_tensor out, const char *name) {
    walk w = {};
    w.op = op;
    w.a = a;
    w.b = b;
    w.n = out.n_rows * out.n_columns;
    w.n_columns = out.n_columns;
    w.out = (uint32_t *)cuda_i32(out);
    w.out_is_aligned = ((uintptr_t)w.out & 15) == 0;
    w.x = operand_of(x, out);
    if (y) w.y = operand_of(*y, out);
    if (z) w.z = operand_of(*z, out);
    if (w.n == 0) return KERN_OK;
    GPU_LAUNCH(device, walk_entries, (unsigned)((w.n + 4 * THREADS - 1) / (4 * THREADS)), THREADS,
               0, w);
    return cuda_launched(device, name);
}

/* out[R,C] = op(x[R,C]) */
int cuda_tensor_unary(kern_device *device, kern_unary op, kern_tensor x, float a, float b,
                      kern_tensor out) {
    return run(device, op, x, NULL, NULL, a, b, out, "unary");
}

/* out[R,C] = x[1|R, 1|C] op y[1|R, 1|C] */
int cuda_tensor_binary(kern_device *device, kern_binary op, kern_tensor x, kern_tensor y,
                       kern_tensor out) {
    return run(device, BINARY + op, x, &y, NULL, 0, 0, out, "binary");
}

/* The same for +, − and · of i32, which wrap. */
int cuda_tensor_binary_i32(kern_device *device, kern_binary op, kern_tensor x, kern_tensor y,
                           kern_tensor out) {
    if (op != KERN_ADD && op != KERN_SUB && op != KERN_MUL)
        return cuda_fail(device, KERN_UNSUPPORTED, "i32 operation %d", (int)op);
    return run(device, BINARY_I32 + op, x, &y, NULL, 0, 0, out, "binary_i32");
}

/* out[R,C] = (float)x[R,C] */
int cuda_tensor_to_f32(kern_device *device, kern_tensor x_i32, kern_tensor out) {
    return run(device, TO_F32, x_i32, NULL, NULL, 0, 0, out, "to_f32");
}

/* out[R,C] = cond ≠ 0 ? x : y, all broadcast */
int cuda_tensor_where(kern_device *device, kern_tensor x, kern_tensor cond, kern_tensor y,
                      kern_tensor out) {
    return run(device, WHERE, x, &y, &cond, 0, 0, out, "where");
}
