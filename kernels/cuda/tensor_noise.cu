/* tensor_noise.cu: Gumbel noise with the bits of noise.c, and draws with it. Logarithms in f64 are
 * dear on most GPUs: a draw first adds noise that is nearly right, in f32, and makes the exact
 * noise of those entries alone that may win by it. */
#include "../noise.h"
#include "tensor_parts.h"

#define THREADS   256
#define N_QUADS   4 /* a thread does: ids 4 q … 4 q + 3 have one counter's words */
#define N_ENTRIES (4 * N_QUADS)

/* ---- numbers ---- */

typedef struct words {
    uint32_t x[4];
} words;

/* As kern_philox, of the counter of ids 4 · quad …. */
GPU_INLINE words philox(const kern_key &key, uint32_t quad) {
    uint32_t key_low = (uint32_t)key.seed, key_high = (uint32_t)(key.seed >> 32);
    uint32_t a = quad, b = key.position;
    uint32_t c = (uint32_t)key.stream, d = (uint32_t)(key.stream >> 32);
    GPU_UNROLL
    for (int round = 0; round < 10; round++) {
        const uint32_t high_a = __umulhi(0xD2511F53u, a), low_a = 0xD2511F53u * a;
        const uint32_t high_c = __umulhi(0xCD9E8D57u, c), low_c = 0xCD9E8D57u * c;
        a = high_c ^ b ^ key_low;
        c = high_a ^ d ^ key_high;
        b = low_c;
        d = low_a;
        key_low += 0x9E3779B9u;
        key_high += 0xBB67AE85u;
    }
    return {{a, b, c, d}};
}

/* As log_positive of noise.c, step for step; nothing is fused. */
GPU_INLINE double log_positive(double x) {
    uint64_t bits = (uint64_t)__double_as_longlong(x);
    const uint64_t biased_k = (bits - NOISE_LOG_LEAST + ((uint64_t)1024 << 52)) >> 52;
    bits -= (biased_k - 1024) << 52;
    const double m = __longlong_as_double((long long)bits);
    const double f = __dadd_rn(m, -1.0), s = __ddiv_rn(f, __dadd_rn(m, 1.0));
    const double z = __dmul_rn(s, s);
    const double terms[] = NOISE_LOG_TERMS;
    double sum = 2.0 / 21;
    GPU_UNROLL
    for (int i = 9; i > 0; i--) sum = __dadd_rn(__dmul_rn(sum, z), terms[i - 1]);
    const double k = __dmul_rn((double)((int)biased_k - 1024), NOISE_LN_2);
    return __dadd_rn(k, __dadd_rn(__dmul_rn(__dmul_rn(s, z), sum), __dmul_rn(2.0, s)));
}

/* As kern_word_gumbel. */
GPU_INLINE float word_gumbel(uint32_t word) {
    const double most = 1 - 0x1p-24;
    double u = __dmul_rn(__dadd_rn((double)word, 0.5), 0x1p-32);
    u = u < most ? u : most;
    return __double2float_rn(-log_positive(-log_positive(__dadd_rn(1.0, -u))));
}

/* The same but for 1e-5 at most: f32 errs by some 2^-23 of u, of 1 − u and of −ln(1 − u), hence by
 * as much of the noise and an ulp of it. */
#define NEAR 1e-5f
GPU_INLINE float word_gumbel_near(uint32_t word) {
    float t;
    if (word < 0x80000000u) {
        t = -log1pf(-__fmul_rn(__fadd_rn(__uint2float_rn(word), 0.5f), 0x1p-32f));
    } else {
        const float rest = __fadd_rn(__uint2float_rn(~word), 0.5f);
        t = -logf(__fmul_rn(rest > 256.0f ? rest : 256.0f, 0x1p-32f));
    }
    return -logf(t);
}

/* ---- kernels ---- */

typedef struct noise_job {
    const float *x; /* [rows,n] */
    int64_t n;
    int32_t base;
    uint32_t n_blocks; /* a row's */
    const kern_key *keys;
    uint32_t *counters; /* of a draw: 4 a row: a counter, the row's class, the best (64 bits) */
    float *out;
    int32_t *ids;
} noise_job;

/* The thread's i-th quad of ids in the row's block, and the first column of it. */
GPU_INLINE uint32_t quad_of(const noise_job &j, int i) {
    return (uint32_t)(j.base / 4) + blockIdx.x * (THREADS * N_QUADS) + (uint32_t)i * THREADS +
           threadIdx.x;
}
GPU_INLINE int64_t column_of(const noise_job &j, uint32_t quad) {
    return (int64_t)quad * 4 - j.base;
}

/* Columns at … at + 3, which may begin before the row; −inf outside it. */
GPU_INLINE void load_quad(const float *x, int64_t at, int64_t n, float v[4]) {
    if (is_aligned(x + at) && at >= 0 && at + 4 <= n) {
        const float4 u = load_4(x, at, n, true, 0.0f);
        v[0] = u.x;
        v[1] = u.y;
        v[2] = u.z;
        v[3] = u.w;
        return;
    }
    GPU_UNROLL
    for (int l = 0; l < 4; l++) v[l] = at + l >= 0 && at + l < n ? x[at + l] : -INFINITY;
}

/* out = x + noise; entries that are not finite stay. grid: blocks × rows */
GPU_KERNEL_BOUNDS(THREADS, 4) add_noise(noise_job j) {
    const int64_t row = blockIdx.y;
    const kern_key key = j.keys[row];
    float *out = j.out + row * j.n;
    for (int i = 0; i < N_QUADS; i++) {
        const uint32_t quad = quad_of(j, i);
        const int64_t at = column_of(j, quad);
        if (at >= j.n) return;
        float v[4];
        load_quad(j.x + row * j.n, at, j.n, v);
        bool any = false;
        GPU_UNROLL
        for (int l = 0; l < 4; l++) any = any || class_of(v[l]) == CLASS_FINITE;
        if (any) {
            const words w = philox(key, quad);
            GPU_UNROLL
            for (int l = 0; l < 4; l++)
                if (class_of(v[l]) == CLASS_FINITE) v[l] = __fadd_rn(v[l], word_gumbel(w.x[l]));
        }
        GPU_UNROLL
        for (int l = 0; l < 4; l++)
            if (at + l >= 0 && at + l < j.n) out[at + l] = v[l];
    }
}

/* Scores with noise that is nearly right; −inf for entries that are not finite. */
GPU_INLINE uint32_t near_scores(const noise_job &j, int64_t row, const kern_key &key,
                                float scores[N_ENTRIES]) {
    uint32_t row_class = CLASS_NONE;
    GPU_UNROLL
    for (int i = 0; i < N_QUADS; i++) {
        const uint32_t quad = quad_of(j, i);
        float v[4];
        load_quad(j.x + row * j.n, column_of(j, quad), j.n, v);
        bool any = false;
        GPU_UNROLL
        for (int l = 0; l < 4; l++) {
            const uint32_t c = class_of(v[l]);
            row_class = c > row_class ? c : row_class;
            any = any || c == CLASS_FINITE;
            scores[4 * i + l] = -INFINITY;
        }
        if (!any) continue;
        const words w = philox(key, quad);
        GPU_UNROLL
        for (int l = 0; l < 4; l++)
            if (class_of(v[l]) == CLASS_FINITE)
                scores[4 * i + l] = __fadd_rn(v[l], word_gumbel_near(w.x[l]));
    }
    return row_class;
}

/* Of those of the thread's entries whose score may be the block's best, the best by exact noise. */
GPU_INLINE wide exact_best(const noise_job &j, int64_t row, const kern_key &key,
                           const float scores[N_ENTRIES], float least) {
    uint32_t may = 0;
    GPU_UNROLL
    for (int i = 0; i < N_ENTRIES; i++)
        if (scores[i] >= least && scores[i] > -INFINITY) may |= 1u << i;
    wide best = 0;
    while (may) {
        const int i = __ffs((int)may) - 1;
        may &= may - 1;
        const uint32_t quad = quad_of(j, i / 4);
        const int64_t at = column_of(j, quad) + i % 4;
        const words w = philox(key, quad);
        const uint32_t word =
            i % 4 < 2 ? (i % 4 ? w.x[1] : w.x[0]) : (i % 4 == 2 ? w.x[2] : w.x[3]);
        const wide score = best_of(__fadd_rn(j.x[row * j.n + at], word_gumbel(word)), (uint32_t)at);
        best = score > best ? score : best;
    }
    return best;
}

/* ids = argmax of x + noise. grid: blocks × rows */
GPU_KERNEL_BOUNDS(THREADS, 3) draw_rows(noise_job j) {
    GPU_SHARED(float, near_parts, THREADS / 32);
    GPU_SHARED(wide, best_parts, THREADS / 32);
    GPU_SHARED(uint32_t, class_parts, THREADS / 32);
    GPU_SHARED(uint32_t, flag, 1);
    const int64_t row = blockIdx.y;
    const kern_key key = j.keys[row];
    float scores[N_ENTRIES], near = -INFINITY;
    uint32_t row_class = near_scores(j, row, key, scores);
    GPU_UNROLL
    for (int i = 0; i < N_ENTRIES; i++) near = scores[i] > near ? scores[i] : near;
    near = block_max(near, near_parts);
    /* two scores may err against each other, by their noise and by rounding their sums */
    const float least = __fsub_rn(near, __fmaf_rn(fabsf(near), 0x1p-21f, 2 * NEAR));
    wide best = exact_best(j, row, key, scores, least);
    best = block_max(best, best_parts);
    row_class = block_max(row_class, class_parts);
    uint32_t *counters = j.counters + row * 4;
    wide *all_best = reinterpret_cast<wide *>(counters + 2);
    if (j.n_blocks > 1) {
        if (threadIdx.x == 0) {
            if (row_class) atomicMax(counters + 1, row_class);
            if (best) atomicMax(all_best, best);
        }
        if (!block_is_last(counters, j.n_blocks, flag)) return;
        if (threadIdx.x == 0) {
            row_class = atomicExch(counters + 1, 0u);
            best = atomicExch(all_best, (wide)0);
        }
    }
    if (threadIdx.x != 0) return;
    const int32_t fault = class_fault(row_class);
    j.ids[row] = fault ? fault : (int32_t)best_index(best) + j.base;
}

/* ---- launches ---- */

/* The job's rows first …, with their keys. */
static int job_init(kern_device *device, kern_tensor x, int32_t base, const kern_key *keys,
                    noise_job *out) {
    *out = {};
    out->x = cuda_f32(x);
    out->n = x.n_columns;
    out->base = base;
    const int64_t n_quads = (base + x.n_columns + 3) / 4 - base / 4;
    const int64_t n_blocks = (n_quads + THREADS * N_QUADS - 1) / (THREADS * N_QUADS);
    out->n_blocks = n_blocks > 0 ? (uint32_t)n_blocks : 1;
    out->counters = device->counters;
    const void *up;
    const int code = cuda_upload(device, keys, (size_t)x.n_rows * sizeof *keys, &up);
    out->keys = (const kern_key *)up;
    return code;
}

static noise_job part_of(const noise_job &whole, int64_t first) {
    noise_job j = whole;
    j.x += first * j.n;
    j.keys += first;
    if (j.out) j.out += first * j.n;
    if (j.ids) j.ids += first;
    return j;
}

/* grid: blocks × rows, as many rows at a time as a grid may have */
static int launch_rows(kern_device *device, void (*kernel)(noise_job), const noise_job &j,
                       int64_t n_rows, const char *what) {
    for (int64_t first = 0; first < n_rows; first += TENSOR_MOST_ROWS) {
        const dim3 grid(j.n_blocks, (unsigned)tensor_least(TENSOR_MOST_ROWS, n_rows - first));
        GPU_LAUNCH(device, kernel, grid, THREADS, 0, part_of(j, first));
    }
    return cuda_launched(device, what);
}

/* out[R,C] = x[R,C] + noise; entries that are not finite stay */
int cuda_tensor_gumbel(kern_device *device, kern_tensor x, int32_t base, const kern_key *keys,
                       kern_tensor out) {
    noise_job j;
    if (x.n_rows == 0 || x.n_columns == 0) return KERN_OK;
    const int code = job_init(device, x, base, keys, &j);
    if (code) return code;
    j.out = cuda_f32(out);
    return launch_rows(device, add_noise, j, x.n_rows, "gumbel");
}

/* ids[R,1] */
int cuda_tensor_sample(kern_device *device, kern_tensor x, int32_t base, const kern_key *keys,
                       kern_tensor ids) {
    noise_job j;
    if (x.n_rows == 0) return KERN_OK;
    const int code = job_init(device, x, base, keys, &j);
    if (code) return code;
    j.ids = cuda_i32(ids);
    return launch_rows(device, draw_rows, j, x.n_rows, "sample");
}
