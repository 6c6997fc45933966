/* other_plugin.c: a plug-in of another version: its table begins as all do, and is shorter. */
#include "kern.h"

#include <stddef.h>

__attribute__((visibility("default"))) const kern_backend *llmlua_backend(void);

const kern_backend *llmlua_backend(void) {
    static const struct {
        uint32_t abi, size;
        const char *name;
    } table = {KERN_ABI + 1, 96, "cuda"};
    return (const kern_backend *)(const void *)&table;
}
