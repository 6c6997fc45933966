/* bands.c: many rows, in bands of neighbouring ones. A part of the run is what lies between two
 * attentions, with the first of them: it concerns each row by itself, but for the attention, which
 * sees what earlier rows have appended in the part before. So a thread takes a band through a whole
 * part, what its products read stays in the cache of its core, and there is no barrier: bands of a
 * part follow each other in order, and one waits only for those before it to be through with the
 * part before. Threads take them as they come, since they are never equally fast.
 *
 * When the caller wants the run to stop the threads still walk through all parts, without work. */
#include "cpu.h"

int32_t cpu_band_rows(int32_t n_rows, int32_t tile, int n_threads) {
    if (n_rows < CPU_BAND_ROWS * n_threads) return 0;
    int32_t rows = n_rows / (2 * n_threads);
    if (rows > CPU_BAND_MOST) rows = CPU_BAND_MOST;
    if (rows < CPU_BAND_LEAST) rows = CPU_BAND_LEAST;
    return (rows + tile - 1) / tile * tile;
}

static int32_t bands_of(const cpu_run *r) {
    return (r->batch->n_rows + r->band_rows - 1) / r->band_rows;
}

void cpu_bands_open(cpu_run *r) {
    for (int32_t i = 0; i < bands_of(r); i++) atomic_init(&r->scratch->bands[i].n, 0);
}

/* The end of the part that begins with operation i. */
static int32_t part_end(const cpu_run *r, int32_t i) {
    do i++;
    while (i < r->end && r->plan->ops[i].kind != PLAN_ATTEND);
    return i;
}

/* Operations i … end - 1 for the rows of the band. */
static void band_do(cpu_run *r, const cpu_band *band, int32_t i, int32_t end, int i_thread) {
    const plan_op *ops = r->plan->ops;
    if (r->rope_stale && i == r->first) cpu_rope_fill(r, band->first, band->end);
    while (i < end && !cpu_stopped(r)) {
        if (ops[i].kind == PLAN_MATMUL) {
            int wants;
            const int32_t n = cpu_products_end(r, i, &wants);
            cpu_fill_inputs(r, band, ops[i].in, wants, band->first, band->end);
            cpu_lap_end(r, i_thread, i, CPU_LAP_INPUT);
            const cpu_inputs in = cpu_inputs_of(r, band, ops[i].in);
            for (; i < n; i++) {
                cpu_product_strips(r, &ops[i], band, &in, 0, cpu_strips(ops[i].w->n_rows));
                cpu_lap_end(r, i_thread, i, CPU_LAP_OWN);
            }
            continue;
        }
        if (ops[i].kind == PLAN_ATTEND)
            cpu_attend_band(r, &ops[i], band, i_thread);
        else
            cpu_row_op(r, &ops[i], i_thread, band->first, band->end);
        cpu_lap_end(r, i_thread, i++, CPU_LAP_OWN);
    }
}

/* Whether the band and all before it are through with so many parts. */
static bool are_through(const cpu_run *r, int32_t i_band, int32_t n_parts) {
    for (; i_band >= 0; i_band--)
        if (atomic_load(&r->scratch->bands[i_band].n) < n_parts) return false;
    return true;
}

void cpu_run_bands(cpu_run *r, int i_thread) {
    kern_pool *pool = r->device->pool;
    const int32_t n_bands = bands_of(r);
    int32_t i_part = 0, first = r->first, end = part_end(r, first);
    int64_t i;
    while ((i = kern_pool_next(pool, INT64_MAX)) >= 0) {
        for (; i / n_bands > i_part && end < r->end; i_part++) {
            first = end;
            end = part_end(r, first);
        }
        if (i / n_bands > i_part) return;
        const int32_t i_band = (int32_t)(i % n_bands);
        for (uint32_t news; news = kern_pool_news(pool), !are_through(r, i_band, i_part);)
            kern_pool_await(pool, news);
        cpu_lap_end(r, i_thread, first > r->first ? first - 1 : first, CPU_LAP_WAIT);
        cpu_band band = {.first = i_band * r->band_rows, .place = i_thread * CPU_BAND_MOST};
        band.end = i_band + 1 < n_bands ? band.first + r->band_rows : r->batch->n_rows;
        band_do(r, &band, first, end, i_thread);
        atomic_store(&r->scratch->bands[i_band].n, i_part + 1);
        kern_pool_tell(pool);
    }
}
