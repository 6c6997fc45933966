/* lanes.h: the vector operations that the products of a tier are written in (strips.h); a file of a
 * tier gets those of the instructions it is compiled for. A lane is a row of a strip: LANES of the
 * CPU_STRIP rows are worked on together.
 *
 *   LANES_UNSIGNED     numbers of signed formats are made unsigned (+ 128) for lane_dots
 *   LANES_TILES(X)     the numbers of activation rows that there are kernels for, rising
 *   lane_dots(most, w, x, n, sum)  per lane sum + Σ w · x over n groups of 4 columns: bytes w[g] of
 *                      0 … most, or of −128 … 127 where most < 0; x[4n] of −127 … 127; exact
 *   lane_pair_dots(w, x, sum)  per lane sum + w[1] · x[1] + w[0] · x[0], pairs of bf16
 *   lane_halves, lane_int8  LANES numbers of f16, int8 as f32
 *   lane_first, lane_second  the numbers of pairs of bf16 as f32
 *   lane_all, lane_all_f  the 4 bytes at p in every lane */
#ifndef KERN_CPU_LANES_H
#define KERN_CPU_LANES_H

#include "../formats_internal.h"
#include <stdint.h>
#include <string.h>

#define LANES_INLINE static inline __attribute__((always_inline))
/* Loops over a tile are unrolled, so that its sums stay in registers. */
#define LANES_UNROLL _Pragma("GCC unroll 16")

#if defined(__AVX512VNNI__)
#include "lanes_avx512.h"
#elif defined(__AVX2__)
#include "lanes_avx2.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "lanes_neon.h"
#else
#include "lanes_plain.h"
#endif

LANES_INLINE lane_f lane_first(lane_i pairs) { return lane_as_f(lane_left(pairs, 16)); }
LANES_INLINE lane_f lane_second(lane_i pairs) {
    static const uint8_t upper[4] = {0, 0, 0xff, 0xff};
    return lane_as_f(lane_and(pairs, lane_all(upper)));
}
#ifndef LANES_PAIR_DOTS /* as the instruction of those that have it: the second numbers first */
enum { LANES_PAIR_DOTS = 0 };
LANES_INLINE lane_f lane_pair_dots(lane_i w, lane_i x, lane_f sum) {
    sum = lane_fma(lane_second(w), lane_second(x), sum);
    return lane_fma(lane_first(w), lane_first(x), sum);
}
#endif

#ifdef LLMLUA_FEW_TILES
#undef LANES_TILES
#define LANES_TILES(X) X(1) X(4)
#endif

#endif
