/* vectors.h: CUDA's vector types, with its sizes and alignments, for host compilers. */
#ifndef EMULATION_VECTORS_H
#define EMULATION_VECTORS_H

/* name2, name3 and name4 of a type, and what makes them; the alignments are CUDA's. */
#define EMU_VECTOR(type, name, align2, align4)                                                     \
    struct alignas(align2) name##2 {                                                               \
        type x, y;                                                                                 \
    };                                                                                             \
    struct name##3 {                                                                               \
        type x, y, z;                                                                              \
    };                                                                                             \
    struct alignas(align4) name##4 {                                                               \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    static inline name##2 make_##name##2(type x, type y) { return {x, y}; }                        \
    static inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }             \
    static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

EMU_VECTOR(unsigned, uint, 8, 16)
EMU_VECTOR(int, int, 8, 16)
EMU_VECTOR(float, float, 8, 16)
EMU_VECTOR(double, double, 16, 16)
EMU_VECTOR(long long, longlong, 16, 16)
EMU_VECTOR(unsigned long long, ulonglong, 16, 16)
EMU_VECTOR(short, short, 4, 8)
EMU_VECTOR(unsigned short, ushort, 4, 8)
EMU_VECTOR(signed char, char, 2, 4)
EMU_VECTOR(unsigned char, uchar, 2, 4)
#undef EMU_VECTOR

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

#endif
