/* host_probe.c: what the machine is that the backends of the host's memory run on. */
#include "host.h"
#include "memory.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* "model name : …" of the first processor; processors of ARM are not named there. */
static void read_name(char *name, size_t name_bytes) {
    char line[256];
    snprintf(name, name_bytes, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(name, name_bytes, "%s", colon + 1 + strspn(colon + 1, " "));
        break;
    }
    fclose(file);
}

int host_probe(int index, kern_device_info *out, int *n_devices, char *message,
               size_t message_bytes) {
    *out = (kern_device_info){0};
    *n_devices = 1;
    if (index != 0) {
        snprintf(message, message_bytes, "device index %d: there is one device, 0", index);
        return KERN_DEVICE;
    }
    read_name(out->name, sizeof out->name);
    const long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    const size_t available = kern_memory_available();
    if (pages > 0 && bytes > 0) out->bytes = (uint64_t)pages * (uint64_t)bytes;
    out->bytes_free = available < out->bytes ? available : out->bytes;
    return KERN_OK;
}
