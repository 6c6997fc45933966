/* backends.c: the list of the backends built in. */
#include "kern.h"

#include <stddef.h>

const kern_backend *const kern_backends[] = {&kern_cpu, &kern_ref, NULL};
