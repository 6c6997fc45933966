/* place.cu: queries, keys and values on their way to attention: heads normed and turned, keys and
 * values put into pages; and positions of pages from and to the plain bytes of files. */
#include "heads.h"

/* ---- the layout of pages ---- */

static size_t round_256(size_t bytes) { return (bytes + 255) / 256 * 256; }

cuda_page_shape cuda_page_layout(const kern_kv_shape *kv) {
    const cuda_head_place at = cuda_head_at(kv, 1);
    cuda_page_shape shape;
    shape.kv = *kv;
    shape.layer_bytes = at.layer;
    shape.key_bytes = at.values;
    shape.page_bytes = round_256((size_t)kv->n_layers * at.layer);
    return shape;
}

/* ---- place ---- */

enum { PLACE_WARPS = 4, PLACE_MOST = 512 /* numbers of a head that fit a warp's stage */ };

struct place_args {
    cuda_head_place at;
    head_form form;
    const cuda_row *rows;
    const cuda_sequence *sequences;
    unsigned char *const *pages;
    float *q;
    const float *k, *v;
    int32_t n_heads, n_heads_kv, dim, dim_v;
};

/* A warp for each head of each row: queries, then keys, then values. */
template <kern_kv KV> GPU_KERNEL place(const place_args a) {
    GPU_SHARED(float, stages, PLACE_WARPS *PLACE_MOST);
    const int lane = (int)(threadIdx.x & 31), warp = (int)(threadIdx.x >> 5);
    const int32_t t = (int32_t)blockIdx.y, i = (int32_t)blockIdx.x * PLACE_WARPS + warp;
    const cuda_row row = a.rows[t];
    if (i >= a.n_heads + 2 * a.n_heads_kv || row.i_sequence < 0) return;
    gpu_shared<float> stage = stages + warp * PLACE_MOST;
    const int32_t padded = (a.dim + 31) / 32 * 32;
    if (i < a.n_heads) {
        if (!a.form.freqs && !a.form.q_norm) return;
        float *q = a.q + ((int64_t)t * a.n_heads + i) * a.dim;
        head_ready(a.form, q, a.form.q_norm, a.dim, padded, row.position, stage);
        for (int32_t d = lane; d < a.dim; d += 32) q[d] = stage[d];
        return;
    }
    const bool is_key = i < a.n_heads + a.n_heads_kv;
    const int32_t h = i - a.n_heads - (is_key ? 0 : a.n_heads_kv);
    const int32_t i_page = a.sequences[row.i_sequence].first_page + row.slot / KERN_PAGE_POSITIONS;
    unsigned char *layer = a.pages[i_page] + a.at.layer;
    const int32_t slot = row.slot % KERN_PAGE_POSITIONS;
    if (is_key) {
        head_ready(a.form, a.k + ((int64_t)t * a.n_heads_kv + h) * a.dim, a.form.k_norm, a.dim,
                   padded, row.position, stage);
        head_store_key<KV>(a.at, stage, padded, layer + (size_t)h * (size_t)a.at.key_head, slot);
    } else {
        head_store_value<KV>(a.at, a.v + ((int64_t)t * a.n_heads_kv + h) * a.dim_v, a.dim_v,
                             layer + a.at.values + (size_t)h * (size_t)a.at.value_head, slot);
    }
}

int cuda_place(kern_device *device, const cuda_page_shape *pages, const cuda_step *step,
               const cuda_attention *a) {
    const plan_op *op = a->op;
    if (op->head_dim > PLACE_MOST)
        return cuda_fail(device, KERN_UNSUPPORTED, "heads of %d numbers, at most %d are served",
                         op->head_dim, PLACE_MOST);
    place_args args = {cuda_head_at(&pages->kv, op->layer - 1),
                       head_form_of(a),
                       step->rows,
                       step->sequences,
                       step->pages,
                       a->q,
                       a->k,
                       a->v,
                       op->n_heads,
                       op->n_heads_kv,
                       op->head_dim,
                       op->head_dim_v};
    const int32_t n_warps = op->n_heads + 2 * op->n_heads_kv;
    const dim3 grid((unsigned)((n_warps + PLACE_WARPS - 1) / PLACE_WARPS), (unsigned)step->n_rows);
    switch (pages->kv.type) {
    case KERN_KV_F32:
        GPU_LAUNCH(device, (place<KERN_KV_F32>), grid, 32 * PLACE_WARPS, 0, args);
        break;
    case KERN_KV_F16:
        GPU_LAUNCH(device, (place<KERN_KV_F16>), grid, 32 * PLACE_WARPS, 0, args);
        break;
    case KERN_KV_Q8_0:
        GPU_LAUNCH(device, (place<KERN_KV_Q8_0>), grid, 32 * PLACE_WARPS, 0, args);
        break;
    }
    return cuda_launched(device, "placing keys and values");
}

/* ---- positions as plain bytes ---- */

struct position_args {
    cuda_head_place at;                         /* of layer 0 */
    size_t layer_bytes;                         /* in a page */
    unsigned char *page;                        /* written to if `set` */
    unsigned char *plain;                       /* written to if not */
    int32_t n_heads_kv, dim, dim_v, slot, size; /* size: bytes of a number; 1: q8_0 */
    int32_t set;                                /* or get */
};

GPU_INLINE void move_bytes(const position_args &a, unsigned char *in_page, unsigned char *in_plain,
                           int32_t n) {
    unsigned char *to = a.set ? in_page : in_plain;
    const unsigned char *from = a.set ? in_plain : in_page;
    for (int32_t i = 0; i < n; i++) to[i] = from[i];
}

/* A block for each layer, a thread for each number of its heads (all keys, then all values): number
 * i of a row of head h, `numbers` long. */
GPU_KERNEL copy_position(const position_args a) {
    const int32_t n_keys = a.n_heads_kv * a.dim, n_values = a.n_heads_kv * a.dim_v;
    const int32_t quantised = a.size == 1;
    const size_t plain_numbers = (size_t)(n_keys + n_values);
    const size_t plain_layer = quantised ? plain_numbers / 32 * 34 : plain_numbers * (size_t)a.size;
    unsigned char *layer = a.page + (size_t)blockIdx.x * a.layer_bytes;
    unsigned char *plain = a.plain + (size_t)blockIdx.x * plain_layer;
    for (int32_t n = (int32_t)threadIdx.x; n < n_keys + n_values; n += (int32_t)blockDim.x) {
        const bool is_key = n < n_keys;
        const int32_t dim = is_key ? a.dim : a.dim_v, m = is_key ? n : n - n_keys;
        const int32_t h = m / dim, d = m % dim;
        unsigned char *head = is_key ? layer + (size_t)h * (size_t)a.at.key_head
                                     : layer + a.at.values + (size_t)h * (size_t)a.at.value_head;
        unsigned char *number = head + (is_key ? a.slot * a.at.key_row + d * a.size
                                               : d * a.at.value_row + a.slot * a.size);
        const int32_t block = n / 32;
        unsigned char *at = quantised ? plain + (size_t)block * 34 + 2 + n % 32
                                      : plain + (size_t)n * (size_t)a.size;
        move_bytes(a, number, at, a.size);
        if (quantised && d % 32 == 0)
            move_bytes(a, head + (is_key ? a.at.key_scales : a.at.value_scales) + 2 * (d + a.slot),
                       plain + (size_t)block * 34, 2);
        if (is_key && a.set && d == dim - 1) /* what pads the row */
            for (int32_t i = a.size; i < a.at.key_row - d * a.size; i++) number[i] = 0;
    }
}

static int move_position(kern_device *device, const cuda_page_shape *pages, unsigned char *page,
                         int32_t position, unsigned char *plain, bool set) {
    const kern_kv_shape *kv = &pages->kv;
    const position_args args = {cuda_head_at(kv, 0),
                                pages->layer_bytes,
                                page,
                                plain,
                                kv->n_heads_kv,
                                kv->head_dim_k,
                                kv->head_dim_v,
                                position,
                                kv->type == KERN_KV_F32   ? 4
                                : kv->type == KERN_KV_F16 ? 2
                                                          : 1,
                                set};
    GPU_LAUNCH(device, copy_position, (unsigned)kv->n_layers, 256, 0, args);
    return cuda_launched(device, "copying a position");
}

int cuda_position_get(kern_device *device, const cuda_page_shape *pages, const unsigned char *page,
                      int32_t position, unsigned char *plain) {
    return move_position(device, pages, const_cast<unsigned char *>(page), position, plain, false);
}

int cuda_position_set(kern_device *device, const cuda_page_shape *pages, unsigned char *page,
                      int32_t position, const unsigned char *plain) {
    return move_position(device, pages, page, position, const_cast<unsigned char *>(plain), true);
}
