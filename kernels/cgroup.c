/* cgroup.c: finds the control groups of this process and reads their files. */
#include "cgroup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kern_cgroup_read(const char *folder, const char *name, double out[2]) {
    char path[4300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
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

static double least_of(double a, double b) { return a > 0 && (b <= 0 || a < b) ? a : b; }

/* The least of a group and all groups above it. A container may see only its own part of the tree,
 * so folders that do not exist are passed over. */
static double least_above(const char *root, char *group, bool unified, kern_cgroup_fn *grant) {
    double least = 0;
    for (;;) {
        char folder[4200];
        snprintf(folder, sizeof folder, "%s%s", root, strcmp(group, "/") == 0 ? "" : group);
        least = least_of(grant(folder, unified), least);
        char *slash = strrchr(group, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

/* A line of /proc/self/cgroup is "number:controllers:/group"; no controllers: the unified tree. */
double kern_cgroup_least(const char *controller, kern_cgroup_fn *grant) {
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file) return 0;
    double least = 0;
    char line[4096], root[64];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *controllers++ = *group++ = '\0';
        const bool unified = *controllers == '\0';
        bool named = unified;
        char *state = NULL;
        for (char *c = strtok_r(controllers, ",", &state); c; c = strtok_r(NULL, ",", &state))
            named = named || strcmp(c, controller) == 0;
        if (!named) continue;
        snprintf(root, sizeof root, "/sys/fs/cgroup%s%s", unified ? "" : "/",
                 unified ? "" : controller);
        least = least_of(least_above(root, group, unified, grant), least);
    }
    fclose(file);
    return least;
}
