/* gpu.h: the language that kernels are written in: CUDA C++ plus the few names below, which stand
 * for what cannot be compiled by a host compiler (launches, shared memory, PTX). Under nvcc each is
 * the plain thing; with LLMLUA_EMULATION the same sources run on the CPU (emulation/emulation.h),
 * where a warp's collective operations and barriers are checked. Everything else is used by its
 * CUDA name: threadIdx, blockIdx, blockDim, gridDim, __syncthreads, __syncwarp, __shfl_*_sync,
 * __ballot_sync, __any_sync, __all_sync, __popc, __clz, __ffs, __dp4a, __byte_perm, __ldg,
 * __float_as_int & co., __fmaf_rn, __fmul_rn, __fadd_rn, __dmul_rn …, __expf, atomicAdd, atomicMax,
 * atomicCAS, __threadfence, uint4, float4, make_uint4 ….
 *
 * Rules of kernels: no pointer into shared memory but gpu_shared<T>; no warpSize arithmetic but 32;
 * every thread of a block reaches each __syncthreads; masks of warp operations name exactly the
 * lanes that come. Sums run in an order that the shape alone decides. */
#ifndef CUDA_GPU_H
#define CUDA_GPU_H

#include "cuda.h"
#include <stdint.h>

#ifdef LLMLUA_EMULATION
#include "emulation/emulation.h"
#else
#include <cuda_runtime.h>
#include <math.h>

#define GPU_KERNEL                         static __global__ void
/* At most `threads` a block, and registers few enough for `blocks` of them on a multiprocessor. */
#define GPU_KERNEL_BOUNDS(threads, blocks) static __global__ void __launch_bounds__(threads, blocks)
#define GPU_INLINE                         static __device__ __forceinline__
#define GPU_CONSTANT                       static __device__ __constant__ const
#define GPU_UNROLL                         _Pragma("unroll")
#define GPU_UNROLL_2                       _Pragma("unroll 2")
#define GPU_NO_UNROLL                      _Pragma("unroll 1")
#define GPU_PRAGMA(text)                   _Pragma(#text)
#define GPU_UNROLL_BY(n)                   GPU_PRAGMA(unroll n) /* n: a constant's name */

/* Starts a kernel on the device's stream; counts it. `kernel` is a name, or (name<…>) in
 * parentheses. Failure shows in cuda_launched(). grid and block are dim3 or numbers. */
#define GPU_LAUNCH(device, kernel, grid, block, shared_bytes, ...)                                 \
    do {                                                                                           \
        auto *gpu_function = kernel;                                                               \
        cuda_select(device);                                                                       \
        gpu_function<<<grid, block, shared_bytes, (device)->stream>>>(__VA_ARGS__);                \
        (device)->stats.launches++;                                                                \
    } while (0)

/* Lets a kernel have more than 48 KB of dynamic shared memory. */
#define GPU_ALLOW_SHARED(kernel, bytes)                                                            \
    do {                                                                                           \
        auto *gpu_function = kernel;                                                               \
        (void)cudaFuncSetAttribute((const void *)gpu_function,                                     \
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes));     \
    } while (0)

/* A pointer into shared memory: indexed, added to, compared; `gpu_shared_as<U>(p)` sees it as
 * another type. */
template <typename T> using gpu_shared = T *;
template <typename U, typename T> static __device__ __forceinline__ U *gpu_shared_as(T *p) {
    return reinterpret_cast<U *>(p);
}
/* name: gpu_shared<type> to `count` entries (a constant) of the block, 16-byte aligned */
#define GPU_SHARED(type, name, count)                                                              \
    __shared__ __align__(16) unsigned char name##_bytes[sizeof(type) * (count)];                   \
    gpu_shared<type> name = reinterpret_cast<type *>(name##_bytes)
/* name: gpu_shared<type> to the block's dynamic shared memory, 16-byte aligned */
#define GPU_DYNAMIC_SHARED(type, name)                                                             \
    extern __shared__ uint4 gpu_dynamic_bytes[];                                                   \
    gpu_shared<type> name = reinterpret_cast<type *>(gpu_dynamic_bytes)

/* 16 bytes of global memory that are read once (past L1); p is a multiple of 16 */
static __device__ __forceinline__ uint4 gpu_load_once(const void *p) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(p));
    return x;
}
/* 16 bytes of global memory that others read too; p is a multiple of 16 */
static __device__ __forceinline__ uint4 gpu_load(const void *p) {
    return *reinterpret_cast<const uint4 *>(p);
}

/* cp.async: 16 bytes global → shared, in groups; waits until at most `left` groups are under way.
 * Before sm_80 a plain copy. */
static __device__ __forceinline__ void gpu_copy_async(void *shared, const void *global) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(global)
                 : "memory");
#else
    *reinterpret_cast<uint4 *>(shared) = *reinterpret_cast<const uint4 *>(global);
#endif
}
static __device__ __forceinline__ void gpu_copy_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int left> static __device__ __forceinline__ void gpu_copy_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
#endif
}

/* ldmatrix.x4: four 8 × 8 matrices of 16-bit values from shared memory; lane l names row l % 8 of
 * matrix l / 8 (16 bytes, aligned). r[m] holds of matrix m row lane / 4, columns 2 (lane % 4), + 1.
 */
static __device__ __forceinline__ void gpu_ldmatrix_x4(uint32_t r[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)));
}

/* Whole-warp products d[16,8] += a[16,16] · b[16,8], f32 sums. With g = lane / 4, c = 2 (lane % 4):
 * a[0]: row g, columns c, c+1; a[1]: row g+8; a[2]: row g, columns c+8, c+9; a[3]: row g+8, those;
 * b[0]: rows c, c+1 of column g; b[1]: rows c+8, c+9; d[0], d[1]: row g, columns c, c+1; d[2],
 * d[3]: row g+8. bf16 needs sm_80; before it is made of plain multiplications. */
static __device__ __forceinline__ void gpu_mma_f16(float d[4], const uint32_t a[4],
                                                   const uint32_t b[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#endif
}
static __device__ __forceinline__ void gpu_mma_bf16(float d[4], const uint32_t a[4],
                                                    const uint32_t b[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    const int lane = (int)(threadIdx.x & 31), g = lane >> 2, c = 2 * (lane & 3);
    /* (row g, k) is in lane 4 g + k % 8 / 2, register k / 8 · 2; (k, column) likewise */
    _Pragma("unroll") for (int block = 0; block < 2; block++) {
        _Pragma("unroll 1") for (int from = 0; from < 4; from++) {
            const uint32_t a0 = __shfl_sync(~0u, a[2 * block], 4 * g + from);
            const uint32_t a1 = __shfl_sync(~0u, a[2 * block + 1], 4 * g + from);
            const uint32_t b0 = __shfl_sync(~0u, b[block], 4 * c + from);
            const uint32_t b1 = __shfl_sync(~0u, b[block], 4 * (c + 1) + from);
            _Pragma("unroll") for (int high = 0; high < 2; high++) {
                const uint32_t keep = high ? 0xFFFF0000u : 0x0000FFFFu, shift = high ? 0 : 16;
                const float x0 = __uint_as_float((a0 & keep) << shift);
                const float x1 = __uint_as_float((a1 & keep) << shift);
                const float y0 = __uint_as_float((b0 & keep) << shift);
                const float y1 = __uint_as_float((b1 & keep) << shift);
                d[0] += x0 * y0;
                d[1] += x0 * y1;
                d[2] += x1 * y0;
                d[3] += x1 * y1;
            }
        }
    }
#endif
}

/* Conversions of 16-bit numbers kept as their bits; round to nearest even. */
static __device__ __forceinline__ float gpu_f16_to_f32(uint16_t h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}
static __device__ __forceinline__ uint16_t gpu_f32_to_f16(float x) {
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
/* (x & mask) | bits, in one instruction where two of them are in registers */
static __device__ __forceinline__ uint32_t gpu_and_or(uint32_t x, uint32_t mask, uint32_t bits) {
    uint32_t y;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
    return y;
}
/* Pairs of f16 in 32 bits (low half first): a · b + c, and two f32 as a pair. */
static __device__ __forceinline__ uint32_t gpu_fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
#endif

/* What follows is the same for both. */
GPU_INLINE float gpu_bf16_to_f32(uint16_t h) { return __uint_as_float((uint32_t)h << 16); }
GPU_INLINE uint16_t gpu_f32_to_bf16(float x) { /* NaN stays NaN */
    const uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
GPU_INLINE uint32_t gpu_pack_f16(float low, float high) {
    return (uint32_t)gpu_f32_to_f16(low) | (uint32_t)gpu_f32_to_f16(high) << 16;
}
GPU_INLINE uint32_t gpu_pack_bf16(float low, float high) {
#if !defined(LLMLUA_EMULATION) && __CUDA_ARCH__ >= 800
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return (uint32_t)gpu_f32_to_bf16(low) | (uint32_t)gpu_f32_to_bf16(high) << 16;
#endif
}

/* x, as something the compiler knows nothing of: what is computed from it is computed there, not
 * kept in registers from an earlier time; a constant stays in its register. */
template <typename T> GPU_INLINE T gpu_anew(T x) {
    asm volatile("" : "+r"(x));
    return x;
}

/* Of all 32 lanes, in a fixed order; every lane gets it. */
GPU_INLINE float gpu_warp_sum(float x) {
    for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(~0u, x, step);
    return x;
}
GPU_INLINE float gpu_warp_max(float x) { /* of numbers; NaN loses */
    for (int step = 16; step > 0; step >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

#endif
