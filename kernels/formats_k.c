/* formats_k.c: the types of 256 values a block, in groups of 16 or 32 with a scale each. The scales
 * are themselves small integers; one f16 d (and dmin) a block makes them numbers. */
#include "formats_internal.h"

/* 16 bytes of scales (low: scale, high: minimum), 64 bytes of 2-bit values, d, dmin.
 * Each half of 128 values: bits 2s … 2s+1 of its 32 bytes are values 32s … 32s+31. */
void format_q2_k(const void *x, float *y, int64_t n) {
    const unsigned char *block = x;
    for (int64_t i = 0; i < n; i += 256, block += 84) {
        const float d = format_f16(block + 80), dmin = format_f16(block + 82);
        for (int group = 0; group < 16; group++) {
            const float scale = d * (float)(block[group] & 15);
            const float least = dmin * (float)(block[group] >> 4);
            const unsigned char *q = block + 16 + group / 8 * 32 + group % 2 * 16;
            const int shift = group % 8 / 2 * 2;
            float *out = y + i + group * 16;
            for (int j = 0; j < 16; j++) out[j] = scale * (float)(q[j] >> shift & 3) - least;
        }
    }
}

/* 32 bytes of third bits, 64 bytes of 2-bit values (as in Q2_K), 12 bytes of 6-bit scales − 32, d.
 * Bit g of the third bits belongs to values 32g … 32g+31; where it is 0 the value is 4 less. */
void format_q3_k(const void *x, float *y, int64_t n) {
    const unsigned char *block = x;
    for (int64_t i = 0; i < n; i += 256, block += 110) {
        const unsigned char *scales = block + 96;
        const float d = format_f16(block + 108);
        for (int group = 0; group < 16; group++) {
            const int low = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
            const int high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
            const float scale = d * (float)((low | high << 4) - 32);
            const unsigned char *q = block + 32 + group / 8 * 32 + group % 2 * 16;
            const unsigned char *third = block + group % 2 * 16;
            const int shift = group % 8 / 2 * 2, bit = group / 2;
            float *out = y + i + group * 16;
            for (int j = 0; j < 16; j++)
                out[j] = scale * (float)((q[j] >> shift & 3) - 4 + (third[j] >> bit & 1) * 4);
        }
    }
}

/* The 6-bit scale and minimum of group 0 … 7 in the 12 bytes of Q4_K and Q5_K. */
void format_scale_and_least(const unsigned char *s, int group, int *scale, int *least) {
    if (group < 4) {
        *scale = s[group] & 63;
        *least = s[group + 4] & 63;
    } else {
        *scale = (s[group + 4] & 15) | s[group - 4] >> 6 << 4;
        *least = s[group + 4] >> 4 | s[group] >> 6 << 4;
    }
}

/* d, dmin, 12 bytes of scales, 128 bytes: byte j of 32 holds groups 2k (low) and 2k+1 (high). */
void format_q4_k(const void *x, float *y, int64_t n) {
    const unsigned char *block = x;
    for (int64_t i = 0; i < n; i += 256, block += 144) {
        const float d = format_f16(block), dmin = format_f16(block + 2);
        for (int group = 0; group < 8; group++) {
            int s, m;
            format_scale_and_least(block + 4, group, &s, &m);
            const float scale = d * (float)s, least = dmin * (float)m;
            const unsigned char *q = block + 16 + group / 2 * 32;
            const int shift = group % 2 * 4;
            float *out = y + i + group * 32;
            for (int j = 0; j < 32; j++) out[j] = scale * (float)(q[j] >> shift & 15) - least;
        }
    }
}

/* d, dmin, 12 bytes of scales, 32 bytes of fifth bits (bit g: group g), 128 bytes as in Q4_K. */
void format_q5_k(const void *x, float *y, int64_t n) {
    const unsigned char *block = x;
    for (int64_t i = 0; i < n; i += 256, block += 176) {
        const float d = format_f16(block), dmin = format_f16(block + 2);
        const unsigned char *fifth = block + 16;
        for (int group = 0; group < 8; group++) {
            int s, m;
            format_scale_and_least(block + 4, group, &s, &m);
            const float scale = d * (float)s, least = dmin * (float)m;
            const unsigned char *q = block + 48 + group / 2 * 32;
            const int shift = group % 2 * 4;
            float *out = y + i + group * 32;
            for (int j = 0; j < 32; j++) {
                const int v = (q[j] >> shift & 15) | (fifth[j] >> group & 1) << 4;
                out[j] = scale * (float)v - least;
            }
        }
    }
}

/* 128 bytes of low nibbles, 64 bytes of high pairs of bits, 16 signed scales, d: y = d · s · (q −
 * 32). Each half of 128 values: 32-value part k has nibble k / 2 of bytes 32 · (k % 2) …, bits 2k,
 * 2k+1. */
void format_q6_k(const void *x, float *y, int64_t n) {
    const unsigned char *block = x;
    for (int64_t i = 0; i < n; i += 256, block += 210) {
        const float d = format_f16(block + 208);
        for (int group = 0; group < 16; group++) {
            const int half = group / 8, part = group % 8 / 2, side = group % 2 * 16;
            const float scale = d * (float)((const signed char *)block)[192 + group];
            const unsigned char *low = block + half * 64 + part % 2 * 32 + side;
            const unsigned char *high = block + 128 + half * 32 + side;
            const int low_shift = part / 2 * 4, high_shift = part * 2;
            float *out = y + i + group * 16;
            for (int j = 0; j < 16; j++) {
                const int q = (low[j] >> low_shift & 15) | (high[j] >> high_shift & 3) << 4;
                out[j] = scale * (float)(q - 32);
            }
        }
    }
}

/* d, 8 pairs of high scale bits, 4 bytes of low scale nibbles, 128 bytes of levels as in IQ4_NL:
 * y = d · (s − 32) · level[q], a scale for each 32 values. */
void format_iq4_xs(const void *x, float *y, int64_t n) {
    const unsigned char *block = x;
    for (int64_t i = 0; i < n; i += 256, block += 136) {
        const float d = format_f16(block);
        const int high = format_u16(block + 2);
        for (int group = 0; group < 8; group++) {
            const int s = (block[4 + group / 2] >> (group % 2 * 4) & 15) | (high >> (group * 2) & 3)
                                                                               << 4;
            const float scale = d * (float)(s - 32);
            const unsigned char *q = block + 8 + group * 16;
            float *out = y + i + group * 32;
            for (int j = 0; j < 16; j++) {
                out[j] = scale * (float)format_iq4_levels[q[j] & 15];
                out[j + 16] = scale * (float)format_iq4_levels[q[j] >> 4];
            }
        }
    }
}
