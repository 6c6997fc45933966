/* ops.c: operands, results and checks of the operations on tensors. */
#include "ops.h"
#include "queue.h"

#include "../kernels/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

void ops_open(ops_call *c, const char *name, llm_tensor *x, llm_tensor **out) {
    *c = (ops_call){.name = name,
                    .device = x->device,
                    .backend = x->device->backend,
                    .kern = x->device->kern,
                    .out = out,
                    .is_logits = x->info.is_logits,
                    .step = x->info.step,
                    .started = x->device->n_profiles ? device_clock() : 0};
}

int ops_join(ops_call *c, const llm_tensor *t, llm_error *err) {
    /* Devices whose memory is the host's read each other's. */
    if (t->device != c->device && !(t->device->backend->host_memory && c->backend->host_memory))
        return llm_fail(err, LLM_MISUSE, "%s: tensors of two devices", c->name);
    if (t->info.step > c->step) c->step = t->info.step;
    return 0;
}

static llm_tensor *keep(ops_call *c, llm_tensor *t) {
    if (t) c->temps[c->n_temps++] = t;
    return t;
}

llm_tensor *ops_f32(ops_call *c, llm_tensor *t, llm_error *err) {
    if (ops_join(c, t, err)) return NULL;
    if (t->info.dtype == LLM_F32) return t;
    if (tensor_settle(t, err)) return NULL;
    llm_tensor *y =
        keep(c, tensor_alloc_later(c->device, LLM_F32, t->info.n_rows, t->info.n_columns, err));
    if (!y) return NULL;
    const operation o = {
        .kind = OPERATION_TO_F32, OPERATION_TAKES(tensor_view(t)), OPERATION_MAKES(tensor_view(y))};
    return ops_run(c, &o, err) ? NULL : y;
}

llm_tensor *ops_operand(ops_call *c, llm_operand o, llm_error *err) {
    if (o.t) return ops_f32(c, o.t, err);
    const float value = (float)o.x;
    return keep(c, tensor_number(c->device, LLM_F32, &value, err));
}

static int check_in_place(const ops_call *c, const llm_tensor *x, llm_dtype dtype, int64_t n_rows,
                          int64_t n_columns, llm_error *err) {
    if (*c->out != x)
        return llm_fail(err, LLM_MISUSE,
                        "%s: the result can only be new or take its operand's place", c->name);
    if (x->info.n_rows != n_rows || x->info.n_columns != n_columns)
        return llm_fail(err, LLM_MISUSE,
                        "%s in place: the result is %" PRId64 " × %" PRId64 ", the tensor %" PRId64
                        " × %" PRId64,
                        c->name, n_rows, n_columns, x->info.n_rows, x->info.n_columns);
    if (x->info.dtype != dtype)
        return llm_fail(err, LLM_MISUSE, "%s in place: the result is %s, the tensor %s", c->name,
                        dtype == LLM_F32 ? "f32" : "i32", dtype == LLM_F32 ? "i32" : "f32");
    return 0;
}

int ops_result(ops_call *c, llm_tensor *x, llm_dtype dtype, int64_t n_rows, int64_t n_columns,
               bool apart, llm_error *err) {
    const bool in_place = *c->out != NULL;
    if (in_place && check_in_place(c, x, dtype, n_rows, n_columns, err)) return -1;
    if (in_place && !apart && !x->cell)
        c->y = x;
    else
        c->y =
            (apart ? tensor_alloc : tensor_alloc_later)(c->device, dtype, n_rows, n_columns, err);
    return c->y ? 0 : -1;
}

static void call_end(ops_call *c) {
    if (c->device->n_profiles) c->device->tensor_s += device_clock() - c->started;
    while (c->n_temps) llm_tensor_close(c->temps[--c->n_temps]);
}

int ops_abandon(ops_call *c) {
    call_end(c);
    if (c->y != *c->out) llm_tensor_close(c->y);
    c->y = NULL;
    return -1;
}

int ops_close(ops_call *c, int code, llm_error *err) {
    if (device_check(c->device, code, c->name, err)) return ops_abandon(c);
    llm_tensor *old = *c->out, *y = c->y;
    y->info.is_logits = c->is_logits;
    y->info.step = c->step;
    if (!old) {
        *c->out = y;
    } else if (old != y) {
        const kern_buffer buffer = old->buffer;
        struct cell *const held = old->cell;
        old->buffer = y->buffer;
        old->cell = y->cell;
        y->buffer = buffer;
        y->cell = held;
        old->info = y->info;
        old->is_choice = y->is_choice;
        llm_tensor_close(y);
    }
    call_end(c);
    return 0;
}

int ops_run(ops_call *c, const operation *o, llm_error *err) {
    if (c->device->queue) return queue_add(c->device, o, c->name, err);
    return device_check(c->device, operation_run(c->backend, c->kern, o), c->name, err);
}

int ops_finish(ops_call *c, const operation *o, llm_error *err) {
    return ops_run(c, o, err) ? ops_abandon(c) : ops_close(c, KERN_OK, err);
}

int ops_check_new(const char *name, llm_tensor *const *out, llm_error *err) {
    return *out ? llm_fail(err, LLM_MISUSE, "%s cannot be done in place", name) : 0;
}

/* ---- parameters ---- */

static const char *number_text(double x, char text[32]) {
    if (isnan(x))
        snprintf(text, 32, "nan"); /* never -nan */
    else if (x == floor(x) && fabs(x) < 1e15)
        snprintf(text, 32, "%.0f", x);
    else
        snprintf(text, 32, "%.7g", x);
    return text;
}

static int check_value(const ops_call *c, double v, ops_range range, llm_error *err) {
    char got[32], least[32], most[32];
    if (v >= range.least && v <= range.most && (!range.is_integer || v == floor(v))) return 0;
    number_text(v, got);
    if (range.is_integer && v != floor(v))
        return llm_fail(err, LLM_MISUSE, "%s must be an integer, got %s", c->name, got);
    if (isinf(range.most) && isinf(range.least))
        return llm_fail(err, LLM_MISUSE, "%s must be a number, got %s", c->name, got);
    if (isinf(range.most))
        return llm_fail(err, LLM_MISUSE, "%s must be at least %s, got %s", c->name,
                        number_text(range.least, least), got);
    return llm_fail(err, LLM_MISUSE, "%s must be between %s and %s, got %s", c->name,
                    number_text(range.least, least), number_text(range.most, most), got);
}

static int32_t count_value(double v, ops_range range) {
    return v >= INT32_MAX || (v == 0 && range.zero_is_off) ? INT32_MAX : (int32_t)v;
}

/* Values of a checked column: f32 or i32 in, f32 or i32 out, in place. */
static int convert_values(ops_call *c, void *values, int64_t n, llm_dtype dtype, ops_range range,
                          llm_error *err) {
    for (int64_t i = 0; i < n; i++) {
        float *f = (float *)values + i;
        int32_t *k = (int32_t *)values + i;
        const double v = dtype == LLM_F32 ? (double)*f : (double)*k;
        if (check_value(c, v, range, err)) return -1;
        if (range.is_integer)
            *k = count_value(v, range);
        else
            *f = (float)v;
    }
    return 0;
}

llm_tensor *ops_parameter(ops_call *c, llm_operand o, int64_t n_rows, ops_range range,
                          llm_error *err) {
    const llm_dtype dtype = range.is_integer ? LLM_I32 : LLM_F32;
    if (!o.t) {
        if (check_value(c, o.x, range, err)) return NULL;
        const float f = (float)o.x;
        const int32_t k = range.is_integer ? count_value(o.x, range) : 0;
        const void *value = range.is_integer ? (const void *)&k : (const void *)&f;
        return keep(c, tensor_number(c->device, dtype, value, err));
    }
    const int64_t n = o.t->info.n_rows;
    if (o.t->info.n_columns != 1 || (n != 1 && n != n_rows)) {
        llm_fail(err, LLM_MISUSE,
                 "%s: one number, or a column of one a row: %" PRId64 " rows, got %" PRId64
                 " × %" PRId64,
                 c->name, n_rows, n, o.t->info.n_columns);
        return NULL;
    }
    if (ops_join(c, o.t, err)) return NULL;
    void *values = kern_alloc_array((size_t)n, 4);
    llm_tensor *t = NULL;
    if (!values)
        llm_fail_memory(err, (size_t)n * 4, c->name);
    else if (!llm_tensor_read(o.t, 0, n, values, err) &&
             !convert_values(c, values, n, o.t->info.dtype, range, err))
        t = keep(c, llm_tensor_new(c->device, dtype, n, 1, values, err));
    kern_free(values);
    return t;
}

/* ---- shapes and ids ---- */

static int grow(int64_t *n, int64_t other) {
    if (*n == other || other == 1) return 0;
    if (*n != 1) return -1;
    *n = other;
    return 0;
}

int ops_broadcast(ops_call *c, const llm_tensor *t, int64_t *n_rows, int64_t *n_columns,
                  llm_error *err) {
    const int64_t rows = *n_rows, columns = *n_columns;
    if (grow(n_rows, t->info.n_rows) == 0 && grow(n_columns, t->info.n_columns) == 0) return 0;
    return llm_fail(err, LLM_MISUSE,
                    "%s: cannot combine %" PRId64 " × %" PRId64 " with %" PRId64 " × %" PRId64,
                    c->name, rows, columns, t->info.n_rows, t->info.n_columns);
}

int ops_check_ids(const llm_tensor *x, const int32_t *ids, int64_t n, llm_error *err) {
    const int64_t base = ops_base(x), last = x->info.n_columns - 1 + base;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < base || ids[i] > last)
            return llm_fail(err, LLM_MISUSE, "%s %" PRId32 " is outside %" PRId64 " … %" PRId64,
                            x->info.is_logits ? "id" : "column", ids[i], base, last);
    return 0;
}
