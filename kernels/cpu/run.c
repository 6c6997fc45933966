/* run.c: runs a range of a plan in one call of the pool. The operations fall into phases with a
 * barrier after each:
 *
 *   rows       a chain of row operations, each thread with rows of its own; at its end the rows are
 *              rounded to int8 if products with block formats follow
 *   products   neighbouring products of one input, their columns spread over the threads
 *   attention  tasks from a shared counter; it may have barriers of its own
 *
 * When the caller wants the run to stop the threads still walk through all phases, without work. */
#include "../memory.h"
#include "cpu.h"
#include "pack.h"

enum {
    FEW_ROWS = 8,     /* up to here the strips are split evenly and beforehand */
    STOP_STRIPS = 16, /* between two looks at the stop flag */
    MANY_STRIPS = 4   /* of a task of the shared counter */
};

static int is_row_op(const plan_op *op) {
    return op->kind != PLAN_MATMUL && op->kind != PLAN_ATTEND;
}

/* Strips first … end - 1 of operation op, in pieces. */
static void product_strips(cpu_run *r, const plan_op *op, const cpu_inputs *in, int64_t first,
                           int64_t end) {
    cpu_product p = {
        .w = op->w,
        .strip_bytes = cpu_strip_bytes(op->w->format, op->w->n_columns),
        .in = in,
        .bias = cpu_vector(op->bias),
    };
    if (op->out == r->plan->logits) {
        p.out = host_f32(r->batch->logits);
        p.out_stride = r->batch->logits.n_columns;
    } else {
        p.out = cpu_rows_of(r, op->out);
        p.out_stride = r->plan->buffers[op->out].width;
    }
    cpu_product_fn *product = r->tier->products->product(op->w->format->id);
    for (int64_t n = first; n < end && !cpu_stopped(r); n += STOP_STRIPS)
        product(&p, n, n + STOP_STRIPS < end ? n + STOP_STRIPS : end);
}

static int64_t units_of(const plan_op *op, int64_t unit) {
    return (cpu_strips(op->w->n_rows) + unit - 1) / unit;
}

/* Units first … end - 1 of operations i … n counted through. */
static void product_units(cpu_run *r, int32_t i, int32_t n, int64_t unit, int64_t first,
                          int64_t end, int i_thread) {
    const cpu_inputs in = cpu_inputs_of(r, r->plan->ops[i].in);
    for (; i < n && first < end; i++) {
        const plan_op *op = &r->plan->ops[i];
        int64_t units = units_of(op, unit), strips = cpu_strips(op->w->n_rows);
        if (first < units) {
            int64_t to = (end < units ? end : units) * unit;
            product_strips(r, op, &in, first * unit, to < strips ? to : strips);
            cpu_lap_end(r, i_thread, i);
        }
        first = first > units ? first - units : 0;
        end -= units;
    }
}

/* Operations i … n - 1 are products of one input. */
static void products(cpu_run *r, int32_t i, int32_t n, int i_thread, int n_threads) {
    int few = r->batch->n_rows <= FEW_ROWS;
    int64_t unit = few ? 1 : MANY_STRIPS, total = 0;
    for (int32_t j = i; j < n; j++) total += units_of(&r->plan->ops[j], unit);
    if (few) {
        product_units(r, i, n, unit, total * i_thread / n_threads,
                      total * (i_thread + 1) / n_threads, i_thread);
        return;
    }
    int64_t next;
    while ((next = kern_pool_next(r->device->pool, total)) >= 0) {
        if (cpu_stopped(r)) return;
        product_units(r, i, n, unit, next, next + 1, i_thread);
    }
}

/* The end of the products from operation i on that share its input, and the forms of it that they
 * want. */
static int32_t products_end(const cpu_run *r, int32_t i, int *wants) {
    const plan_op *ops = r->plan->ops;
    int32_t n = i;
    *wants = 0;
    for (; n < r->end && ops[n].kind == PLAN_MATMUL && ops[n].in == ops[i].in; n++) {
        *wants |= cpu_wants(ops[n].w->format);
        if (ops[n].out == ops[i].in) return n + 1;
    }
    return n;
}

static void run_thread(void *data, int i_thread, int n_threads) {
    cpu_run *r = (cpu_run *)data;
    kern_pool *pool = r->device->pool;
    const plan_op *ops = r->plan->ops;
    const int64_t n_rows = r->batch->n_rows;
    const int32_t first_row = (int32_t)(n_rows * i_thread / n_threads);
    const int32_t end_row = (int32_t)(n_rows * (i_thread + 1) / n_threads);
    if (i_thread == 0) r->n_threads = n_threads;
    cpu_lap_begin(r, i_thread);
    if (r->rope_stale) cpu_rope_fill(r, first_row, end_row);
    for (int32_t i = r->first; i < r->end;) {
        int32_t begun = i, n = i;
        int wants = 0, work = !cpu_stopped(r);
        for (; i < r->end && is_row_op(&ops[i]) && work; i++) {
            cpu_row_op(r, &ops[i], i_thread, first_row, end_row);
            cpu_lap_end(r, i_thread, i);
        }
        while (i < r->end && is_row_op(&ops[i])) i++;
        if (i < r->end && ops[i].kind == PLAN_MATMUL) n = products_end(r, i, &wants);
        if (wants && work) {
            cpu_fill_inputs(r, ops[i].in, wants, first_row, end_row);
            cpu_lap_input(r, i_thread, i);
        }
        if (i > begun || wants) {
            kern_pool_barrier(pool);
            cpu_lap_begin(r, i_thread);
        }
        if (i >= r->end) break;
        work = !cpu_stopped(r);
        if (ops[i].kind == PLAN_MATMUL) {
            if (work) products(r, i, n, i_thread, n_threads);
            i = n;
        } else {
            cpu_attend(r, &ops[i], i_thread, n_threads);
            cpu_lap_end(r, i_thread, i);
            i++;
        }
        kern_pool_barrier(pool);
        cpu_lap_begin(r, i_thread);
    }
}

static int map_batch(kern_device *device, kern_work *work, const kern_batch *batch) {
    cpu_scratch *s = (cpu_scratch *)work->scratch;
    int code = host_map_rows(device, work, batch, s->rows);
    if (code == KERN_OK) cpu_attend_tiles(s, batch);
    return code;
}

/* Operations that need a sequence for every row, and positions within learned ones. */
static int check_ops(kern_device *device, const kern_work *work, const plan *p, int32_t first,
                     int32_t end, const kern_batch *batch) {
    const cpu_scratch *s = (const cpu_scratch *)work->scratch;
    for (int32_t i = first; i < end; i++) {
        const plan_op *op = &p->ops[i];
        if (op->kind != PLAN_KV_APPEND && op->kind != PLAN_ATTEND && op->kind != PLAN_EMBED_AT)
            continue;
        for (int32_t t = 0; t < batch->n_rows; t++) {
            if (s->rows[t].i_sequence < 0)
                return host_fail(device, KERN_DEVICE, "row %d belongs to no sequence", t + 1);
            if (op->kind == PLAN_EMBED_AT && s->rows[t].position >= op->w->n_rows)
                return host_fail(device, KERN_DEVICE, "position %d of %lld in %s",
                                 s->rows[t].position + 1, (long long)op->w->n_rows, op->w->name);
        }
    }
    return KERN_OK;
}

/* Whether operations first … end - 1 rotate, and the tables hold for other positions than the
 * rows'. If so the tables are filled as the run begins. */
static int rope_stale(cpu_scratch *s, const plan *p, int32_t first, int32_t end, int32_t n_rows) {
    while (first < end && p->ops[first].kind != PLAN_ROPE) first++;
    if (first == end) return 0;
    int same = n_rows <= s->n_rope_positions;
    for (int32_t t = 0; t < n_rows && same; t++) same = s->rope_positions[t] == s->rows[t].position;
    if (same) return 0;
    for (int32_t t = 0; t < n_rows; t++) s->rope_positions[t] = s->rows[t].position;
    s->n_rope_positions = n_rows;
    return 1;
}

int cpu_run_plan(kern_device *device, kern_work *work, const plan *p, int32_t first, int32_t count,
                 const kern_batch *batch) {
    cpu_scratch *scratch = (cpu_scratch *)work->scratch;
    int code = map_batch(device, work, batch);
    if (code == KERN_OK) code = check_ops(device, work, p, first, first + count, batch);
    if (code != KERN_OK || batch->n_rows == 0) return code;
    cpu_run r = {
        .device = device,
        .tier = cpu_tier_of(device),
        .work = work,
        .scratch = scratch,
        .plan = p,
        .batch = batch,
        .first = first,
        .end = first + count,
        .rope_stale = rope_stale(scratch, p, first, first + count, batch->n_rows),
    };
    if ((code = cpu_laps_open(&r)) != KERN_OK) return code;
    kern_pool_run(device->pool, run_thread, &r);
    device->stats.launches += (uint64_t)count;
    if (cpu_stopped(&r) || atomic_load(&r.interrupted)) code = KERN_INTERRUPTED;
    cpu_laps_close(&r, code);
    return code;
}
