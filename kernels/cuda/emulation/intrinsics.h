/* intrinsics.h: the arithmetic that CUDA has and C++ has not, by its CUDA name. Exact ones give the
 * same bits as a GPU; fast approximations (__expf …) are the exact functions here. */
#ifndef EMULATION_INTRINSICS_H
#define EMULATION_INTRINSICS_H

#include "vectors.h"
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* ---- bits ---- */

template <typename To, typename From> static inline To emu_bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &x, sizeof to);
    return to;
}
static inline int __float_as_int(float x) { return emu_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return emu_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return emu_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return emu_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return emu_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return emu_bits<double>(x); }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
/* byte i of the result: byte s & 7 of b:a (a low), or its sign if s & 8; s: nibble i */
static inline __attribute__((always_inline)) unsigned __byte_perm(unsigned a, unsigned b,
                                                                  unsigned selector) {
    const uint64_t both = (uint64_t)b << 32 | a;
    unsigned y = 0;
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
        const unsigned s = selector >> (4 * i) & 15u;
        const unsigned byte = (unsigned)(both >> (8 * (s & 7))) & 255u;
        y |= (s & 8 ? -(byte >> 7) & 255u : byte) << (8 * i);
    }
    return y;
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((uint64_t)a * b >> 32);
}

/* c + Σ of the products of four bytes; a and b both signed, or both not */
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int8_t)(a >> (8 * i)) * (int8_t)(b >> (8 * i));
    return c;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; i++) c += (a >> (8 * i) & 255u) * (b >> (8 * i) & 255u);
    return c;
}
/* ---- floats ---- */

/* Never contracted to fma (the emulation is compiled with -ffp-contract=off). */
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
static inline void sincospif(float x, float *sine, float *cosine) {
    *sine = (float)sin((double)x * M_PI);
    *cosine = (float)cos((double)x * M_PI);
}
/* glibc declares this name for itself */
#define __expf(x) expf(x)

/* To the nearest integer, even at half; out of range saturates, NaN is 0. */
static inline int __float2int_rn(float x) {
    const double near = rint((double)x);
    return near >= 2147483647.0 ? INT_MAX : near >= -2147483648.0 ? (int)near : x < 0 ? INT_MIN : 0;
}
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __double2float_rn(double x) { return (float)x; }

#define EMU_MIN_MAX(type)                                                                          \
    static inline type min(type a, type b) { return b < a ? b : a; }                               \
    static inline type max(type a, type b) { return a < b ? b : a; }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
#undef EMU_MIN_MAX
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

/* ---- 16-bit floats ---- */

/* Without branches, so that loops of it vectorise. Scaling by 2^112 moves f16's exponents to
 * f32's places, denormals included. */
static inline float emu_f16_to_f32(uint16_t h) {
    const uint32_t magnitude = h & 0x7FFFu, sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t finite = emu_bits<uint32_t>(emu_bits<float>(magnitude << 13) * 0x1p112f);
    const uint32_t special = 0x7F800000u | magnitude << 13; /* infinity, NaN */
    return emu_bits<float>(sign | (magnitude >= 0x7C00u ? special : finite));
}
/* Rounds to nearest even; too large is infinity, NaN stays NaN. */
static inline uint16_t emu_f32_to_f16(float x) {
    const uint32_t bits = emu_bits<uint32_t>(x), magnitude = bits & 0x7FFFFFFFu;
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    if (magnitude > 0x7F800000u) return (uint16_t)(sign | 0x7FFFu);
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7C00u); /* 65536 and more */
    if (magnitude < 0x38800000u) { /* denormal: in units of 2^-24, rounded by the addition */
        const float steps = emu_bits<float>(magnitude) * 0x1p24f + 0x1p23f;
        return (uint16_t)(sign | (emu_bits<uint32_t>(steps) - emu_bits<uint32_t>(0x1p23f)));
    }
    const uint32_t even = magnitude >> 13 & 1u;
    return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xFFFu + even) >> 13));
}

static inline uint16_t emu_f32_to_bf16(float x) {
    const uint32_t bits = emu_bits<uint32_t>(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

#endif
