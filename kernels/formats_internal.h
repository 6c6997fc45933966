/* formats_internal.h: shared by the files of the block types: reading numbers at any alignment. */
#ifndef KERN_FORMATS_INTERNAL_H
#define KERN_FORMATS_INTERNAL_H

#include <stdint.h>
#include <string.h>

static inline float format_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline uint32_t format_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline uint16_t format_u16(const unsigned char *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return h;
}

/* f16 → f32, branch free: exponent and mantissa move over, a product corrects the bias (and makes
 * subnormals normal), infinities and NaNs get the full exponent. */
static inline float format_half(uint16_t h) {
    uint32_t moved = (uint32_t)(h & 0x7fff) << 13;
    uint32_t bits = format_bits(format_float(moved) * 0x1p112f);
    uint32_t special = 0u - (uint32_t)((h & 0x7c00) == 0x7c00);
    bits = (bits & ~special) | ((moved | 0x7f800000) & special);
    return format_float(bits | (uint32_t)(h & 0x8000) << 16);
}

static inline float format_f16(const unsigned char *p) { return format_half(format_u16(p)); }

/* f32 → bf16, to nearest, ties to even; a NaN stays one. Branch free. */
static inline uint16_t format_brain(float x) {
    const uint32_t bits = format_bits(x), nan = (bits & 0x7fffffff) > 0x7f800000;
    return (uint16_t)(nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The 16 levels of IQ4_NL and IQ4_XS. */
extern const int8_t format_iq4_levels[16];

/* The 6-bit scale and minimum of group 0 … 7 in the 12 bytes of Q4_K and Q5_K. */
void format_scale_and_least(const unsigned char *s, int group, int *scale, int *least);

/* y[n] = the values of n / block_size blocks at x */
void format_q4_0(const void *x, float *y, int64_t n);
void format_q4_1(const void *x, float *y, int64_t n);
void format_q5_0(const void *x, float *y, int64_t n);
void format_q5_1(const void *x, float *y, int64_t n);
void format_q8_0(const void *x, float *y, int64_t n);
void format_iq4_nl(const void *x, float *y, int64_t n);
void format_q2_k(const void *x, float *y, int64_t n);
void format_q3_k(const void *x, float *y, int64_t n);
void format_q4_k(const void *x, float *y, int64_t n);
void format_q5_k(const void *x, float *y, int64_t n);
void format_q6_k(const void *x, float *y, int64_t n);
void format_iq4_xs(const void *x, float *y, int64_t n);

#endif
