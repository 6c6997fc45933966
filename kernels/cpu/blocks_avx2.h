/* blocks_avx2.h: how each block format looks to the products: in groups of 256 columns, eight
 * blocks of
 * 32. A group gives, for its eight blocks, a scale d and an offset; a block gives its 32 numbers as
 * bytes in the order of the columns. With x = dx · q and w = d · w' + m, in one of three kinds:
 *
 *   unsigned   w' in 0 … 31, an offset m a block:                 Σ w·x = d·dx Σ w'q + m · (dx Σq)
 *   signed     w' in −128 … 127, no offset
 *   scaled     w' in 0 … 63, integer scales of 16 columns, and offsets of 16 as integers times one
 * f32
 *
 * The formats "panel" are groups unpacked from any other format of the kind, for products of many
 * rows. The numbers are the same, so the results are too, bit for bit. */
#ifndef KERN_CPU_BLOCKS_AVX2_H
#define KERN_CPU_BLOCKS_AVX2_H

#include "cpu.h"
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

enum { PANEL_UNSIGNED = 100, PANEL_SIGNED, PANEL_SCALED };
typedef enum block_kind { BLOCK_UNSIGNED, BLOCK_SIGNED, BLOCK_SCALED } block_kind;

/* A group of a panel; what follows the numbers depends on the kind. */
typedef struct panel_group {
    uint8_t q[256];
    float d[8];
    float m[8];        /* unsigned: offsets; scaled: the factor of the offsets, eight times */
    int16_t scale[16]; /* scaled: of the blocks' first halves, then of their second halves */
    int16_t least[16]; /* scaled: offsets of 16 columns */
} panel_group;

/* The scales of a group. */
typedef struct group_scales {
    __m256 d, m;
    __m256i scale, least; /* scaled only; as in panel_group */
} group_scales;

INLINE block_kind format_kind(const int format) {
    switch (format) {
    case KERN_Q8_0:
    case KERN_IQ4_NL:
    case KERN_IQ4_XS:
    case PANEL_SIGNED: return BLOCK_SIGNED;
    case KERN_Q2_K:
    case KERN_Q3_K:
    case KERN_Q6_K:
    case PANEL_SCALED: return BLOCK_SCALED;
    default: return BLOCK_UNSIGNED;
    }
}

/* Bytes of a block of 32, or of a group for formats that come in groups. */
INLINE size_t format_bytes(const int format) {
    switch (format) {
    case KERN_Q4_0:
    case KERN_IQ4_NL: return 18;
    case KERN_Q4_1: return 20;
    case KERN_Q5_0: return 22;
    case KERN_Q5_1: return 24;
    case KERN_Q8_0: return 34;
    case KERN_Q2_K: return 84;
    case KERN_Q3_K: return 110;
    case KERN_Q4_K: return 144;
    case KERN_Q5_K: return 176;
    case KERN_Q6_K: return 210;
    case KERN_IQ4_XS: return 136;
    default: return sizeof(panel_group);
    }
}
INLINE int format_small(const int format) { /* blocks of 32 */
    return format == KERN_Q4_0 || format == KERN_Q4_1 || format == KERN_Q5_0 ||
           format == KERN_Q5_1 || format == KERN_Q8_0 || format == KERN_IQ4_NL;
}
INLINE const uint8_t *group_at(const int format, const uint8_t *row, int64_t g) {
    return row + (size_t)g * (format_small(format) ? 8 : 1) * format_bytes(format);
}

INLINE uint32_t load_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE __m128i load_dword(const uint8_t *p) { return _mm_cvtsi32_si128((int)load_u32(p)); }
INLINE __m128i load_16(const uint8_t *p) {
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}
INLINE __m256i load_32(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
INLINE float load_f16(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return _cvtsh_ss(h);
}

/* The first four bytes of blocks i and i + 1, if there are that many, as 16-bit numbers in turn. */
INLINE __m128i load_pair(const uint8_t *p, const size_t step, int n, const int i) {
    const __m128i none = _mm_setzero_si128();
    if (n <= i) return none;
    return _mm_unpacklo_epi16(load_dword(p + (size_t)i * step),
                              n > i + 1 ? load_dword(p + (size_t)(i + 1) * step) : none);
}

/* The 16-bit numbers at the start of n blocks (1 … 8), and those after them: 8 each, zeros beyond
 * n. */
INLINE void load_heads(const uint8_t *p, const size_t step, int n, __m128i *first,
                       __m128i *second) {
    __m128i a = _mm_unpacklo_epi32(load_pair(p, step, n, 0), load_pair(p, step, n, 2));
    __m128i b = _mm_unpacklo_epi32(load_pair(p, step, n, 4), load_pair(p, step, n, 6));
    *first = _mm_unpacklo_epi64(a, b);
    *second = _mm_unpackhi_epi64(a, b);
}

INLINE __m256 bytes_to_f32(uint64_t v) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)v)));
}

/* 16 int8 scales in the order of the columns, widened: of first halves, then of second halves. */
INLINE __m256i halves_apart(__m128i s) {
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(s, order));
}

/* Scales and mins of Q4_K and Q5_K: 8 + 8 numbers of 6 bits in 12 bytes. */
INLINE void load_scales_k4(const uint8_t *p, group_scales *s) {
    uint32_t a = load_u32(p + 4), b = load_u32(p + 8), c = load_u32(p + 12);
    uint64_t scale = (a & 0x3f3f3f3f) | (uint64_t)((c & 0x0f0f0f0f) | ((a >> 6 & 0x03030303) << 4))
                                            << 32;
    uint64_t least =
        (b & 0x3f3f3f3f) | (uint64_t)((c >> 4 & 0x0f0f0f0f) | ((b >> 6 & 0x03030303) << 4)) << 32;
    s->d = _mm256_mul_ps(_mm256_set1_ps(load_f16(p)), bytes_to_f32(scale));
    s->m = _mm256_mul_ps(_mm256_set1_ps(-load_f16(p + 2)), bytes_to_f32(least));
}

INLINE void load_scales_q3k(const uint8_t *p, group_scales *s) {
    uint32_t a = load_u32(p + 96), b = load_u32(p + 100), c = load_u32(p + 104);
    const uint32_t low = 0x0f0f0f0f, two = 0x03030303;
    __m128i v = _mm_setr_epi32(
        (int)((a & low) | (c & two) << 4), (int)((b & low) | (c >> 2 & two) << 4),
        (int)((a >> 4 & low) | (c >> 4 & two) << 4), (int)((b >> 4 & low) | (c >> 6 & two) << 4));
    v = _mm_sub_epi8(v, _mm_set1_epi8(32));
    float d = load_f16(p + 108);
    s->scale = halves_apart(v);
    s->least = _mm256_cvtepi8_epi16(v);
    s->d = _mm256_set1_ps(d);
    s->m = _mm256_set1_ps(-4.0f * d);
}

INLINE void load_scales_iq4xs(const uint8_t *p, group_scales *s) {
    uint32_t high = load_u32(p) >> 16, low = load_u32(p + 4);
    /* 4 bits and 2 bits of each block, spread over bytes */
    __m128i l = _mm_cvtsi32_si128((int)low);
    l = _mm_and_si128(_mm_unpacklo_epi8(l, _mm_srli_epi16(l, 4)), _mm_set1_epi8(15));
    __m256i h = _mm256_srlv_epi32(_mm256_set1_epi32((int)high),
                                  _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    h = _mm256_slli_epi32(_mm256_and_si256(h, _mm256_set1_epi32(3)), 4);
    __m256i v =
        _mm256_sub_epi32(_mm256_or_si256(_mm256_cvtepu8_epi32(l), h), _mm256_set1_epi32(32));
    s->d = _mm256_mul_ps(_mm256_set1_ps(load_f16(p)), _mm256_cvtepi32_ps(v));
}

/* The scales of the first n blocks of a group at p (n < 8 only in formats of small blocks); those
 * of the other blocks are zero. */
INLINE group_scales load_scales(const int format, const uint8_t *p, int n) {
    group_scales s = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_si256(),
                      _mm256_setzero_si256()};
    __m128i a, b;
    switch (format) {
    case KERN_Q4_0:
    case KERN_Q5_0:
        load_heads(p, format_bytes(format), n, &a, &b);
        s.d = _mm256_cvtph_ps(a);
        s.m = _mm256_mul_ps(s.d, _mm256_set1_ps(format == KERN_Q4_0 ? -8.0f : -16.0f));
        break;
    case KERN_Q4_1:
    case KERN_Q5_1:
        load_heads(p, format_bytes(format), n, &a, &b);
        s.d = _mm256_cvtph_ps(a);
        s.m = _mm256_cvtph_ps(b);
        break;
    case KERN_Q8_0:
    case KERN_IQ4_NL:
        load_heads(p, format_bytes(format), n, &a, &b);
        s.d = _mm256_cvtph_ps(a);
        break;
    case KERN_Q4_K:
    case KERN_Q5_K: load_scales_k4(p, &s); break;
    case KERN_Q2_K:
        a = load_16(p);
        s.scale = halves_apart(_mm_and_si128(a, _mm_set1_epi8(15)));
        s.least = _mm256_cvtepi8_epi16(_mm_and_si128(_mm_srli_epi16(a, 4), _mm_set1_epi8(15)));
        s.d = _mm256_set1_ps(load_f16(p + 80));
        s.m = _mm256_set1_ps(-load_f16(p + 82));
        break;
    case KERN_Q3_K: load_scales_q3k(p, &s); break;
    case KERN_Q6_K:
        a = load_16(p + 192);
        s.scale = halves_apart(a);
        s.least = _mm256_cvtepi8_epi16(a);
        s.d = _mm256_set1_ps(load_f16(p + 208));
        s.m = _mm256_mul_ps(s.d, _mm256_set1_ps(-32.0f));
        break;
    case KERN_IQ4_XS: load_scales_iq4xs(p, &s); break;
    default: {
        const panel_group *g = (const panel_group *)(const void *)p;
        s.d = _mm256_loadu_ps(g->d);
        if (format != PANEL_SIGNED) s.m = _mm256_loadu_ps(g->m);
        if (format == PANEL_SCALED) {
            s.scale = load_32((const uint8_t *)g->scale);
            s.least = load_32((const uint8_t *)g->least);
        }
    }
    }
    return s;
}

/* 32 numbers of 4 bits in 16 bytes: low halves, then high halves */
INLINE __m256i load_nibbles(const uint8_t *p) {
    const __m256i shift = _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4);
    __m256i both = _mm256_srlv_epi32(_mm256_broadcastsi128_si256(load_16(p)), shift);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

/* Bit i of v to byte i, as `bit` or 0 */
INLINE __m256i spread_bits(uint32_t v, const char bit) {
    const __m256i from =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i mask = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i bytes = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)v), from), mask);
    return _mm256_and_si256(_mm256_cmpeq_epi8(bytes, mask), _mm256_set1_epi8(bit));
}

INLINE __m256i shift_right(__m256i v, const int n, const char mask) {
    return _mm256_and_si256(_mm256_srli_epi16(v, n), _mm256_set1_epi8(mask));
}

/* The bit `bit` of every byte of v, moved to bit `to` */
INLINE __m256i move_bit(__m256i v, const int bit, const int to) {
    v = _mm256_and_si256(v, _mm256_set1_epi8((char)(1 << bit)));
    return bit < to ? _mm256_slli_epi16(v, to - bit) : _mm256_srli_epi16(v, bit - to);
}

INLINE __m256i nonlinear_4(__m256i v) {
    const __m128i values =
        _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), v);
}

/* Block b of the group at p. */
INLINE __m256i load_block(const int format, const uint8_t *p, const int b) {
    const uint8_t *block = p + (size_t)b * format_bytes(format);
    const int half = b / 4, part = b % 4;
    __m256i v;
    switch (format) {
    case KERN_Q4_0: return load_nibbles(block + 2);
    case KERN_Q4_1: return load_nibbles(block + 4);
    case KERN_Q5_0:
        return _mm256_or_si256(load_nibbles(block + 6), spread_bits(load_u32(block + 2), 16));
    case KERN_Q5_1:
        return _mm256_or_si256(load_nibbles(block + 8), spread_bits(load_u32(block + 4), 16));
    case KERN_Q8_0: return load_32(block + 2);
    case KERN_IQ4_NL: return nonlinear_4(load_nibbles(block + 2));
    case KERN_IQ4_XS: return nonlinear_4(load_nibbles(p + 8 + 16 * b));
    case KERN_Q4_K: return shift_right(load_32(p + 16 + 32 * (b / 2)), 4 * (b % 2), 15);
    case KERN_Q5_K:
        v = shift_right(load_32(p + 48 + 32 * (b / 2)), 4 * (b % 2), 15);
        return _mm256_or_si256(v, move_bit(load_32(p + 16), b, 4));
    case KERN_Q2_K: return shift_right(load_32(p + 16 + 32 * half), 2 * part, 3);
    case KERN_Q3_K:
        v = shift_right(load_32(p + 32 + 32 * half), 2 * part, 3);
        return _mm256_or_si256(v, move_bit(load_32(p), b, 2));
    case KERN_Q6_K: {
        v = shift_right(load_32(p + 64 * half + 32 * (part % 2)), 4 * (part / 2), 15);
        __m256i high = shift_right(load_32(p + 128 + 32 * half), 2 * part, 3);
        return _mm256_or_si256(v, _mm256_slli_epi16(high, 4));
    }
    default: return load_32(p + 32 * b);
    }
}

/* Unpacks a group of n blocks. */
INLINE void panel_fill(const int format, const uint8_t *p, int n, panel_group *to) {
    group_scales s = load_scales(format, p, n);
    _mm256_storeu_ps(to->d, s.d);
    if (format_kind(format) != BLOCK_SIGNED) _mm256_storeu_ps(to->m, s.m);
    if (format_kind(format) == BLOCK_SCALED) {
        _mm256_storeu_si256((__m256i *)(void *)to->scale, s.scale);
        _mm256_storeu_si256((__m256i *)(void *)to->least, s.least);
    }
    if (n == 8) {
#pragma GCC unroll 8
        for (int b = 0; b < 8; b++)
            _mm256_storeu_si256((__m256i *)(void *)(to->q + 32 * b), load_block(format, p, b));
    } else if (format_small(format)) {
        for (int b = 0; b < n; b++)
            _mm256_storeu_si256((__m256i *)(void *)(to->q + 32 * b), load_block(format, p, b));
    }
}

#endif
