/* cuda_device.h: an emulated GPU for a C test, with settings as the environment has them; or a real
 * one, where EMULATED is 0 (gpu_tests of cuda.cmake). */
#ifndef SPEC_CUDA_DEVICE_H
#define SPEC_CUDA_DEVICE_H

#include "../check.h"
#include "cuda.h"
#ifdef LLMLUA_EMULATION
#include "emulation/control.h"
#endif

#include <stdlib.h>
#include <string.h>

/* A setting of the emulation; NULL unsets it. Heard by the next device that is opened. */
#ifdef LLMLUA_EMULATION
enum { EMULATED = 1 };
static inline void emulated_set(const char *name, const char *value) {
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
    emulation_reset();
}
#else
enum { EMULATED = 0 };
static inline void emulated_set(const char *name, const char *value) { (void)name, (void)value; }
#endif

/* The emulation's costly checks are on, or LLMLUA_TEST_BRIEF: what takes minutes is left out. */
static inline bool is_brief(void) {
    const char *mode = EMULATED ? getenv("LLMLUA_EMULATION") : NULL;
    return getenv("LLMLUA_TEST_BRIEF") || (mode && strstr(mode, "check"));
}

/* The device, or NULL with the message of why there is none. */
static inline kern_device *emulated_try(const kern_device_options *options, char *message,
                                        size_t message_bytes) {
    return llmlua_backend()->open(options, message, message_bytes);
}

static inline kern_device *emulated_open(bool invariant) {
    char message[256] = "";
    kern_device *device =
        emulated_try(&(kern_device_options){.invariant = invariant}, message, sizeof message);
    if (!device) {
        fprintf(stderr, "no device: %s\n", message);
        abort();
    }
    return device;
}

static inline void emulated_close(kern_device *device) { device->backend->close(device); }

/* Bytes that follow a pattern, from a seed on. */
static inline unsigned char *emulated_bytes(size_t n, unsigned seed) {
    unsigned char *bytes = malloc(n ? n : 1);
    if (!bytes) abort();
    for (size_t i = 0; i < n; i++) bytes[i] = (unsigned char)((i + seed) * 2654435761u >> 13);
    return bytes;
}

#endif
