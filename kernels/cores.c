/* cores.c: how many cores this process may use: its affinity mask and its cgroup's quota. */
#include "pool.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int affinity_cores(void) {
    cpu_set_t sets[16]; /* 16384 cores */
    if (sched_getaffinity(0, sizeof sets, sets) != 0) return 1;
    const int n = CPU_COUNT_S(sizeof sets, sets);
    return n > 0 ? n : 1;
}

/* The first two words of a file, as numbers; "max" and what is missing give 0. */
static void read_numbers(const char *path, double out[2]) {
    out[0] = out[1] = 0;
    FILE *file = fopen(path, "re");
    if (!file) return;
    char first[32] = "", second[32] = "";
    if (fscanf(file, "%31s %31s", first, second) >= 1) {
        out[0] = strtod(first, NULL);
        out[1] = strtod(second, NULL);
    }
    fclose(file);
}

/* Cores that one folder's quota grants, rounded up; 0: no limit here. */
static int folder_cores(const char *folder, bool unified) {
    char path[4200];
    double limit[2], period[2];
    if (unified) {
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        read_numbers(path, limit);
        period[0] = limit[1];
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
        read_numbers(path, limit);
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        read_numbers(path, period);
    }
    if (!(limit[0] > 0) || !(period[0] > 0) || limit[0] / period[0] > 1e6) return 0;
    const int whole = (int)(limit[0] / period[0]);
    return whole + (whole * period[0] < limit[0]);
}

/* The least quota of a group and all groups above it. A container may see only its own part of the
 * tree, so folders that do not exist are passed over. */
static int group_cores(const char *root, char *group, bool unified) {
    int least = 0;
    for (;;) {
        char folder[4160];
        snprintf(folder, sizeof folder, "%s%s", root, strcmp(group, "/") == 0 ? "" : group);
        const int n = folder_cores(folder, unified);
        if (n && (!least || n < least)) least = n;
        char *slash = strrchr(group, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

/* A line of /proc/self/cgroup is "number:controllers:/group"; no controllers: the unified tree. */
static int quota_cores(void) {
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file) return 0;
    int least = 0;
    char line[4096];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *controllers++ = *group++ = '\0';
        const bool unified = *controllers == '\0';
        bool cpu = unified;
        char *state = NULL;
        for (char *c = strtok_r(controllers, ",", &state); c; c = strtok_r(NULL, ",", &state))
            cpu = cpu || strcmp(c, "cpu") == 0;
        if (!cpu) continue;
        const int n =
            group_cores(unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu", group, unified);
        if (n && (!least || n < least)) least = n;
    }
    fclose(file);
    return least;
}

int kern_pool_cores(void) {
    const int affinity = affinity_cores(), quota = quota_cores();
    return quota && quota < affinity ? quota : affinity;
}
