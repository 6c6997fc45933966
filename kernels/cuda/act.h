/* act.h: the activations of feed-forward layers. */
#ifndef CUDA_ACT_H
#define CUDA_ACT_H

#include "gpu.h"

GPU_INLINE float act_silu(float x) { return x / (1.0f + expf(-x)); }

/* by tanh, as GPT-2 has it */
GPU_INLINE float act_gelu(float x) {
    const float inner = 0.797884560802865f * (x + 0.044715f * x * x * x); /* √(2/π) */
    return 0.5f * x * (1.0f + tanhf(inner));
}

#endif
