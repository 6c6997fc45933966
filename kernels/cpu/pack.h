/* pack.h: how weight matrices lie in memory for the products: repacked at load into strips of
 * CPU_STRIP rows, so that one activation, broadcast, meets all rows of a strip in the lanes of a
 * vector, and sums stay vertical. All tiers read the same layout.
 *
 * A strip of a block format is groups, one behind the other, so that it is read in one stream: the
 * scales of a group, padded to 64 bytes, then the numbers of its blocks of 32 columns. A group is a
 * super-block, or two blocks, or, of formats with a least value, one block. Numbers are unsigned
 * (the format's zero point added), of 4 bits and further planes:
 *
 *   - 4 vectors of 64 bytes. Byte 4·r + j of vector v is of row r: column 4v + j in its low half,
 *     column 16 + 4v + j in its high half.
 *
 *   - 5 bits: 1 vector more. Byte 4·r + j: in bit g bit 4 of column 4g + j.
 *
 *   - 6 bits: 2 vectors more. Byte 4·r + j of vector p: in bits 2v, 2v + 1 bits 4, 5 of column
 *     16p + 4v + j.
 *
 *   - 8 bits: 8 vectors instead. Byte 4·r + j of vector v: column 4v + j, signed.
 *
 * Scales, for 16 rows each: f16 d, or d and m, a block; of the formats with super-blocks f16 d (and
 * least) a super-block of 256, then for each of its parts of 32 (or 16) columns an int8 scale (and
 * a uint8 least). A strip of F32, F16 is column after column, 16 rows each; of BF16 two columns
 * after two, the pairs of 16 rows, so that instructions which multiply pairs find them; a column
 * beyond an odd last one is zeros, and so are rows beyond the last. */
#ifndef KERN_CPU_PACK_H
#define KERN_CPU_PACK_H

#include "../plan.h"

enum { CPU_STRIP = 16 };

static inline int64_t cpu_strips(int64_t n_rows) { return (n_rows + CPU_STRIP - 1) / CPU_STRIP; }

/* The format that a weight is packed in: its own, or what it is bound as. */
static inline const kern_format *cpu_packed(const kern_weight *w) {
    return w->bound_as != NULL ? w->bound_as : w->format;
}

/* Bytes of a strip of k columns, a multiple of 64. */
size_t cpu_strip_bytes(const kern_format *, int64_t k);

/* Packs strips first … end - 1 of a matrix, as cpu_packed says, to `to`, where strip `first` begins
 * (64-byte aligned).
 */
void cpu_pack(const kern_weight *, int64_t first, int64_t end, unsigned char *to);

#endif
