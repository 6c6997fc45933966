/* packed.h: what pack.c and the products know of each format's strip (pack.h draws it). The
 * functions are inlined with a constant format, so that a kernel contains its own case only. */
#ifndef KERN_CPU_PACKED_H
#define KERN_CPU_PACKED_H

#include "pack.h"

#define PACKED_INLINE static inline __attribute__((always_inline))

enum { PACKED_VECTOR = 64 }; /* 4 bytes of each of 16 rows */

/* To products a format of its own: strips of BF16 that meet activations rounded to bf16, two
 * columns at a time. */
enum { KERN_BF16_DOTS = -KERN_BF16 };

PACKED_INLINE int packed_is_pairs(const int format) {
    return format == KERN_BF16 || format == KERN_BF16_DOTS;
}
PACKED_INLINE int packed_is_float(const int format) {
    return format == KERN_F32 || format == KERN_F16 || packed_is_pairs(format);
}
/* Where in a strip of pairs column c of row r is. */
PACKED_INLINE size_t packed_pair_at(int64_t c, int64_t r) {
    return 2 * (size_t)((c - c % 2) * CPU_STRIP + 2 * r + c % 2);
}

/* Bits a number takes. */
PACKED_INLINE int packed_bits(const int format) {
    switch (format) {
    case KERN_Q5_0:
    case KERN_Q5_1:
    case KERN_Q5_K: return 5;
    case KERN_Q6_K: return 6;
    case KERN_Q8_0: return 8;
    default: return 4;
    }
}

/* Columns that share a scale. */
PACKED_INLINE int packed_part(const int format) {
    return format == KERN_Q2_K || format == KERN_Q3_K || format == KERN_Q6_K ? 16 : 32;
}

/* Scales are integers times one f16 for 256 columns. */
PACKED_INLINE int packed_super(const int format) {
    return format == KERN_Q2_K || format == KERN_Q3_K || format == KERN_Q4_K ||
           format == KERN_Q5_K || format == KERN_Q6_K || format == KERN_IQ4_XS;
}

/* The sign with which a part's least value counts: + m of Q4_1, − m of the k formats; 0: none. */
PACKED_INLINE int packed_least(const int format) {
    switch (format) {
    case KERN_Q4_1:
    case KERN_Q5_1: return 1;
    case KERN_Q2_K:
    case KERN_Q4_K:
    case KERN_Q5_K: return -1;
    default: return 0;
    }
}

/* log2 of what was added to make numbers unsigned; 0: nothing. Numbers of 8 bits and the levels of
 * IQ4 are kept signed; products that want them unsigned add 128 = 1 << 7. */
PACKED_INLINE int packed_zero(const int format) {
    switch (format) {
    case KERN_Q3_K: return 2;
    case KERN_Q4_0: return 3;
    case KERN_Q5_0: return 4;
    case KERN_Q6_K: return 5;
    default: return 0;
    }
}
PACKED_INLINE int packed_levels(const int format) {
    return format == KERN_IQ4_NL || format == KERN_IQ4_XS;
}
PACKED_INLINE int packed_signed(const int format) {
    return format == KERN_Q8_0 || packed_levels(format);
}

/* Bytes of one part's int8 scales (and least values); of the scales of a block or a super-block. */
PACKED_INLINE size_t packed_part_bytes(const int format) {
    return (size_t)CPU_STRIP * (packed_least(format) != 0 ? 2 : 1);
}
PACKED_INLINE size_t packed_scale_bytes(const int format) {
    const size_t halves = 2 * packed_part_bytes(format);
    if (!packed_super(format)) return halves;
    return halves + (size_t)(256 / packed_part(format)) * packed_part_bytes(format);
}

/* Bytes of the numbers of a block of 32 columns. */
PACKED_INLINE size_t packed_block_bytes(const int format) {
    return (size_t)packed_bits(format) * PACKED_VECTOR;
}

/* Blocks of a group, and the bytes of its scales: their numbers follow. The last group of a strip
 * may have fewer blocks. */
PACKED_INLINE int packed_group(const int format) {
    if (packed_super(format)) return 8;
    return packed_least(format) != 0 ? 1 : 2;
}
PACKED_INLINE size_t packed_head_bytes(const int format) {
    const size_t n =
        packed_scale_bytes(format) * (packed_super(format) ? 1 : (size_t)packed_group(format));
    return (n + 63) / 64 * 64;
}

/* Bytes of the n blocks of a strip. */
PACKED_INLINE size_t packed_strip_bytes(const int format, int64_t n) {
    const int64_t groups = (n + packed_group(format) - 1) / packed_group(format);
    return (size_t)groups * packed_head_bytes(format) + (size_t)n * packed_block_bytes(format);
}

#endif
