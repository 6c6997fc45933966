/* embed.cu: rows of weights as numbers: token embeddings and learned positions. A row is read as it
 * lies in the file, or out of the tiles of a weight that is only there for products. */
#include "layout.h"
#include "plain.h"

#define THREADS 128

struct lookup {
    const unsigned char *w;
    int64_t n_rows, n_columns, row_bytes; /* row_bytes: of a strip, in tiles */
    const int32_t *ids;                   /* or, where NULL: */
    const cuda_row *rows;                 /* the positions are looked up and added */
    float scale;
    float *out;
};

/* The row for output row t; -1: none. */
GPU_INLINE int64_t row_of(const lookup &p, int64_t t) {
    const int64_t row = p.ids ? p.ids[t] : p.rows[t].position;
    return row >= 0 && row < p.n_rows ? row : -1;
}

GPU_INLINE void put(const lookup &p, int64_t t, int64_t k, float x) {
    float *out = p.out + t * p.n_columns + k;
    *out = p.ids ? __fmul_rn(x, p.scale) : *out + x;
}

template <int id> GPU_KERNEL embed_plain(lookup p) {
    const int64_t k = (int64_t)blockIdx.y * THREADS + threadIdx.x, t = blockIdx.x;
    const int64_t row = row_of(p, t);
    if (k >= p.n_columns || row < 0) return;
    put(p, t, k, plain_at<plain<id>>(p.w + row * p.row_bytes, k));
}

/* A thread: four times four columns of a chunk, as the lane has them that reads them in products.
 */
template <int id> GPU_KERNEL embed_tiles(lookup p) {
    using F = tile<id>;
    const int64_t i = (int64_t)blockIdx.y * THREADS + threadIdx.x, t = blockIdx.x;
    const int64_t i_chunk = i >> 2, row = row_of(p, t);
    if (i_chunk * TILE_COLUMNS >= p.n_columns || row < 0) return;
    const int n_units = (int)((p.n_columns + F::unit - 1) / F::unit);
    const int q = (int)(i & 3), lane = 4 * (int)(row & 7) + q;
    const tile_strip strip = tile_strip_at<F>(p.w, row / TILE_ROWS, p.row_bytes, n_units);
    float y[16];
    tile_values<F>(strip, (int)(i_chunk / F::n_chunks), (int)(i_chunk % F::n_chunks), lane,
                   (int)(row >> 3 & 1), y);
    GPU_UNROLL
    for (int j = 0; j < 16; j++) {
        const int64_t k = i_chunk * TILE_COLUMNS + (j >> 2) * 16 + 4 * q + (j & 3);
        if (k < p.n_columns) put(p, t, k, y[j]);
    }
}

static int look_up(kern_device *device, const cuda_matrix *w, lookup p, int32_t n_rows) {
    const bool tiled = !w->gpu_plain && w->layout == CUDA_TILED;
    const int64_t per_row =
        tiled ? (w->n_columns + TILE_COLUMNS - 1) / TILE_COLUMNS * 4 : w->n_columns;
    const dim3 grid((unsigned)n_rows, (unsigned)((per_row + THREADS - 1) / THREADS));
    p.w = (const unsigned char *)(w->gpu_plain ? w->gpu_plain : w->gpu);
    p.n_rows = w->n_rows;
    p.n_columns = w->n_columns;
    p.row_bytes = tiled ? (int64_t)cuda_tiled_bytes(w->format, TILE_ROWS, w->n_columns)
                        : (int64_t)kern_format_bytes(w->format, w->n_columns);
    if (n_rows <= 0) return KERN_OK;
#define LOOK_UP(kernel, id)                                                                        \
    case id:                                                                                       \
        GPU_LAUNCH(device, (kernel<id>), grid, THREADS, 0, p);                                     \
        break;
#define LOOK_UP_PLAIN(id) LOOK_UP(embed_plain, id)
#define LOOK_UP_TILES(id) LOOK_UP(embed_tiles, id)
    if (tiled) {
        switch (w->format->id) { TILE_FORMATS(LOOK_UP_TILES) }
    } else {
        switch (w->format->id) { PLAIN_FORMATS(LOOK_UP_PLAIN) }
    }
    return cuda_launched(device, "embedding");
}

int cuda_embed(kern_device *device, const cuda_matrix *w, const int32_t *ids, int32_t n_rows,
               float scale, float *out) {
    lookup p = {};
    p.ids = ids;
    p.scale = scale;
    p.out = out;
    return look_up(device, w, p, n_rows);
}

int cuda_embed_at(kern_device *device, const cuda_matrix *w, const cuda_row *rows, int32_t n_rows,
                  float *out) {
    lookup p = {};
    p.rows = rows;
    p.out = out;
    return look_up(device, w, p, n_rows);
}
