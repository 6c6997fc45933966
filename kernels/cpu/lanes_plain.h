/* lanes_plain.h: the lanes of the plain tier, and of any processor whose compiler makes vectors of
 * four. See lanes.h. */
#ifndef KERN_CPU_LANES_PLAIN_H
#define KERN_CPU_LANES_PLAIN_H

#include "lanes_four.h"

#define LANES_TILES(X) X(1) X(4)

LANES_INLINE lane_i lane_levels(lane_i v) {
    uint8_t bytes[sizeof v];
    memcpy(bytes, &v, sizeof v);
    for (size_t i = 0; i < sizeof v; i++) bytes[i] = (uint8_t)format_iq4_levels[bytes[i]];
    memcpy(&v, bytes, sizeof v);
    return v;
}
LANES_INLINE lane_f lane_fma(lane_f a, lane_f b, lane_f c) { return a * b + c; }
LANES_INLINE lane_f lane_fnma(lane_f a, lane_f b, lane_f c) { return c - a * b; }
LANES_INLINE lane_f lane_halves(const uint8_t *p) { /* as format_half */
    const lane_u h = lane_words(p), moved = (h & 0x7fff) << 13;
    const lane_u special = (lane_u)((h & 0x7c00) == 0x7c00);
    const lane_f normal = (lane_f)moved * (lane_f){0x1p112f, 0x1p112f, 0x1p112f, 0x1p112f};
    const lane_u bits = ((lane_u)normal & ~special) | ((moved | 0x7f800000) & special);
    return (lane_f)(bits | (h & 0x8000) << 16);
}
LANES_INLINE lane_f lane_int8(const uint8_t *p) {
    const int8_t *q = (const int8_t *)p;
    return (lane_f){q[0], q[1], q[2], q[3]};
}

/* Byte i of every lane times x[i], as 16 bits in the lane's lower half: |w · x| < 2^15. */
LANES_INLINE lane_i lane_dots(const int most, const lane_i *w, const int8_t *x, const int n,
                              lane_i sum) {
    for (int g = 0; g < n; g++) {
        for (int i = 0; i < 4; i++) {
            const lane_i byte = lane_left(w[g], 24 - 8 * i);
            sum += (most < 0 ? byte >> 24 : lane_right(byte, 24)) * lane_set(x[4 * g + i]);
        }
    }
    return sum;
}

#endif
