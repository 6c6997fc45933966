/* rows.cu: what is done to each row by itself, or to each number: norms, with what is added and
 * normed again after them, sums and activations. A row is a block; its sums run in an order that
 * its width alone decides. */
#include "act.h"

enum { MOST_THREADS = 512 };

/* Numbers i … i + 3 of a row of `width` (0 behind its end), and back. `whole`: rows are aligned
 * to four. */
GPU_INLINE float4 load4(const float *row, int32_t i, int32_t width, bool whole) {
    if (whole) return *reinterpret_cast<const float4 *>(row + i);
    return make_float4(row[i], i + 1 < width ? row[i + 1] : 0.0f, i + 2 < width ? row[i + 2] : 0.0f,
                       i + 3 < width ? row[i + 3] : 0.0f);
}
GPU_INLINE void store4(float *row, int32_t i, int32_t width, bool whole, const float4 &x) {
    if (whole) {
        *reinterpret_cast<float4 *>(row + i) = x;
        return;
    }
    row[i] = x.x;
    if (i + 1 < width) row[i + 1] = x.y;
    if (i + 2 < width) row[i + 2] = x.z;
    if (i + 3 < width) row[i + 3] = x.w;
}

/* Of all threads of the block, in a fixed order; each gets it. */
GPU_INLINE float block_sum(float x, gpu_shared<float> warps) {
    const int warp = (int)(threadIdx.x >> 5), n_warps = (int)(blockDim.x >> 5);
    x = gpu_warp_sum(x);
    __syncthreads(); /* of the sum before */
    if ((threadIdx.x & 31) == 0) warps[warp] = x;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < n_warps; i++) sum = __fadd_rn(sum, warps[i]);
    return sum;
}

/* Σ (x - mean)² of numbers that there are */
GPU_INLINE float squares4(const float4 &x, int32_t n, float mean) {
    const float d[4] = {x.x - mean, x.y - mean, x.z - mean, x.w - mean};
    float sum = 0;
    GPU_UNROLL
    for (int k = 0; k < 4; k++)
        if (k < n) sum = __fmaf_rn(d[k], d[k], sum);
    return sum;
}

GPU_INLINE float inverse_root(float mean, float eps) {
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

/* (x - mean) · scale · w + bias */
GPU_INLINE float norm1(float x, float mean, float scale, float w, float bias) {
    return __fadd_rn(__fmul_rn(__fmul_rn(__fsub_rn(x, mean), scale), w), bias);
}
GPU_INLINE float4 norm4(const float4 &x, float mean, float scale, const float4 &w,
                        const float4 &b) {
    return make_float4(norm1(x.x, mean, scale, w.x, b.x), norm1(x.y, mean, scale, w.y, b.y),
                       norm1(x.z, mean, scale, w.z, b.z), norm1(x.w, mean, scale, w.w, b.w));
}
GPU_INLINE float4 sum4(const float4 &x, const float4 &y) {
    return make_float4(__fadd_rn(x.x, y.x), __fadd_rn(x.y, y.y), __fadd_rn(x.z, y.z),
                       __fadd_rn(x.w, y.w));
}

/* A thread reads and writes the same numbers in each round, so rounds need no barrier between. */
GPU_KERNEL norm_rows(const cuda_norm n) {
    GPU_SHARED(float, warps, MOST_THREADS / 32);
    const int32_t width = n.width, step = 4 * (int32_t)blockDim.x;
    const bool whole = width % 4 == 0;
    const int64_t row = (int64_t)blockIdx.x * width;
    const float4 none = make_float4(0, 0, 0, 0);
    const float *in = n.in + row;
    float mean = 0, sum = 0;
    if (n.layer) {
        for (int32_t i = 4 * (int32_t)threadIdx.x; i < width; i += step) {
            const float4 x = load4(in, i, width, whole);
            sum += (x.x + x.y) + (x.z + x.w);
        }
        mean = __fdiv_rn(block_sum(sum, warps), (float)width);
    }
    sum = 0;
    for (int32_t i = 4 * (int32_t)threadIdx.x; i < width; i += step)
        sum += squares4(load4(in, i, width, whole), width - i, mean);
    const float scale = inverse_root(__fdiv_rn(block_sum(sum, warps), (float)width), n.eps);
    float *out = n.add ? n.add + row : n.out + row;
    sum = 0;
    for (int32_t i = 4 * (int32_t)threadIdx.x; i < width; i += step) {
        float4 y = norm4(load4(in, i, width, whole), mean, scale, load4(n.w, i, width, whole),
                         n.bias ? load4(n.bias, i, width, whole) : none);
        if (n.add) {
            y = sum4(load4(out, i, width, whole), y);
            sum += squares4(y, width - i, 0);
        }
        store4(out, i, width, whole, y);
    }
    if (!n.add || !n.then_w) return;
    const float then = inverse_root(__fdiv_rn(block_sum(sum, warps), (float)width), n.then_eps);
    for (int32_t i = 4 * (int32_t)threadIdx.x; i < width; i += step)
        store4(n.out + row, i, width, whole,
               norm4(load4(out, i, width, whole), 0, then, load4(n.then_w, i, width, whole), none));
}

int cuda_norm_rows(kern_device *device, const cuda_norm *n) {
    int32_t threads = 32; /* four numbers a thread, then more */
    while (threads < MOST_THREADS && 4 * threads < n->width) threads *= 2;
    GPU_LAUNCH(device, norm_rows, (unsigned)n->n_rows, (unsigned)threads, 0, *n);
    return cuda_launched(device, "norm");
}

/* ---- number by number ---- */

enum { EACH_ADD, EACH_SILU_MUL, EACH_GELU_MUL, EACH_GELU };

template <int KIND> GPU_INLINE float each1(float x, float y) {
    return KIND == EACH_ADD        ? __fadd_rn(x, y)
           : KIND == EACH_SILU_MUL ? __fmul_rn(act_silu(x), y)
           : KIND == EACH_GELU_MUL ? __fmul_rn(act_gelu(x), y)
                                   : act_gelu(x);
}

/* out[n] = kind(x[n], y[n]); x may be out */
template <int KIND> GPU_KERNEL each(const float *x, const float *y, float *out, int64_t n) {
    const int64_t i = 4 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (i + 4 <= n) {
        const float4 a = *reinterpret_cast<const float4 *>(x + i);
        const float4 b = KIND == EACH_GELU ? a : *reinterpret_cast<const float4 *>(y + i);
        *reinterpret_cast<float4 *>(out + i) =
            make_float4(each1<KIND>(a.x, b.x), each1<KIND>(a.y, b.y), each1<KIND>(a.z, b.z),
                        each1<KIND>(a.w, b.w));
        return;
    }
    for (int64_t k = i; k < n; k++) out[k] = each1<KIND>(x[k], KIND == EACH_GELU ? 0.0f : y[k]);
}

template <int KIND>
static int launch_each(kern_device *device, const float *x, const float *y, float *out, int64_t n) {
    if (n > 0)
        GPU_LAUNCH(device, (each<KIND>), (unsigned)((n + 1023) / 1024), 256, 0, x, y, out, n);
    return cuda_launched(device, "an operation on numbers");
}

int cuda_add_rows(kern_device *device, float *x, const float *y, int64_t n) {
    return launch_each<EACH_ADD>(device, x, y, x, n);
}

int cuda_act_mul(kern_device *device, plan_kind kind, const float *x, const float *y, float *out,
                 int64_t n) {
    switch (kind) {
    case PLAN_SILU_MUL: return launch_each<EACH_SILU_MUL>(device, x, y, out, n);
    case PLAN_GELU_MUL: return launch_each<EACH_GELU_MUL>(device, x, y, out, n);
    case PLAN_GELU: return launch_each<EACH_GELU>(device, x, y, out, n);
    default: return cuda_fail(device, KERN_UNSUPPORTED, "operation %d is no activation", (int)kind);
    }
}
