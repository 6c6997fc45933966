/* peak.cu: kernels that do nothing but what a GPU has a peak of: reading memory, and products of
 * matrices out of registers. */
#include "gpu.h"

#define THREADS 256
#define LOADS   8 /* reads of 16 bytes that a thread has under way */
#define CHAINS  8 /* products of a warp that do not wait for each other */

/* Each thread reads every (blocks × THREADS)-th piece of 16 bytes; n_pieces is a multiple of LOADS
 * times that. The sums are there so that nothing is left out. */
GPU_KERNEL read_all(const unsigned char *from, int64_t n_pieces, uint32_t *out) {
    const int64_t stride = (int64_t)gridDim.x * THREADS;
    uint32_t sum = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n_pieces;
         i += LOADS * stride) {
        uint4 x[LOADS];
        GPU_UNROLL
        for (int j = 0; j < LOADS; j++) x[j] = gpu_load_once(from + (i + j * stride) * 16);
        GPU_UNROLL
        for (int j = 0; j < LOADS; j++) sum ^= x[j].x ^ x[j].y ^ x[j].z ^ x[j].w;
    }
    if (sum == 0xFFFFFFFFu) out[0] = sum; /* of zeros never */
}

GPU_KERNEL_BOUNDS(THREADS, 2) multiply_all(int n_steps, float *out) {
    const uint32_t one = gpu_pack_bf16(1.0f, (float)(threadIdx.x & 3));
    const uint32_t a[4] = {one, one, one, one}, b[2] = {one, one};
    float d[CHAINS][4] = {};
    for (int i = 0; i < n_steps; i++) {
        GPU_UNROLL
        for (int j = 0; j < CHAINS; j++) gpu_mma_bf16(d[j], a, b);
    }
    float sum = 0;
    GPU_UNROLL
    for (int j = 0; j < CHAINS; j++) sum += d[j][0] + d[j][1] + d[j][2] + d[j][3];
    if (sum < 0) out[0] = sum; /* never */
}

int cuda_peak_read(kern_device *device, const void *from, size_t bytes, void *out, size_t *read) {
    const int64_t block = THREADS * LOADS, most = (int64_t)(bytes / 16) / block;
    const int64_t filling = (int64_t)device->n_multiprocessors * 8;
    const int64_t n_blocks = most < 1 ? 1 : most < filling ? most : filling;
    const int64_t n_pieces = (int64_t)(bytes / 16) / (n_blocks * block) * (n_blocks * block);
    *read = (size_t)n_pieces * 16;
    GPU_LAUNCH(device, read_all, (unsigned)n_blocks, THREADS, 0, (const unsigned char *)from,
               n_pieces, (uint32_t *)out);
    return cuda_launched(device, "reading memory");
}

int cuda_peak_multiply(kern_device *device, double operations, void *out, double *done) {
    const int n_blocks = device->n_multiprocessors * 2;
    const double step = (double)n_blocks * (THREADS / 32) * CHAINS * 2 * 16 * 8 * 16;
    const int n_steps = operations < step ? 1 : (int)(operations / step);
    *done = step * n_steps;
    GPU_LAUNCH(device, multiply_all, (unsigned)n_blocks, THREADS, 0, n_steps, (float *)out);
    return cuda_launched(device, "multiplying");
}
