/* pack.c: from rows of blocks, as files hold them, to strips (pack.h). For each format two small
 * functions: the numbers of a block of 32 as bytes, and its scales. */
#include "pack.h"
#include "../formats_internal.h"
#include "packed.h"

size_t cpu_strip_bytes(const kern_format *f, int64_t k) {
    if (f->id == KERN_BF16) k += k % 2;
    if (packed_is_float(f->id))
        return ((size_t)k * CPU_STRIP * (size_t)f->block_bytes + 63) / 64 * 64;
    return packed_strip_bytes(f->id, k / 32);
}

/* ---- numbers ---- */

PACKED_INLINE void low_and_high(const uint8_t *q, uint8_t *u) {
    for (int j = 0; j < 16; j++) {
        u[j] = q[j] & 15;
        u[j + 16] = q[j] >> 4;
    }
}

PACKED_INLINE void add_fifth_bits(const uint8_t *p, uint8_t *u) {
    uint32_t bits;
    memcpy(&bits, p, sizeof bits);
    for (int j = 0; j < 32; j++) u[j] |= (uint8_t)((bits >> j & 1) << 4);
}

/* Of every byte q[32] the bits from `shift` on, under a mask. */
PACKED_INLINE void some_bits(const uint8_t *q, int shift, int mask, uint8_t *u) {
    for (int j = 0; j < 32; j++) u[j] = (uint8_t)(q[j] >> shift & mask);
}
PACKED_INLINE void add_bits(const uint8_t *q, int shift, int mask, int to, uint8_t *u) {
    for (int j = 0; j < 32; j++) u[j] |= (uint8_t)((q[j] >> shift & mask) << to);
}

/* u[32] = the numbers of block i (0 … 7) of the super-block at p, or of the small block at p. */
PACKED_INLINE void numbers(int format, const uint8_t *p, int i, uint8_t *u) {
    const int half = i / 4, part = i % 4;
    switch (format) {
    case KERN_Q4_0:
    case KERN_IQ4_NL: low_and_high(p + 2, u); break;
    case KERN_Q4_1: low_and_high(p + 4, u); break;
    case KERN_Q5_0:
        low_and_high(p + 6, u);
        add_fifth_bits(p + 2, u);
        break;
    case KERN_Q5_1:
        low_and_high(p + 8, u);
        add_fifth_bits(p + 4, u);
        break;
    case KERN_Q8_0: memcpy(u, p + 2, 32); break;
    case KERN_IQ4_XS: low_and_high(p + 8 + 16 * i, u); break;
    case KERN_Q4_K: some_bits(p + 16 + 32 * (i / 2), 4 * (i % 2), 15, u); break;
    case KERN_Q5_K:
        some_bits(p + 48 + 32 * (i / 2), 4 * (i % 2), 15, u);
        add_bits(p + 16, i, 1, 4, u);
        break;
    case KERN_Q2_K: some_bits(p + 16 + 32 * half, 2 * part, 3, u); break;
    case KERN_Q3_K:
        some_bits(p + 32 + 32 * half, 2 * part, 3, u);
        add_bits(p, i, 1, 2, u);
        break;
    case KERN_Q6_K:
        some_bits(p + 64 * half + 32 * (part % 2), 4 * (part / 2), 15, u);
        add_bits(p + 128 + 32 * half, 2 * part, 3, 4, u);
        break;
    default: break;
    }
}

/* The numbers of row r to the vectors of a block. */
PACKED_INLINE void put_numbers(int format, const uint8_t *u, int r, uint8_t *block) {
    uint32_t w[8];
    memcpy(w, u, sizeof w);
    if (packed_bits(format) == 8) {
        for (int v = 0; v < 8; v++) memcpy(block + PACKED_VECTOR * v + 4 * r, &w[v], 4);
        return;
    }
    const uint32_t low = 0x0f0f0f0f;
    uint32_t plane[2] = {0, 0};
    for (int v = 0; v < 4; v++) {
        const uint32_t x = (w[v] & low) | (w[v + 4] & low) << 4;
        memcpy(block + PACKED_VECTOR * v + 4 * r, &x, 4);
    }
    if (packed_bits(format) == 5) {
        for (int g = 0; g < 8; g++) plane[0] |= (w[g] >> 4 & 0x01010101) << g;
        memcpy(block + PACKED_VECTOR * 4 + 4 * r, &plane[0], 4);
    } else if (packed_bits(format) == 6) {
        for (int g = 0; g < 8; g++) plane[g / 4] |= (w[g] >> 4 & 0x03030303) << 2 * (g % 4);
        memcpy(block + PACKED_VECTOR * 4 + 4 * r, &plane[0], 4);
        memcpy(block + PACKED_VECTOR * 5 + 4 * r, &plane[1], 4);
    }
}

/* ---- scales ---- */

/* The integer scale of part i of a super-block at p, and its least value. */
PACKED_INLINE void part_scale(int format, const uint8_t *p, int i, int *scale, int *least) {
    *least = 0;
    switch (format) {
    case KERN_Q2_K:
        *scale = p[i] & 15;
        *least = p[i] >> 4;
        break;
    case KERN_Q3_K: {
        const uint8_t *s = p + 96;
        const int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
        *scale = (low | (s[8 + i % 4] >> (i / 4 * 2) & 3) << 4) - 32;
        break;
    }
    case KERN_Q4_K:
    case KERN_Q5_K: format_scale_and_least(p + 4, i, scale, least); break;
    case KERN_Q6_K: *scale = ((const int8_t *)p)[192 + i]; break;
    default: /* IQ4_XS */
        *scale = (p[4 + i / 2] >> (i % 2 * 4) & 15) | (format_u16(p + 2) >> (i * 2) & 3) << 4;
        *scale -= 32;
    }
}

/* Where a block has its f16 d, and its f16 least. */
PACKED_INLINE int d_at(int format) {
    switch (format) {
    case KERN_Q2_K: return 80;
    case KERN_Q3_K: return 108;
    case KERN_Q6_K: return 208;
    default: return 0;
    }
}

/* The scales of row r from its block (or super-block) at p. */
PACKED_INLINE void put_scales(int format, const uint8_t *p, int r, uint8_t *to) {
    const int least = packed_least(format) != 0;
    memcpy(to + 2 * r, p + d_at(format), 2);
    if (least) memcpy(to + 2 * (CPU_STRIP + r), p + d_at(format) + 2, 2);
    if (!packed_super(format)) return;
    to += 2 * packed_part_bytes(format);
    for (int i = 0; i < 256 / packed_part(format); i++, to += packed_part_bytes(format)) {
        int s, m;
        part_scale(format, p, i, &s, &m);
        to[r] = (uint8_t)s;
        if (least) to[CPU_STRIP + r] = (uint8_t)m;
    }
}

/* ---- strips ---- */

PACKED_INLINE void pack_row(const int format, const uint8_t *row, int64_t k, int r,
                            uint8_t *strip) {
    const int is_super = packed_super(format), n_group = packed_group(format);
    const size_t bytes = (size_t)kern_format_find(format)->block_bytes;
    for (int64_t b = 0; b < k / 32; b += n_group) {
        const int n = k / 32 - b < n_group ? (int)(k / 32 - b) : n_group;
        uint8_t *scales = strip;
        strip += packed_head_bytes(format);
        for (int i = 0; i < n; i++, strip += packed_block_bytes(format)) {
            uint8_t u[32];
            numbers(format, row, is_super ? i : 0, u);
            put_numbers(format, u, r, strip);
            if (is_super && i > 0) continue;
            put_scales(format, row, r, scales + (size_t)i * packed_scale_bytes(format));
            if (!is_super) row += bytes;
        }
        if (is_super) row += bytes;
    }
}

static void pack_floats(const uint8_t *row, int64_t k, size_t bytes, int r, uint8_t *strip) {
    if (bytes == 2)
        for (int64_t c = 0; c < k; c++)
            memcpy(strip + 2 * (size_t)(c * CPU_STRIP + r), row + 2 * c, 2);
    else
        for (int64_t c = 0; c < k; c++)
            memcpy(strip + 4 * (size_t)(c * CPU_STRIP + r), row + 4 * c, 4);
}

/* k numbers of BF16, two at a time. */
static void pack_pairs(const uint8_t *row, int64_t k, int r, uint8_t *strip) {
    int64_t c = 0;
    for (; c + 2 <= k; c += 2) memcpy(strip + packed_pair_at(c, r), row + 2 * c, 4);
    if (c < k) memcpy(strip + packed_pair_at(c, r), row + 2 * c, 2);
}

/* A row that is rounded to BF16. */
static void pack_rounded(const kern_format *from, const uint8_t *row, int64_t k, int r,
                         uint8_t *strip) {
    enum { PIECE = 256 };
    float values[PIECE];
    uint16_t rounded[PIECE];
    for (int64_t c = 0; c < k; c += PIECE) {
        const int64_t n = k - c < PIECE ? k - c : PIECE;
        from->dequantise(row + kern_format_bytes(from, c), values, n);
        for (int64_t i = 0; i < n; i++) rounded[i] = format_brain(values[i]);
        pack_pairs((const uint8_t *)rounded, n, r, strip + packed_pair_at(c, 0));
    }
}

static void pack_any(const kern_format *from, int format, const uint8_t *row, int64_t k, int r,
                     uint8_t *strip) {
#define CASE(f)                                                                                    \
    case KERN_##f: pack_row(KERN_##f, row, k, r, strip); break;
    switch (format) {
        CASE(Q4_0)
        CASE(Q4_1)
        CASE(Q5_0)
        CASE(Q5_1)
        CASE(Q8_0)
        CASE(Q2_K)
        CASE(Q3_K)
        CASE(Q4_K)
        CASE(Q5_K)
        CASE(Q6_K)
        CASE(IQ4_NL)
        CASE(IQ4_XS)
    case KERN_BF16:
        if (from->id == format)
            pack_pairs(row, k, r, strip);
        else
            pack_rounded(from, row, k, r, strip);
        break;
    default: pack_floats(row, k, format == KERN_F32 ? 4 : 2, r, strip);
    }
#undef CASE
}

void cpu_pack(const kern_weight *w, int64_t first, int64_t end, unsigned char *to) {
    const int64_t k = w->n_columns;
    const size_t row_bytes = kern_format_bytes(w->format, k);
    const kern_format *packed = cpu_packed(w);
    const size_t strip_bytes = cpu_strip_bytes(packed, k);
    for (int64_t strip = first; strip < end; strip++, to += strip_bytes) {
        const int64_t row = strip * CPU_STRIP;
        const int n = w->n_rows - row < CPU_STRIP ? (int)(w->n_rows - row) : CPU_STRIP;
        memset(to, 0, strip_bytes); /* rows that are not there, and what lies between */
        for (int r = 0; r < n; r++)
            pack_any(w->format, packed->id,
                     (const uint8_t *)w->data + (size_t)(row + r) * row_bytes, k, r, to);
    }
}
