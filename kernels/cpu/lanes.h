/* lanes.h: the vector operations that the products of a tier are written in (strips.h); a file of a
 * tier gets those of the instructions it is compiled for. A lane is a row of a strip: LANES of the
 * CPU_STRIP rows are worked on together.
 *
 *   LANES_UNSIGNED     numbers of signed formats are made unsigned (+ 128) for lane_dots
 *   LANES_TILES(X)     the numbers of activation rows that there are kernels for, rising
 *   lane_dots(most, w, x, n, sum)  per lane sum + Σ w · x over n groups of 4 columns: bytes w[g] of
 *                      0 … most, or of −128 … 127 where most < 0; x[4n] of −127 … 127; exact
 *   lane_halves, lane_brains, lane_int8  LANES numbers of f16, bf16, int8 as f32
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

#ifdef LLMLUA_FEW_TILES
#undef LANES_TILES
#define LANES_TILES(X) X(1) X(4)
#endif

#endif
