/* products_avx2.c: matrix products of the AVX2 tier, for every weight format: for each one kernel,
 * inlined for tiles of a few weight rows × 1 … 4 activation rows. An output is acc + offsets, each
 * eight sums over the columns in order, added up at the end by one fixed tree: the tile it lies in
 * changes nothing.
 *
 * For few activation rows the weights are read as they lie in the file; for more, 8 rows of weights
 * at a time are unpacked into a panel first. */
#include "blocks_avx2.h"

/* Loops over a tile are unrolled, so that its sums stay in registers. */
#define UNROLL _Pragma("GCC unroll 4")

enum { X_ROWS = 4, PANEL_LEAST = 16, X_BLOCK_BYTES = 192 << 10 };

INLINE float sum_8(__m256 v) {
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps(a, a, 1)));
}

INLINE void put(const cpu_product *p, int64_t t, int64_t n, float sum) {
    p->out[t * p->out_stride + n] = p->bias != NULL ? sum + p->bias[n] : sum;
}

/* The block's scales of the two halves, for madd. */
INLINE __m256i scale_pair(__m256i scale, const int b) {
    return _mm256_shuffle_epi8(scale, _mm256_set1_epi16((short)(2 * b | (2 * b + 1) << 8)));
}

/* Eight sums of w · x over a block: in any order, they are integers. */
INLINE __m256i dot_block(const block_kind kind, __m256i w, __m256i w_abs, __m256i scale,
                         __m256i x) {
    if (kind == BLOCK_SIGNED)
        return _mm256_madd_epi16(_mm256_maddubs_epi16(w_abs, _mm256_sign_epi8(x, w)),
                                 _mm256_set1_epi16(1));
    return _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), scale);
}

/* The `bytes` at p are wanted soon, if p is readable. */
INLINE void prefetch(const uint8_t *p, const size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)p + i, _MM_HINT_T0);
}

/* A tile: rows w[n_w] of weights × n_x rows of activations, and its sums so far. */
typedef struct tile {
    const uint8_t *w[4];
    const int8_t *q[X_ROWS];
    const float *d[X_ROWS], *s[X_ROWS];
    const int16_t *halves[X_ROWS];
    __m256 acc[4][X_ROWS], offset[4][X_ROWS];
} tile;

/* Adds group g, of n blocks. */
INLINE void tile_group(tile *t, const int format, int64_t g, const int n, size_t ahead,
                       const int n_w, const int n_x) {
    const block_kind kind = format_kind(format);
    const size_t bytes = (format_small(format) ? 8 : 1) * format_bytes(format);
    const uint8_t *group[4];
    float scales[4][X_ROWS][8];
    __m256i scale[4];
    UNROLL
    for (int i = 0; i < n_w; i++) {
        group[i] = group_at(format, t->w[i], g);
        if (format < PANEL_UNSIGNED) prefetch(group[i] + ahead, bytes);
        group_scales gs = load_scales(format, group[i], n);
        scale[i] = gs.scale;
        UNROLL
        for (int x = 0; x < n_x; x++) {
            __m256 dx = _mm256_loadu_ps(t->d[x] + 8 * g);
            _mm256_storeu_ps(scales[i][x], _mm256_mul_ps(gs.d, dx));
            if (kind == BLOCK_UNSIGNED) {
                __m256 s = _mm256_loadu_ps(t->s[x] + 8 * g);
                t->offset[i][x] = _mm256_fmadd_ps(gs.m, s, t->offset[i][x]);
            } else if (kind == BLOCK_SCALED) {
                __m256i h = load_32((const uint8_t *)(t->halves[x] + 16 * g));
                __m256 sum = _mm256_cvtepi32_ps(_mm256_madd_epi16(gs.least, h));
                t->offset[i][x] = _mm256_fmadd_ps(sum, _mm256_mul_ps(gs.m, dx), t->offset[i][x]);
            }
        }
    }
#pragma GCC unroll 8
    for (int b = 0; b < n; b++) {
        UNROLL
        for (int i = 0; i < n_w; i++) {
            __m256i v = load_block(format, group[i], b);
            __m256i v_abs = kind == BLOCK_SIGNED ? _mm256_abs_epi8(v) : v;
            __m256i by = kind == BLOCK_SCALED ? scale_pair(scale[i], b) : _mm256_set1_epi16(1);
            UNROLL
            for (int x = 0; x < n_x; x++) {
                __m256i y = load_32((const uint8_t *)(t->q[x] + 256 * g + 32 * b));
                __m256 f = _mm256_cvtepi32_ps(dot_block(kind, v, v_abs, by, y));
                __m256 by_d = _mm256_broadcast_ss(&scales[i][x][b]);
                t->acc[i][x] = _mm256_fmadd_ps(f, by_d, t->acc[i][x]);
            }
        }
    }
}

INLINE void tile_q8(const cpu_product *p, const int format, const uint8_t *const *w, size_t ahead,
                    const int n_w, int64_t row, const int n_x, float sums[4][X_ROWS]) {
    const int64_t n_blocks = p->w->n_columns / 32;
    tile t;
    UNROLL
    for (int x = 0; x < n_x; x++) {
        t.q[x] = cpu_q8_q(&p->q8, row + x);
        t.d[x] = cpu_q8_d(&p->q8, row + x);
        t.s[x] = cpu_q8_s(&p->q8, row + x);
        t.halves[x] = cpu_q8_sums(&p->q8, row + x);
    }
    UNROLL
    for (int i = 0; i < n_w; i++) {
        t.w[i] = w[i];
        UNROLL
        for (int x = 0; x < n_x; x++) t.acc[i][x] = t.offset[i][x] = _mm256_setzero_ps();
    }
    int64_t g = 0;
    for (; 8 * g + 8 <= n_blocks; g++) tile_group(&t, format, g, 8, ahead, n_w, n_x);
    const int left = (int)(n_blocks - 8 * g);
    if (left > 0 && (format_small(format) || format >= PANEL_UNSIGNED)) {
        if (left == 2)
            tile_group(&t, format, g, 2, ahead, n_w, n_x); /* widths of 576 are common */
        else if (left == 4)
            tile_group(&t, format, g, 4, ahead, n_w, n_x);
        else
            tile_group(&t, format, g, left, ahead, n_w, n_x);
    }
    UNROLL
    for (int i = 0; i < n_w; i++) {
        UNROLL
        for (int x = 0; x < n_x; x++)
            sums[i][x] = sum_8(_mm256_add_ps(t.acc[i][x], t.offset[i][x]));
    }
}

/* Eight values from column j on of a row of F32, F16 or BF16; zeros beyond the n that are left. */
INLINE __m256 load_floats(const int format, const uint8_t *row, int64_t j, int64_t n) {
    const uint8_t *from = row + (size_t)j * (format == KERN_F32 ? 4 : 2);
    uint8_t tail[32];
    if (n < 8) {
        memset(tail, 0, sizeof tail);
        memcpy(tail, from, (size_t)n * (format == KERN_F32 ? 4 : 2));
        from = tail;
    }
    if (format == KERN_F32) return _mm256_loadu_ps((const float *)(const void *)from);
    __m128i h = load_16(from);
    if (format == KERN_F16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

INLINE void tile_f32(const cpu_product *p, const int format, const uint8_t *const *w, size_t ahead,
                     const int n_w, int64_t t, const int n_x, float sums[4][X_ROWS]) {
    const int64_t k = p->w->n_columns;
    const float *x[X_ROWS];
    __m256 acc[4][X_ROWS];
    UNROLL
    for (int j = 0; j < n_x; j++) x[j] = p->x + (t + j) * p->x_stride;
    UNROLL
    for (int i = 0; i < n_w; i++) UNROLL
    for (int j = 0; j < n_x; j++) acc[i][j] = _mm256_setzero_ps();
    int64_t c = 0;
    for (; c + 8 <= k; c += 8) {
        UNROLL
        for (int i = 0; i < n_w; i++) {
            const size_t size = format == KERN_F32 ? 4 : 2;
            if ((size_t)c * size % 64 == 0)
                _mm_prefetch((const char *)w[i] + (size_t)c * size + ahead, _MM_HINT_T0);
            __m256 v = load_floats(format, w[i], c, 8);
            UNROLL
            for (int j = 0; j < n_x; j++)
                acc[i][j] = _mm256_fmadd_ps(v, _mm256_loadu_ps(x[j] + c), acc[i][j]);
        }
    }
    if (c < k) {
        UNROLL
        for (int i = 0; i < n_w; i++) {
            __m256 v = load_floats(format, w[i], c, k - c);
            UNROLL
            for (int j = 0; j < n_x; j++) {
                __m256 y = load_floats(KERN_F32, (const uint8_t *)x[j], c, k - c);
                acc[i][j] = _mm256_fmadd_ps(v, y, acc[i][j]);
            }
        }
    }
    UNROLL
    for (int i = 0; i < n_w; i++) UNROLL
    for (int j = 0; j < n_x; j++) sums[i][j] = sum_8(acc[i][j]);
}

INLINE int format_is_float(const int format) {
    return format == KERN_F32 || format == KERN_F16 || format == KERN_BF16;
}

/* Weight rows at `rows`, `stride` bytes apart, are columns n … end - 1 of the product; rows t … t +
 * n_x - 1 of it. Tiles of n_w weight rows; the last one repeats its last row. */
INLINE void strip(const cpu_product *p, const int format, const uint8_t *rows, size_t stride,
                  int64_t n, int64_t end, int64_t t, const int n_w, const int n_x) {
    for (int64_t i = n; i < end; i += n_w) {
        const uint8_t *w[4];
        float sums[4][X_ROWS];
        const size_t ahead = (size_t)n_w * stride;
        for (int j = 0; j < n_w; j++)
            w[j] = rows + (size_t)((i + j < end ? i + j : end - 1) - n) * stride;
        if (format_is_float(format))
            tile_f32(p, format, w, ahead, n_w, t, n_x, sums);
        else
            tile_q8(p, format, w, ahead, n_w, t, n_x, sums);
        for (int j = 0; j < n_w && i + j < end; j++)
            for (int x = 0; x < n_x; x++) put(p, t + x, i + j, sums[j][x]);
    }
}

INLINE void strips(const cpu_product *p, const int format, const uint8_t *rows, size_t stride,
                   int64_t n, int64_t end, int64_t t, int64_t n_x) {
    switch (n_x) {
    case 1: strip(p, format, rows, stride, n, end, t, 4, 1); break;
    case 2: strip(p, format, rows, stride, n, end, t, 2, 2); break;
    case 3: strip(p, format, rows, stride, n, end, t, 2, 3); break;
    default: strip(p, format, rows, stride, n, end, t, 2, X_ROWS); break;
    }
}

/* Rows t … end_t - 1 of the product, by weights of a panel. */
#define PANEL_STRIPS(name, format)                                                                 \
    static void name(const cpu_product *p, const uint8_t *rows, size_t stride, int64_t n,          \
                     int64_t end, int64_t t, int64_t end_t) {                                      \
        for (; t < end_t; t += X_ROWS)                                                             \
            strips(p, format, rows, stride, n, end, t, end_t - t < X_ROWS ? end_t - t : X_ROWS);   \
    }
PANEL_STRIPS(strips_unsigned, PANEL_UNSIGNED)
PANEL_STRIPS(strips_signed, PANEL_SIGNED)
PANEL_STRIPS(strips_scaled, PANEL_SCALED)

/* Row `row` of a weight, unpacked. */
INLINE void fill_row(const cpu_product *p, const int format, const uint8_t *row, size_t ahead,
                     panel_group *to) {
    const int64_t n_blocks = p->w->n_columns / 32;
    for (int64_t g = 0; 8 * g < n_blocks; g++) {
        const uint8_t *group = group_at(format, row, g);
        const int64_t n = n_blocks - 8 * g;
        prefetch(group + ahead, (format_small(format) ? 8 : 1) * format_bytes(format));
        panel_fill(format, group, n < 8 ? (int)n : 8, to + g);
    }
}

/* Weights as they lie, a few rows at a time for all rows of activations. */
INLINE void product_direct(const cpu_product *p, const int format, int64_t first, int64_t end) {
    const uint8_t *rows = (const uint8_t *)p->w->data;
    const int64_t n = p->n_x <= X_ROWS ? end - first : CPU_PANEL_ROWS;
    for (int64_t i = first; i < end; i += n) {
        int64_t stop = i + n < end ? i + n : end;
        for (int64_t t = 0; t < p->n_x; t += X_ROWS)
            strips(p, format, rows + (size_t)i * p->w_stride, p->w_stride, i, stop, t,
                   p->n_x - t < X_ROWS ? p->n_x - t : X_ROWS);
    }
}

INLINE void product_panel(const cpu_product *p, const int format, int64_t first, int64_t end,
                          void *panel) {
    const uint8_t *rows = (const uint8_t *)p->w->data;
    const size_t stride = (size_t)(cpu_round_up(p->w->n_columns, 256) / 256) * sizeof(panel_group);
    int64_t block = (int64_t)(X_BLOCK_BYTES / p->q8.stride) / X_ROWS * X_ROWS;
    if (block < PANEL_LEAST) block = PANEL_LEAST;
    const int64_t n_blocks = (p->n_x + block - 1) / block; /* of one size */
    block = cpu_round_up((p->n_x + n_blocks - 1) / n_blocks, X_ROWS);
    for (int64_t t = 0; t < p->n_x; t += block) {
        int64_t end_t = t + block < p->n_x ? t + block : p->n_x;
        for (int64_t i = first; i < end; i += CPU_PANEL_ROWS) {
            int64_t stop = i + CPU_PANEL_ROWS < end ? i + CPU_PANEL_ROWS : end;
            for (int64_t j = i; j < stop; j++)
                fill_row(p, format, rows + (size_t)j * p->w_stride, CPU_PANEL_ROWS * p->w_stride,
                         (panel_group *)(void *)((uint8_t *)panel + (size_t)(j - i) * stride));
            const uint8_t *from = (const uint8_t *)panel;
            if (format_kind(format) == BLOCK_UNSIGNED)
                strips_unsigned(p, from, stride, i, stop, t, end_t);
            else if (format_kind(format) == BLOCK_SIGNED)
                strips_signed(p, from, stride, i, stop, t, end_t);
            else
                strips_scaled(p, from, stride, i, stop, t, end_t);
        }
    }
}

/* Formats that few files are in always go through a panel: a kernel less for each. */
INLINE int format_is_direct(const int format) {
    return format_is_float(format) || format == KERN_Q4_0 || format == KERN_Q4_1 ||
           format == KERN_Q5_0 || format == KERN_Q8_0 || format == KERN_Q4_K || format == KERN_Q6_K;
}

INLINE void product(const cpu_product *p, const int format, int64_t first, int64_t n, void *panel) {
    if (format_is_float(format) || (format_is_direct(format) && p->n_x < PANEL_LEAST))
        product_direct(p, format, first, first + n);
    else
        product_panel(p, format, first, first + n, panel);
}

#define FORMATS(X)                                                                                 \
    X(F32)                                                                                         \
    X(F16)                                                                                         \
    X(BF16) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K)        \
        X(IQ4_NL) X(IQ4_XS)
#define PRODUCT(f)                                                                                 \
    static void product_##f(const cpu_product *p, int64_t first, int64_t n, void *panel) {         \
        product(p, KERN_##f, first, n, panel);                                                     \
    }
#define CASE(f)                                                                                    \
    case KERN_##f: return product_##f;

FORMATS(PRODUCT)

cpu_product_fn *cpu_product_avx2(int32_t format) {
    switch (format) {
        FORMATS(CASE)
    default: return NULL;
    }
}
