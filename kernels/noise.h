/* noise.h: random numbers that are a function of their name. Philox4x32-10 (Salmon et al.,
 * "Parallel random numbers: as easy as 1, 2, 3", SC 2011) with the 64-bit seed as key and the
 * counter (v / 4, position, stream low, stream high); word v % 4 belongs to v. */
#ifndef KERN_NOISE_H
#define KERN_NOISE_H

#include "kern.h"
#include <stdint.h>

/* The four words of one counter. */
void kern_philox(uint64_t seed, const uint32_t counter[4], uint32_t out[4]);

/* min((x + ½) / 2³², 1 − 2⁻²⁴) of the word of v: in (0, 1). */
double kern_uniform(kern_key key, uint32_t v);

#define NOISE_LOG_LEAST UINT64_C(0x3FE6A09E667F3BCD) /* the bits of sqrt(1/2) */
#define NOISE_LN_2      0.693147180559945309
#define NOISE_LOG_TERMS                                                                            \
    { 2.0 / 3, 2.0 / 5, 2.0 / 7, 2.0 / 9, 2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19 }

/* The noise of a word already drawn. It falls as the word grows. Elementary arithmetic alone, so
 * that every tier and device makes the same bits. */
float kern_word_gumbel(uint32_t word);

/* −ln(−ln1p(−u)) of that u, rounded to f32: Gumbel noise, never infinite. */
float kern_gumbel(kern_key key, uint32_t v);

#endif
