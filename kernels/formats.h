/* formats.h: the block types of weights, one row a type. Everything that depends on a format goes
 * through this table; a new format is its functions and its row (formats.c). */
#ifndef KERN_FORMATS_H
#define KERN_FORMATS_H

#include <stddef.h>
#include <stdint.h>

/* The numbers are those of GGUF files. */
enum {
    KERN_F32 = 0,
    KERN_F16 = 1,
    KERN_Q4_0 = 2,
    KERN_Q4_1 = 3,
    KERN_Q5_0 = 6,
    KERN_Q5_1 = 7,
    KERN_Q8_0 = 8,
    KERN_Q2_K = 10,
    KERN_Q3_K = 11,
    KERN_Q4_K = 12,
    KERN_Q5_K = 13,
    KERN_Q6_K = 14,
    KERN_IQ4_NL = 20,
    KERN_IQ4_XS = 23,
    KERN_BF16 = 30
};

typedef struct kern_format {
    const char *name;    /* as users write it: "Q4_K" */
    int32_t id;          /* the GGUF type number */
    int32_t block_size;  /* values a block; rows are whole blocks */
    int32_t block_bytes; /* bytes a block */
    /* y[n] = the values of n / block_size blocks at x (any alignment); n is a multiple of
     * block_size */
    void (*dequantise)(const void *x, float *y, int64_t n);
} kern_format;

/* The row of a type number, or NULL. */
const kern_format *kern_format_find(int32_t id);

/* The table itself; ends with a NULL name. */
extern const kern_format kern_formats[];

/* Bytes of n values (n a multiple of block_size). */
static inline size_t kern_format_bytes(const kern_format *f, int64_t n) {
    return (size_t)(n / f->block_size) * (size_t)f->block_bytes;
}

/* Conversions of single numbers; round to nearest even, NaN stays NaN. */
float kern_f16_to_f32(uint16_t h);
uint16_t kern_f32_to_f16(float x);
float kern_bf16_to_f32(uint16_t h);
uint16_t kern_f32_to_bf16(float x);

#endif
