/* heads.h: one head of one row by the lanes of a warp: its norm, its rotation, its way into a page.
 */
#ifndef CUDA_HEADS_H
#define CUDA_HEADS_H

#include "attend.h"
#include "gpu.h"

/* What happens to queries and keys before they meet. */
struct head_form {
    const float *q_norm, *k_norm; /* [dim], or NULL */
    const float *freqs;           /* [n_rotary / 2], or NULL */
    float eps, magnitude;
    int32_t n_rotary;
    int32_t interleaved; /* or not; no padding: arguments of kernels are compared as words */
};

static inline head_form head_form_of(const cuda_attention *a) {
    return {a->q_norm, a->k_norm, a->freqs, a->eps, a->magnitude, a->n_rotary, a->interleaved};
}

/* cos and sin of position · freq: turns are taken off in f64, so that what is rounded to f32 is
 * exact at any position. */
GPU_INLINE void head_angle(int32_t position, float freq, float magnitude, float *cosine,
                           float *sine) {
    const double half_turns =
        __dmul_rn(__dmul_rn((double)position, (double)freq), 0.31830988618379067154 /* 1 / π */);
    const double whole = __dmul_rn(2.0, rint(__dmul_rn(half_turns, 0.5)));
    float s, c;
    sincospif((float)__dsub_rn(half_turns, whole), &s, &c);
    *cosine = __fmul_rn(c, magnitude);
    *sine = __fmul_rn(s, magnitude);
}

/* stage[0 … padded) = x[dim], normed by w (or NULL) and turned to its position; zeros behind. All
 * lanes may read all of it afterwards. padded: a multiple of 32 */
GPU_INLINE void head_ready(const head_form &form, const float *x, const float *w, int32_t dim,
                           int32_t padded, int32_t position, gpu_shared<float> stage) {
    const int lane = (int)(threadIdx.x & 31);
    __syncwarp(); /* the stage may still be read */
    float sum = 0;
    for (int32_t d = lane; d < padded; d += 32) {
        const float y = d < dim ? x[d] : 0.0f;
        stage[d] = y;
        sum = __fmaf_rn(y, y, sum);
    }
    if (w) {
        const float mean = __fdiv_rn(gpu_warp_sum(sum), (float)dim);
        const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, form.eps)));
        for (int32_t d = lane; d < dim; d += 32)
            stage[d] = __fmul_rn(__fmul_rn(stage[d], scale), w[d]);
    }
    __syncwarp();
    if (!form.freqs) return;
    const int32_t half = form.n_rotary / 2;
    for (int32_t i = lane; i < half; i += 32) {
        const int32_t at_a = form.interleaved ? 2 * i : i,
                      at_b = form.interleaved ? 2 * i + 1 : i + half;
        float cosine, sine;
        head_angle(position, form.freqs[i], form.magnitude, &cosine, &sine);
        const float a = stage[at_a], b = stage[at_b];
        stage[at_a] = __fmaf_rn(a, cosine, -__fmul_rn(b, sine));
        stage[at_b] = __fmaf_rn(a, sine, __fmul_rn(b, cosine));
    }
    __syncwarp();
}

/* One number of a block of 32, a lane each, as int8 with the block's f16 scale (largest / 127).
 * What is not finite, or too large for the scale, makes the block NaN. */
GPU_INLINE int8_t head_quantise(float x, uint16_t *scale) {
    const bool is_nan = __any_sync(~0u, x != x);
    const uint16_t h = gpu_f32_to_f16(__fdiv_rn(gpu_warp_max(fabsf(x)), 127.0f));
    const float d = gpu_f16_to_f32(h);
    const bool bad = is_nan || !(d < 3.4e38f);
    *scale = bad ? (uint16_t)0x7E00 : h;
    const int q = bad || d == 0 ? 0 : __float2int_rn(__fdiv_rn(x, d));
    return (int8_t)min(127, max(-127, q)); /* the scale was rounded down */
}

/* A ready key to its slot of a page: keys is where the head's begin. */
template <kern_kv KV>
GPU_INLINE void head_store_key(const cuda_head_place &at, gpu_shared<float> stage, int32_t padded,
                               unsigned char *keys, int32_t slot) {
    const int lane = (int)(threadIdx.x & 31);
    unsigned char *row = keys + (size_t)slot * (size_t)at.key_row;
    for (int32_t d = lane; d < padded; d += 32) {
        const float x = stage[d];
        if (KV == KERN_KV_F32) reinterpret_cast<float *>(row)[d] = x;
        if (KV == KERN_KV_F16) reinterpret_cast<uint16_t *>(row)[d] = gpu_f32_to_f16(x);
        if (KV == KERN_KV_Q8_0) {
            uint16_t scale;
            reinterpret_cast<int8_t *>(row)[d] = head_quantise(x, &scale);
            if (lane == 0) reinterpret_cast<uint16_t *>(keys + at.key_scales)[d + slot] = scale;
        }
    }
}

/* x[dim_v] to its slot: values is where the head's begin. */
template <kern_kv KV>
GPU_INLINE void head_store_value(const cuda_head_place &at, const float *x, int32_t dim_v,
                                 unsigned char *values, int32_t slot) {
    const int lane = (int)(threadIdx.x & 31);
    for (int32_t d = lane; d < dim_v; d += 32) { /* q8_0: all lanes come or none */
        const int32_t i = d * KERN_PAGE_POSITIONS + slot;
        if (KV == KERN_KV_F32) reinterpret_cast<float *>(values)[i] = x[d];
        if (KV == KERN_KV_F16) reinterpret_cast<uint16_t *>(values)[i] = gpu_f32_to_f16(x[d]);
        if (KV == KERN_KV_Q8_0) {
            uint16_t scale;
            reinterpret_cast<int8_t *>(values)[i] = head_quantise(x[d], &scale);
            if (lane == 0) reinterpret_cast<uint16_t *>(values + at.value_scales)[d + slot] = scale;
        }
    }
}

#endif
