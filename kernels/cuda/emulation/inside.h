/* inside.h: what the emulation's files share. One lock (emu_lock) is held in every call of the
 * runtime and so while kernels run: there is one thread of the host at a time in here. */
#ifndef EMULATION_INSIDE_H
#define EMULATION_INSIDE_H

#include "emulation.h"
#include <mutex>
#include <string>

#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN 1
#endif
#endif

#pragma GCC visibility push(hidden)

/* ---- device.cpp: settings, errors, findings ---- */

struct emu_settings {
    int n_devices, compute, driver;
    size_t memory;  /* bytes of a device */
    uint64_t fault; /* the launch that fails; 0: none */
    bool late;
};
const emu_settings &emu_config(void); /* reads the environment at first use */
extern std::recursive_mutex emu_lock;
extern int emu_device; /* the current one */

/* Remembers an error for cudaGetLastError and gives it back; a sticky one stays for ever. */
cudaError_t emu_error(cudaError_t);
cudaError_t emu_sticky(cudaError_t);
cudaError_t emu_state(void); /* the sticky error, or what the driver lacks, or cudaSuccess */

/* Reports; where a kernel runs with its name, block and thread. The same finding at the same
 * place of a launch is told once. */
void emu_found(cudaError_t, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t emu_random(uint64_t *state);

/* Every call of the runtime begins so. */
#define EMU_CALL                                                                                   \
    std::lock_guard<std::recursive_mutex> emu_guard(emu_lock);                                     \
    if (emu_state() != cudaSuccess) return emu_state()

/* ---- block.cpp: running a kernel ---- */

enum emu_order { EMU_FORWARD, EMU_REVERSE, EMU_SHUFFLED };
extern emu_order emu_order_kind;
extern uint64_t emu_order_seed;

struct emu_place { /* of the thread that runs; kernel NULL: none does */
    const char *kernel;
    unsigned thread, warp, lane; /* in the block */
    uint64_t block;              /* counts all blocks ever run */
};
extern emu_place emu_now;
extern uint64_t emu_launches;

void emu_run(const emu_kernel &, size_t shared_most);
/* Ends the kernel from within the thread that runs. */
[[noreturn]] void emu_abandon(void);
/* Where the thread that runs can go on after its stack is lost. */
void *emu_stack_top(void);

/* Waits until all lanes of the mask have come with the same operation and line; the last calls
 * complete(mask, what each brought). */
typedef void (*emu_complete)(uint32_t mask, void *const args[32]);
void emu_collect(emu_complete, uint32_t mask, int line, void *args);

/* ---- shadow.cpp: shared memory ---- */

void emu_shared_launch(size_t dynamic_bytes, size_t most); /* a kernel begins */
void emu_shared_block(void);                               /* a block begins */
void emu_shared_barrier(void);                             /* all threads have met */
void emu_shared_sync(uint32_t mask);                       /* lanes of the current warp have met */

/* ---- memory.cpp, guard.cpp: memory and its guards ---- */

typedef std::vector<uint64_t> emu_clock; /* of each stream, how much of its work is known done */

enum emu_kind { EMU_DEVICE, EMU_PINNED };
struct emu_use { /* the last of a stream */
    int stream;
    uint64_t time;
    bool writes;
};
struct emu_memory {
    emu_kind kind;
    unsigned char *at;
    size_t bytes;
    int device;
    bool arena; /* guarded: only open while kernels and copies run */
    std::vector<emu_use> uses;
};
/* That holds this address (or, `before`, is the last to begin at or before it); NULL: none. */
emu_memory *emu_find_memory(const void *, bool before = false);
bool emu_guard_take(emu_memory *); /* false: no memory */
void emu_guard_give(const emu_memory &);
void emu_memory_open(void); /* nests */
void emu_memory_close(const char *who);
void emu_check_words(const emu_kernel &);

/* ---- stream.cpp ---- */

/* Work in a stream: what it does and, while checking, the memory it uses. */
struct emu_work {
    std::string name;
    std::function<void()> run;
    std::vector<emu_word> words;
};
cudaError_t emu_issue(cudaStream_t, emu_work &&);
bool emu_capturing(void);
/* For a call that CUDA forbids while capturing: such a capture is lost. */
cudaError_t emu_not_in_capture(void);
void emu_finish_all(void); /* all work put off is done */
/* The same, and the host knows that all is done. */
cudaError_t emu_finish_host(void);

#pragma GCC visibility pop

#endif
