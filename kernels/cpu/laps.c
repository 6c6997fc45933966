/* laps.c: how long each thread of a run is at each operation, where a profile is asked for. What is
 * in no lap is waiting. */
#include "../memory.h"
#include "cpu.h"

/* A thread's part: when its present lap began, then of each operation a sum of seconds for each
 * kind of lap; whole cache lines. */
static size_t part_words(const cpu_run *r) {
    return (size_t)cpu_round_up(1 + CPU_LAP_KINDS * (int64_t)(r->end - r->first), 8);
}

static double *part_of(const cpu_run *r, int i_thread) {
    return r->laps + (size_t)i_thread * part_words(r);
}

int cpu_laps_open(cpu_run *r) {
    if (r->batch->profile == NULL) return KERN_OK;
    size_t n = (size_t)kern_pool_threads(r->device->pool) * part_words(r);
    r->laps = kern_alloc_aligned(64, n * sizeof *r->laps);
    if (r->laps == NULL)
        return host_fail(r->device, KERN_NO_MEMORY, "out of memory: %zu bytes asked for a profile",
                         n * sizeof *r->laps);
    r->began = kern_clock();
    return KERN_OK;
}

void cpu_laps_begin(cpu_run *r, int i_thread) { part_of(r, i_thread)[0] = kern_clock(); }

void cpu_laps_end(cpu_run *r, int i_thread, int32_t i_op, int kind) {
    double *part = part_of(r, i_thread), now = kern_clock();
    part[1 + CPU_LAP_KINDS * (i_op - r->first) + kind] += now - part[0];
    part[0] = now;
}

void cpu_laps_close(cpu_run *r, int code) {
    if (r->laps == NULL) return;
    kern_profile *profile = r->batch->profile;
    if (code == KERN_OK) {
        profile->run_s += kern_clock() - r->began;
        for (int i_thread = 0; i_thread < r->n_threads; i_thread++) {
            const double *sums = part_of(r, i_thread) + 1;
            for (int32_t i = r->first; i < r->end; i++, sums += CPU_LAP_KINDS) {
                kern_cost *cost = &profile->ops[i];
                cost->seconds += (sums[CPU_LAP_OWN] + sums[CPU_LAP_INPUT]) / r->n_threads;
                cost->input_s += sums[CPU_LAP_INPUT] / r->n_threads;
                cost->wait_s += sums[CPU_LAP_WAIT] / r->n_threads;
            }
        }
        kern_profile_add(profile, host_kv(r->work), r->plan, r->first, r->end - r->first, r->batch,
                         r->scratch->rows);
    }
    kern_free_aligned(r->laps);
    r->laps = NULL;
}
