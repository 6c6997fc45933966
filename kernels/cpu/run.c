/* run.c: runs a range of a plan in one call of the pool. Many rows are done in bands (bands.c). Of
 * few the operations fall into phases with a barrier after each:
 *
 *   rows       a chain of row operations, and the input of products that follow brought into their
 *              form, each thread with rows of its own
 *   products   neighbouring products of one input, their columns spread over the threads
 *   attention  tasks from a shared counter; it may have barriers of its own
 *
 * A single row's rows phase is done by thread 0 between the halves of the barrier before it: five
 * barriers a layer.
 *
 * When the caller wants the run to stop the threads still walk through all phases, without work. */
#include "../memory.h"
#include "cpu.h"
#include "packed.h"

enum {
    FEW_ROWS = 8,          /* up to here the strips are split evenly and beforehand */
    SHARE_BYTES = 4 << 20, /* of weights for each thread: from here on part of them is shared */
    STOP_STRIPS = 16,      /* between two looks at the stop flag */
    MANY_STRIPS = 4        /* of a task of the shared counter */
};

static int is_row_op(const plan_op *op) {
    return op->kind != PLAN_MATMUL && op->kind != PLAN_ATTEND;
}

static cpu_band all_rows(const cpu_run *r) { return (cpu_band){.end = r->batch->n_rows}; }

/* In pieces. */
void cpu_product_strips(cpu_run *r, const plan_op *op, const cpu_band *band, const cpu_inputs *in,
                        int64_t first, int64_t end) {
    cpu_product p = {
        .w = op->w,
        .strip_bytes = cpu_strip_bytes(cpu_packed(op->w), op->w->n_columns),
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
    p.out += band->first * p.out_stride;
    const int is_pairs = cpu_wants(r->device, op->w) == CPU_WANTS_PAIRS;
    cpu_product_fn *product =
        r->tier->products->product(is_pairs ? KERN_BF16_DOTS : cpu_packed(op->w)->id);
    for (int64_t n = first; n < end && !cpu_stopped(r); n += STOP_STRIPS)
        product(&p, n, n + STOP_STRIPS < end ? n + STOP_STRIPS : end);
}

static int64_t units_of(const plan_op *op, int64_t unit) {
    return (cpu_strips(op->w->n_rows) + unit - 1) / unit;
}

/* Units first … end - 1 of operations i … n counted through. */
static void product_units(cpu_run *r, int32_t i, int32_t n, int64_t unit, int64_t first,
                          int64_t end, int i_thread) {
    const cpu_band all = all_rows(r);
    const cpu_inputs in = cpu_inputs_of(r, &all, r->plan->ops[i].in);
    for (; i < n && first < end; i++) {
        const plan_op *op = &r->plan->ops[i];
        int64_t units = units_of(op, unit), strips = cpu_strips(op->w->n_rows);
        if (first < units) {
            int64_t to = (end < units ? end : units) * unit;
            cpu_product_strips(r, op, &all, &in, first * unit, to < strips ? to : strips);
            cpu_lap_end(r, i_thread, i, CPU_LAP_OWN);
        }
        first = first > units ? first - units : 0;
        end -= units;
    }
}

/* Units first … end - 1, `size` at a time as the threads come for them. */
static void share_units(cpu_run *r, int32_t i, int32_t n, int64_t unit, int64_t first, int64_t end,
                        int64_t size, int i_thread) {
    const int64_t n_pieces = (end - first + size - 1) / size;
    int64_t next;
    while ((next = kern_pool_next(r->device->pool, n_pieces)) >= 0) {
        if (cpu_stopped(r)) return;
        const int64_t from = first + next * size, to = from + size;
        product_units(r, i, n, unit, from, to < end ? to : end, i_thread);
    }
}

/* Operations i … n - 1 are products of one input. Of few rows each thread has strips of its own
 * that lie side by side, since memory is read best so; of large products the last quarter is shared
 * as they come to it, since threads are never equally fast. */
static void products(cpu_run *r, int32_t i, int32_t n, int i_thread, int n_threads) {
    const kern_weight *w = r->plan->ops[i].w;
    const int few = r->batch->n_rows <= FEW_ROWS;
    const int64_t unit = few ? 1 : MANY_STRIPS;
    int64_t total = 0;
    for (int32_t j = i; j < n; j++) total += units_of(&r->plan->ops[j], unit);
    if (!few) {
        share_units(r, i, n, unit, 0, total, 1, i_thread);
        return;
    }
    const size_t bytes = (size_t)total * cpu_strip_bytes(cpu_packed(w), w->n_columns);
    const int64_t owned = bytes < (size_t)SHARE_BYTES * (size_t)n_threads ? total : total * 3 / 4;
    const int64_t size = (total - owned) / (8 * n_threads) + 1;
    product_units(r, i, n, unit, owned * i_thread / n_threads, owned * (i_thread + 1) / n_threads,
                  i_thread);
    share_units(r, i, n, unit, owned, total, size, i_thread);
}

int32_t cpu_products_end(const cpu_run *r, int32_t i, int *wants) {
    const plan_op *ops = r->plan->ops;
    int32_t n = i;
    *wants = 0;
    for (; n < r->end && ops[n].kind == PLAN_MATMUL && ops[n].in == ops[i].in; n++) {
        *wants |= cpu_wants(r->device, ops[n].w);
        if (ops[n].out == ops[i].in) return n + 1;
    }
    return n;
}

/* What lies between two products or attentions. */
typedef struct rows_part {
    int32_t first, end; /* row operations */
    int wants;          /* forms of the input of the products that begin there; 0: there are none */
} rows_part;

static rows_part rows_from(const cpu_run *r, int32_t i) {
    rows_part p = {.first = i, .end = i};
    while (p.end < r->end && is_row_op(&r->plan->ops[p.end])) p.end++;
    if (p.end < r->end && r->plan->ops[p.end].kind == PLAN_MATMUL)
        cpu_products_end(r, p.end, &p.wants);
    return p;
}

static void rows_do(cpu_run *r, const rows_part *p, int i_thread, int32_t first_row,
                    int32_t end_row) {
    if (r->rope_stale && p->first == r->first) cpu_rope_fill(r, first_row, end_row);
    if (cpu_stopped(r)) return;
    for (int32_t i = p->first; i < p->end; i++) {
        cpu_row_op(r, &r->plan->ops[i], i_thread, first_row, end_row);
        cpu_lap_end(r, i_thread, i, CPU_LAP_OWN);
    }
    if (!p->wants) return;
    const cpu_band all = all_rows(r);
    cpu_fill_inputs(r, &all, r->plan->ops[p->end].in, p->wants, first_row, end_row);
    cpu_lap_end(r, i_thread, p->end, CPU_LAP_INPUT);
}

/* A barrier after operation i_op. */
static void meet(cpu_run *r, int i_thread, int32_t i_op) {
    kern_pool_barrier(r->device->pool);
    cpu_lap_end(r, i_thread, i_op, CPU_LAP_WAIT);
}

/* The part, between what all threads did before and what they do next. A single row is not worth a
 * barrier of its own: thread 0 does it. */
static void rows_pass(cpu_run *r, const rows_part *p, int i_thread, int n_threads) {
    const int64_t n_rows = r->batch->n_rows;
    const int32_t first = (int32_t)(n_rows * i_thread / n_threads);
    const int32_t end = (int32_t)(n_rows * (i_thread + 1) / n_threads);
    const int32_t i_before = p->first > r->first ? p->first - 1 : r->first;
    const int has_rows = p->end > p->first;
    if (n_rows == 1) {
        const int leads = kern_pool_gather(r->device->pool, i_thread);
        cpu_lap_end(r, i_thread, i_before, CPU_LAP_WAIT);
        if (!leads) return;
        rows_do(r, p, i_thread, 0, 1);
        kern_pool_release(r->device->pool);
        return;
    }
    if (p->first > r->first) meet(r, i_thread, i_before);
    rows_do(r, p, i_thread, first, end);
    if ((has_rows || p->wants) && p->end < r->end)
        meet(r, i_thread, has_rows ? p->end - 1 : i_before);
}

static void run_phases(cpu_run *r, int i_thread, int n_threads) {
    const plan_op *ops = r->plan->ops;
    for (int32_t i = r->first;;) {
        const rows_part rows = rows_from(r, i);
        rows_pass(r, &rows, i_thread, n_threads);
        i = rows.end;
        if (i >= r->end) break;
        if (ops[i].kind == PLAN_MATMUL) {
            int wants;
            const int32_t n = cpu_products_end(r, i, &wants);
            if (!cpu_stopped(r)) products(r, i, n, i_thread, n_threads);
            i = n;
        } else {
            cpu_attend(r, &ops[i], i_thread, n_threads);
            cpu_lap_end(r, i_thread, i++, CPU_LAP_OWN);
        }
    }
}

static void run_thread(void *data, int i_thread, int n_threads) {
    cpu_run *r = (cpu_run *)data;
    if (i_thread == 0) r->n_threads = n_threads;
    cpu_lap_begin(r, i_thread);
    if (r->band_rows > 0)
        cpu_run_bands(r, i_thread);
    else
        run_phases(r, i_thread, n_threads);
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
    int code = host_map_rows(device, work, batch, scratch->rows);
    if (code == KERN_OK) code = check_ops(device, work, p, first, first + count, batch);
    if (code != KERN_OK || batch->n_rows == 0) return code;
    const int32_t tile = cpu_tier_of(device)->products->tile(batch->n_rows);
    const int32_t band_rows = cpu_band_rows(batch->n_rows, tile, kern_pool_threads(device->pool));
    cpu_attend_tiles(scratch, batch, band_rows);
    cpu_run r = {
        .device = device,
        .tier = cpu_tier_of(device),
        .work = work,
        .scratch = scratch,
        .plan = p,
        .batch = batch,
        .first = first,
        .end = first + count,
        .tile = tile,
        .band_rows = band_rows,
        .rope_stale = rope_stale(scratch, p, first, first + count, batch->n_rows),
    };
    if ((code = cpu_laps_open(&r)) != KERN_OK) return code;
    if (band_rows > 0) cpu_bands_open(&r);
    kern_pool_run(device->pool, run_thread, &r);
    device->stats.launches += (uint64_t)count;
    if (cpu_stopped(&r) || atomic_load(&r.interrupted)) code = KERN_INTERRUPTED;
    cpu_laps_close(&r, code);
    return code;
}
