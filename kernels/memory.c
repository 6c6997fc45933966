/* memory.c: owns nothing but the countdown of the fault-injection build. */
#include "memory.h"
#include "cgroup.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)

#ifdef LLMLUA_FAULTS
static _Atomic int64_t n_allocations;
static _Atomic int64_t n_until_failure;

void kern_alloc_fail_at(int64_t n) { n_until_failure = n; }
int64_t kern_alloc_count(void) { return n_allocations; }

static bool must_fail(void) {
    n_allocations++;
    return n_until_failure > 0 && --n_until_failure == 0;
}
#else
static bool must_fail(void) { return false; }
#endif

void *kern_alloc(size_t bytes) { return must_fail() ? NULL : calloc(1, bytes ? bytes : 1); }

void *kern_alloc_array(size_t count, size_t bytes) {
    size_t total;
    if (__builtin_mul_overflow(count, bytes, &total)) return NULL;
    return kern_alloc(total);
}

void *kern_realloc(void *block, size_t bytes) {
    return must_fail() ? NULL : realloc(block, bytes ? bytes : 1);
}

void *kern_alloc_aligned(size_t alignment, size_t bytes) {
    size_t rounded;
    if (must_fail() || __builtin_add_overflow(bytes ? bytes : 1, alignment - 1, &rounded))
        return NULL;
    rounded &= ~(alignment - 1);
    void *block = aligned_alloc(alignment, rounded);
    if (block) memset(block, 0, rounded);
    return block;
}

void *kern_alloc_huge(size_t bytes) {
    const size_t alignment = bytes < HUGE_PAGE / 2 ? 64 : HUGE_PAGE;
    size_t rounded;
    if (must_fail() || __builtin_add_overflow(bytes ? bytes : 1, alignment - 1, &rounded))
        return NULL;
    rounded &= ~(alignment - 1);
    void *block = aligned_alloc(alignment, rounded);
    if (block && alignment == HUGE_PAGE) madvise(block, rounded, MADV_HUGEPAGE); /* or small ones */
    return block;
}

/* A number of a group's memory.stat. */
static double stat_of(const char *folder, const char *name) {
    char path[4300], line[128];
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    const size_t n = strlen(name);
    double value = 0;
    while (fgets(line, sizeof line, file))
        if (strncmp(line, name, n) == 0 && line[n] == ' ') value = strtod(line + n, NULL);
    fclose(file);
    return value;
}

/* What a group's limit leaves: what files take of it goes when it is needed. At least 1. */
static double folder_memory(const char *folder, bool unified) {
    double limit[2], used[2];
    kern_cgroup_read(folder, unified ? "memory.max" : "memory.limit_in_bytes", limit);
    if (!(limit[0] > 0) || limit[0] > 1e18) return 0;
    kern_cgroup_read(folder, unified ? "memory.current" : "memory.usage_in_bytes", used);
    used[0] -= stat_of(folder, unified ? "inactive_file" : "total_inactive_file") +
               stat_of(folder, unified ? "active_file" : "total_active_file");
    return limit[0] > used[0] + 1 ? limit[0] - used[0] : 1;
}

static size_t system_memory(void) {
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file) return SIZE_MAX;
    char line[128];
    unsigned long long available = 0, swap = 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "MemAvailable: %llu kB", &available) == 1) continue;
        sscanf(line, "SwapFree: %llu kB", &swap);
    }
    fclose(file);
    return available ? (size_t)(available + swap) << 10 : SIZE_MAX;
}

/* What a limit of the process (ulimit -v) leaves of its address space. */
static size_t address_space(void) {
    struct rlimit limit;
    unsigned long long pages = 0;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file) return SIZE_MAX;
    const int n_read = fscanf(file, "%llu", &pages);
    fclose(file);
    const size_t used = n_read == 1 ? (size_t)pages * (size_t)sysconf(_SC_PAGESIZE) : 0;
    return limit.rlim_cur > used ? (size_t)limit.rlim_cur - used : 0;
}

size_t kern_memory_available(void) {
    const size_t memory = system_memory(), space = address_space();
    const size_t available = memory < space ? memory : space;
    const double granted = kern_cgroup_least("memory", folder_memory);
    return granted > 0 && granted < (double)available ? (size_t)granted : available;
}

void kern_free_aligned(void *block) { free(block); }
void kern_free(void *block) { free(block); }
