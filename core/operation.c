/* operation.c: operations as calls of the backend. */
#include "operation.h"

/* Into a copy of x, unless that is where it goes. */
static int scatter(const kern_backend *backend, kern_device *device, const operation *o) {
    const kern_tensor x = o->in[0], y = o->out[0];
    const size_t bytes = (size_t)(x.n_rows * x.n_columns) * 4;
    int code = KERN_OK;
    if (x.buffer != y.buffer && bytes)
        code = backend->copy(device, y.buffer, y.offset, x.buffer, x.offset, bytes);
    if (code != KERN_OK) return code;
    return backend->scatter(device, y, o->in[1], o->base, o->in[2], o->code);
}

int operation_run(const kern_backend *b, kern_device *d, const operation *o) {
    const kern_tensor none = {0}, x = o->in[0], y = o->n_in > 1 ? o->in[1] : none,
                      z = o->n_in > 2 ? o->in[2] : none, out = o->out[0];
    switch (o->kind) {
    case OPERATION_UNARY: return b->unary(d, (kern_unary)o->code, x, o->a, o->b, out);
    case OPERATION_BINARY: return b->binary(d, (kern_binary)o->code, x, y, out);
    case OPERATION_BINARY_I32: return b->binary_i32(d, (kern_binary)o->code, x, y, out);
    case OPERATION_TO_F32: return b->to_f32(d, x, out);
    case OPERATION_WHERE: return b->where(d, x, y, z, out);
    case OPERATION_REDUCE: return b->reduce(d, (kern_reduce)o->code, x, out);
    case OPERATION_LOG_SOFTMAX: return b->log_softmax(d, x, out);
    case OPERATION_SOFTMAX: return b->softmax(d, x, out);
    case OPERATION_SORT: return b->sort(d, x, out);
    case OPERATION_CUMSUM: return b->cumsum(d, x, out);
    case OPERATION_NORMALIZE: return b->normalize(d, x, out);
    case OPERATION_ARGMAX: return b->argmax(d, x, o->base, out);
    case OPERATION_TOPK: return b->topk(d, x, o->n, o->base, out, o->out[1]);
    case OPERATION_TOPK_JOINT:
        return b->topk_joint(d, x, o->n, o->groups, o->base, out, o->out[1], o->out[2]);
    case OPERATION_GUMBEL: return b->gumbel(d, x, o->base, o->keys, out);
    case OPERATION_SAMPLE: return b->sample(d, x, o->base, o->keys, out);
    case OPERATION_THRESHOLD_K: return b->threshold_k(d, x, y, z, out);
    case OPERATION_THRESHOLD_MASS: return b->threshold_mass(d, x, y, z, out);
    case OPERATION_MIN_P: return b->min_p(d, x, y, out);
    case OPERATION_CUT_BELOW: return b->cut_below(d, x, y, out);
    case OPERATION_MASK: return b->mask(d, x, o->first, o->columns, o->n_lists, o->code, out);
    case OPERATION_GATHER: return b->gather(d, x, y, o->base, out);
    case OPERATION_SCATTER: return scatter(b, d, o);
    }
    return KERN_UNSUPPORTED;
}
