/* layout.cu: owns the way of a weight into tiles (layout.h) and back to numbers. */
#include "layout.h"
#include "plain.h"

#define THREADS 256

static unsigned blocks_of(int64_t n_threads) {
    return (unsigned)((n_threads + THREADS - 1) / THREADS);
}
GPU_INLINE int64_t thread_index() { return (int64_t)blockIdx.x * THREADS + threadIdx.x; }

/* ---- sizes ---- */

struct tile_shape {
    int64_t n_strips, n_units, strip_bytes; /* n_strips 0: the format has no tiles */
    int n_chunks;                           /* of a unit */
};

template <class F> static tile_shape shape_with(int64_t n_rows, int64_t n_columns) {
    const int64_t n_units = (n_columns + F::unit - 1) / F::unit;
    return {(n_rows + TILE_ROWS - 1) / TILE_ROWS, n_units, tile_strip_bytes<F>(n_units),
            F::n_chunks};
}

static tile_shape shape_of(const kern_format *format, int64_t n_rows, int64_t n_columns) {
    switch (format->id) {
#define SHAPE(id)                                                                                  \
    case id: return shape_with<tile<id>>(n_rows, n_columns);
        TILE_FORMATS(SHAPE)
#undef SHAPE
    default: return {0, 0, 0, 0};
    }
}

size_t cuda_tiled_bytes(const kern_format *format, int64_t n_rows, int64_t n_columns) {
    const tile_shape shape = shape_of(format, n_rows, n_columns);
    return (size_t)(shape.n_strips * shape.strip_bytes);
}

/* ---- into tiles ---- */

struct tile_source {
    const unsigned char *rows; /* as in the file */
    int64_t n_rows, n_columns, row_bytes;
};

/* The integer (or 16-bit float) at a row and column; 0 beyond the weight. */
template <int id> GPU_INLINE uint32_t source_q(const tile_source &s, int64_t row, int64_t k) {
    using P = plain<id>;
    if (row >= s.n_rows || k >= s.n_columns) return 0;
    return P::q(s.rows + row * s.row_bytes + k / P::size * P::bytes, (int)(k % P::size));
}

/* Register r of a step: the rows and columns of its two halves. g, q: of the lane; k: the step's
 * first column. */
template <int id>
GPU_INLINE void source_pair(const tile_source &s, int64_t first_row, int64_t k, int lane, int r,
                            uint32_t *low, uint32_t *high) {
    const int64_t row = first_row + (lane >> 2) + 8 * (r & 1);
    k += 4 * (lane & 3) + (r & 2);
    *low = source_q<id>(s, row, k);
    *high = source_q<id>(s, row, k + 1);
}

GPU_INLINE void write_words(unsigned char *to, const uint32_t word[4]) {
    *reinterpret_cast<uint4 *>(to) = make_uint4(word[0], word[1], word[2], word[3]);
}

/* F16, BF16: a piece for each step. */
template <int id>
GPU_INLINE void lay_halves(const tile_source &s, int64_t row, int64_t k, int lane,
                           unsigned char *to) {
    for (int step = 0; step < 4; step++) {
        uint32_t word[4];
        for (int r = 0; r < 4; r++) {
            uint32_t low, high;
            source_pair<id>(s, row, k + 16 * step, lane, r, &low, &high);
            word[r] = low | high << 16;
        }
        write_words(to + step * 512 + lane * 16, word);
    }
}

/* Q8_0: a piece for two steps, a word for each row of a step. */
template <int id>
GPU_INLINE void lay_bytes(const tile_source &s, int64_t row, int64_t k, int lane,
                          unsigned char *to) {
    for (int half = 0; half < 2; half++) {
        uint32_t word[4];
        for (int i = 0; i < 4; i++) { /* word i: step 2 half + i / 2, row g + 8 (i % 2) */
            uint32_t a, b, c, d;
            const int64_t first = k + 32 * half + 16 * (i >> 1);
            source_pair<id>(s, row, first, lane, i & 1, &a, &b);
            source_pair<id>(s, row, first, lane, 2 + (i & 1), &c, &d);
            word[i] = a | b << 8 | c << 16 | d << 24;
        }
        write_words(to + half * 512 + lane * 16, word);
    }
}

/* Bits first … first + n_bits - 1 of the numbers of a step, register r's at bits n_bits · r and 16
 * + those. */
template <int id>
GPU_INLINE uint32_t step_bits(const tile_source &s, int64_t row, int64_t k, int lane, int first,
                              int n_bits) {
    const uint32_t mask = (1u << n_bits) - 1;
    uint32_t word = 0;
    for (int r = 0; r < 4; r++) {
        uint32_t low, high;
        source_pair<id>(s, row, k, lane, r, &low, &high);
        word |= ((low >> first & mask) | (high >> first & mask) << 16) << (n_bits * r);
    }
    return word;
}

template <int id>
GPU_INLINE void lay_nibbles(const tile_source &s, int64_t row, int64_t k, int lane,
                            unsigned char *to) {
    uint32_t word[4];
    for (int step = 0; step < 4; step++)
        word[step] = step_bits<id>(s, row, k + 16 * step, lane, 0, 4);
    write_words(to + lane * 16, word);
}

/* Q5_K: the fifth bits of four steps in a word. */
template <int id>
GPU_INLINE void lay_fifths(const tile_source &s, int64_t row, int64_t k, int lane,
                           unsigned char *to) {
    uint32_t word = 0;
    for (int step = 0; step < 4; step++)
        word |= step_bits<id>(s, row, k + 16 * step, lane, 4, 1) << (4 * step);
    *reinterpret_cast<uint32_t *>(to + lane * 4) = word;
}

/* Q6_K: the fifth and sixth bits, two steps in a word. */
template <int id>
GPU_INLINE void lay_pairs(const tile_source &s, int64_t row, int64_t k, int lane,
                          unsigned char *to) {
    uint32_t word[2] = {0, 0};
    GPU_UNROLL
    for (int step = 0; step < 4; step++)
        word[step >> 1] |= step_bits<id>(s, row, k + 16 * step, lane, 4, 2) << (8 * (step & 1));
    *reinterpret_cast<uint2 *>(to + lane * 8) = make_uint2(word[0], word[1]);
}

/* One thread: what a lane reads of a chunk, but for scales. */
template <int id> GPU_KERNEL lay_chunks(tile_source s, tile_shape shape, unsigned char *to) {
    using F = tile<id>;
    const int64_t i = thread_index(), n_chunks = shape.n_units * F::n_chunks;
    const int lane = (int)(i & 31);
    const int64_t i_strip = (i >> 5) / n_chunks, i_chunk = (i >> 5) % n_chunks;
    if (i_strip >= shape.n_strips) return;
    const int64_t row = i_strip * TILE_ROWS, k = i_chunk * TILE_COLUMNS;
    const int in_unit = (int)(i_chunk % F::n_chunks);
    unsigned char *unit = to + i_strip * shape.strip_bytes + i_chunk / F::n_chunks * F::main_bytes;
    if constexpr (F::kind != TILE_INTEGERS)
        lay_halves<id>(s, row, k, lane, unit);
    else if constexpr (id == KERN_Q8_0)
        lay_bytes<id>(s, row, k, lane, unit);
    else
        lay_nibbles<id>(s, row, k, lane, unit + in_unit * 512);
    if constexpr (id == KERN_Q5_K) lay_fifths<id>(s, row, k, lane, unit + 2048 + in_unit * 128);
    if constexpr (id == KERN_Q6_K) lay_pairs<id>(s, row, k, lane, unit + 2048 + in_unit * 256);
}

/* Bytes of a block, or 0 beyond the weight. */
template <int id>
GPU_INLINE void copy_bytes(const tile_source &s, int64_t row, int64_t i_block, int from, int n,
                           unsigned flip, unsigned char *to) {
    using P = plain<id>;
    const bool is_there = row < s.n_rows && i_block * P::size < s.n_columns;
    const unsigned char *block = s.rows + row * s.row_bytes + i_block * P::bytes + from;
    for (int j = 0; j < n; j++) to[j] = (unsigned char)((is_there ? block[j] : 0) ^ flip);
}

/* One thread: the scales of a row in a unit. */
template <int id> GPU_KERNEL lay_scales(tile_source s, tile_shape shape, unsigned char *to) {
    using F = tile<id>;
    const int64_t i = thread_index();
    const int64_t i_strip = (i >> 4) / shape.n_units, u = (i >> 4) % shape.n_units;
    if (i_strip >= shape.n_strips) return;
    const int in_strip = (int)(i & 15), place = 2 * (in_strip & 7) + (in_strip >> 3);
    const int64_t row = i_strip * TILE_ROWS + in_strip;
    unsigned char *strip = to + i_strip * shape.strip_bytes;
    unsigned char *main = strip + u * F::main_bytes;
    unsigned char *side = strip + shape.n_units * F::main_bytes + u * F::side_bytes;
    if constexpr (F::unit == 64) { /* two blocks that open with 2 or 4 bytes of scales */
        constexpr int n = F::side_bytes / 32;
        copy_bytes<id>(s, row, 2 * u, 0, n, 0, side + place * 2 * n);
        copy_bytes<id>(s, row, 2 * u + 1, 0, n, 0, side + place * 2 * n + n);
    } else if constexpr (id == KERN_Q6_K) {
        copy_bytes<id>(s, row, u, 192, 16, 128, main + 3072 + place * 16);
        copy_bytes<id>(s, row, u, 208, 2, 0, side + place * 2);
    } else {
        copy_bytes<id>(s, row, u, 0, 16, 0, main + F::main_bytes - 256 + place * 16);
    }
}

template <int id>
static void lay(kern_device *device, tile_source s, tile_shape shape, unsigned char *to) {
    const int64_t units = shape.n_strips * shape.n_units;
    GPU_LAUNCH(device, (lay_chunks<id>), blocks_of(units * tile<id>::n_chunks * 32), THREADS, 0, s,
               shape, to);
    if constexpr (tile<id>::kind == TILE_INTEGERS)
        GPU_LAUNCH(device, (lay_scales<id>), blocks_of(units * 16), THREADS, 0, s, shape, to);
}

int cuda_tile(kern_device *device, const kern_format *format, int64_t n_rows, int64_t n_columns,
              const void *from, void *to) {
    const tile_source s = {(const unsigned char *)from, n_rows, n_columns,
                           (int64_t)kern_format_bytes(format, n_columns)};
    const tile_shape shape = shape_of(format, n_rows, n_columns);
    switch (format->id) {
#define LAY(id)                                                                                    \
    case id: lay<id>(device, s, shape, (unsigned char *)to); break;
        TILE_FORMATS(LAY)
#undef LAY
    default: return cuda_fail(device, KERN_UNSUPPORTED, "%s has no tiles", format->name);
    }
    return cuda_launched(device, "laying weights in tiles");
}

/* ---- back to numbers ---- */

struct rows_asked {
    int64_t first, n, n_columns;
    uint16_t *out; /* [n, n_columns] */
    bool bf16;
};

GPU_INLINE void put_number(const rows_asked &a, int64_t row, int64_t k, float x) {
    a.out[(row - a.first) * a.n_columns + k] = a.bf16 ? gpu_f32_to_bf16(x) : gpu_f32_to_f16(x);
}

/* A warp's lanes: a chunk of a strip. */
template <int id>
GPU_KERNEL dequantise_tiles(const unsigned char *w, tile_shape shape, rows_asked a) {
    using F = tile<id>;
    const int64_t i = thread_index(), n_chunks = shape.n_units * F::n_chunks;
    const int lane = (int)(i & 31);
    const int64_t i_strip = a.first / TILE_ROWS + (i >> 5) / n_chunks,
                  i_chunk = (i >> 5) % n_chunks;
    if (i_strip * TILE_ROWS >= a.first + a.n) return;
    const tile_strip strip = tile_strip_at<F>(w, i_strip, shape.strip_bytes, (int)shape.n_units);
    for (int half = 0; half < 2; half++) {
        const int64_t row = i_strip * TILE_ROWS + (lane >> 2) + 8 * half;
        if (row < a.first || row >= a.first + a.n) continue;
        float y[16];
        tile_values<F>(strip, (int)(i_chunk / F::n_chunks), (int)(i_chunk % F::n_chunks), lane,
                       half, y);
        GPU_UNROLL
        for (int j = 0; j < 16; j++) {
            const int64_t k = i_chunk * TILE_COLUMNS + (j >> 2) * 16 + 4 * (lane & 3) + (j & 3);
            if (k < a.n_columns) put_number(a, row, k, y[j]);
        }
    }
}

template <int id>
GPU_KERNEL dequantise_plain(const unsigned char *rows, int64_t row_bytes, rows_asked a) {
    const int64_t i = thread_index();
    if (i >= a.n * a.n_columns) return;
    const int64_t row = a.first + i / a.n_columns, k = i % a.n_columns;
    put_number(a, row, k, plain_at<plain<id>>(rows + row * row_bytes, k));
}

int cuda_dequantise(kern_device *device, const cuda_matrix *w, int64_t first_row, int64_t n_rows,
                    bool bf16, uint16_t *out) {
    const rows_asked a = {first_row, n_rows, w->n_columns, out, bf16};
    const unsigned char *data = (const unsigned char *)w->gpu;
    if (w->layout == CUDA_TILED) {
        const tile_shape shape = shape_of(w->format, w->n_rows, w->n_columns);
        const int64_t n_strips =
            (first_row + n_rows + TILE_ROWS - 1) / TILE_ROWS - first_row / TILE_ROWS;
        const unsigned blocks = blocks_of(n_strips * shape.n_units * shape.n_chunks * 32);
        switch (w->format->id) {
#define DEQUANTISE(id)                                                                             \
    case id: GPU_LAUNCH(device, (dequantise_tiles<id>), blocks, THREADS, 0, data, shape, a); break;
            TILE_FORMATS(DEQUANTISE)
#undef DEQUANTISE
        }
    } else {
        const int64_t row_bytes = (int64_t)kern_format_bytes(w->format, w->n_columns);
        const unsigned blocks = blocks_of(n_rows * w->n_columns);
        switch (w->format->id) {
#define DEQUANTISE(id)                                                                             \
    case id:                                                                                       \
        GPU_LAUNCH(device, (dequantise_plain<id>), blocks, THREADS, 0, data, row_bytes, a);        \
        break;
            PLAIN_FORMATS(DEQUANTISE)
#undef DEQUANTISE
        }
    }
    return cuda_launched(device, "dequantising weights");
}
