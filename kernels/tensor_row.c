/* tensor_row.c: rows shared out over the pool's threads. */
#include "tensor_row.h"

#define LEAST_NS 150e3 /* work that pays for waking the threads */

typedef struct share {
    int64_t n_units;
    row_unit *unit;
    const void *job;
} share;

static void share_run(void *data, int i_thread, int n_threads) {
    const share *s = data;
    for (int64_t i = i_thread; i < s->n_units; i += n_threads) s->unit(s->job, i);
}

void row_each(kern_device *device, int64_t n_units, double unit_ns, row_unit *unit,
              const void *job) {
    share s = {n_units, unit, job};
    if (n_units > 1 && (double)n_units * unit_ns > LEAST_NS && kern_pool_threads(device->pool) > 1)
        kern_pool_run(device->pool, share_run, &s);
    else
        share_run(&s, 0, 1);
}
