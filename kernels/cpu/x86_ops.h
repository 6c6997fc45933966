/* x86_ops.h: what the x86 tiers share besides row_ops.h: the rounding of activations, and f16 keys
 * and values. */
#ifndef KERN_CPU_X86_OPS_H
#define KERN_CPU_X86_OPS_H

#include "row_ops.h"

static inline float block_largest(const float *x) {
    /* as integers: a NaN or an infinity is above all others */
    __m256i most = _mm256_setzero_si256();
    for (int j = 0; j < 4; j++) {
        __m256i v = _mm256_castps_si256(_mm256_loadu_ps(x + 8 * j));
        most = _mm256_max_epi32(most, _mm256_and_si256(v, _mm256_set1_epi32(0x7fffffff)));
    }
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(m));
}

/* 32 numbers as bytes in their order, and the sums of the two halves. */
static inline void block_put(const __m256i v[4], int8_t *q, int32_t sums[2]) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, order);
    _mm256_storeu_si256((__m256i *)(void *)q, bytes);
    __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    __m128i sum = _mm_hadd_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    sum = _mm_hadd_epi32(sum, sum);
    sums[0] = _mm_cvtsi128_si32(sum);
    sums[1] = _mm_extract_epi32(sum, 1);
}

static inline void block_round(const float *x, float scale, int8_t *q, int32_t sums[2]) {
    __m256i v[4];
    for (int j = 0; j < 4; j++)
        v[j] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * j), _mm256_set1_ps(scale)));
    block_put(v, q, sums);
}

static inline void block_rest(const float *x, float scale, const int8_t *q, int8_t *rest,
                              int32_t sums[2]) {
    __m256i v[4];
    for (int j = 0; j < 4; j++) {
        const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)(q + 8 * j));
        const __m256 whole = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
        const __m256 y = _mm256_fmsub_ps(_mm256_loadu_ps(x + 8 * j), _mm256_set1_ps(scale), whole);
        v[j] = _mm256_cvtps_epi32(_mm256_mul_ps(y, _mm256_set1_ps(256.0f)));
        v[j] = _mm256_max_epi32(v[j], _mm256_set1_epi32(-127));
        v[j] = _mm256_min_epi32(v[j], _mm256_set1_epi32(127));
    }
    block_put(v, rest, sums);
}

static void kv_store(kern_kv type, const float *x, int32_t n, void *to) {
    if (type != KERN_KV_F16) {
        host_kv_store(type, x, n, to);
        return;
    }
    unsigned char *h = (unsigned char *)to;
    int32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(h + 2 * (size_t)i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    host_kv_store(type, x + i, n - i, h + 2 * (size_t)i);
}

#endif
