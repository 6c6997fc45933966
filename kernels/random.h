/* random.h: weights of no model, to measure speed with. */
#ifndef KERN_RANDOM_H
#define KERN_RANDOM_H

#include "formats.h"

#define KERN_RANDOM_RMS                                                                            \
    0.02 /* as of trained weights: activations stay finite through many layers */

/* Writes n values (whole blocks of the format) of mean about 0 and that root mean square; the same
 * for the same seed. Block scales are all alike. */
void kern_random_blocks(const kern_format *, uint64_t seed, void *to, int64_t n);

#endif
