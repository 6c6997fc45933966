/* blas_rows.cu: what comes before and after a product of cuBLASLt: rows rounded to 16 bits, those
 * with entries beyond f16's range scaled by a power of two (which is exact), and the epilogues. */
#include "act.h"

#define THREADS 256

/* 2^e with max / 2^e < 2^15 where f16 would be exceeded or nearly so; else 1. */
GPU_INLINE float scale_of(float max) {
    const int exponent = (int)(__float_as_uint(max) >> 23) - 127;
    if (exponent < 15 || exponent > 127) return 1.0f; /* small; inf stays what it is */
    return __uint_as_float((uint32_t)(exponent - 14 + 127) << 23);
}

/* Of the block's numbers; every thread gets it. */
GPU_INLINE float block_max(float x, gpu_shared<float> parts) {
    x = gpu_warp_max(x);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    float most = parts[0];
    for (int i = 1; i < THREADS / 32; i++) most = fmaxf(most, parts[i]);
    return most;
}

/* A block a row. */
GPU_KERNEL round_f16(const float *in, int64_t width, uint16_t *out, float *scales) {
    GPU_SHARED(float, parts, THREADS / 32);
    const float *x = in + blockIdx.x * width;
    uint16_t *y = out + blockIdx.x * width;
    float most = 0;
    for (int64_t i = threadIdx.x; i < width; i += THREADS) most = fmaxf(most, fabsf(x[i]));
    const float scale = scale_of(block_max(most, parts)), inverse = 1.0f / scale;
    for (int64_t i = threadIdx.x; i < width; i += THREADS) y[i] = gpu_f32_to_f16(x[i] * inverse);
    if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}

GPU_KERNEL round_bf16(const float *in, int64_t width, uint16_t *out) {
    const float *x = in + blockIdx.x * width;
    uint16_t *y = out + blockIdx.x * width;
    for (int64_t i = threadIdx.x; i < width; i += THREADS) y[i] = gpu_f32_to_bf16(x[i]);
}

GPU_KERNEL unscale(float *x, int64_t width, const float *scales) {
    const float scale = scales[blockIdx.x];
    if (scale == 1.0f) return;
    const float inverse = 1.0f / scale;
    for (int64_t i = threadIdx.x; i < width; i += THREADS) x[blockIdx.x * width + i] *= inverse;
}

GPU_KERNEL finish(float *out, const float *up, int64_t width, const float *scales,
                  const float *bias, cuda_epilogue epilogue) {
    const float scale = scales ? scales[blockIdx.x] : 1.0f;
    const bool plain = epilogue == CUDA_STORE || epilogue == CUDA_ADD;
    if (plain && scale == 1.0f && !bias) return;
    float *row = out + blockIdx.x * width;
    for (int64_t i = threadIdx.x; i < width; i += THREADS) {
        float x = row[i] * scale;
        if (bias) x += bias[i];
        if (epilogue == CUDA_GELU) x = act_gelu(x);
        if (epilogue == CUDA_SILU_MUL) x = act_silu(x) * up[blockIdx.x * width + i];
        if (epilogue == CUDA_GELU_MUL) x = act_gelu(x) * up[blockIdx.x * width + i];
        row[i] = x;
    }
}

extern "C" int cuda_blas_round(kern_device *device, const float *in, int32_t n_rows, int64_t width,
                               bool bf16, uint16_t *out16, float *scales) {
    if (bf16)
        GPU_LAUNCH(device, round_bf16, n_rows, THREADS, 0, in, width, out16);
    else
        GPU_LAUNCH(device, round_f16, n_rows, THREADS, 0, in, width, out16, scales);
    return cuda_launched(device, "rounding rows");
}

extern "C" int cuda_blas_unscale(kern_device *device, float *x, int32_t n_rows, int64_t width,
                                 const float *scales) {
    GPU_LAUNCH(device, unscale, n_rows, THREADS, 0, x, width, scales);
    return cuda_launched(device, "scaling rows");
}

extern "C" int cuda_blas_finish(kern_device *device, float *out, const float *up, int32_t n_rows,
                                int64_t width, const float *scales, const float *bias,
                                cuda_epilogue epilogue) {
    GPU_LAUNCH(device, finish, n_rows, THREADS, 0, out, up, width, scales, bias, epilogue);
    return cuda_launched(device, "finishing a product");
}
