/* ref.c: the backend that says what every operation means: f32, plain loops, one operation of the
 * plan at a time. Results depend neither on the number of threads nor on what else is in the batch.
 * The products are in ref_matmul.c, the cache in ref_attention.c, tensors in tensor_*.c. */
#include "ref.h"
#include "memory.h"
#include "tensor_ops.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* out[T,W] = scale · w[id(t)] */
static void step_embed(const ref_pass *pass, int i_thread, int n_threads) {
    const kern_weight *w = pass->op->w;
    const size_t row_bytes = kern_format_bytes(w->format, w->n_columns);
    const int32_t *ids = host_i32(pass->batch->ids);
    for (int64_t t = i_thread; t < pass->batch->n_rows; t += n_threads) {
        assert(ids[t] >= 0 && ids[t] < w->n_rows);
        float *out = pass->out + t * w->n_columns;
        w->format->dequantise((const char *)w->data + (size_t)ids[t] * row_bytes, out,
                              w->n_columns);
        for (int64_t i = 0; i < w->n_columns; i++) out[i] *= pass->op->scale;
    }
}

/* out[T,W] += w[position(t)] */
static void step_embed_at(const ref_pass *pass, int i_thread, int n_threads) {
    const kern_weight *w = pass->op->w;
    const size_t row_bytes = kern_format_bytes(w->format, w->n_columns);
    float *row = ref_thread(pass, i_thread);
    for (int64_t t = i_thread; t < pass->batch->n_rows; t += n_threads) {
        const int32_t position = pass->scratch->rows[t].position;
        assert(position >= 0 && position < w->n_rows);
        float *out = pass->out + t * w->n_columns;
        w->format->dequantise((const char *)w->data + (size_t)position * row_bytes, row,
                              w->n_columns);
        for (int64_t i = 0; i < w->n_columns; i++) out[i] += row[i];
    }
}

/* out[n] = in / sqrt(mean(in²) + eps) · w */
static void norm_rms(const float *in, const float *w, int64_t n, float eps, float *out) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)in[i] * in[i];
    const float scale = (float)(1 / sqrt(sum / (double)n + eps));
    for (int64_t i = 0; i < n; i++) out[i] = in[i] * scale * w[i];
}

static void step_norm_rms(const ref_pass *pass, int i_thread, int n_threads) {
    const int64_t n = pass->in_width;
    for (int64_t t = i_thread; t < pass->batch->n_rows; t += n_threads)
        norm_rms(pass->in + t * n, pass->scratch->w, n, pass->op->eps, pass->out + t * n);
}

/* x[T, n_heads · head_dim]: each head by itself, in place */
static void step_norm_heads(const ref_pass *pass, int i_thread, int n_threads) {
    const int64_t n = pass->op->head_dim,
                  n_slices = pass->batch->n_rows * (int64_t)pass->op->n_heads;
    for (int64_t i = i_thread; i < n_slices; i += n_threads)
        norm_rms(pass->out + i * n, pass->scratch->w, n, pass->op->eps, pass->out + i * n);
}

/* out[T,W] = (in − mean) / sqrt(var + eps) · w + bias */
static void step_norm_layer(const ref_pass *pass, int i_thread, int n_threads) {
    const int64_t n = pass->in_width;
    for (int64_t t = i_thread; t < pass->batch->n_rows; t += n_threads) {
        const float *in = pass->in + t * n;
        float *out = pass->out + t * n;
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < n; i++) sum += in[i];
        const double mean = sum / (double)n;
        for (int64_t i = 0; i < n; i++) squares += (in[i] - mean) * (in[i] - mean);
        const double scale = 1 / sqrt(squares / (double)n + pass->op->eps);
        for (int64_t i = 0; i < n; i++) {
            const float x = (float)((in[i] - mean) * scale) * pass->scratch->w[i];
            out[i] = pass->op->bias ? x + pass->scratch->bias[i] : x;
        }
    }
}

/* x[T, n_heads · head_dim] in place: pairs of each head's first n_rotary turn by position ·
 * freqs[i]. Angles are f64, so that they stay exact at any position. */
static void step_rope(const ref_pass *pass, int i_thread, int n_threads) {
    const plan_op *op = pass->op;
    const plan_rope *rope = op->rope;
    const int32_t half = rope->n_rotary / 2, step = rope->interleaved ? 2 : 1;
    const int32_t apart = rope->interleaved ? 1 : half;
    float *cosines = ref_thread(pass, i_thread), *sines = cosines + half;
    for (int64_t t = i_thread; t < pass->batch->n_rows; t += n_threads) {
        for (int32_t i = 0; i < half; i++) {
            const double angle = (double)pass->scratch->rows[t].position * (double)rope->freqs[i];
            cosines[i] = (float)cos(angle) * rope->magnitude;
            sines[i] = (float)sin(angle) * rope->magnitude;
        }
        for (int32_t h = 0; h < op->n_heads; h++) {
            float *x = pass->out + (t * op->n_heads + h) * op->head_dim;
            for (int32_t i = 0; i < half; i++) {
                float *a = x + i * step, *b = a + apart;
                const float a_turned = *a * cosines[i] - *b * sines[i];
                *b = *a * sines[i] + *b * cosines[i];
                *a = a_turned;
            }
        }
    }
}

/* A thread's part of all numbers of `out`. */
static void share_numbers(const ref_pass *pass, int i_thread, int n_threads, int64_t *i,
                          int64_t *end) {
    const int64_t n = (int64_t)pass->batch->n_rows * pass->out_width;
    *i = n * i_thread / n_threads;
    *end = n * (i_thread + 1) / n_threads;
}

/* out[T,W] += in[T,W] */
static void step_add(const ref_pass *pass, int i_thread, int n_threads) {
    int64_t i, end;
    share_numbers(pass, i_thread, n_threads, &i, &end);
    for (; i < end; i++) pass->out[i] += pass->in[i];
}

static float gelu(float x) {
    const float inner = 0.797884560802865f * (x + 0.044715f * x * x * x); /* √(2/π) */
    return 0.5f * x * (1 + tanhf(inner));
}

/* out[T,W] = silu(in[T,W]) · in2[T,W] */
static void step_silu_mul(const ref_pass *pass, int i_thread, int n_threads) {
    int64_t i, end;
    share_numbers(pass, i_thread, n_threads, &i, &end);
    for (; i < end; i++) pass->out[i] = pass->in[i] / (1 + expf(-pass->in[i])) * pass->in2[i];
}

/* out[T,W] = gelu_tanh(in[T,W]) · in2[T,W] */
static void step_gelu_mul(const ref_pass *pass, int i_thread, int n_threads) {
    int64_t i, end;
    share_numbers(pass, i_thread, n_threads, &i, &end);
    for (; i < end; i++) pass->out[i] = gelu(pass->in[i]) * pass->in2[i];
}

/* out[T,W] = gelu_tanh(in[T,W]) */
static void step_gelu(const ref_pass *pass, int i_thread, int n_threads) {
    int64_t i, end;
    share_numbers(pass, i_thread, n_threads, &i, &end);
    for (; i < end; i++) pass->out[i] = gelu(pass->in[i]);
}

static ref_step *const steps[] = {
    [PLAN_EMBED] = step_embed,
    [PLAN_EMBED_AT] = step_embed_at,
    [PLAN_NORM_RMS] = step_norm_rms,
    [PLAN_NORM_LAYER] = step_norm_layer,
    [PLAN_NORM_HEADS] = step_norm_heads,
    [PLAN_MATMUL] = ref_matmul,
    [PLAN_ROPE] = step_rope,
    [PLAN_KV_APPEND] = ref_kv_append,
    [PLAN_ATTEND] = ref_attend,
    [PLAN_ADD] = step_add,
    [PLAN_SILU_MUL] = step_silu_mul,
    [PLAN_GELU_MUL] = step_gelu_mul,
    [PLAN_GELU] = step_gelu,
};

static void run_step(void *data, int i_thread, int n_threads) {
    const ref_pass *pass = data;
    steps[pass->op->kind](pass, i_thread, n_threads);
}

/* The vectors of an operation, as f32 in aligned memory. */
static const kern_weight *op_vector(const plan_op *op) {
    return op->w && op->kind != PLAN_MATMUL && op->w->n_rows == 1 ? op->w : NULL;
}

static void load_vectors(const plan_op *op, const ref_scratch *scratch) {
    const kern_weight *w = op_vector(op), *bias = op->bias;
    if (w) w->format->dequantise(w->data, scratch->w, w->n_columns);
    if (bias) bias->format->dequantise(bias->data, scratch->bias, bias->n_columns);
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static size_t op_scratch(const plan_op *op) {
    switch (op->kind) {
    case PLAN_MATMUL: return ref_matmul_scratch(op);
    case PLAN_ATTEND: return ref_attend_scratch(op);
    case PLAN_EMBED_AT: return (size_t)op->w->n_columns;
    case PLAN_ROPE: return (size_t)op->rope->n_rotary;
    default: return 0;
    }
}

/* One block: the struct, vectors, threads' parts, tables of rows; each part begins a cache line. */
static int open_scratch(kern_device *device, const plan *p, kern_work *work) {
    size_t n_vector = 0, n_thread = 0;
    for (int32_t i = 0; i < p->n_ops; i++) {
        const plan_op *op = &p->ops[i];
        if (op_vector(op)) n_vector = larger(n_vector, (size_t)op->w->n_columns);
        if (op->bias) n_vector = larger(n_vector, (size_t)op->bias->n_columns);
        n_thread = larger(n_thread, op_scratch(op));
    }
    if (work->pages) n_thread = larger(n_thread, (size_t)work->pages->shape.head_dim_k);
    const size_t head = (sizeof(ref_scratch) + 63) & ~(size_t)63;
    const size_t n_rows = ((size_t)work->max_rows + 15) & ~(size_t)15;
    n_vector = (n_vector + 15) & ~(size_t)15;
    n_thread = (n_thread + 15) & ~(size_t)15;
    const size_t n_threads = (size_t)kern_pool_threads(device->pool);
    work->scratch_bytes =
        head + 4 * (2 * n_vector + n_threads * n_thread) + n_rows * sizeof(host_row);
    work->scratch = kern_alloc_aligned(64, work->scratch_bytes);
    if (!work->scratch)
        return host_fail(device, KERN_NO_MEMORY, "out of memory: %zu bytes asked for a pass",
                         work->scratch_bytes);
    ref_scratch *scratch = work->scratch;
    scratch->w = (float *)(void *)((char *)work->scratch + head);
    scratch->bias = scratch->w + n_vector;
    scratch->threads = scratch->bias + n_vector;
    scratch->thread_floats = n_thread;
    scratch->rows = (host_row *)(void *)(scratch->threads + n_threads * n_thread);
    return KERN_OK;
}

static int work_open(kern_device *device, const plan *p, kern_pages *pages, int32_t max_rows,
                     kern_work **out) {
    kern_work *work;
    int code = host_work_open(device, p, pages, max_rows, &work);
    if (!code && (code = open_scratch(device, p, work)) != KERN_OK) {
        host_work_close(device, work);
        work = NULL;
    }
    *out = work;
    return code;
}

static float *buffer_rows(const kern_work *work, const plan *p, const kern_batch *batch,
                          int32_t buffer) {
    if (buffer < 0) return NULL;
    return buffer == p->logits ? host_f32(batch->logits) : work->buffers[buffer].data;
}

static int run(kern_device *device, kern_work *work, const plan *p, int32_t first, int32_t count,
               const kern_batch *batch) {
    const int code = host_map_rows(device, work, batch, ((const ref_scratch *)work->scratch)->rows);
    if (code) return code;
    const double began = batch->profile ? kern_clock() : 0;
    for (int32_t i = first; i < first + count; i++) {
        const double op_began = batch->profile ? kern_clock() : 0;
        const plan_op *op = &p->ops[i];
        const int32_t in = op->in >= 0 ? op->in : op->out, out = op->out >= 0 ? op->out : op->in;
        ref_pass pass = {
            .pool = device->pool,
            .pages = work->pages,
            .batch = batch,
            .op = op,
            .scratch = work->scratch,
            .in = buffer_rows(work, p, batch, in),
            .in2 = buffer_rows(work, p, batch, op->in2),
            .out = buffer_rows(work, p, batch, out),
            .in_width = p->buffers[in].width,
            .out_width = p->buffers[out].width,
        };
        if (ref_stopped(batch)) return KERN_INTERRUPTED;
        load_vectors(op, work->scratch);
        kern_pool_run(device->pool, run_step, &pass);
        device->stats.launches++;
        if (batch->profile) batch->profile->ops[i].seconds += kern_clock() - op_began;
    }
    if (batch->profile) {
        batch->profile->run_s += kern_clock() - began;
        kern_profile_add(batch->profile, host_kv(work), p, first, count, batch,
                         ((const ref_scratch *)work->scratch)->rows);
    }
    return ref_stopped(batch) ? KERN_INTERRUPTED : KERN_OK;
}

static kern_device *open_device(const kern_device_options *options, char *message,
                                size_t message_bytes) {
    return host_open(&kern_ref, options, message, message_bytes);
}

/* Weights are read where they are mapped. */
static int bind(kern_device *device, kern_binding *binding, kern_store **out) {
    if (binding->f16_as_bf16)
        return host_fail(device, KERN_UNSUPPORTED, "it computes with F16 weights as they are");
    for (int32_t i = 0; i < binding->n_weights; i++) binding->weights[i].bound = NULL;
    binding->bytes = 0;
    binding->from_image = false;
    *out = NULL;
    return KERN_OK;
}

static void unbind(kern_device *device, kern_store *store) { (void)device, (void)store; }

const kern_backend kern_ref = {
    .abi = KERN_ABI,
    .size = sizeof(kern_backend),
    .name = "ref",
    .kv_default = KERN_KV_F32,
    .host_memory = 1,
    .open = open_device,
    .bind = bind,
    .unbind = unbind,
    .work_open = work_open,
    .run = run,
    HOST_OPS,
    TENSOR_OPS,
};
