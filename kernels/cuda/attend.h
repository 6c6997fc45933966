/* attend.h: how keys and values of a head lie in a page. What the host computes once a launch and
 * kernels address by.
 *
 * A page: layer after layer; in a layer the keys of all heads, then their values. Keys of a head
 * are [32 positions][dim], rows padded with zeros to a multiple of 32 numbers. Values are
 * transposed, [dim_v rounded up to 8][32 positions]. So a lane of a product of matrices finds what
 * it needs of either in 16 neighbouring bytes, and a warp reads whole sectors. q8_0: int8 so, then
 * the f16 scales [dim / 32][32 positions]. Each part begins at a multiple of 64 bytes. */
#ifndef CUDA_ATTEND_H
#define CUDA_ATTEND_H

#include "cuda.h"

/* Bytes and offsets of one head in a layer of a page, and of the layer. */
typedef struct cuda_head_place {
    int32_t key_row, key_scales, key_head; /* a row; from a head's begin to its scales; a head */
    int32_t value_row, value_scales, value_head;
    size_t layer, values; /* from the page's begin; from the layer's */
} cuda_head_place;

static inline int32_t cuda_round_up(int32_t n, int32_t to) { return (n + to - 1) / to * to; }

static inline cuda_head_place cuda_head_at(const kern_kv_shape *s, int32_t i_layer) {
    const int32_t number = s->type == KERN_KV_F32 ? 4 : s->type == KERN_KV_F16 ? 2 : 1;
    const int32_t keys = cuda_round_up(s->head_dim_k, 32), values = cuda_round_up(s->head_dim_v, 8);
    const int32_t scaled = s->type == KERN_KV_Q8_0 ? 2 * KERN_PAGE_POSITIONS : 0;
    cuda_head_place at;
    at.key_row = keys * number;
    at.value_row = KERN_PAGE_POSITIONS * number;
    at.key_scales = KERN_PAGE_POSITIONS * at.key_row;
    at.value_scales = values * at.value_row;
    at.key_head = at.key_scales + keys / 32 * scaled;
    at.value_head = cuda_round_up(at.value_scales + (values + 31) / 32 * scaled, 64);
    at.values = (size_t)s->n_heads_kv * (size_t)at.key_head;
    at.layer = (size_t)i_layer * (at.values + (size_t)s->n_heads_kv * (size_t)at.value_head);
    return at;
}

#endif
