/* x86_ops.h: what the x86 tiers share besides row_ops.h: the rounding of activations, and f16 keys
 * and values. */
#ifndef KERN_CPU_X86_OPS_H
#define KERN_CPU_X86_OPS_H

#include "row_ops.h"

/* The largest of 8 non-negative floats, as their bits: a NaN or an infinity is above all others. */
V8_INLINE uint32_t largest_bits(__m256i v) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

/* The sums of the two halves of 32 int8. */
V8_INLINE void sum_halves(__m256i q, int32_t sums[2]) {
    __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
    __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    __m128i sum = _mm_hadd_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    sum = _mm_hadd_epi32(sum, sum);
    sums[0] = _mm_cvtsi128_si32(sum);
    sums[1] = _mm_extract_epi32(sum, 1);
}

static void quantise(const float *x, int64_t n, uint8_t *to, int32_t tile, int32_t i) {
    const __m256i absolute = _mm256_set1_epi32(0x7fffffff);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int64_t b = 0; b < n; b += 32, to += (size_t)tile * CPU_IN_BYTES) {
        __m256 v[4];
        __m256i most = _mm256_setzero_si256(), q[4];
        for (int j = 0; j < 4; j++) {
            v[j] = _mm256_loadu_ps(x + b + 8 * j);
            most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(v[j]), absolute));
        }
        uint32_t bits = largest_bits(most);
        const int finite = bits < 0x7f800000u;
        float largest, scale = 0.0f, d = 0.0f;
        memcpy(&largest, &bits, sizeof largest);
        if (finite && largest >= 1e-35f) {
            scale = 127.0f / largest;
            d = largest / 127.0f;
        }
        for (int j = 0; j < 4; j++)
            q[j] = _mm256_cvtps_epi32(_mm256_mul_ps(v[j], _mm256_set1_ps(scale)));
        __m256i bytes =
            _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        bytes = _mm256_permutevar8x32_epi32(bytes, order);
        if (!finite) {
            bytes = _mm256_setzero_si256();
            d = NAN;
        }
        _mm256_storeu_si256((__m256i *)(void *)to, bytes);
        int32_t sums[2];
        sum_halves(bytes, sums);
        put_record(to, tile, i, d, sums);
    }
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
    for (; i < n; i++) {
        uint16_t y = kern_f32_to_f16(x[i]);
        memcpy(h + 2 * (size_t)i, &y, sizeof y);
    }
}

#endif
