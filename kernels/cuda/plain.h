/* plain.h: single values of weights that lie as in the file, for all formats: included by .cu files
 * only. What the bytes mean is said in formats_blocks.c and formats_k.c; roundings are the same.
 *
 * plain_q: value i of a block as its bits or the integer that is scaled (not below 0);
 * plain_value: as a number. */
#ifndef CUDA_PLAIN_H
#define CUDA_PLAIN_H

#include "gpu.h"

#define PLAIN_FORMATS(X)                                                                           \
    X(KERN_F32)                                                                                    \
    X(KERN_F16)                                                                                    \
    X(KERN_BF16)                                                                                   \
    X(KERN_Q4_0)                                                                                   \
    X(KERN_Q4_1)                                                                                   \
    X(KERN_Q5_0)                                                                                   \
    X(KERN_Q5_1) X(KERN_Q8_0) X(KERN_Q2_K) X(KERN_Q3_K) X(KERN_Q4_K) X(KERN_Q5_K) X(KERN_Q6_K)     \
        X(KERN_IQ4_NL) X(KERN_IQ4_XS)

template <int size_, int bytes_> struct plain_sizes {
    static constexpr int size = size_, bytes = bytes_; /* values and bytes of a block */
};
template <int id> struct plain;

/* Blocks lie at any alignment. */
GPU_INLINE uint32_t plain_u16(const unsigned char *p) { return p[0] | (uint32_t)p[1] << 8; }
GPU_INLINE float plain_f16(const unsigned char *p) {
    return gpu_f16_to_f32((uint16_t)plain_u16(p));
}
GPU_INLINE int plain_bit(const unsigned char *p, int i) { return p[i >> 3] >> (i & 7) & 1; }
/* Value i of 32: the low halves of 16 bytes, then the high ones. */
GPU_INLINE int plain_nibble(const unsigned char *q, int i) {
    return q[i & 15] >> (i >> 4 << 2) & 15;
}
GPU_INLINE float plain_level(int q) { /* of IQ4: levels + 128 in four words */
    const uint32_t low = __byte_perm(0x3F2D1801u, 0x766A5D4Fu, q & 7);
    const uint32_t high = __byte_perm(0xA6998D81u, 0xF1D9C5B5u, q & 7);
    return (float)((int)((q & 8 ? high : low) & 255u) - 128);
}
/* The sum and the difference of formats.c: rounded after the product. */
GPU_INLINE float plain_sum(float scale, int q, float least) {
    return __fadd_rn(__fmul_rn(scale, (float)q), least);
}

template <> struct plain<KERN_F32> : plain_sizes<1, 4> {
    GPU_INLINE float value(const unsigned char *b, int) {
        return __uint_as_float(plain_u16(b) | plain_u16(b + 2) << 16);
    }
};
template <> struct plain<KERN_F16> : plain_sizes<1, 2> {
    GPU_INLINE uint32_t q(const unsigned char *b, int) { return plain_u16(b); }
    GPU_INLINE float value(const unsigned char *b, int) { return plain_f16(b); }
};
template <> struct plain<KERN_BF16> : plain_sizes<1, 2> {
    GPU_INLINE uint32_t q(const unsigned char *b, int) { return plain_u16(b); }
    GPU_INLINE float value(const unsigned char *b, int) {
        return gpu_bf16_to_f32((uint16_t)plain_u16(b));
    }
};
template <> struct plain<KERN_Q4_0> : plain_sizes<32, 18> {
    GPU_INLINE uint32_t q(const unsigned char *b, int i) { return plain_nibble(b + 2, i); }
    GPU_INLINE float value(const unsigned char *b, int i) {
        return __fmul_rn(plain_f16(b), (float)((int)q(b, i) - 8));
    }
};
template <> struct plain<KERN_Q4_1> : plain_sizes<32, 20> {
    GPU_INLINE uint32_t q(const unsigned char *b, int i) { return plain_nibble(b + 4, i); }
    GPU_INLINE float value(const unsigned char *b, int i) {
        return plain_sum(plain_f16(b), (int)q(b, i), plain_f16(b + 2));
    }
};
template <> struct plain<KERN_Q5_0> : plain_sizes<32, 22> {
    GPU_INLINE float value(const unsigned char *b, int i) {
        const int q = plain_nibble(b + 6, i) | plain_bit(b + 2, i) << 4;
        return __fmul_rn(plain_f16(b), (float)(q - 16));
    }
};
template <> struct plain<KERN_Q5_1> : plain_sizes<32, 24> {
    GPU_INLINE float value(const unsigned char *b, int i) {
        const int q = plain_nibble(b + 8, i) | plain_bit(b + 4, i) << 4;
        return plain_sum(plain_f16(b), q, plain_f16(b + 2));
    }
};
template <> struct plain<KERN_Q8_0> : plain_sizes<32, 34> {
    GPU_INLINE uint32_t q(const unsigned char *b, int i) { return b[2 + i] ^ 128u; }
    GPU_INLINE float value(const unsigned char *b, int i) {
        return __fmul_rn(plain_f16(b), (float)((int)q(b, i) - 128));
    }
};
template <> struct plain<KERN_Q2_K> : plain_sizes<256, 84> {
    GPU_INLINE float value(const unsigned char *b, int i) {
        const int group = i >> 4, q = b[16 + (i >> 7) * 32 + (i & 31)] >> (i >> 5 & 3) * 2 & 3;
        const float least = plain_f16(b + 82) * (float)(b[group] >> 4);
        return plain_sum(plain_f16(b + 80) * (float)(b[group] & 15), q, -least);
    }
};
template <> struct plain<KERN_Q3_K> : plain_sizes<256, 110> {
    GPU_INLINE float value(const unsigned char *b, int i) {
        const unsigned char *s = b + 96;
        const int group = i >> 4, low = group < 8 ? s[group] & 15 : s[group - 8] >> 4;
        const int high = s[8 + (group & 3)] >> (group >> 2) * 2 & 3;
        const int q = b[32 + (i >> 7) * 32 + (i & 31)] >> (i >> 5 & 3) * 2 & 3;
        const int third = b[i & 31] >> (i >> 5) & 1;
        return __fmul_rn(plain_f16(b + 108) * (float)((low | high << 4) - 32),
                         (float)(q - 4 + third * 4));
    }
};

/* Q4_K and Q5_K: scale and minimum of 32 values, as format_scale_and_least. */
GPU_INLINE float plain_k_value(const unsigned char *b, int group, int q) {
    const unsigned char *s = b + 4;
    int scale = s[group & 3] & 63, least = s[(group & 3) + 4] & 63;
    if (group >= 4) {
        scale = (s[group + 4] & 15) | s[group - 4] >> 6 << 4;
        least = s[group + 4] >> 4 | s[group] >> 6 << 4;
    }
    return plain_sum(plain_f16(b) * (float)scale, q, -(plain_f16(b + 2) * (float)least));
}
/* 64 values in 32 bytes: low halves, then high ones. */
GPU_INLINE uint32_t plain_k_nibble(const unsigned char *q, int i) {
    return q[(i >> 6) * 32 + (i & 31)] >> (i >> 5 & 1) * 4 & 15;
}
template <> struct plain<KERN_Q4_K> : plain_sizes<256, 144> {
    GPU_INLINE uint32_t q(const unsigned char *b, int i) { return plain_k_nibble(b + 16, i); }
    GPU_INLINE float value(const unsigned char *b, int i) {
        return plain_k_value(b, i >> 5, (int)q(b, i));
    }
};
template <> struct plain<KERN_Q5_K> : plain_sizes<256, 176> {
    GPU_INLINE uint32_t q(const unsigned char *b, int i) {
        return plain_k_nibble(b + 48, i) | (b[16 + (i & 31)] >> (i >> 5) & 1u) << 4;
    }
    GPU_INLINE float value(const unsigned char *b, int i) {
        return plain_k_value(b, i >> 5, (int)q(b, i));
    }
};
template <> struct plain<KERN_Q6_K> : plain_sizes<256, 210> {
    GPU_INLINE uint32_t q(const unsigned char *b, int i) {
        const int half = i >> 7, part = i >> 5 & 3, j = i & 31;
        const uint32_t low = b[half * 64 + (part & 1) * 32 + j] >> (part >> 1) * 4 & 15;
        return low | (b[128 + half * 32 + j] >> part * 2 & 3u) << 4;
    }
    GPU_INLINE float value(const unsigned char *b, int i) {
        const float scale = plain_f16(b + 208) * (float)(signed char)b[192 + (i >> 4)];
        return __fmul_rn(scale, (float)((int)q(b, i) - 32));
    }
};
template <> struct plain<KERN_IQ4_NL> : plain_sizes<32, 18> {
    GPU_INLINE float value(const unsigned char *b, int i) {
        return __fmul_rn(plain_f16(b), plain_level(plain_nibble(b + 2, i)));
    }
};
template <> struct plain<KERN_IQ4_XS> : plain_sizes<256, 136> {
    GPU_INLINE float value(const unsigned char *b, int i) {
        const int group = i >> 5, low = b[4 + (group >> 1)] >> (group & 1) * 4 & 15;
        const int s = low | (plain_u16(b + 2) >> group * 2 & 3) << 4;
        return __fmul_rn(plain_f16(b) * (float)(s - 32),
                         plain_level(plain_nibble(b + 8 + group * 16, i & 31)));
    }
};

/* Column k of a row. */
template <class P> GPU_INLINE float plain_at(const unsigned char *row, int64_t k) {
    return P::value(row + k / P::size * P::bytes, (int)(k % P::size));
}

#endif
