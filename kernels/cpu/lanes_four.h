/* lanes_four.h: what tiers of four lanes, a quarter of a strip, share: all that the compiler's
 * generic vectors say as well as instructions do. See lanes.h. */
#ifndef KERN_CPU_LANES_FOUR_H
#define KERN_CPU_LANES_FOUR_H

enum { LANES = 4, LANES_UNSIGNED = 0 };
typedef int32_t lane_i __attribute__((vector_size(16)));
typedef uint32_t lane_u __attribute__((vector_size(16)));
typedef float lane_f __attribute__((vector_size(16)));

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
LANES_INLINE lane_f lane_to_f(lane_i v) { return __builtin_convertvector(v, lane_f); }
LANES_INLINE lane_f lane_as_f(lane_i v) { return (lane_f)v; }
LANES_INLINE lane_u lane_words(const uint8_t *p) {
    return (lane_u){format_u16(p), format_u16(p + 2), format_u16(p + 4), format_u16(p + 6)};
}

#endif
