/* tensor_rows_avx2.c: the row loops compiled for AVX2; what compilers do not find is spelt out. */
#include <immintrin.h>

#define ROW_TABLE         row_avx2
#define ROW_LARGER(a, b)  _mm256_max_ps(a, b) /* b if either is NaN */
#define ROW_SMALLER(a, b) _mm256_min_ps(a, b)
#define ROW_LANES(mask)   ((unsigned)_mm256_movemask_ps((__m256)(mask)))
/* low and high halves of a · b, eight unsigned products */
#define ROW_MULTIPLY(a, b, low, high)                                                              \
    do {                                                                                           \
        const __m256i factor = _mm256_set1_epi32((int)(b));                                        \
        const __m256i even = _mm256_mul_epu32((__m256i)(a), factor);                               \
        const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)(a), 32), factor);         \
        low = (u32x8)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);                   \
        high = (u32x8)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);                  \
    } while (0)
#include "tensor_rows.inc"
