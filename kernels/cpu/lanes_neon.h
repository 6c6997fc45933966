/* lanes_neon.h: the lanes of the NEON tier, with the dot products of bytes of ARMv8.2. See lanes.h.
 */
#ifndef KERN_CPU_LANES_NEON_H
#define KERN_CPU_LANES_NEON_H

#include "lanes_four.h"
#include <arm_neon.h>

#define LANES_TILES(X) X(1) X(2) X(4) X(8)

LANES_INLINE lane_i lane_levels(lane_i v) {
    return (lane_i)vqtbl1q_s8(vld1q_s8(format_iq4_levels), (uint8x16_t)v);
}
LANES_INLINE lane_f lane_fma(lane_f a, lane_f b, lane_f c) { return vfmaq_f32(c, a, b); }
LANES_INLINE lane_f lane_fnma(lane_f a, lane_f b, lane_f c) { return vfmsq_f32(c, a, b); }
LANES_INLINE lane_f lane_halves(const uint8_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
LANES_INLINE lane_f lane_int8(const uint8_t *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    const int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}

/* Numbers of all formats fit signed bytes. */
LANES_INLINE lane_i lane_dots(const int most, const lane_i *w, const int8_t *x, const int n,
                              lane_i sum) {
    (void)most;
    LANES_UNROLL
    for (int g = 0; g < n; g += 4) {
        const int8x16_t y = vld1q_s8(x + 4 * g);
        sum = vdotq_laneq_s32(sum, (int8x16_t)w[g], y, 0);
        sum = vdotq_laneq_s32(sum, (int8x16_t)w[g + 1], y, 1);
        sum = vdotq_laneq_s32(sum, (int8x16_t)w[g + 2], y, 2);
        sum = vdotq_laneq_s32(sum, (int8x16_t)w[g + 3], y, 3);
    }
    return sum;
}

#endif
