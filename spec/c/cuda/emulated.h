/* emulated.h: for tests of the emulation: a device with a stream, memory, and what was found. */
#ifndef SPEC_EMULATED_H
#define SPEC_EMULATED_H

#include "check.h"
#include "gpu.h"
#include <stdlib.h>

static kern_device gpu;
static char found[2048]; /* findings since the last look, one a line */

static void note_finding(void *data, const char *message) {
    (void)data;
    const size_t used = strlen(found);
    snprintf(found + used, sizeof found - used, "%s\n", message);
}

static void *gpu_memory(size_t bytes, const void *from = nullptr) {
    void *p = nullptr;
    if (cudaMalloc(&p, bytes) != cudaSuccess) abort();
    if (from && cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice) != cudaSuccess) abort();
    return p;
}
static void gpu_read(void *to, const void *from, size_t bytes) {
    if (cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost) != cudaSuccess) abort();
}

static void emulated_begin(bool checking) {
    emulation_checking(checking);
    emulation_hook(note_finding, nullptr);
    if (cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking) != cudaSuccess) abort();
}

/* What runs finds something that tells of `words`; or, NULL, nothing. */
#define FINDS(words, ...)                                                                          \
    do {                                                                                           \
        found[0] = 0;                                                                              \
        __VA_ARGS__;                                                                               \
        (void)cudaStreamSynchronize(gpu.stream);                                                   \
        if (words)                                                                                 \
            CHECK(strstr(found, words ? words : ""), "not told: %s\n%s", words, found);            \
        else                                                                                       \
            CHECK(!found[0], "told of what is sound: %s", found);                                  \
    } while (0)
#define SOUND ((const char *)NULL)

#endif
