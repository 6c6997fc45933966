/* block.cpp: how a kernel runs: block after block; in a block each thread until it waits or ends.
 * A thread has a fiber (a stack) only from its first wait on: those that never wait all run on one.
 * Also barriers and the meeting of a warp's lanes. What lanes exchange: collective.cpp. */
#include "inside.h"
#include <stdlib.h>
#include <sys/mman.h>
#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
emu_place emu_now;
emu_order emu_order_kind;
uint64_t emu_order_seed, emu_launches;

/* ---- fibers ---- */

struct fiber {
    void *sp;
    unsigned char *stack; /* NULL: the host's thread */
    void *shadow;         /* of the sanitizer */
};

static const size_t stack_bytes = 256 << 10;
static const int most_threads = 1024;
static fiber host_fiber;
static std::vector<fiber *> &all_fibers = *new std::vector<fiber *>; /* for ever */
static std::vector<fiber *> free_fibers;
static fiber *running = &host_fiber;

static void fiber_main(void);

/* emu_switch(&from, to): keeps what a call keeps on the stack, swaps stacks, goes on there. The
 * jump (not a return) is predicted well: most threads wait at the same place. */
#if defined(__x86_64__)
extern "C" void emu_switch(void **from, void *to) __attribute__((visibility("hidden")));
asm(".text\n.globl emu_switch\n.hidden emu_switch\n.type emu_switch,@function\nemu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\n"
    "ret\n.size emu_switch,.-emu_switch\n");
static void *stack_begin(void **top) { /* top: aligned to 16 */
    *--top = nullptr;                  /* where main would return to */
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    return top;
}
#elif defined(__aarch64__)
extern "C" void emu_switch(void **from, void *to) __attribute__((visibility("hidden")));
asm(".text\n.globl emu_switch\n.hidden emu_switch\n.type emu_switch,@function\nemu_switch:\n"
    "stp x29, x30, [sp, #-160]!\nstp x19, x20, [sp, #16]\nstp x21, x22, [sp, #32]\n"
    "stp x23, x24, [sp, #48]\nstp x25, x26, [sp, #64]\nstp x27, x28, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\n"
    "stp d14, d15, [sp, #144]\nmov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp, #16]\nldp x21, x22, [sp, #32]\n"
    "ldp x23, x24, [sp, #48]\nldp x25, x26, [sp, #64]\nldp x27, x28, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\n"
    "ldp d14, d15, [sp, #144]\nldp x29, x30, [sp], #160\nret\n"
    ".size emu_switch,.-emu_switch\n");
static void *stack_begin(void **top) {
    top -= 20;
    for (int i = 0; i < 20; i++) top[i] = nullptr;
    top[1] = (void *)fiber_main; /* x30 */
    return top;
}
#else
#error "the emulation knows how to switch stacks on x86-64 and aarch64"
#endif

/* Tops of stacks differ in their place in a page, so that warps do not meet in one set of the
 * cache. */
static void **stack_top(const fiber *f) {
    const size_t i = (size_t)(f->stack - (unsigned char *)nullptr) / stack_bytes;
    return (void **)(f->stack + stack_bytes - (i * 704) % 4096 / 64 * 64);
}
static void fiber_reset(fiber *f) {
#ifdef EMU_ASAN
    ASAN_UNPOISON_MEMORY_REGION(f->stack, stack_bytes);
#endif
    f->shadow = nullptr;
    f->sp = stack_begin(stack_top(f));
}
static fiber *fiber_take(void) {
    if (free_fibers.empty()) {
        void *memory = mmap(nullptr, stack_bytes + 4096, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            fprintf(stderr, "emulation: no memory for a thread's stack\n");
            abort();
        }
        (void)mprotect(memory, 4096, PROT_NONE);
        fiber *f = new fiber{nullptr, (unsigned char *)memory + 4096, nullptr};
        all_fibers.push_back(f);
        fiber_reset(f);
        return f;
    }
    fiber *f = free_fibers.back();
    free_fibers.pop_back();
    return f;
}

#ifdef EMU_ASAN
static const void *host_bottom;
static size_t host_bytes;
static fiber *came_from;
static void arrived(void) {
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(running->shadow, &bottom, &bytes);
    if (came_from == &host_fiber) host_bottom = bottom, host_bytes = bytes;
}
static void switch_to(fiber *to) {
    fiber *from = running;
    running = to;
    came_from = from;
    __sanitizer_start_switch_fiber(&from->shadow, to->stack ? to->stack : host_bottom,
                                   to->stack ? stack_bytes : host_bytes);
    emu_switch(&from->sp, to->sp);
    arrived();
}
#else
static inline void arrived(void) {}
static inline void switch_to(fiber *to) {
    fiber *from = running;
    running = to;
    emu_switch(&from->sp, to->sp);
}
#endif
void *emu_stack_top(void) { return running->stack ? stack_top(running) : nullptr; }

/* ---- the block ---- */

/* Lanes that meet. */
struct meeting {
    emu_complete complete;
    uint32_t mask, arrived;
    int line;
};
struct warp {
    uint32_t runnable, exited;
    int n_meetings;
    meeting meetings[32];
    void *args[32];
    int lines[32]; /* where a lane waits at a barrier; 0: it does not */
};

static struct {
    const emu_kernel *kernel;
    unsigned n_threads, n_warps;
    uint32_t ready; /* warps with lanes that can run */
    unsigned n_at_barrier, n_exited;
    int line; /* of the barrier */
    bool dead;
    warp warps[32];
    fiber *fibers[most_threads]; /* of a thread that waits; NULL: not begun */
    uint3 shape;                 /* that indices were made for */
    uint3 indices[most_threads];
} block;
static uint64_t random_state;

static inline void make_current(unsigned thread) {
    emu_now.thread = thread;
    emu_now.warp = thread >> 5;
    emu_now.lane = thread & 31;
    threadIdx = block.indices[thread];
}

static unsigned any_bit(uint32_t mask) {
    unsigned n = (unsigned)(emu_random(&random_state) % (unsigned)__builtin_popcount(mask));
    while (n--) mask &= mask - 1;
    return (unsigned)__builtin_ctz(mask);
}
/* The thread that is to run next; -1: none can. */
static __attribute__((noinline)) int choose_any(void) {
    if (!block.ready) return -1;
    unsigned w = emu_now.warp;
    switch (emu_order_kind) {
    case EMU_FORWARD:
        if (!(block.ready >> w & 1)) w = (unsigned)__builtin_ctz(block.ready);
        return (int)(w * 32 + (unsigned)__builtin_ctz(block.warps[w].runnable));
    case EMU_REVERSE:
        if (!(block.ready >> w & 1)) w = 31u - (unsigned)__builtin_clz(block.ready);
        return (int)(w * 32 + 31u - (unsigned)__builtin_clz(block.warps[w].runnable));
    default: w = any_bit(block.ready); return (int)(w * 32 + any_bit(block.warps[w].runnable));
    }
}
/* Nearly always the next lane: told by a branch, the processor need not wait for the mask. */
static inline int choose(void) {
    const unsigned lane = emu_now.lane + 1;
    if (emu_order_kind == EMU_FORWARD && lane < 32 &&
        block.warps[emu_now.warp].runnable >> lane & 1)
        return (int)emu_now.thread + 1;
    return choose_any();
}

static inline void not_runnable(warp *w) {
    w->runnable &= ~(1u << emu_now.lane);
    if (!w->runnable) block.ready &= ~(1u << emu_now.warp);
}

static void all_runnable(void) {
    for (unsigned i = 0; i < block.n_warps; i++) {
        const unsigned left = block.n_threads - 32 * i;
        block.warps[i].runnable = left >= 32 ? ~0u : (1u << left) - 1;
        memset(block.warps[i].lines, 0, sizeof block.warps[i].lines);
    }
    block.ready = block.n_warps >= 32 ? ~0u : (1u << block.n_warps) - 1;
}

/* Nobody can run, and some have not ended: says who waits for whom. */
static void report_deadlock(void) {
    for (unsigned i = 0; i < block.n_warps; i++) {
        const warp *w = &block.warps[i];
        for (int m = 0; m < w->n_meetings; m++) {
            const meeting *p = &w->meetings[m];
            const uint32_t missing = p->mask & ~p->arrived;
            make_current(i * 32 + (unsigned)__builtin_ctz(p->arrived));
            emu_found(cudaErrorLaunchFailure,
                      "lanes %08x wait at line %d with mask %08x for lanes %08x, which %s",
                      p->arrived, p->line, p->mask, missing,
                      missing & w->exited ? "have ended" : "wait elsewhere");
        }
        for (unsigned lane = 0; lane < 32; lane++) {
            if (!w->lines[lane]) continue;
            make_current(i * 32 + lane);
            emu_found(cudaErrorLaunchFailure,
                      "%u of %u threads wait at the barrier of line %d; %u have ended, others wait "
                      "elsewhere",
                      block.n_at_barrier, block.n_threads, w->lines[lane], block.n_exited);
            return;
        }
    }
}

void emu_abandon(void) {
    block.dead = true;
    switch_to(&host_fiber);
    abort(); /* such a fiber is never gone back to */
}

/* The thread that runs waits; another goes on. */
static inline void wait_here(void) {
    const unsigned me = emu_now.thread;
    block.fibers[me] = running;
    const int next = choose();
    if (next < 0) {
        report_deadlock();
        emu_abandon();
    }
    make_current((unsigned)next);
    fiber *to = block.fibers[next];
    block.fibers[next] = nullptr;
    switch_to(to ? to : fiber_take());
}

/* The thread that runs has ended. */
static void thread_ends(void) {
    warp *w = &block.warps[emu_now.warp];
    w->exited |= 1u << emu_now.lane;
    block.n_exited++;
    not_runnable(w);
}

static void fiber_main(void) {
    arrived();
    for (;;) {
        block.kernel->thread();
        thread_ends();
        const int next = choose();
        if (next < 0) {
            if (block.n_exited < block.n_threads) {
                report_deadlock();
                block.dead = true;
            } else {
                free_fibers.push_back(running);
            }
            switch_to(&host_fiber);
            continue;
        }
        make_current((unsigned)next);
        fiber *to = block.fibers[next];
        if (to) {
            block.fibers[next] = nullptr;
            free_fibers.push_back(running);
            switch_to(to);
        }
    }
}

void emu_barrier(int line) {
    warp *w = &block.warps[emu_now.warp];
    if (block.n_at_barrier == 0) block.line = line;
    if (block.line != line) {
        emu_found(cudaErrorLaunchFailure,
                  "waits at the barrier of line %d, others at that of line %d", line, block.line);
        emu_abandon();
    }
    if (++block.n_at_barrier < block.n_threads) {
        w->lines[emu_now.lane] = line;
        not_runnable(w);
        wait_here();
        return;
    }
    all_runnable();
    block.n_at_barrier = 0;
    if (emu_checking) emu_shared_barrier();
}

void emu_collect(emu_complete complete, uint32_t mask, int line, void *args) {
    warp *w = &block.warps[emu_now.warp];
    const uint32_t me = 1u << emu_now.lane;
    if (!(mask & me) || mask & w->exited) {
        emu_found(cudaErrorLaunchFailure, "mask %08x at line %d %s", mask, line,
                  mask & me ? "names lanes that have ended" : "does not name the lane itself");
        emu_abandon();
    }
    w->args[emu_now.lane] = args;
    int i = 0;
    meeting *p = w->meetings;
    while (i < w->n_meetings &&
           (p->mask != mask || p->line != line || p->complete != complete || p->arrived & me))
        i++, p++;
    if (i == w->n_meetings) {
        *p = {complete, mask, 0, line};
        w->n_meetings++;
    }
    p->arrived |= me;
    if (p->arrived != mask) {
        not_runnable(w);
        wait_here();
        return;
    }
    *p = w->meetings[--w->n_meetings];
    w->runnable |= mask;
    complete(mask, w->args);
}

/* ---- the grid ---- */

static void block_begin(void) {
    all_runnable();
    for (unsigned i = 0; i < block.n_warps; i++) {
        block.warps[i].exited = ~block.warps[i].runnable;
        block.warps[i].n_meetings = 0;
    }
    block.n_at_barrier = block.n_exited = 0;
    emu_now.block++;
    emu_shared_block();
}

static void index_threads(void) {
    const uint3 shape = {blockDim.x, blockDim.y, blockDim.z};
    if (memcmp(&shape, &block.shape, sizeof shape) == 0) return;
    block.shape = shape;
    for (unsigned i = 0; i < block.n_threads; i++)
        block.indices[i] = {i % shape.x, i / shape.x % shape.y, i / shape.x / shape.y};
}

/* In which order blocks run: entry i of 0 … n - 1. */
static std::vector<uint32_t> block_order(uint64_t n) {
    std::vector<uint32_t> order;
    if (emu_order_kind != EMU_SHUFFLED || n > UINT32_MAX) return order;
    for (uint64_t i = 0; i < n; i++) order.push_back((uint32_t)i);
    for (uint64_t i = n; i > 1; i--) std::swap(order[i - 1], order[emu_random(&random_state) % i]);
    return order;
}

void emu_run(const emu_kernel &kernel, size_t shared_most) {
    block.kernel = &kernel;
    block.dead = false;
    gridDim = kernel.grid;
    blockDim = kernel.block;
    block.n_threads = blockDim.x * blockDim.y * blockDim.z;
    block.n_warps = (block.n_threads + 31) / 32;
    emu_now.kernel = kernel.name;
    random_state = emu_order_seed + emu_launches;
    index_threads();
    emu_shared_launch(kernel.shared_bytes, shared_most);
    const uint64_t n = (uint64_t)gridDim.x * gridDim.y * gridDim.z;
    const std::vector<uint32_t> order = block_order(n);
    for (uint64_t at = 0; at < n && !block.dead; at++) {
        const uint64_t i = !order.empty()                  ? order[at]
                           : emu_order_kind == EMU_REVERSE ? n - 1 - at
                                                           : at;
        blockIdx = {(unsigned)(i % gridDim.x), (unsigned)(i / gridDim.x % gridDim.y),
                    (unsigned)(i / gridDim.x / gridDim.y)};
        block_begin();
        emu_now.warp = emu_order_kind == EMU_REVERSE ? block.n_warps - 1 : 0;
        make_current((unsigned)choose_any());
        switch_to(fiber_take());
    }
    if (block.dead) { /* stacks that nobody goes back to */
        memset(block.fibers, 0, sizeof block.fibers);
        free_fibers = all_fibers;
        for (fiber *f : all_fibers) fiber_reset(f);
    }
    emu_now.kernel = nullptr;
}
