/* formats_blocks.c: the types of 32 values a block. A block opens with its f16 scale d (and, in the
 * _1 types, its f16 minimum m). Four-bit values: byte j holds value j low and value j + 16 high. */
#include "formats_internal.h"

/* d, 16 bytes: y = d · (q − 8) */
void format_q4_0(const void *x, float *y, int64_t n) {
    const unsigned char *block = x;
    for (int64_t i = 0; i < n; i += 32, block += 18) {
        const float d = format_f16(block);
        const unsigned char *q = block + 2;
        for (int j = 0; j < 16; j++) {
            y[i + j] = (float)((q[j] & 15) - 8) * d;
            y[i + j + 16] = (float)((q[j] >> 4) - 8) * d;
        }
    }
}

/* d, m, 16 bytes: y = d · q + m */
void format_q4_1(const void *x, float *y, int64_t n) {
    const unsigned char *block = x;
    for (int64_t i = 0; i < n; i += 32, block += 20) {
        const float d = format_f16(block), m = format_f16(block + 2);
        const unsigned char *q = block + 4;
        for (int j = 0; j < 16; j++) {
            y[i + j] = (float)(q[j] & 15) * d + m;
            y[i + j + 16] = (float)(q[j] >> 4) * d + m;
        }
    }
}

/* The fifth bit of value j is bit j of the 32-bit word `high`. Masks, not shifts by j, so that
 * compilers make vectors of the loops. */
static const uint32_t bit[32] = {
    1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,
    1u << 8,  1u << 9,  1u << 10, 1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15,
    1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21, 1u << 22, 1u << 23,
    1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};
static inline int five_low(const unsigned char *q, uint32_t high, int j) {
    return (q[j] & 15) + (high & bit[j] ? 16 : 0);
}
static inline int five_high(const unsigned char *q, uint32_t high, int j) {
    return (q[j] >> 4) + (high & bit[j + 16] ? 16 : 0);
}

/* d, 4 bytes of fifth bits, 16 bytes: y = d · (q − 16) */
void format_q5_0(const void *x, float *y, int64_t n) {
    const unsigned char *block = x;
    for (int64_t i = 0; i < n; i += 32, block += 22) {
        const float d = format_f16(block);
        const unsigned char *q = block + 6;
        uint32_t high;
        memcpy(&high, block + 2, 4);
        for (int j = 0; j < 16; j++) {
            y[i + j] = (float)(five_low(q, high, j) - 16) * d;
            y[i + j + 16] = (float)(five_high(q, high, j) - 16) * d;
        }
    }
}

/* d, m, 4 bytes of fifth bits, 16 bytes: y = d · q + m */
void format_q5_1(const void *x, float *y, int64_t n) {
    const unsigned char *block = x;
    for (int64_t i = 0; i < n; i += 32, block += 24) {
        const float d = format_f16(block), m = format_f16(block + 2);
        const unsigned char *q = block + 8;
        uint32_t high;
        memcpy(&high, block + 4, 4);
        for (int j = 0; j < 16; j++) {
            y[i + j] = (float)five_low(q, high, j) * d + m;
            y[i + j + 16] = (float)five_high(q, high, j) * d + m;
        }
    }
}

/* d, 32 signed bytes: y = d · q */
void format_q8_0(const void *x, float *y, int64_t n) {
    const unsigned char *block = x;
    for (int64_t i = 0; i < n; i += 32, block += 34) {
        const float d = format_f16(block);
        const signed char *q = (const signed char *)block + 2;
        for (int j = 0; j < 32; j++) y[i + j] = (float)q[j] * d;
    }
}

const int8_t format_iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

/* d, 16 bytes: y = d · level[q] */
void format_iq4_nl(const void *x, float *y, int64_t n) {
    const unsigned char *block = x;
    for (int64_t i = 0; i < n; i += 32, block += 18) {
        const float d = format_f16(block);
        const unsigned char *q = block + 2;
        for (int j = 0; j < 16; j++) {
            y[i + j] = d * (float)format_iq4_levels[q[j] & 15];
            y[i + j + 16] = d * (float)format_iq4_levels[q[j] >> 4];
        }
    }
}
