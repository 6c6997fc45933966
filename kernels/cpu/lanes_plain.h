/* lanes_plain.h: the lanes of the plain tier, and of any processor whose compiler makes vectors of
 * four: a quarter of a strip. See lanes.h. */
#ifndef KERN_CPU_LANES_PLAIN_H
#define KERN_CPU_LANES_PLAIN_H

enum { LANES = 4, LANES_UNSIGNED = 0 };
typedef int32_t lane_i __attribute__((vector_size(16)));
typedef uint32_t lane_u __attribute__((vector_size(16)));
typedef float lane_f __attribute__((vector_size(16)));
#define LANES_TILES(X) X(1) X(4)

LANES_INLINE lane_i lane_load(const uint8_t *p) {
    lane_i v;
    memcpy(&v, p, sizeof v);
    return v;
}
LANES_INLINE lane_i lane_set(int32_t x) { return (lane_i){x, x, x, x}; }
LANES_INLINE lane_i lane_bytes(const uint8_t x) { return lane_set((int32_t)(x * 0x01010101u)); }
LANES_INLINE lane_i lane_and(lane_i a, lane_i b) { return a & b; }
LANES_INLINE lane_i lane_or(lane_i a, lane_i b) { return a | b; }
LANES_INLINE lane_i lane_xor(lane_i a, lane_i b) { return a ^ b; }
LANES_INLINE lane_i lane_right(lane_i a, const int n) { return (lane_i)((lane_u)a >> n); }
LANES_INLINE lane_i lane_left(lane_i a, const int n) { return (lane_i)((lane_u)a << n); }
LANES_INLINE lane_i lane_levels(lane_i v) {
    uint8_t bytes[sizeof v];
    memcpy(bytes, &v, sizeof v);
    for (size_t i = 0; i < sizeof v; i++) bytes[i] = (uint8_t)format_iq4_levels[bytes[i]];
    memcpy(&v, bytes, sizeof v);
    return v;
}
LANES_INLINE lane_i lane_all(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return lane_set(x);
}

LANES_INLINE lane_f lane_zero(void) { return (lane_f){0, 0, 0, 0}; }
LANES_INLINE lane_f lane_all_f(const void *p) {
    float x;
    memcpy(&x, p, sizeof x);
    return (lane_f){x, x, x, x};
}
LANES_INLINE lane_f lane_load_f(const void *p) {
    lane_f v;
    memcpy(&v, p, sizeof v);
    return v;
}
LANES_INLINE void lane_store_f(float *p, lane_f v) { memcpy(p, &v, sizeof v); }
LANES_INLINE lane_f lane_add(lane_f a, lane_f b) { return a + b; }
LANES_INLINE lane_f lane_mul(lane_f a, lane_f b) { return a * b; }
LANES_INLINE lane_f lane_fma(lane_f a, lane_f b, lane_f c) { return a * b + c; }
LANES_INLINE lane_f lane_fnma(lane_f a, lane_f b, lane_f c) { return c - a * b; }
LANES_INLINE lane_f lane_to_f(lane_i v) { return __builtin_convertvector(v, lane_f); }
LANES_INLINE lane_u lane_words(const uint8_t *p) {
    return (lane_u){format_u16(p), format_u16(p + 2), format_u16(p + 4), format_u16(p + 6)};
}
LANES_INLINE lane_f lane_halves(const uint8_t *p) { /* as format_half */
    const lane_u h = lane_words(p), moved = (h & 0x7fff) << 13;
    const lane_u special = (lane_u)((h & 0x7c00) == 0x7c00);
    const lane_f normal = (lane_f)moved * (lane_f){0x1p112f, 0x1p112f, 0x1p112f, 0x1p112f};
    const lane_u bits = ((lane_u)normal & ~special) | ((moved | 0x7f800000) & special);
    return (lane_f)(bits | (h & 0x8000) << 16);
}
LANES_INLINE lane_f lane_brains(const uint8_t *p) { return (lane_f)(lane_words(p) << 16); }
LANES_INLINE lane_f lane_int8(const uint8_t *p) {
    const int8_t *q = (const int8_t *)p;
    return (lane_f){q[0], q[1], q[2], q[3]};
}

/* Byte i of every lane times x[i], as 16 bits in the lane's lower half: |w · x| < 2^15. */
LANES_INLINE lane_i lane_dots(const int most, const lane_i *w, const int8_t *x, const int n,
                              lane_i sum) {
    for (int g = 0; g < n; g++) {
        for (int i = 0; i < 4; i++) {
            const lane_i byte = lane_left(w[g], 24 - 8 * i);
            sum += (most < 0 ? byte >> 24 : lane_right(byte, 24)) * lane_set(x[4 * g + i]);
        }
    }
    return sum;
}

#endif
