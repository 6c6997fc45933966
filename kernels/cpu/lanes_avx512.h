/* lanes_avx512.h: the lanes of the AVX-512 VNNI tier: 16, a whole strip. See lanes.h. */
#ifndef KERN_CPU_LANES_AVX512_H
#define KERN_CPU_LANES_AVX512_H

#include <immintrin.h>

enum { LANES = 16, LANES_UNSIGNED = 1 };
#define LANES_PAIR_DOTS 1
typedef __m512i lane_i;
typedef __m512 lane_f;
#define LANES_TILES(X) X(1) X(2) X(4) X(6) X(8) X(12)

LANES_INLINE lane_i lane_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
LANES_INLINE lane_i lane_bytes(const uint8_t x) { return _mm512_set1_epi8((char)x); }
LANES_INLINE lane_i lane_and(lane_i a, lane_i b) { return _mm512_and_si512(a, b); }
LANES_INLINE lane_i lane_or(lane_i a, lane_i b) { return _mm512_or_si512(a, b); }
LANES_INLINE lane_i lane_xor(lane_i a, lane_i b) { return _mm512_xor_si512(a, b); }
LANES_INLINE lane_i lane_right(lane_i a, const int n) { return _mm512_srli_epi32(a, (unsigned)n); }
LANES_INLINE lane_i lane_left(lane_i a, const int n) { return _mm512_slli_epi32(a, (unsigned)n); }
LANES_INLINE lane_i lane_levels(lane_i v) {
    const __m128i levels = _mm_loadu_si128((const __m128i *)(const void *)format_iq4_levels);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(levels), v);
}
LANES_INLINE lane_i lane_all(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm512_set1_epi32(x);
}

LANES_INLINE lane_f lane_zero(void) { return _mm512_setzero_ps(); }
LANES_INLINE lane_f lane_all_f(const void *p) {
    float x;
    memcpy(&x, p, sizeof x);
    return _mm512_set1_ps(x);
}
LANES_INLINE lane_f lane_load_f(const void *p) { return _mm512_loadu_ps(p); }
LANES_INLINE void lane_store_f(float *p, lane_f v) { _mm512_storeu_ps(p, v); }
LANES_INLINE lane_f lane_add(lane_f a, lane_f b) { return _mm512_add_ps(a, b); }
LANES_INLINE lane_f lane_mul(lane_f a, lane_f b) { return _mm512_mul_ps(a, b); }
LANES_INLINE lane_f lane_fma(lane_f a, lane_f b, lane_f c) { return _mm512_fmadd_ps(a, b, c); }
LANES_INLINE lane_f lane_fnma(lane_f a, lane_f b, lane_f c) { return _mm512_fnmadd_ps(a, b, c); }
LANES_INLINE lane_f lane_to_f(lane_i v) { return _mm512_cvtepi32_ps(v); }
LANES_INLINE lane_f lane_as_f(lane_i v) { return _mm512_castsi512_ps(v); }
LANES_INLINE lane_f lane_halves(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
LANES_INLINE lane_f lane_int8(const uint8_t *p) {
    return lane_to_f(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

LANES_INLINE lane_f lane_pair_dots(lane_i w, lane_i x, lane_f sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
}

LANES_INLINE lane_i lane_dots(const int most, const lane_i *w, const int8_t *x, const int n,
                              lane_i sum) {
    (void)most;
    LANES_UNROLL
    for (int g = 0; g < n; g++) sum = _mm512_dpbusd_epi32(sum, w[g], lane_all(x + 4 * g));
    return sum;
}

#endif
