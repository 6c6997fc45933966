/* guard.cpp: device memory while checking. An allocation ends (but for its alignment) at a page
 * that cannot be touched, and can itself only be touched while kernels and copies run: their first
 * touch faults and opens it. Addresses are never used twice. Any other fault is told, and the
 * kernel ended. */
#include "inside.h"
#include <algorithm>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

static const size_t arena_bytes = (size_t)1 << 40, page = 4096, alignment = 256;
static unsigned char *arena, *arena_end; /* what is given out ends at arena_end */
static struct sigaction action_before;
static int n_open;
static std::vector<void *> opened; /* allocations that can be touched */

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
static bool in_arena(const void *p) {
    return arena && (const unsigned char *)p >= arena && (const unsigned char *)p < arena_end;
}
static unsigned char *first_page(const emu_memory &m) {
    return (unsigned char *)((uintptr_t)m.at / page * page);
}
static size_t mapped_bytes(const emu_memory &m) {
    return round_up((size_t)(m.at + m.bytes - first_page(m)), page);
}
static void allow(const emu_memory &m, bool yes) {
    (void)mprotect(first_page(m), mapped_bytes(m), yes ? PROT_READ | PROT_WRITE : PROT_NONE);
}
static void open_until_closed(const emu_memory &m) {
    allow(m, true);
    opened.push_back(m.at);
}
/* The guarded memory with this address in its pages, or NULL. */
static emu_memory *in_pages(const void *p) {
    emu_memory *m = emu_find_memory((const void *)((uintptr_t)p / page * page + page - 1), true);
    if (!m || !m->arena || (size_t)((const unsigned char *)p - first_page(*m)) >= mapped_bytes(*m))
        return nullptr;
    return m;
}

/* ---- faults ---- */

static void describe_fault(const void *p) {
    const emu_memory *before = emu_find_memory(p, true);
    const unsigned char *at = (const unsigned char *)p;
    if (!before || at - before->at > (ptrdiff_t)(before->bytes + 2 * page))
        emu_found(cudaErrorIllegalAddress, "accesses %p, where no memory is or it has been freed",
                  p);
    else
        emu_found(cudaErrorIllegalAddress, "accesses %p, byte %td of an allocation of %zu bytes", p,
                  at - before->at, before->bytes);
}
static void faulted(int signal, siginfo_t *info, void *context) {
    (void)signal;
    const void *p = info->si_addr;
    emu_memory *m = in_pages(p);
    if (m && n_open > 0 && std::find(opened.begin(), opened.end(), m->at) == opened.end()) {
        open_until_closed(*m);
        return;
    }
    if (emu_now.kernel) {
        describe_fault(p);
        auto *registers = &((ucontext_t *)context)->uc_mcontext; /* goes on in emu_abandon */
        const uintptr_t sp = ((uintptr_t)emu_stack_top() - 512) & ~(uintptr_t)15;
#if defined(__x86_64__)
        registers->gregs[REG_RIP] = (greg_t)(uintptr_t)emu_abandon;
        registers->gregs[REG_RSP] = (greg_t)(sp - 8);
#elif defined(__aarch64__)
        registers->pc = (uintptr_t)emu_abandon;
        registers->sp = sp;
#endif
        return;
    }
    if (m) {
        emu_found(cudaErrorIllegalAddress,
                  "the host touches device memory: %p, byte %td of an allocation of %zu bytes", p,
                  (const unsigned char *)p - m->at, m->bytes);
        open_until_closed(*m);
        return;
    }
    (void)sigaction(SIGSEGV, &action_before, nullptr); /* not ours: it faults again */
}

/* ---- allocations ---- */

static const unsigned char canary = 0xA5;

/* What lies in an allocation's pages besides it. */
template <typename F> static bool around(const emu_memory &m, F each) {
    unsigned char *first = first_page(m), *last = first + mapped_bytes(m), *end = m.at + m.bytes;
    return each(first, (size_t)(m.at - first)) && each(end, (size_t)(last - end));
}
static bool untouched(const unsigned char *p, size_t n) {
    while (n && *p == canary) p++, n--;
    return n == 0;
}

bool emu_guard_take(emu_memory *m) {
    if (!arena) {
        void *p = mmap(nullptr, arena_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                       -1, 0);
        if (p == MAP_FAILED) return false;
        arena = arena_end = (unsigned char *)p;
        struct sigaction action = {};
        action.sa_sigaction = faulted;
        action.sa_flags = SA_SIGINFO | SA_NODEFER;
        (void)sigaction(SIGSEGV, &action, &action_before);
    }
    const size_t mapped = round_up(m->bytes, page);
    if (mapped + page > arena_bytes - (size_t)(arena_end - arena)) return false;
    m->arena = true;
    m->at = arena_end + mapped - round_up(m->bytes, alignment);
    arena_end += mapped + page;
    allow(*m, true);
    memset(first_page(*m), canary, mapped);
    memset(m->at, 0xFF, m->bytes); /* undefined: NaN */
    allow(*m, false);
    return true;
}
void emu_guard_give(const emu_memory &m) {
    (void)madvise(first_page(m), mapped_bytes(m), MADV_DONTNEED);
    allow(m, false);
}
void emu_memory_open(void) { n_open++; }
void emu_memory_close(const char *who) {
    if (--n_open > 0) return;
    for (void *at : opened) {
        const emu_memory *m = emu_find_memory(at);
        if (!m) continue; /* it was freed */
        if (!around(*m, untouched)) {
            emu_found(cudaErrorIllegalAddress, "%s has written beside an allocation of %zu bytes",
                      who, m->bytes);
            around(*m, [](unsigned char *p, size_t n) { return memset(p, canary, n) != nullptr; });
        }
        allow(*m, false);
    }
    opened.clear();
}

/* ---- arguments ---- */

static bool is_mapped(uint64_t address) {
    unsigned char there;
    if (address < 65536 || address >> 47) return false;
    return mincore((void *)(uintptr_t)(address / page * page), 1, &there) == 0;
}
/* Below lies the shadow of the address sanitizer, where pairs of small numbers look mapped. */
#ifdef __SANITIZE_ADDRESS__
static const uint64_t least_address = UINT64_C(0x10007FFF8000);
#else
static const uint64_t least_address = 0;
#endif

void emu_check_words(const emu_kernel &kernel) {
    for (const emu_word &w : kernel.words) {
        const char *p = (const char *)(uintptr_t)w.value;
        const emu_memory *m = emu_find_memory(p);
        if (!m && p) m = emu_find_memory(p - 1); /* the end of one */
        if (m && m->kind == EMU_DEVICE && m->device != emu_device)
            emu_found(cudaErrorIllegalAddress, "%s: argument %d is memory of device %d, not %d",
                      kernel.name, w.argument, m->device, emu_device);
        if (m) continue;
        if (in_arena(p))
            emu_found(cudaErrorIllegalAddress, "%s: argument %d is device memory that was freed",
                      kernel.name, w.argument);
        else if (w.value >= least_address && is_mapped(w.value))
            emu_found(cudaErrorIllegalAddress, "%s: argument %d is an address of the host, %p",
                      kernel.name, w.argument, (const void *)p);
    }
}
