/* lanes_avx2.h: the lanes of the AVX2 and the AVX-VNNI tier: 8, half a strip. See lanes.h. */
#ifndef KERN_CPU_LANES_AVX2_H
#define KERN_CPU_LANES_AVX2_H

#include <immintrin.h>

#ifdef __AVXVNNI__
enum { LANES = 8, LANES_UNSIGNED = 1 };
#else
enum { LANES = 8, LANES_UNSIGNED = 0 };
#endif
typedef __m256i lane_i;
typedef __m256 lane_f;
#define LANES_TILES(X) X(1) X(2) X(4) X(6)

LANES_INLINE lane_i lane_load(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
LANES_INLINE lane_i lane_bytes(const uint8_t x) { return _mm256_set1_epi8((char)x); }
LANES_INLINE lane_i lane_and(lane_i a, lane_i b) { return _mm256_and_si256(a, b); }
LANES_INLINE lane_i lane_or(lane_i a, lane_i b) { return _mm256_or_si256(a, b); }
LANES_INLINE lane_i lane_xor(lane_i a, lane_i b) { return _mm256_xor_si256(a, b); }
LANES_INLINE lane_i lane_right(lane_i a, const int n) { return _mm256_srli_epi32(a, n); }
LANES_INLINE lane_i lane_left(lane_i a, const int n) { return _mm256_slli_epi32(a, n); }
LANES_INLINE lane_i lane_levels(lane_i v) {
    const __m128i levels = _mm_loadu_si128((const __m128i *)(const void *)format_iq4_levels);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(levels), v);
}
LANES_INLINE lane_i lane_all(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm256_set1_epi32(x);
}

LANES_INLINE lane_f lane_zero(void) { return _mm256_setzero_ps(); }
LANES_INLINE lane_f lane_all_f(const void *p) { return _mm256_broadcast_ss((const float *)p); }
LANES_INLINE lane_f lane_load_f(const void *p) { return _mm256_loadu_ps((const float *)p); }
LANES_INLINE void lane_store_f(float *p, lane_f v) { _mm256_storeu_ps(p, v); }
LANES_INLINE lane_f lane_add(lane_f a, lane_f b) { return _mm256_add_ps(a, b); }
LANES_INLINE lane_f lane_mul(lane_f a, lane_f b) { return _mm256_mul_ps(a, b); }
LANES_INLINE lane_f lane_fma(lane_f a, lane_f b, lane_f c) { return _mm256_fmadd_ps(a, b, c); }
LANES_INLINE lane_f lane_fnma(lane_f a, lane_f b, lane_f c) { return _mm256_fnmadd_ps(a, b, c); }
LANES_INLINE lane_f lane_to_f(lane_i v) { return _mm256_cvtepi32_ps(v); }
LANES_INLINE lane_f lane_as_f(lane_i v) { return _mm256_castsi256_ps(v); }
LANES_INLINE lane_f lane_halves(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
LANES_INLINE lane_f lane_int8(const uint8_t *p) {
    return lane_to_f(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

#ifdef __AVXVNNI__
LANES_INLINE lane_i lane_dots(const int most, const lane_i *w, const int8_t *x, const int n,
                              lane_i sum) {
    (void)most;
    LANES_UNROLL
    for (int g = 0; g < n; g++) sum = _mm256_dpbusd_avx_epi32(sum, w[g], lane_all(x + 4 * g));
    return sum;
}
#else
#define LANES_WIDE
/* Products of bytes added in pairs to 16 bits; signed: |w| · (x with the sign of w), |−128| is 128
 */
LANES_INLINE lane_i lane_pairs(const int most, lane_i w, lane_i x) {
    if (most >= 0) return _mm256_maddubs_epi16(w, x);
    return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
}
LANES_INLINE lane_i lane_add_pairs(lane_i a, lane_i b) { return _mm256_add_epi16(a, b); }
LANES_INLINE lane_i lane_widen(lane_i pairs, lane_i sum) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
/* Nothing: but the compiler leaves the order of additions, and so the registers they need. */
LANES_INLINE void lane_keep(lane_i *v) { __asm__("" : "+x"(*v)); }

/* Products of bytes are added in pairs to 16 bits; as many pairs as cannot overflow are added
 * there. |x| ≤ 127. */
LANES_INLINE lane_i lane_dots(const int most, const lane_i *w, const int8_t *x, const int n,
                              lane_i sum) {
    const __m256i ones = _mm256_set1_epi16(1);
    if (most < 0) { /* signed: |w| · (x with the sign of w); |−128| is 128 */
        LANES_UNROLL
        for (int g = 0; g < n; g++) {
            const __m256i y = _mm256_sign_epi8(lane_all(x + 4 * g), w[g]);
            const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w[g]), y);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
        }
        return sum;
    }
    int fits = most <= 15 ? 8 : most <= 31 ? 4 : 2; /* 2 · 127 · most · fits < 32768 */
    if (fits > n) fits = n;
    LANES_UNROLL
    for (int g = 0; g < n; g += fits) {
        __m256i pairs = _mm256_maddubs_epi16(w[g], lane_all(x + 4 * g));
        LANES_UNROLL
        for (int i = 1; i < fits; i++)
            pairs =
                _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[g + i], lane_all(x + 4 * (g + i))));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
    return sum;
}
#endif

#endif
