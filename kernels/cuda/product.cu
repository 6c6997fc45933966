/* product.cu: what a list of products becomes: one launch where all weights lie alike or there are
 * few rows of input, else launches of neighbours that lie alike; and the kernel for so many rows.
 * Which kernel it is changes no bit of a result. */
#include "plain.h"
#include "product.h"

static product_mix mix_of(const cuda_matrix *w) {
    product_mix m = {};
    m.kind = w->format->id;
    if (w->layout == CUDA_TILED) {
        const int32_t unit = w->format->block_size == 256 ? 256 : TILE_COLUMNS;
        m.kind += PRODUCT_MIX_TILED;
        m.n_units = ((int32_t)w->n_columns + unit - 1) / unit;
        m.strip_bytes = (int64_t)cuda_tiled_bytes(w->format, TILE_ROWS, w->n_columns);
    } else {
        m.strip_bytes = (int64_t)kern_format_bytes(w->format, w->n_columns);
    }
    return m;
}

/* The first n of the list, `pair`: gate and up. As the first of them lies, if all lie alike. */
static product_args args_of(const cuda_product *list, int n, const float *in, int32_t n_inputs,
                            bool pair, cuda_epilogue finish) {
    const product_mix first = mix_of(list[0].w);
    product_args p = {};
    p.n_parts = n;
    p.n_inputs = n_inputs;
    p.n_columns = (int32_t)list[0].w->n_columns;
    p.in = in;
    p.stride = p.n_columns;
    p.pair = pair;
    p.finish = finish;
    p.n_units = first.n_units;
    p.strip_bytes = first.strip_bytes;
    return p;
}

static void fill_parts(product_args *p, const cuda_product *list, int rows_per_group) {
    int32_t group = 0;
    for (int i = 0; i < p->n_parts; i++) {
        const int32_t n_rows = (int32_t)list[i].w->n_rows;
        p->parts[i] = {(const unsigned char *)list[i].w->gpu, list[i].bias, list[i].out, n_rows,
                       group};
        group += (int32_t)product_blocks(n_rows, rows_per_group);
    }
}

/* Warps that share inputs are worth it where blocks of four still fill the device. */
static product_kernel kernel_for(const kern_device *device, const product_args *p) {
    if (p->n_inputs <= 8) return PRODUCT_FEW_8;
    const int64_t groups = product_groups(p, product_group_rows(p));
    const int64_t many =
        product_blocks(p->n_inputs, 32) * product_blocks(groups, PRODUCT_MANY_WARPS);
    return p->n_inputs > 16 && many >= device->n_multiprocessors ? PRODUCT_MANY : PRODUCT_FEW_16;
}

static bool is_aligned(const product_args *p) {
    return p->stride % 4 == 0 && (uintptr_t)p->in % 16 == 0;
}

GPU_KERNEL pad_inputs(product_args p, int stride, float *to) {
    const int k = (int)(blockIdx.y * 256 + threadIdx.x), t = (int)blockIdx.x;
    if (k >= stride) return;
    to[(int64_t)t * stride + k] = k < p.n_columns ? p.in[(int64_t)t * p.stride + k] : 0.0f;
}

/* Inputs whose rows are no multiples of four numbers (no known model's) are copied first, so that
 * four are one read in the kernels that matter. */
static int align_inputs(kern_device *device, product_args *p) {
    const int32_t stride = (p->n_columns + 3) / 4 * 4;
    void *to;
    const int code =
        cuda_scratch(device, (size_t)p->n_inputs * (size_t)stride * sizeof(float), &to);
    if (code) return code;
    const dim3 grid((unsigned)p->n_inputs, (unsigned)product_blocks(stride, 256));
    GPU_LAUNCH(device, pad_inputs, grid, 256, 0, *p, stride, (float *)to);
    p->in = (const float *)to;
    p->stride = stride;
    return KERN_OK;
}

/* The first n of the list, which lie as the first does. other: up, if that is there already. */
static int launch(kern_device *device, const cuda_product *list, int n, const float *in,
                  int32_t n_inputs, bool pair, cuda_epilogue finish, const float *other) {
    const cuda_matrix *w = list[0].w;
    product_args p = args_of(list, n, in, n_inputs, pair, finish);
    fill_parts(&p, list, w->layout == CUDA_TILED ? product_group_rows(&p) : 1);
    p.other = other;
    if (w->layout == CUDA_TILED) {
        const product_kernel kernel = kernel_for(device, &p);
        const int code = is_aligned(&p) ? KERN_OK : align_inputs(device, &p);
        if (code) return code;
        switch (w->format->id) {
#define TILES(id)                                                                                  \
    case id: product_tiles<id>(device, kernel, &p); break;
            TILE_FORMATS(TILES)
#undef TILES
        }
    } else {
        switch (w->format->id) {
#define PLAIN(id)                                                                                  \
    case id: product_plain<id>(device, &p); break;
            PLAIN_FORMATS(PLAIN)
#undef PLAIN
        }
    }
    return cuda_launched(device, "a product of weights");
}

/* All of the list, however each lies. */
static int launch_mixed(kern_device *device, const cuda_product *list, int n, const float *in,
                        int32_t n_inputs, bool pair, cuda_epilogue finish) {
    product_args p = args_of(list, n, in, n_inputs, pair, finish);
    product_mixes mixes = {};
    fill_parts(&p, list, PRODUCT_STRIPS * TILE_ROWS);
    for (int i = 0; i < n; i++) mixes.of[i] = mix_of(list[i].w);
    const int code = is_aligned(&p) ? KERN_OK : align_inputs(device, &p);
    if (code) return code;
    product_mixed_launch(device, &p, &mixes);
    return cuda_launched(device, "products of weights");
}

static bool lie_alike(const cuda_matrix *a, const cuda_matrix *b) {
    return a->format == b->format && a->layout == b->layout;
}

int cuda_products(kern_device *device, const cuda_product *list, int n_products, const float *in,
                  int32_t n_rows, cuda_epilogue finish) {
    const bool gated = finish == CUDA_SILU_MUL || finish == CUDA_GELU_MUL;
    int n_alike = 1, code = KERN_OK;
    if (n_rows <= 0) return KERN_OK;
    while (n_alike < n_products && lie_alike(list[0].w, list[n_alike].w)) n_alike++;
    if (n_alike == n_products)
        return launch(device, list, n_products, in, n_rows, gated, finish, NULL);
    if (n_rows <= PRODUCT_MIXED_ROWS)
        return launch_mixed(device, list, n_products, in, n_rows, gated, finish);
    if (gated) { /* up goes to its own buffer first */
        code = launch(device, list + 1, 1, in, n_rows, false, CUDA_STORE, NULL);
        return code ? code : launch(device, list, 1, in, n_rows, false, finish, list[1].out);
    }
    for (int i = 0, n; i < n_products && !code; i += n) {
        for (n = 1; i + n < n_products && lie_alike(list[i].w, list[i + n].w);) n++;
        code = launch(device, list + i, n, in, n_rows, false, finish, NULL);
    }
    return code;
}
