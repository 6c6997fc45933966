/* tier_avx2.c: the AVX2 + FMA + F16C tier: its table, and the rounding of activations. */
#include "row_ops.h"

/* The largest of 8 non-negative floats, as their bits: a NaN or an infinity is above all others. */
V8_INLINE uint32_t largest_bits(__m256i v) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

static void quantise(const float *x, int64_t n, const cpu_q8 *to, int64_t row) {
    int8_t *q = cpu_q8_q(to, row);
    float *d = cpu_q8_d(to, row), *s = cpu_q8_s(to, row);
    int16_t *sums = cpu_q8_sums(to, row);
    const __m256i absolute = _mm256_set1_epi32(0x7fffffff);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    int64_t n_blocks = n / 32, n_padded = to->n_padded / 32;
    for (int64_t b = 0; b < n_blocks; b++) {
        __m256 v[4];
        __m256i most = _mm256_setzero_si256();
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + 32 * b + 8 * i);
            most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(v[i]), absolute));
        }
        uint32_t bits = largest_bits(most);
        float largest, scale = 0.0f;
        memcpy(&largest, &bits, sizeof largest);
        int finite = bits < 0x7f800000u;
        d[b] = 0.0f;
        if (finite && largest >= 1e-35f) {
            scale = 127.0f / largest;
            d[b] = largest / 127.0f;
        }
        __m256i i32[4];
        for (int i = 0; i < 4; i++)
            i32[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(scale)));
        __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(i32[0], i32[1]),
                                            _mm256_packs_epi32(i32[2], i32[3]));
        packed = _mm256_permutevar8x32_epi32(packed, order);
        if (!finite) packed = _mm256_setzero_si256();
        _mm256_storeu_si256((__m256i *)(void *)(q + 32 * b), packed);
        __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), packed);
        __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        __m128i low = _mm256_castsi256_si128(fours), high = _mm256_extracti128_si256(fours, 1);
        __m128i sum = _mm_hadd_epi32(low, high); /* two of each half */
        sum = _mm_hadd_epi32(sum, sum);
        int32_t a = _mm_cvtsi128_si32(sum), c = _mm_extract_epi32(sum, 1);
        sums[2 * b] = (int16_t)a;
        sums[2 * b + 1] = (int16_t)c;
        if (!finite) d[b] = NAN;
        s[b] = d[b] * (float)(a + c);
    }
    if (n_blocks == n_padded) return;
    memset(q + 32 * n_blocks, 0, (size_t)(n_padded - n_blocks) * 32);
    for (int64_t b = n_blocks; b < n_padded; b++) {
        d[b] = s[b] = 0.0f;
        sums[2 * b] = sums[2 * b + 1] = 0;
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

const cpu_tier cpu_tier_avx2 = {
    .tier = KERN_TIER_AVX2,
    .product = cpu_product_avx2,
    .quantise = quantise,
    .norm_rms = norm_rms,
    .norm_layer = norm_layer,
    .add = row_add,
    .silu_mul = silu_mul,
    .gelu_mul = gelu_mul,
    .rope = row_rope,
    .kv_store = kv_store,
    .attend_chunk = attend_chunk,
    .attend_fold = attend_fold,
    .attend_finish = attend_finish,
};
