/* vector.h: eight floats at a time, for loops that are written once and compiled for every tier.
 * Only the compiler's generic vectors are used; what a tier has instructions for is under its own
 * #if. */
#ifndef KERN_CPU_VECTOR_H
#define KERN_CPU_VECTOR_H

#include "../formats.h"
#include <stdint.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#elif defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi" /* every function here is inlined */
#endif

typedef float v8 __attribute__((vector_size(32)));
typedef int32_t v8i __attribute__((vector_size(32)));
typedef uint32_t v8u __attribute__((vector_size(32))); /* sums wrap */

#define V8_INLINE static inline __attribute__((always_inline))

V8_INLINE v8 v8_load(const float *p) {
    v8 v;
    memcpy(&v, p, sizeof v);
    return v;
}
V8_INLINE void v8_store(float *p, v8 v) { memcpy(p, &v, sizeof v); }
V8_INLINE v8 v8_set(float x) { return (v8){x, x, x, x, x, x, x, x}; }

/* The first n values (0 … 7), then zeros. */
V8_INLINE v8 v8_load_tail(const float *p, int64_t n) {
    v8 v = {0};
    memcpy(&v, p, (size_t)n * sizeof(float));
    return v;
}
V8_INLINE void v8_store_tail(float *p, v8 v, int64_t n) {
    memcpy(p, &v, (size_t)n * sizeof(float));
}

/* a where the mask is all ones, else b */
V8_INLINE v8 v8_select(v8i mask, v8 a, v8 b) { return (v8)((mask & (v8i)a) | (~mask & (v8i)b)); }

#ifdef __AVX2__
V8_INLINE v8 v8_fma(v8 a, v8 b, v8 c) {
    return (v8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
#else
V8_INLINE v8 v8_fma(v8 a, v8 b, v8 c) { return a * b + c; }
#endif

/* The larger; b where either is a NaN. */
V8_INLINE v8 v8_max(v8 a, v8 b) { return v8_select(a > b, a, b); }

/* Σ of the lanes: ((0+1)+(2+3)) + ((4+5)+(6+7)) */
V8_INLINE float v8_sum(v8 v) {
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

/* Lane i: v8_sum(v[i]). */
V8_INLINE v8 v8_sums(const v8 v[8]) {
#ifdef __AVX2__
    __m256 a = _mm256_hadd_ps(_mm256_hadd_ps((__m256)v[0], (__m256)v[1]),
                              _mm256_hadd_ps((__m256)v[2], (__m256)v[3]));
    __m256 b = _mm256_hadd_ps(_mm256_hadd_ps((__m256)v[4], (__m256)v[5]),
                              _mm256_hadd_ps((__m256)v[6], (__m256)v[7]));
    return (v8)_mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20),
                             _mm256_permute2f128_ps(a, b, 0x31));
#else
    return (v8){v8_sum(v[0]), v8_sum(v[1]), v8_sum(v[2]), v8_sum(v[3]),
                v8_sum(v[4]), v8_sum(v[5]), v8_sum(v[6]), v8_sum(v[7])};
#endif
}

/* exp of |r| up to ln2 / 2, the polynomial of Cephes (Moshier). */
#define EXP_FRACTION(type)                                                                         \
    V8_INLINE type type##_exp_fraction(type r) {                                                   \
        type p = type##_set(1.9875691500e-4f);                                                     \
        p = type##_fma(p, r, type##_set(1.3981999507e-3f));                                        \
        p = type##_fma(p, r, type##_set(8.3334519073e-3f));                                        \
        p = type##_fma(p, r, type##_set(4.1665795894e-2f));                                        \
        p = type##_fma(p, r, type##_set(1.6666665459e-1f));                                        \
        p = type##_fma(p, r, type##_set(5.0000001201e-1f));                                        \
        return type##_fma(p, r * r, r) + type##_set(1.0f);                                         \
    }
EXP_FRACTION(v8)

/* exp, to about 1e-7 relative: 0 below −87.3, 2.4e38 above 88.37; exp(0) is 1, a NaN stays one. */
V8_INLINE v8 v8_exp(v8 x) {
    const v8 low = v8_set(-87.3f), high = v8_set(88.37f), magic = v8_set(12582912.0f);
    v8i under = x < low;
    x = v8_select(under, low, x);
    x = v8_select(x > high, high, x);
    v8 t = v8_fma(x, v8_set(1.44269504088896341f), magic); /* its low bits are the integer n */
    v8 n = t - magic;
    v8 r = v8_fma(n, v8_set(-0.693359375f), x);
    r = v8_fma(n, v8_set(2.12194440e-4f), r);
    v8i power = (v8i)(((v8u)t << 23) + (127u << 23)); /* the bits of magic are shifted out */
    return (v8)(~under & (v8i)(v8_exp_fraction(r) * (v8)power));
}

/* Sixteen floats where the tier has such registers, four of NEON, else eight, for loops whose lanes
 * never meet: their results do not depend on the width. VX_REGISTERS is how many the tier has. */
#if defined(__AVX512F__) || defined(__ARM_FEATURE_DOTPROD)
#define VX_REGISTERS 32
#else
#define VX_REGISTERS 16
#endif

#ifdef __AVX512F__
enum { VX = 16 };
typedef float vx __attribute__((vector_size(64)));

V8_INLINE vx vx_set(float x) { return (vx)_mm512_set1_ps(x); }
V8_INLINE vx vx_fma(vx a, vx b, vx c) {
    return (vx)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
V8_INLINE vx vx_max(vx a, vx b) { return (vx)_mm512_max_ps((__m512)a, (__m512)b); }
V8_INLINE float vx_largest(vx v) { return _mm512_reduce_max_ps((__m512)v); }
V8_INLINE float vx_sum(vx v) { return _mm512_reduce_add_ps((__m512)v); }

/* Lanes from … to - 1 of v, and `other` in the rest. */
V8_INLINE vx vx_within(vx v, int32_t from, int32_t to, vx other) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __mmask16 seen = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(from)) &
                     _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(to));
    return (vx)_mm512_mask_blend_ps(seen, (__m512)other, (__m512)v);
}

/* As v8_exp, of x up to 0. */
V8_INLINE vx vx_exp(vx x) {
    __m512 v = (__m512)x;
    __mmask16 over = _mm512_cmp_ps_mask(v, _mm512_set1_ps(-87.3f), _CMP_NLT_UQ); /* and a NaN */
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(v, _mm512_set1_ps(1.44269504088896341f)), 8);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693359375f), v);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
    return (vx)_mm512_maskz_scalef_ps(over, p, n);
}
V8_INLINE vx vx_of_f16(const unsigned char *p) {
    return (vx)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
V8_INLINE vx vx_of_int8(const unsigned char *p) {
    return (vx)_mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
#elif defined(__ARM_FEATURE_DOTPROD)
enum { VX = 4 };
typedef float32x4_t vx;

V8_INLINE vx vx_set(float x) { return vdupq_n_f32(x); }
V8_INLINE vx vx_fma(vx a, vx b, vx c) { return vfmaq_f32(c, a, b); }
V8_INLINE vx vx_max(vx a, vx b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
V8_INLINE float vx_largest(vx v) { return vmaxvq_f32(v); }
V8_INLINE float vx_sum(vx v) { return vaddvq_f32(v); }

/* Lanes from … to - 1 of v, and `other` in the rest. */
V8_INLINE vx vx_within(vx v, int32_t from, int32_t to, vx other) {
    const int32x4_t lane = {0, 1, 2, 3};
    const uint32x4_t low = vcgeq_s32(lane, vdupq_n_s32(from));
    return vbslq_f32(vandq_u32(low, vcltq_s32(lane, vdupq_n_s32(to))), v, other);
}

/* As v8_exp, of x up to 0. */
EXP_FRACTION(vx)
V8_INLINE vx vx_exp(vx x) {
    const vx n = vrndnq_f32(x * vx_set(1.44269504088896341f));
    vx r = vx_fma(n, vx_set(-0.693359375f), x);
    r = vx_fma(n, vx_set(2.12194440e-4f), r);
    const int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
    const vx e = vx_exp_fraction(r) * vreinterpretq_f32_s32(power);
    return vbslq_f32(vcltq_f32(x, vx_set(-87.3f)), vx_set(0.0f), e);
}
V8_INLINE vx vx_of_f16(const unsigned char *p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
V8_INLINE vx vx_of_int8(const unsigned char *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    const int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}
#else
enum { VX = 8 };
typedef v8 vx;

V8_INLINE vx vx_set(float x) { return v8_set(x); }
V8_INLINE vx vx_fma(vx a, vx b, vx c) { return v8_fma(a, b, c); }
V8_INLINE float vx_sum(vx v) { return v8_sum(v); }

/* As v8_exp, of x up to 0. */
V8_INLINE vx vx_exp(vx x) {
    const v8 magic = v8_set(12582912.0f);
    const v8i under = x < v8_set(-87.3f);
    const v8 t = v8_fma(x, v8_set(1.44269504088896341f), magic), n = t - magic;
    v8 r = v8_fma(n, v8_set(-0.693359375f), x);
    r = v8_fma(n, v8_set(2.12194440e-4f), r);
    return (v8)(~under & (v8i)(v8_exp_fraction(r) * (v8)(((v8u)t << 23) + (127u << 23))));
}

/* Lanes from … to - 1 of v, and `other` in the rest. */
V8_INLINE vx vx_within(vx v, int32_t from, int32_t to, vx other) {
    const v8i lane = {0, 1, 2, 3, 4, 5, 6, 7};
    return v8_select((lane >= from) & (lane < to), v, other);
}
#ifdef __AVX2__
V8_INLINE vx vx_max(vx a, vx b) { return (vx)_mm256_max_ps((__m256)a, (__m256)b); }
V8_INLINE vx vx_of_f16(const unsigned char *p) {
    return (vx)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
V8_INLINE vx vx_of_int8(const unsigned char *p) {
    return (vx)_mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
#else
V8_INLINE vx vx_max(vx a, vx b) { return v8_max(a, b); }
V8_INLINE vx vx_of_int8(const unsigned char *p) {
    int8_t q __attribute__((vector_size(8)));
    memcpy(&q, p, sizeof q);
    return __builtin_convertvector(q, v8);
}
/* The exponent is moved by a product, which makes a number below the smallest normal one right too;
 * that of infinities and NaNs is set. */
V8_INLINE vx vx_of_f16(const unsigned char *p) {
    uint16_t h __attribute__((vector_size(16)));
    memcpy(&h, p, sizeof h);
    v8i bits = __builtin_convertvector(h, v8i), size = (bits & 0x7fff) << 13;
    v8i moved = (v8i)((v8)size * v8_set(0x1p112f));
    v8i special = size >= 0x0f800000;
    moved = (special & (size | 0x7f800000)) | (~special & moved);
    return (vx)(moved | (bits & 0x8000) << 16);
}
#endif
V8_INLINE float vx_largest(vx v) {
    float largest = v[0];
    for (int i = 1; i < VX; i++) largest = v[i] > largest ? v[i] : largest;
    return largest;
}
#endif

V8_INLINE vx vx_load(const float *p) {
    vx v;
    memcpy(&v, p, sizeof v);
    return v;
}
V8_INLINE void vx_store(float *p, vx v) { memcpy(p, &v, sizeof v); }

#endif
