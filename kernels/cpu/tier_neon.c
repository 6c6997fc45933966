/* tier_neon.c: the NEON tier of aarch64: fused steps, f16 numbers, dot products of bytes. */
#include "row_ops.h"

static inline float block_largest(const float *x) {
    /* as integers: a NaN or an infinity is above all others */
    uint32x4_t most = vdupq_n_u32(0);
    for (int j = 0; j < 32; j += 4)
        most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + j))));
    return vgetq_lane_f32(vreinterpretq_f32_u32(vdupq_n_u32(vmaxvq_u32(most))), 0);
}

/* 16 numbers as bytes; returns their sum. */
static inline int32_t half_put(const int32x4_t v[4], int8_t *q) {
    const int16x8_t low = vcombine_s16(vqmovn_s32(v[0]), vqmovn_s32(v[1]));
    const int16x8_t high = vcombine_s16(vqmovn_s32(v[2]), vqmovn_s32(v[3]));
    const int8x16_t bytes = vcombine_s8(vqmovn_s16(low), vqmovn_s16(high));
    vst1q_s8(q, bytes);
    return vaddlvq_s8(bytes);
}

static inline void block_round(const float *x, float scale, int8_t *q, int32_t sums[2]) {
    for (int i = 0; i < 2; i++, x += 16, q += 16) {
        int32x4_t v[4];
        for (int j = 0; j < 4; j++) v[j] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * j), scale));
        sums[i] = half_put(v, q);
    }
}

static inline void block_rest(const float *x, float scale, const int8_t *q, int8_t *rest,
                              int32_t sums[2]) {
    for (int i = 0; i < 2; i++, x += 16, q += 16, rest += 16) {
        int32x4_t v[4];
        for (int j = 0; j < 4; j++) {
            const vx whole = vx_of_int8((const unsigned char *)q + 4 * j);
            const vx y = vx_fma(vx_load(x + 4 * j), vx_set(scale), -whole);
            v[j] = vcvtnq_s32_f32(vmulq_n_f32(y, 256.0f));
            v[j] = vminq_s32(vmaxq_s32(v[j], vdupq_n_s32(-127)), vdupq_n_s32(127));
        }
        sums[i] = half_put(v, rest);
    }
}

static void kv_store(kern_kv type, const float *x, int32_t n, void *to) {
    if (type != KERN_KV_F16) {
        host_kv_store(type, x, n, to);
        return;
    }
    unsigned char *h = (unsigned char *)to;
    int32_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1_u8(h + 2 * (size_t)i, vreinterpret_u8_f16(vcvt_f16_f32(vld1q_f32(x + i))));
    host_kv_store(type, x + i, n - i, h + 2 * (size_t)i);
}

const cpu_tier cpu_tier_neon = {
    .tier = KERN_TIER_NEON,
    .products = &cpu_products_neon,
    TIER_ROW_OPS,
    .kv_store = kv_store,
};
