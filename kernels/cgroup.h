/* cgroup.h: the limits that the control groups of this process set. */
#ifndef KERN_CGROUP_H
#define KERN_CGROUP_H

#include <stdbool.h>

/* What a group's folder grants, in any unit; 0: no limit there. unified: files as of version 2. */
typedef double kern_cgroup_fn(const char *folder, bool unified);

/* The least that the groups of this process, and all above them, grant; 0: no limit. `controller`
 * as /proc/self/cgroup names it ("cpu", "memory"). */
double kern_cgroup_least(const char *controller, kern_cgroup_fn *grant);

/* The first two words of a folder's file, as numbers; "max" and what is missing give 0. */
void kern_cgroup_read(const char *folder, const char *file, double out[2]);

#endif
