/* strips.h: matrix products of strips of weights (pack.h) with tiles of activation rows
 * (cpu_inputs): one inline kernel for all formats, tiers and numbers of rows; the file of a tier
 * includes it and lets strips_product make a function a format.
 *
 * An output is one chain of additions over the columns in order, in a lane of its own: the tile it
 * lies in changes nothing.
 *
 *   block formats   per block of 32, f = Σ w·x exactly in integers, acc = (f · d_w) · d_x + acc,
 *                   with a least value m, acc = m · (d_x Σ x) + acc, and where the activations have
 *                   a rest (cpu_inputs), acc = (f' · d_w) · (d_x / 256) + acc
 *   float formats   per 256 columns one sum, the sums added in order; where activations are rounded
 *                   to bf16, of each pair of columns the second first */
#ifndef KERN_CPU_STRIPS_H
#define KERN_CPU_STRIPS_H

#include "cpu.h"
#include "lanes.h"
#include "packed.h"

enum {
    STRIP_PARTS = CPU_STRIP / LANES, /* vectors that the rows of a strip take */
    STRIP_PIECE = 256,               /* columns of a sum of float products */
    STRIP_STREAMS = 4,               /* strips that one row meets together, where it does */
    STRIP_SUMS = 16,                 /* vectors of sums, at most */
    STRIP_INPUTS = 384 << 10         /* bytes of activations that stay in the cache of a core */
};

/* Whether blocks meet tiles as wide.h does it. */
LANES_INLINE int strip_is_wide(void) {
#ifdef LANES_WIDE
    return 1;
#else
    return 0;
#endif
}

/* The vectors of a strip that a tile of that many activation rows works on together. */
LANES_INLINE int strip_vectors(const int format, const int tile) {
    if (tile <= 2) return STRIP_PARTS;
    return STRIP_PARTS > 1 && (packed_is_float(format) || strip_is_wide()) ? 2 : 1;
}

/* Vector v of those from row r of a strip on, beyond it of strips `gap` bytes apart: how far its
 * strip is from the first, and its row there. */
LANES_INLINE size_t strip_at(const int v, const int r, size_t gap) {
    return (size_t)((r / LANES + v) / STRIP_PARTS) * gap;
}
LANES_INLINE int strip_row(const int v, const int r) {
    return (r / LANES + v) % STRIP_PARTS * LANES;
}

/* The form of activations that the products of a format take. */
LANES_INLINE int strip_form(const int format) {
    if (format == KERN_BF16_DOTS) return CPU_WANTS_PAIRS;
    return packed_is_float(format) ? CPU_WANTS_FLOATS : CPU_WANTS_BLOCKS;
}

/* log2 of the zero point that products have to take off. */
LANES_INLINE int strip_zero(const int format) {
    return packed_signed(format) && LANES_UNSIGNED ? 7 : packed_zero(format);
}
LANES_INLINE int strip_most(const int format) {
    if (packed_signed(format)) return LANES_UNSIGNED ? 255 : -1;
    return (1 << packed_bits(format)) - 1;
}

/* Bit (or two bits) number g of each byte of a plane, as bits 4 (and 5). */
LANES_INLINE lane_i plane_bits(lane_i plane, const int bits, const int g) {
    const int from = bits * g;
    plane = from > 4 ? lane_right(plane, from - 4) : lane_left(plane, 4 - from);
    return lane_and(plane, lane_bytes(bits == 1 ? 0x10 : 0x30));
}

/* Numbers of a block, LANES rows of it: columns 4g … 4g + 3. */
LANES_INLINE lane_i strip_number(const int format, const uint8_t *p, const int g) {
    const int bits = packed_bits(format);
    lane_i w = lane_load(p + PACKED_VECTOR * (bits == 8 ? g : g % 4));
    if (bits < 8) w = lane_and(g < 4 ? w : lane_right(w, 4), lane_bytes(0x0f));
    if (packed_levels(format)) w = lane_levels(w);
    if (packed_signed(format) && LANES_UNSIGNED) w = lane_xor(w, lane_bytes(0x80));
    if (bits == 5) w = lane_or(w, plane_bits(lane_load(p + 4 * PACKED_VECTOR), 1, g));
    if (bits == 6) w = lane_or(w, plane_bits(lane_load(p + (4 + g / 4) * PACKED_VECTOR), 2, g % 4));
    return w;
}
LANES_INLINE void strip_numbers(const int format, const uint8_t *p, lane_i *w) {
    LANES_UNROLL
    for (int g = 0; g < 8; g++) w[g] = strip_number(format, p, g);
}

/* What the parts of a block are multiplied by, and their least values: [1] is used only where parts
 * have 16 columns. */
typedef struct strip_scales {
    lane_f d[2], least[2];
} strip_scales;

/* Scales of LANES rows from row r on: `super` is the f16 of a block or super-block, `part` the
 * integers of the block's first part. */
LANES_INLINE strip_scales strip_load_scales(const int format, const uint8_t *super,
                                            const uint8_t *part, const int r) {
    const int n_parts = 32 / packed_part(format);
    strip_scales s;
    const lane_f d = lane_halves(super + 2 * r);
    lane_f m = d;
    if (packed_least(format) != 0) m = lane_halves(super + 2 * (CPU_STRIP + r));
    LANES_UNROLL
    for (int i = 0; i < n_parts; i++, part += packed_part_bytes(format)) {
        s.d[i] = packed_super(format) ? lane_mul(d, lane_int8(part + r)) : d;
        s.least[i] = m;
        if (packed_super(format) && packed_least(format) != 0)
            s.least[i] = lane_mul(m, lane_int8(part + CPU_STRIP + r));
    }
    return s;
}

/* f + what the least values of parts of 16 columns add; `sums` as for strip_products. */
LANES_INLINE lane_f strip_leasts(const int format, lane_f f, const strip_scales *s,
                                 const int32_t *sums) {
    if (packed_part(format) == 32 || packed_least(format) == 0) return f;
    LANES_UNROLL
    for (int i = 0; i < 2; i++) /* − least · −Σq */
        f = lane_fma(s->least[i], lane_to_f(lane_all(sums + 1 + i)), f);
    return f;
}

/* Σ of w · q, each part times its scale. At `sums` stand −Σq of the row and that of each half. */
LANES_INLINE lane_f strip_products(const int format, const lane_i *w, const strip_scales *s,
                                   const int8_t *q, const int32_t *sums) {
    const int zero = strip_zero(format), most = strip_most(format);
    const int n_parts = 32 / packed_part(format);
    const lane_i none = {0};
    lane_f f = lane_zero();
    LANES_UNROLL
    for (int i = n_parts - 1; i >= 0; i--) {
        const lane_i from =
            zero ? lane_left(lane_all(sums + (n_parts == 1 ? 0 : 1 + i)), zero) : none;
        const lane_f whole = lane_to_f(lane_dots(most, w + 4 * i, q + 16 * i, 8 / n_parts, from));
        f = i == n_parts - 1 ? lane_mul(whole, s->d[i]) : lane_fma(whole, s->d[i], f);
    }
    return strip_leasts(format, f, s, sums);
}

/* acc + d_x · f, and for parts of 32 columns the least value. */
LANES_INLINE lane_f strip_add(const int format, lane_f f, const strip_scales *s,
                              const cpu_in_block *in, lane_f acc) {
    acc = lane_fma(f, lane_all_f(&in->d), acc);
    if (packed_part(format) == 16 || packed_least(format) == 0) return acc;
    const lane_f sum = lane_all_f(&in->s);
    return packed_least(format) > 0 ? lane_fma(s->least[0], sum, acc)
                                    : lane_fnma(s->least[0], sum, acc);
}

/* acc[v · tile + x] += n vectors of a block, from row r of the strip on, × row x of a tile. */
LANES_INLINE void strip_block(const int format, const uint8_t *block, const uint8_t *super,
                              const uint8_t *parts, size_t gap, const int r, const cpu_in_block *in,
                              const int tile, const int n, lane_f *acc) {
    LANES_UNROLL
    for (int v = 0; v < n; v++, acc += tile) {
        const size_t at = strip_at(v, r, gap);
        const int row = strip_row(v, r);
        lane_i w[8];
        strip_numbers(format, block + at + 4 * row, w);
        const strip_scales s = strip_load_scales(format, super + at, parts + at, row);
        LANES_UNROLL
        for (int x = 0; x < tile; x++)
            acc[x] = strip_add(format, strip_products(format, w, &s, in[x].q, in[x].sums), &s,
                               &in[x], acc[x]);
    }
}

#ifdef LANES_WIDE
#include "wide.h"
#else
#define wide_block strip_block /* not used */
#endif

/* The rows of the tile that have a rest in this block, as bits. */
LANES_INLINE uint32_t strip_rests(const uint8_t *of, const int tile) {
    uint32_t rows = 0;
    LANES_UNROLL
    for (int i = 0; i < tile; i += 4) {
        uint32_t flags; /* four bytes of 0 or 1, but for those beyond the tile */
        memcpy(&flags, of + i, sizeof flags);
        if (tile - i < 4) flags &= (1u << 8 * (tile - i)) - 1;
        rows |= (flags * 0x10204080u >> 28) << i;
    }
    return rows;
}

/* acc[x] += block · rest of row x where it has one. The block is read again, and sums leave their
 * registers for it: the way without rests has all of them. */
LANES_INLINE void strip_block_rests(const int format, const uint8_t *block, const uint8_t *super,
                                    const uint8_t *parts, const int row, const cpu_in_block *in,
                                    const cpu_in_rest *rest, uint32_t rows, const int tile,
                                    lane_f *acc) {
    __asm__ volatile("" ::: "memory");
    lane_i w[8];
    strip_numbers(format, block + 4 * row, w);
    const strip_scales s = strip_load_scales(format, super, parts, row);
    const float part = 1.0f / 256.0f;
    lane_f sums[CPU_TILE_MOST];
    LANES_UNROLL
    for (int x = 0; x < tile; x++) sums[x] = acc[x];
    for (; rows != 0; rows &= rows - 1) {
        const int x = __builtin_ctz(rows);
        const lane_f f = strip_products(format, w, &s, rest[x].q, rest[x].sums);
        const lane_f d = lane_mul(lane_all_f(&in[x].d), lane_all_f(&part));
        sums[x] = lane_fma(f, d, sums[x]);
    }
    LANES_UNROLL
    for (int x = 0; x < tile; x++) acc[x] = sums[x];
}

LANES_INLINE void strip_prefetch(const uint8_t *p, const size_t bytes) {
    LANES_UNROLL
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

/* acc[v · tile + x] += the n vectors of a strip from row r on × activation row x of a tile. Vectors
 * beyond the strip are of another one, `gap` bytes behind it, and so on: one's additions hide
 * another's latency, and memory is read in as many streams. */
LANES_INLINE void strip_tile(const int format, const uint8_t *strip, size_t gap, const int r,
                             int64_t k, const cpu_in_block *in, const cpu_in_rest *rest,
                             const uint8_t *flags, size_t ahead, const int tile, const int n,
                             lane_f *acc) {
    const int n_group = packed_group(format), is_super = packed_super(format);
    const size_t part_bytes = (size_t)(32 / packed_part(format)) * packed_part_bytes(format);
    for (int64_t b = 0; b < k / 32; b += n_group) {
        const int n_blocks = is_super || k / 32 - b >= n_group ? n_group : (int)(k / 32 - b);
        const uint8_t *super = strip, *part = strip + 2 * packed_part_bytes(format);
        strip += packed_head_bytes(format);
        for (int i = 0; i < n_blocks; i++) {
            if (tile > 2 && (packed_bits(format) < 8 || strip_is_wide()))
                strip_prefetch(strip + ahead, packed_block_bytes(format));
            if (strip_is_wide())
                wide_block(format, strip, super, part, gap, r, in, tile, n, acc);
            else
                strip_block(format, strip, super, part, gap, r, in, tile, n, acc);
            const uint32_t rests = strip_rests(flags, tile);
            if (rests != 0) {
                LANES_UNROLL
                for (int v = 0; v < n; v++) {
                    const size_t at = strip_at(v, r, gap);
                    strip_block_rests(format, strip + at, super + at, part + at, strip_row(v, r),
                                      in, rest, rests, tile, acc + v * tile);
                }
            }
            strip += packed_block_bytes(format);
            in += tile;
            rest += tile;
            flags += CPU_FLAGS;
            if (is_super)
                part += part_bytes;
            else
                super += packed_scale_bytes(format);
        }
    }
}

/* Activations are loaded again rather than held: registers are for the sums. */
#define STRIP_LOAD_AGAIN __asm__ volatile("" ::: "memory")

/* LANES numbers at p of a strip of floats; of pairs the first ones or the second. */
LANES_INLINE lane_f strip_floats(const int format, const uint8_t *p, const int i) {
    if (format == KERN_BF16) return i == 0 ? lane_first(lane_load(p)) : lane_second(lane_load(p));
    return format == KERN_F16 ? lane_halves(p) : lane_load_f(p);
}

/* Of floats: sums[x] += LANES numbers at p of column c (and of the next one, if `columns` is 2) ×
 * activation row x of a tile. */
LANES_INLINE void strip_step(const int format, const uint8_t *p, const void *in, int64_t c,
                             const int columns, const int tile, lane_f *sums) {
    if (format == KERN_BF16_DOTS) {
        const uint32_t *pairs = (const uint32_t *)in + c / 2 * tile;
        const lane_i w = lane_load(p);
        LANES_UNROLL
        for (int x = 0; x < tile; x++) sums[x] = lane_pair_dots(w, lane_all(pairs + x), sums[x]);
        return;
    }
    const float *floats = (const float *)in + c * tile;
    LANES_UNROLL
    for (int i = 0; i < columns; i++) {
        const lane_f w = strip_floats(format, p, i);
        LANES_UNROLL
        for (int x = 0; x < tile; x++)
            sums[x] = lane_fma(w, lane_all_f(floats + i * tile + x), sums[x]);
        if (columns * tile > 6) STRIP_LOAD_AGAIN;
    }
}

/* The same for the n vectors of a strip from row r on. Vectors beyond the strip are of another one,
 * `gap` bytes behind it, and so on: one's additions hide another's latency, and memory is read in
 * as many streams. */
LANES_INLINE void strip_steps(const int format, const uint8_t *strip, size_t gap, const int r,
                              const void *in, int64_t c, const int columns, const int tile,
                              const int n, lane_f *sums) {
    const int bytes = format == KERN_F16 ? 2 : 4; /* of a lane */
    const uint8_t *at[STRIP_SUMS];
    LANES_UNROLL
    for (int v = 0; v < n; v++) {
        const int row = strip_row(v, r);
        at[v] = strip + strip_at(v, r, gap);
        at[v] += packed_is_pairs(format) ? packed_pair_at(c, row)
                                         : (size_t)(c * CPU_STRIP + row) * (size_t)bytes;
    }
    if (packed_is_pairs(format) || tile <= 2) {
        LANES_UNROLL
        for (int v = 0; v < n; v++) {
            strip_step(format, at[v], in, c, columns, tile, sums + v * tile);
            if (n * tile > 8) STRIP_LOAD_AGAIN;
        }
        return;
    }
    lane_f w[STRIP_SUMS]; /* an activation is taken once for all */
    LANES_UNROLL
    for (int v = 0; v < n; v++) w[v] = strip_floats(format, at[v], 0);
    LANES_UNROLL
    for (int x = 0; x < tile; x++) {
        const lane_f y = lane_all_f((const float *)in + c * tile + x);
        LANES_UNROLL
        for (int v = 0; v < n; v++) sums[v * tile + x] = lane_fma(w[v], y, sums[v * tile + x]);
    }
}

/* As strip_tile, for weights that are floats; `in` is a tile of floats, or of pairs. */
LANES_INLINE void strip_tile_floats(const int format, const uint8_t *strip, size_t gap, const int r,
                                    int64_t k, const void *in, const int tile, const int n,
                                    lane_f *acc) {
    const int step = packed_is_pairs(format) ? 2 : 1;
    if (format == KERN_BF16_DOTS) k += k % 2; /* both are filled up with zeros */
    for (int64_t c = 0; c < k; c += STRIP_PIECE) {
        const int64_t end = c + STRIP_PIECE < k ? c + STRIP_PIECE : k;
        lane_f sums[STRIP_SUMS];
        LANES_UNROLL
        for (int i = 0; i < n * tile; i++) sums[i] = lane_zero();
        int64_t j = c;
        for (; j + step <= end; j += step)
            strip_steps(format, strip, gap, r, in, j, step, tile, n, sums);
        if (step > 1 && j < end) strip_steps(format, strip, gap, r, in, j, 1, tile, n, sums);
        LANES_UNROLL
        for (int i = 0; i < n * tile; i++) acc[i] = lane_add(acc[i], sums[i]);
    }
}

/* Sums of weight rows n … n + LANES - 1 to rows t … of the product, as far as there are such. */
LANES_INLINE void strip_put(const cpu_product *p, const lane_f *acc, int64_t n, int64_t t,
                            const int tile) {
    const int64_t left = p->w->n_rows - n;
    LANES_UNROLL
    for (int x = 0; x < tile; x++) {
        if (t + x >= p->in->n_rows) return;
        float *to = p->out + (t + x) * p->out_stride + n;
        if (left >= LANES) {
            lane_store_f(to, p->bias == NULL ? acc[x] : lane_add(acc[x], lane_load_f(p->bias + n)));
            continue;
        }
        float sums[LANES];
        lane_store_f(sums, acc[x]);
        for (int64_t i = 0; i < left; i++)
            to[i] = p->bias != NULL ? sums[i] + p->bias[n + i] : sums[i];
    }
}

/* n vectors from row r of strip i on (and of strips `gap` apart), times tile i_tile of the
 * activations. */
LANES_INLINE void strip_vectors_put(const cpu_product *p, const int format, int64_t i, int64_t gap,
                                    const int r, const int n, int64_t i_tile, const int tile) {
    const uint8_t *strip = (const uint8_t *)p->w->bound + (size_t)i * p->strip_bytes;
    const int64_t k = p->w->n_columns;
    lane_f acc[STRIP_SUMS];
    LANES_UNROLL
    for (int j = 0; j < n * tile; j++) acc[j] = lane_zero();
    if (packed_is_float(format))
        strip_tile_floats(format, strip, (size_t)gap * p->strip_bytes, r, k,
                          cpu_in_tile(p->in, strip_form(format), i_tile), tile, n, acc);
    else
        strip_tile(format, strip, (size_t)gap * p->strip_bytes, r, k,
                   p->in->blocks + cpu_in_first(p->in, i_tile),
                   p->in->rests + cpu_in_first(p->in, i_tile), cpu_in_flags(p->in, i_tile),
                   p->strip_bytes, tile, n, acc);
    LANES_UNROLL
    for (int v = 0; v < n; v++)
        strip_put(p, acc + v * tile,
                  CPU_STRIP * (i + (int64_t)strip_at(v, r, (size_t)gap)) + strip_row(v, r),
                  i_tile * tile, tile);
}

/* Strips first … end - 1 for one or two rows: a few at a time, far apart. */
LANES_INLINE void strips_streamed(const cpu_product *p, const int format, int64_t first,
                                  int64_t end, const int tile) {
    const int streams = STRIP_STREAMS / tile;
    const int64_t gap = (end - first) / streams;
    for (int64_t i = first; i < first + gap; i++)
        strip_vectors_put(p, format, i, gap, 0, streams * STRIP_PARTS, 0, tile);
    for (int64_t i = first + gap * streams; i < end; i++)
        strip_vectors_put(p, format, i, 0, 0, STRIP_PARTS, 0, tile);
}

LANES_INLINE void strips_tiled(const cpu_product *p, const int format, int64_t first, int64_t end,
                               const int tile) {
    const int is_float = packed_is_float(format);
    if ((is_float || strip_is_wide()) && 2 * tile <= STRIP_STREAMS && p->in->n_tiles == 1) {
        strips_streamed(p, format, first, end, tile);
        return;
    }
    const int n = strip_vectors(format, tile);
    const int64_t most = STRIP_INPUTS / (int64_t)cpu_in_tile_bytes(p->in, strip_form(format));
    const int64_t step = most > 0 ? most : 1;
    for (int64_t t = 0; t < p->in->n_tiles; t += step) {
        const int64_t stop = t + step < p->in->n_tiles ? t + step : p->in->n_tiles;
        for (int64_t i = first; i < end; i++)
            for (int64_t j = t; j < stop; j++)
                for (int r = 0; r < CPU_STRIP; r += n * LANES)
                    strip_vectors_put(p, format, i, 0, r, n, j, tile);
    }
}

/* The product's strips first … end - 1, with the tile that its activations were laid out for. */
LANES_INLINE void strips_product(const cpu_product *p, const int format, int64_t first,
                                 int64_t end) {
#define STRIPS_CASE(tile)                                                                          \
    case tile: strips_tiled(p, format, first, end, tile); break;
    switch (p->in->tile) { LANES_TILES(STRIPS_CASE) }
#undef STRIPS_CASE
}

#endif
