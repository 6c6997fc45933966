/* tensor_rows_avx2.c: the row loops compiled for AVX2; three idioms are spelt out. */
#include <immintrin.h>

#define ROW_TABLE row_avx2
#define ROW_LARGER(a, b) _mm256_max_ps(a, b) /* b if either is NaN */
#define ROW_SMALLER(a, b) _mm256_min_ps(a, b)
#define ROW_LANES(mask) ((unsigned)_mm256_movemask_ps((__m256)(mask)))
#include "tensor_rows.inc"
