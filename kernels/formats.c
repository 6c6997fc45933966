/* formats.c: the table of block types and the conversions of single numbers. The block layouts are
 * in formats_blocks.c (32 values a block) and formats_k.c (256 values a block). Files are little
 * endian, and so are the machines we run on. */
#include "formats.h"
#include "formats_internal.h"

#include <string.h>

static void dequantise_f32(const void *x, float *y, int64_t n) { memcpy(y, x, (size_t)n * 4); }

static void dequantise_f16(const void *x, float *y, int64_t n) {
    const unsigned char *p = x;
    for (int64_t i = 0; i < n; i++) y[i] = format_f16(p + 2 * i);
}

static void dequantise_bf16(const void *x, float *y, int64_t n) {
    const unsigned char *p = x;
    for (int64_t i = 0; i < n; i++) y[i] = format_float((uint32_t)format_u16(p + 2 * i) << 16);
}

const kern_format kern_formats[] = {
    {"F32", KERN_F32, 1, 4, dequantise_f32},
    {"F16", KERN_F16, 1, 2, dequantise_f16},
    {"BF16", KERN_BF16, 1, 2, dequantise_bf16},
    {"Q4_0", KERN_Q4_0, 32, 18, format_q4_0},
    {"Q4_1", KERN_Q4_1, 32, 20, format_q4_1},
    {"Q5_0", KERN_Q5_0, 32, 22, format_q5_0},
    {"Q5_1", KERN_Q5_1, 32, 24, format_q5_1},
    {"Q8_0", KERN_Q8_0, 32, 34, format_q8_0},
    {"Q2_K", KERN_Q2_K, 256, 84, format_q2_k},
    {"Q3_K", KERN_Q3_K, 256, 110, format_q3_k},
    {"Q4_K", KERN_Q4_K, 256, 144, format_q4_k},
    {"Q5_K", KERN_Q5_K, 256, 176, format_q5_k},
    {"Q6_K", KERN_Q6_K, 256, 210, format_q6_k},
    {"IQ4_NL", KERN_IQ4_NL, 32, 18, format_iq4_nl},
    {"IQ4_XS", KERN_IQ4_XS, 256, 136, format_iq4_xs},
    {0},
};

const kern_format *kern_format_find(int32_t id) {
    for (const kern_format *f = kern_formats; f->name; f++)
        if (f->id == id) return f;
    return NULL;
}

float kern_f16_to_f32(uint16_t h) { return format_half(h); }

uint16_t kern_f32_to_f16(float x) {
    uint32_t bits = format_bits(x);
    uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00);  /* NaN */
    if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and more: infinite */
    if (size < 0x38800000) /* below 2^-14: adding ½ leaves the subnormal in the low bits, rounded */
        return (uint16_t)(sign | (format_bits(format_float(size) + 0.5f) - format_bits(0.5f)));
    size += 0xfff + (size >> 13 & 1);                      /* to nearest, ties to even */
    return (uint16_t)(sign | (size - (112u << 23)) >> 13); /* exponent bias 127 → 15 */
}

float kern_bf16_to_f32(uint16_t h) { return format_float((uint32_t)h << 16); }

uint16_t kern_f32_to_bf16(float x) { return format_brain(x); }
