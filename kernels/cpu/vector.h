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
#elif defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi" /* every function here is inlined */
#endif

typedef float v8 __attribute__((vector_size(32)));
typedef int32_t v8i __attribute__((vector_size(32)));

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

/* exp, to about 1e-7 relative: 0 below −87.3, 2.4e38 above 88.37; exp(0) is 1, a NaN stays one. The
 * polynomial is that of Cephes (Moshier) on [−ln2 / 2, ln2 / 2]. */
V8_INLINE v8 v8_exp(v8 x) {
    const v8 low = v8_set(-87.3f), high = v8_set(88.37f), magic = v8_set(12582912.0f);
    v8i under = x < low;
    x = v8_select(under, low, x);
    x = v8_select(x > high, high, x);
    v8 t = v8_fma(x, v8_set(1.44269504088896341f), magic); /* its low bits are the integer n */
    v8 n = t - magic;
    v8 r = v8_fma(n, v8_set(-0.693359375f), x);
    r = v8_fma(n, v8_set(2.12194440e-4f), r);
    v8 p = v8_set(1.9875691500e-4f);
    p = v8_fma(p, r, v8_set(1.3981999507e-3f));
    p = v8_fma(p, r, v8_set(8.3334519073e-3f));
    p = v8_fma(p, r, v8_set(4.1665795894e-2f));
    p = v8_fma(p, r, v8_set(1.6666665459e-1f));
    p = v8_fma(p, r, v8_set(5.0000001201e-1f));
    p = v8_fma(p, r * r, r) + v8_set(1.0f);
    v8i power = ((v8i)t - (v8i)magic + 127) << 23;
    p = p * (v8)power;
    return (v8)(~under & (v8i)p);
}

#endif
