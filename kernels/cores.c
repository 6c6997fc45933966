/* cores.c: how many cores this process may use: its affinity mask and its cgroup's quota. */
#include "cgroup.h"
#include "pool.h"

#include <sched.h>

static int affinity_cores(void) {
    cpu_set_t sets[16]; /* 16384 cores */
    if (sched_getaffinity(0, sizeof sets, sets) != 0) return 1;
    const int n = CPU_COUNT_S(sizeof sets, sets);
    return n > 0 ? n : 1;
}

/* Cores that one folder's quota grants. */
static double folder_cores(const char *folder, bool unified) {
    double limit[2], period[2];
    kern_cgroup_read(folder, unified ? "cpu.max" : "cpu.cfs_quota_us", limit);
    if (unified)
        period[0] = limit[1];
    else
        kern_cgroup_read(folder, "cpu.cfs_period_us", period);
    if (!(limit[0] > 0) || !(period[0] > 0) || limit[0] / period[0] > 1e6) return 0;
    return limit[0] / period[0];
}

int kern_pool_cores(void) {
    const int affinity = affinity_cores();
    const double granted = kern_cgroup_least("cpu", folder_cores);
    const int quota = (int)granted + (granted > (int)granted); /* rounded up */
    return quota && quota < affinity ? quota : affinity;
}
