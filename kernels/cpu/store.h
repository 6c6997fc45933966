/* store.h: what the cpu backend makes of a model's weights: the strips of all matrices that
 * products use (pack.h), in one piece of memory, and vectors as f32. Tables that are only looked up
 * stay where they are mapped. */
#ifndef KERN_CPU_STORE_H
#define KERN_CPU_STORE_H

#include "../host.h"

/* The backend's bind and unbind. */
int cpu_store_open(kern_device *, kern_binding *, kern_store **out);
void cpu_store_close(kern_device *, kern_store *);

#endif
