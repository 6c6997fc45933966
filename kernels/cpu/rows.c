/* rows.c: operations that work on each row of activations by itself. A row belongs to one thread
 * from one barrier to the next, so a chain of them needs none in between. */
#include "cpu.h"
#include <math.h>

static void embed(cpu_run *r, const plan_op *op, int32_t t) {
    const kern_weight *w = op->w;
    float *out = cpu_rows_of(r, op->out) + (int64_t)t * w->n_columns;
    int32_t id = host_i32(r->batch->ids)[t];
    if (id < 0 || id >= w->n_rows) { /* not reached: the caller checks ids */
        for (int64_t i = 0; i < w->n_columns; i++) out[i] = NAN;
        return;
    }
    size_t row_bytes = kern_format_bytes(w->format, w->n_columns);
    w->format->dequantise((const char *)w->data + (size_t)id * row_bytes, out, w->n_columns);
    if (op->scale != 1.0f)
        for (int64_t i = 0; i < w->n_columns; i++) out[i] *= op->scale;
}

static void embed_at(cpu_run *r, const plan_op *op, int32_t t, float *values) {
    const kern_weight *w = op->w;
    float *out = cpu_rows_of(r, op->out) + (int64_t)t * w->n_columns;
    size_t row_bytes = kern_format_bytes(w->format, w->n_columns);
    int32_t position = r->scratch->rows[t].position;
    w->format->dequantise((const char *)w->data + (size_t)position * row_bytes, values,
                          w->n_columns);
    r->tier->add(values, out, w->n_columns);
}

/* x[n] to one position of a head's keys in a page: 32 numbers at a time, which are whole blocks. */
static void key_append(cpu_run *r, const float *x, int32_t n, unsigned char *keys, int32_t slot) {
    const kern_kv type = r->work->pages->shape.type;
    unsigned char row[32 * sizeof(float)];
    const size_t bytes = kern_kv_row_bytes(type, 32) * KERN_PAGE_POSITIONS;
    for (int32_t i = 0; i < n; i += 32, keys += bytes) {
        const int32_t count = n - i < 32 ? n - i : 32;
        r->tier->kv_store(type, x + i, count, row);
        host_copy_keys(type, count, keys, slot, row, HOST_ROW, 1);
    }
}

static void kv_append(cpu_run *r, const plan_op *op, int32_t t) {
    const kern_pages *kv = r->work->pages;
    const kern_kv_shape *shape = &kv->shape;
    const host_row *row = &r->scratch->rows[t];
    const int32_t page =
        r->batch->sequences[row->i_sequence].pages[row->slot / KERN_PAGE_POSITIONS];
    const int32_t slot = row->slot % KERN_PAGE_POSITIONS;
    const float *k = cpu_rows_of(r, op->in) + (int64_t)t * shape->n_heads_kv * shape->head_dim_k;
    const float *v = cpu_rows_of(r, op->in2) + (int64_t)t * shape->n_heads_kv * shape->head_dim_v;
    for (int32_t h = 0; h < shape->n_heads_kv; h++) {
        key_append(r, k + h * shape->head_dim_k, shape->head_dim_k,
                   host_keys(kv, page, op->layer - 1, h), slot);
        r->tier->kv_store(shape->type, v + h * shape->head_dim_v, shape->head_dim_v,
                          host_values(kv, page, op->layer - 1, h) +
                              (size_t)slot * kv->value_row_bytes);
    }
}

static const float *rope_row(const cpu_scratch *s, const plan_rope *rope, int32_t t) {
    int32_t i = 0;
    while (s->ropes[i] != rope) i++;
    return s->rope_tables[i] + (int64_t)t * (rope->n_rotary / 2) * 2;
}

void cpu_rope_fill(cpu_run *r, int32_t first, int32_t end) {
    cpu_scratch *s = r->scratch;
    for (int32_t i = 0; i < s->n_ropes; i++) {
        const plan_rope *rope = s->ropes[i];
        int32_t half = rope->n_rotary / 2;
        for (int32_t t = first; t < end; t++) {
            float *cosines = s->rope_tables[i] + (int64_t)t * half * 2;
            for (int32_t j = 0; j < half; j++) {
                double angle = (double)s->rows[t].position * (double)rope->freqs[j], sine, cosine;
                sincos(angle, &sine, &cosine);
                cosines[j] = (float)cosine * rope->magnitude;
                cosines[half + j] = (float)sine * rope->magnitude;
            }
        }
    }
}

static float *thread_values(cpu_run *r, int i_thread) {
    return (float *)(void *)(r->scratch->threads + (size_t)i_thread * r->scratch->thread_bytes);
}

static void row_op(cpu_run *r, const plan_op *op, int32_t t, float *values) {
    const cpu_tier *k = r->tier;
    int32_t i_in = op->in >= 0 ? op->in : op->out, i_out = op->out >= 0 ? op->out : op->in;
    int64_t width = r->plan->buffers[i_out].width;
    const float *x =
        i_in >= 0 ? cpu_rows_of(r, i_in) + (int64_t)t * r->plan->buffers[i_in].width : NULL;
    const float *z = op->in2 >= 0
                         ? cpu_rows_of(r, op->in2) + (int64_t)t * r->plan->buffers[op->in2].width
                         : NULL;
    float *y = cpu_rows_of(r, i_out) + (int64_t)t * width;
    switch (op->kind) {
    case PLAN_EMBED: embed(r, op, t); break;
    case PLAN_EMBED_AT: embed_at(r, op, t, values); break;
    case PLAN_NORM_RMS: k->norm_rms(x, cpu_vector(op->w), y, width, op->eps); break;
    case PLAN_NORM_LAYER:
        k->norm_layer(x, cpu_vector(op->w), cpu_vector(op->bias), y, width, op->eps);
        break;
    case PLAN_NORM_HEADS:
        for (int32_t h = 0; h < op->n_heads; h++) {
            float *head = y + (int64_t)h * op->head_dim;
            k->norm_rms(head, cpu_vector(op->w), head, op->head_dim, op->eps);
        }
        break;
    case PLAN_ROPE: {
        const float *cosines = rope_row(r->scratch, op->rope, t);
        for (int32_t h = 0; h < op->n_heads; h++)
            k->rope(y + (int64_t)h * op->head_dim, cosines, op->rope->n_rotary,
                    op->rope->interleaved);
        break;
    }
    case PLAN_KV_APPEND: kv_append(r, op, t); break;
    case PLAN_ADD: k->add(x, y, width); break;
    case PLAN_SILU_MUL: k->silu_mul(x, z, y, width); break;
    case PLAN_GELU_MUL: k->gelu_mul(x, z, y, width); break;
    case PLAN_GELU: k->gelu_mul(x, NULL, y, width); break;
    case PLAN_MATMUL:
    case PLAN_ATTEND: break; /* not of this kind */
    }
}

void cpu_row_op(cpu_run *r, const plan_op *op, int i_thread, int32_t first, int32_t end) {
    for (int32_t t = first; t < end; t++) row_op(r, op, t, thread_values(r, i_thread));
}

cpu_inputs cpu_inputs_of(const cpu_run *r, const cpu_band *band, int32_t i_buffer) {
    const cpu_scratch *s = r->scratch;
    const int32_t n_rows = band->end - band->first, tile = r->tile, place = band->place;
    cpu_inputs in = {
        .blocks = s->blocks + place * (s->k_blocks / 32),
        .rests = s->rests + place * (s->k_blocks / 32),
        .flags = s->flags + place * (s->k_blocks / 32) * CPU_FLAGS,
        .floats = s->floats + place * s->k_floats,
        .pairs = s->pairs + place * ((s->k_pairs + 1) / 2),
        .n_rows = n_rows,
        .k = r->plan->buffers[i_buffer].width,
        .tile = tile,
        .n_tiles = (n_rows + tile - 1) / tile,
    };
    if (tile == 1) in.floats = cpu_rows_of(r, i_buffer) + band->first * in.k; /* so already */
    return in;
}

void cpu_fill_inputs(cpu_run *r, const cpu_band *band, int32_t i_buffer, int wants, int32_t first,
                     int32_t end) {
    const cpu_inputs in = cpu_inputs_of(r, band, i_buffer);
    const int floats = wants & CPU_WANTS_FLOATS && in.tile > 1;
    const int32_t stop = end - band->first; /* rows are counted within the band */
    for (int32_t t = first - band->first, next; t < stop; t = next) {
        const int32_t i_tile = t / in.tile, i = t % in.tile; /* of each tile the rows it has */
        const int64_t at = cpu_in_first(&in, i_tile) + i;
        const float *x = cpu_rows_of(r, i_buffer) + (band->first + t) * in.k;
        next = (i_tile + 1) * in.tile < stop ? (i_tile + 1) * in.tile : stop;
        if (wants & CPU_WANTS_BLOCKS)
            r->tier->quantise(x, in.k, next - t, in.tile, in.blocks + at, in.rests + at,
                              cpu_in_flags(&in, i_tile) + i);
        if (wants & CPU_WANTS_PAIRS)
            r->tier->round_pairs(x, in.k, next - t, in.tile,
                                 in.pairs + (t - i) * ((in.k + 1) / 2) + i);
        float *to =
            r->scratch->floats + band->place * r->scratch->k_floats + (int64_t)(t - i) * in.k + i;
        for (int64_t j = 0; floats && j < in.k; j++)
            for (int32_t u = 0; u < next - t; u++) to[j * in.tile + u] = x[u * in.k + j];
    }
}
