/* emulation.h: the names of gpu.h for a host compiler: kernels run on the CPU, a thread of theirs
 * at a time. A thread runs until it waits (a barrier, a collective operation of its warp) or ends;
 * then another of its block runs (block.cpp). Blocks follow one another. What goes wrong is
 * reported as a finding (control.h) instead of being undefined. */
#ifndef EMULATION_EMULATION_H
#define EMULATION_EMULATION_H

#include "control.h"
#include "intrinsics.h"
#include <cuda_runtime_api.h>
#include <functional>
#include <stddef.h>
#include <stdio.h>
#include <tuple>
#include <type_traits>
#include <vector>

#pragma GCC visibility push(hidden)

extern uint3 threadIdx, blockIdx; /* of the thread that runs */
extern dim3 blockDim, gridDim;
extern bool emu_checking; /* the costly checks are on */

/* ---- launches: stream.cpp ---- */

/* A word of a kernel's arguments that may be an address. */
struct emu_word {
    uint64_t value;
    int argument; /* 1 … */
    bool pointer, writes;
};

struct emu_kernel {
    const char *name;
    const void *function;
    dim3 grid, block;
    size_t shared_bytes; /* dynamic */
    std::function<void()> thread;
    std::vector<emu_word> words; /* of the arguments; only while checking */
};
void emu_launch(cudaStream_t, emu_kernel &&);

template <typename T> void emu_words(std::vector<emu_word> &words, int argument, const T &x) {
    if constexpr (std::is_pointer_v<T>) {
        const bool writes = !std::is_const_v<std::remove_pointer_t<T>>;
        words.push_back({(uint64_t)(uintptr_t)x, argument, true, writes});
    } else if constexpr (std::is_class_v<T> && alignof(T) >= 8) {
        T bytes = x;
#if defined(__GNUC__) && !defined(__clang__)
        __builtin_clear_padding(&bytes); /* what was left there may look like an address */
#endif
        for (size_t at = 0; at + 8 <= sizeof x; at += 8) {
            uint64_t word;
            memcpy(&word, reinterpret_cast<const char *>(&bytes) + at, 8);
            words.push_back({word, argument, false, false});
        }
    }
}

template <typename... P, typename... A>
void emu_launch_call(cudaStream_t stream, const char *name, void (*f)(P...), dim3 grid, dim3 block,
                     size_t shared_bytes, A... a) {
    static_assert(sizeof...(P) == sizeof...(A), "as many arguments as the kernel has parameters");
    static_assert((std::is_trivially_copyable_v<P> && ...), "arguments are copied as bytes");
    static_assert((sizeof(P) + ... + 0) <= 4096, "a kernel has at most 4 KB of arguments");
    const std::tuple<P...> values(static_cast<P>(a)...);
    emu_kernel kernel{name, (const void *)f, grid, block, shared_bytes, {}, {}};
    kernel.thread = [f, values] { std::apply(f, values); };
    if (emu_checking) {
        int i = 0;
        std::apply([&](const auto &...x) { (emu_words(kernel.words, ++i, x), ...); }, values);
    }
    emu_launch(stream, std::move(kernel));
}

#define GPU_KERNEL                         static void
#define GPU_KERNEL_BOUNDS(threads, blocks) static void
#define GPU_INLINE                         static inline
#define GPU_CONSTANT                       static const
#define GPU_UNROLL
#define GPU_UNROLL_2
#define GPU_NO_UNROLL
#define GPU_UNROLL_BY(n) (void)n;

#define GPU_LAUNCH(device, kernel, grid, block, shared_bytes, ...)                                 \
    do {                                                                                           \
        auto *gpu_function = kernel;                                                               \
        emu_launch_call((device)->stream, #kernel, gpu_function, grid, block,                      \
                        (size_t)(shared_bytes), __VA_ARGS__);                                      \
        (device)->stats.launches++;                                                                \
    } while (0)
#define GPU_ALLOW_SHARED(kernel, bytes)                                                            \
    do {                                                                                           \
        auto *gpu_function = kernel;                                                               \
        (void)cudaFuncSetAttribute((const void *)gpu_function,                                     \
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes));     \
    } while (0)

#define __device__
#define __global__
#define __forceinline__  inline
#define __align__(bytes) alignas(bytes)
#define __launch_bounds__(...)

/* ---- shared memory: shadow.cpp ---- */

/* Where a GPU_SHARED lies in the block's shared memory. */
struct emu_site {
    uint64_t launch; /* the one it has a place in */
    unsigned char *at;
};
unsigned char *emu_shared_place(emu_site *, size_t bytes);
unsigned char *emu_shared_dynamic(void);
enum emu_access { EMU_READ, EMU_WRITE, EMU_ATOMIC, EMU_COPY };
void emu_shared_check(const void *, size_t bytes, int access);
static inline void emu_shared_access(const void *p, size_t bytes, int access) {
    if (__builtin_expect(emu_checking, 0)) emu_shared_check(p, bytes, access);
}

template <typename T> class gpu_shared;

/* An entry of shared memory: its reads and writes are seen. */
template <typename T> class emu_cell {
    using value = std::remove_const_t<T>;
    T *p;

  public:
    explicit emu_cell(T *at) : p(at) {}
    emu_cell(const emu_cell &) = default;
    operator value() const {
        emu_shared_access(p, sizeof(T), EMU_READ);
        return *p;
    }
    const emu_cell &operator=(const value &x) const {
        emu_shared_access(p, sizeof(T), EMU_WRITE);
        *p = x;
        return *this;
    }
    const emu_cell &operator=(const emu_cell &x) const { return *this = (value)x; }
    gpu_shared<T> operator&() const { return gpu_shared<T>(p); }
#define EMU_CELL_OPERATOR(op)                                                                      \
    template <typename U> const emu_cell &operator op##=(const U &x) const {                       \
        return *this = (value)((value) * this op x);                                               \
    }
    EMU_CELL_OPERATOR(+)
    EMU_CELL_OPERATOR(-)
    EMU_CELL_OPERATOR(*)
    EMU_CELL_OPERATOR(/)
    EMU_CELL_OPERATOR(&)
    EMU_CELL_OPERATOR(|)
    EMU_CELL_OPERATOR(^)
    EMU_CELL_OPERATOR(<<)
    EMU_CELL_OPERATOR(>>)
#undef EMU_CELL_OPERATOR
    value operator++(int) const {
        const value x = *this;
        *this = (value)(x + 1);
        return x;
    }
    const emu_cell &operator++() const { return *this += 1; }
};

template <typename T> class gpu_shared {
    T *p;

  public:
    gpu_shared() : p(nullptr) {}
    explicit gpu_shared(T *at) : p(at) {}
    template <typename U, typename = std::enable_if_t<std::is_same_v<const U, T>>>
    gpu_shared(gpu_shared<U> from) : p(from.raw()) {}
    T *raw() const { return p; } /* for the emulation itself */
    template <typename I> emu_cell<T> operator[](I i) const { return emu_cell<T>(p + i); }
    emu_cell<T> operator*() const { return emu_cell<T>(p); }
    template <typename I> gpu_shared operator+(I i) const { return gpu_shared(p + i); }
    template <typename I, typename = std::enable_if_t<std::is_convertible_v<I, long>>>
    gpu_shared operator-(I i) const {
        return gpu_shared(p - i);
    }
    ptrdiff_t operator-(gpu_shared other) const { return p - other.p; }
    template <typename I> gpu_shared &operator+=(I i) {
        p += i;
        return *this;
    }
    gpu_shared &operator++() { return *this += 1; }
    gpu_shared operator++(int) { return gpu_shared(p++); }
    bool operator==(gpu_shared other) const { return p == other.p; }
    bool operator!=(gpu_shared other) const { return p != other.p; }
};
template <typename U, typename T> static inline gpu_shared<U> gpu_shared_as(gpu_shared<T> p) {
    return gpu_shared<U>(reinterpret_cast<U *>(p.raw()));
}

#define GPU_SHARED(type, name, count)                                                              \
    static emu_site name##_site;                                                                   \
    gpu_shared<type> name(                                                                         \
        reinterpret_cast<type *>(emu_shared_place(&name##_site, sizeof(type) * (count))))
#define GPU_DYNAMIC_SHARED(type, name)                                                             \
    gpu_shared<type> name(reinterpret_cast<type *>(emu_shared_dynamic()))

/* ---- barriers, warps: block.cpp, collective.cpp ---- */

/* `line`: of the source, so that different barriers are told apart. */
#define EMU_LINE int line = __builtin_LINE()

void emu_barrier(int line);
static inline void __syncthreads(EMU_LINE) { emu_barrier(line); }

void emu_syncwarp(unsigned mask, int line);
static inline void __syncwarp(unsigned mask = ~0u, EMU_LINE) { emu_syncwarp(mask, line); }

enum emu_shuffle { EMU_INDEX, EMU_UP, EMU_DOWN, EMU_XOR };
uint64_t emu_shuffle_bits(emu_shuffle, unsigned mask, uint64_t bits, int by, int width, int line);
template <typename T>
static inline T emu_shuffle_value(emu_shuffle kind, unsigned mask, T x, int by, int width,
                                  int line) {
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof x);
    bits = emu_shuffle_bits(kind, mask, bits, by, width, line);
    memcpy(&x, &bits, sizeof x);
    return x;
}
#define EMU_SHUFFLE(type)                                                                          \
    static inline type __shfl_sync(unsigned mask, type x, int from, int width = 32, EMU_LINE) {    \
        return emu_shuffle_value(EMU_INDEX, mask, x, from, width, line);                           \
    }                                                                                              \
    static inline type __shfl_up_sync(unsigned mask, type x, unsigned by, int width = 32,          \
                                      EMU_LINE) {                                                  \
        return emu_shuffle_value(EMU_UP, mask, x, (int)by, width, line);                           \
    }                                                                                              \
    static inline type __shfl_down_sync(unsigned mask, type x, unsigned by, int width = 32,        \
                                        EMU_LINE) {                                                \
        return emu_shuffle_value(EMU_DOWN, mask, x, (int)by, width, line);                         \
    }                                                                                              \
    static inline type __shfl_xor_sync(unsigned mask, type x, int by, int width = 32, EMU_LINE) {  \
        return emu_shuffle_value(EMU_XOR, mask, x, by, width, line);                               \
    }
EMU_SHUFFLE(int)
EMU_SHUFFLE(unsigned)
EMU_SHUFFLE(float)
EMU_SHUFFLE(double)
EMU_SHUFFLE(long)
EMU_SHUFFLE(unsigned long)
EMU_SHUFFLE(long long)
EMU_SHUFFLE(unsigned long long)
#undef EMU_SHUFFLE

unsigned emu_ballot(unsigned mask, bool x, int line);
static inline unsigned __ballot_sync(unsigned mask, int x, EMU_LINE) {
    return emu_ballot(mask, x != 0, line);
}
static inline int __any_sync(unsigned mask, int x, EMU_LINE) {
    return emu_ballot(mask, x != 0, line) != 0;
}
static inline int __all_sync(unsigned mask, int x, EMU_LINE) {
    return emu_ballot(mask, x != 0, line) == mask;
}

[[noreturn]] void emu_trap(const char *why, const void *address);
static inline void __threadfence() {}
template <typename T> static inline T __ldg(const T *p) { return *p; }
template <typename T> static inline T __ldcg(const T *p) { return *p; }

/* ---- atomics: one thread runs at a time. On global memory, or on a gpu_shared. ---- */

template <typename T> using emu_same = typename std::common_type<T>::type; /* not deduced */
#define EMU_ATOMIC_OPERATION(name, expression)                                                     \
    template <typename T> static inline T name(T *p, emu_same<T> x) {                              \
        const T old = *p;                                                                          \
        *p = (T)(expression);                                                                      \
        return old;                                                                                \
    }                                                                                              \
    template <typename T> static inline T name(gpu_shared<T> p, emu_same<T> x) {                   \
        emu_shared_access(p.raw(), sizeof(T), EMU_ATOMIC);                                         \
        return name(p.raw(), x);                                                                   \
    }
EMU_ATOMIC_OPERATION(atomicAdd, old + x)
EMU_ATOMIC_OPERATION(atomicMax, old < x ? x : old)
EMU_ATOMIC_OPERATION(atomicMin, x < old ? x : old)
EMU_ATOMIC_OPERATION(atomicOr, old | x)
EMU_ATOMIC_OPERATION(atomicExch, x)
#undef EMU_ATOMIC_OPERATION
template <typename T> static inline T atomicCAS(T *p, emu_same<T> expected, emu_same<T> x) {
    const T old = *p;
    if (old == expected) *p = x;
    return old;
}
template <typename T>
static inline T atomicCAS(gpu_shared<T> p, emu_same<T> expected, emu_same<T> x) {
    emu_shared_access(p.raw(), sizeof(T), EMU_ATOMIC);
    return atomicCAS(p.raw(), expected, x);
}

/* ---- 16 bytes at once ---- */

static inline void emu_aligned(const void *p, const char *what) {
    if (__builtin_expect((uintptr_t)p & 15, 0)) emu_trap(what, p);
}
static inline uint4 gpu_load_once(const void *p) {
    emu_aligned(p, "gpu_load_once of a misaligned address");
    return *static_cast<const uint4 *>(p);
}
static inline uint4 gpu_load(const void *p) {
    emu_aligned(p, "gpu_load of a misaligned address");
    return *static_cast<const uint4 *>(p);
}

/* Copied at once; while checking not before gpu_copy_wait, as late as a GPU may. */
void emu_copy_async(void *shared, const void *global);
void emu_copy_commit(void);
void emu_copy_wait(int left);
template <typename T> static inline void gpu_copy_async(gpu_shared<T> shared, const void *global) {
    emu_aligned(shared.raw(), "gpu_copy_async to a misaligned address");
    emu_aligned(global, "gpu_copy_async from a misaligned address");
    if (__builtin_expect(emu_checking, 0))
        emu_copy_async((void *)shared.raw(), global);
    else
        *(uint4 *)(void *)shared.raw() = *static_cast<const uint4 *>(global);
}
static inline void gpu_copy_commit() {
    if (__builtin_expect(emu_checking, 0)) emu_copy_commit();
}
template <int left> static inline void gpu_copy_wait() {
    if (__builtin_expect(emu_checking, 0)) emu_copy_wait(left);
}

/* ---- matrices ---- */

void emu_ldmatrix_x4(uint32_t r[4], const void *row, int line);
template <typename T>
static inline void gpu_ldmatrix_x4(uint32_t r[4], gpu_shared<T> row, EMU_LINE) {
    emu_aligned(row.raw(), "ldmatrix of a misaligned address");
    emu_ldmatrix_x4(r, (const void *)row.raw(), line);
}
void emu_mma(bool bf16, float d[4], const uint32_t a[4], const uint32_t b[2], int line);
static inline void gpu_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2], EMU_LINE) {
    emu_mma(false, d, a, b, line);
}
static inline void gpu_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], EMU_LINE) {
    emu_mma(true, d, a, b, line);
}

/* ---- 16-bit floats ---- */

static inline float gpu_f16_to_f32(uint16_t h) { return emu_f16_to_f32(h); }
static inline uint16_t gpu_f32_to_f16(float x) { return emu_f32_to_f16(x); }
/* The product of two f16 is exact in f64, and its sum with a third close enough to be rounded to
 * odd first: so it is rounded once. */
static inline uint16_t emu_fma_f16(uint16_t a, uint16_t b, uint16_t c) {
    const double x = (double)emu_f16_to_f32(a) * (double)emu_f16_to_f32(b);
    const double sum = x + (double)emu_f16_to_f32(c);
    float near = (float)sum;
    if ((double)near != sum && sum == sum && !isinf(near)) { /* to odd: f16 then sees the rest */
        uint32_t bits = __float_as_uint(near);
        if (fabs((double)near) > fabs(sum)) bits--;
        near = __uint_as_float(bits | 1u);
    }
    return emu_f32_to_f16(near);
}
static inline uint32_t gpu_and_or(uint32_t x, uint32_t mask, uint32_t bits) {
    return (x & mask) | bits;
}
static inline uint32_t gpu_fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
    return (uint32_t)emu_fma_f16((uint16_t)a, (uint16_t)b, (uint16_t)c) |
           (uint32_t)emu_fma_f16((uint16_t)(a >> 16), (uint16_t)(b >> 16), (uint16_t)(c >> 16))
               << 16;
}

#pragma GCC visibility pop

#endif
