/* tensor_row.cu: what is known of a row when all of it has been read (its largest entry, sums of
 * it), and what is made of the row with that: reductions, argmax, softmax, cuts at a value. A block
 * summarises a chunk; the last one of a row joins the chunks in their order. Where a row is a
 * single chunk its block goes on with what it holds, else a second launch does. */
#include "tensor_parts.h"

#define THREADS   256
#define N_ENTRIES (TENSOR_CHUNK / THREADS) /* a thread holds */
#define N_PARTS   (N_ENTRIES / 4)

/* Which sums. */
enum {
    SUM_NONE,
    SUM_PLAIN,   /* a = Σ x */
    SUM_EXP,     /* a = Σ exp(x − max) */
    SUM_ENTROPY, /* and b = Σ exp(x − max) · (x − max) */
    SUM_SPREAD,  /* of the finite entries: a: their number, b: mean, c: Σ (x − mean)² */
    SUM_SQUARES  /* a = Σ x² of the finite entries */
};

/* What becomes of a row. */
enum { MAP_NONE, MAP_LOG_SOFTMAX, MAP_SOFTMAX, MAP_MIN_P, MAP_CUT, MAP_NORMALIZE };

typedef struct row_job { /* without padding: arguments are looked at word by word */
    const float *x;
    int64_t n;                       /* columns of a row */
    tensor_summary *partials, *rows; /* [rows, n_chunks]; [rows] */
    uint32_t *counters;
    float *values;          /* [rows] or NULL */
    int32_t *ids;           /* [rows] or NULL: the best entry's column + base */
    float *out;             /* of the map */
    const float *parameter; /* of the map: [1 or rows] */
    int32_t parameter_step, map;
    int32_t reduce, base; /* reduce: a kern_reduce, if there are values */
    uint32_t n_chunks;
    int32_t negates; /* the entries are −x */
} row_job;

/* ---- a chunk ---- */

GPU_INLINE void add_exps(const float v[N_ENTRIES], float max, bool times, double *a, double *b) {
    GPU_UNROLL
    for (int p = 0; p < N_PARTS; p++) {
        float d[4], e[4];
        GPU_UNROLL
        for (int l = 0; l < 4; l++) e[l] = exp_below(v[4 * p + l], max, &d[l]);
        *a += (double)__fadd_rn(__fadd_rn(e[0], e[1]), __fadd_rn(e[2], e[3]));
        if (times)
            *b += (double)__fadd_rn(__fmaf_rn(e[0], d[0], __fmul_rn(e[1], d[1])),
                                    __fmaf_rn(e[2], d[2], __fmul_rn(e[3], d[3])));
    }
}

GPU_INLINE bool is_finite(float x) { return __fsub_rn(x, x) == 0.0f; }

/* Number and mean of the finite entries, and the sum of squares of their distances from it. */
GPU_INLINE void add_spread(const float v[N_ENTRIES], gpu_shared<double> parts, tensor_summary *s) {
    double count = 0, sum = 0, squares = 0;
    GPU_UNROLL
    for (int i = 0; i < N_ENTRIES; i++) {
        if (!is_finite(v[i])) continue;
        count += 1;
        sum += (double)v[i];
    }
    s->a = block_sum(count, parts);
    sum = block_sum(sum, parts);
    s->b = s->a > 0 ? sum / s->a : 0;
    GPU_UNROLL
    for (int i = 0; i < N_ENTRIES; i++) {
        if (!is_finite(v[i])) continue;
        const double d = (double)v[i] - s->b;
        squares = __fma_rn(d, d, squares);
    }
    s->c = block_sum(squares, parts);
}

template <int sum>
GPU_INLINE tensor_summary summarise(const float v[N_ENTRIES], int64_t n, gpu_shared<double> parts,
                                    gpu_shared<wide> best_parts, gpu_shared<uint32_t> class_parts) {
    tensor_summary s = {0, CLASS_NONE, 0, 0, 0};
    if (sum == SUM_NONE || sum == SUM_EXP || sum == SUM_ENTROPY) {
        GPU_UNROLL
        for (int i = 0; i < N_ENTRIES; i++) {
            const int64_t at = chunk_entry(i / 4) + i % 4;
            const wide best = v[i] != v[i] || at >= n ? 0 : best_of(v[i], (uint32_t)at);
            if (best > s.best) s.best = best;
            const uint32_t c = class_of(v[i]);
            if (c > s.row_class) s.row_class = c;
        }
        s.best = block_max(s.best, best_parts);
        s.row_class = block_max(s.row_class, class_parts);
    }
    if (sum == SUM_PLAIN) {
        GPU_UNROLL
        for (int i = 0; i < N_ENTRIES; i++) s.a += (double)v[i];
    }
    if (sum == SUM_SQUARES) {
        GPU_UNROLL
        for (int i = 0; i < N_ENTRIES; i++)
            if (is_finite(v[i])) s.a = __fma_rn((double)v[i], (double)v[i], s.a);
    }
    if (sum == SUM_EXP || sum == SUM_ENTROPY)
        add_exps(v, best_value(s.best), sum == SUM_ENTROPY, &s.a, &s.b);
    if (sum == SUM_SPREAD) add_spread(v, parts, &s);
    if (sum == SUM_PLAIN || sum == SUM_SQUARES || sum == SUM_EXP || sum == SUM_ENTROPY)
        s.a = block_sum(s.a, parts);
    if (sum == SUM_ENTROPY) s.b = block_sum(s.b, parts);
    return s;
}

/* ---- a row ---- */

GPU_INLINE double warp_total(double x) {
    return warp_join(x, [](double a, double b) { return a + b; });
}

/* Joins n_chunks summaries; a whole warp calls it. */
template <int sum>
GPU_INLINE tensor_summary join_chunks(const tensor_summary *partials, uint32_t n_chunks) {
    tensor_summary s = {0, CLASS_NONE, 0, 0, 0};
    const uint32_t lane = threadIdx.x & 31;
    for (uint32_t i = lane; i < n_chunks; i += 32) {
        if (partials[i].best > s.best) s.best = partials[i].best;
        if (partials[i].row_class > s.row_class) s.row_class = partials[i].row_class;
        if (sum == SUM_PLAIN || sum == SUM_SQUARES || sum == SUM_SPREAD) s.a += partials[i].a;
        if (sum == SUM_SPREAD) s.b += partials[i].a * partials[i].b;
    }
    s.best = warp_join(s.best, [](wide a, wide b) { return b > a ? b : a; });
    s.row_class = warp_join(s.row_class, [](uint32_t a, uint32_t b) { return b > a ? b : a; });
    if (sum == SUM_EXP || sum == SUM_ENTROPY) {
        const double max = (double)best_value(s.best);
        for (uint32_t i = lane; i < n_chunks; i += 32) {
            if (!(partials[i].a > 0)) continue; /* has no finite entry */
            const double shift = (double)best_value(partials[i].best) - max;
            const double factor = exp(shift);
            s.a += partials[i].a * factor;
            if (sum == SUM_ENTROPY) s.b += factor * (partials[i].b + partials[i].a * shift);
        }
    }
    if (sum == SUM_NONE) return s;
    s.a = warp_total(s.a);
    if (sum == SUM_ENTROPY) s.b = warp_total(s.b);
    if (sum != SUM_SPREAD) return s;
    s.b = warp_total(s.b);
    s.b = s.a > 0 ? s.b / s.a : 0;
    for (uint32_t i = lane; i < n_chunks; i += 32) {
        const double d = partials[i].b - s.b;
        s.c += partials[i].c + partials[i].a * d * d;
    }
    s.c = warp_total(s.c);
    return s;
}

/* Adds what the map needs: b = ln Σ exp(x), c = 1 / Σ exp(x − max); c = 1 / length. */
template <int sum> GPU_INLINE void complete(tensor_summary *s, int32_t map) {
    if (sum == SUM_EXP) {
        s->b = (double)best_value(s->best) + log(s->a);
        s->c = 1 / s->a;
    }
    if (sum == SUM_SQUARES && map == MAP_NORMALIZE) {
        const double length = sqrt(s->a);
        s->c = length > 0 ? 1 / length : 1;
    }
}

/* The reduction's value. */
GPU_INLINE float value_of(int32_t reduce, const tensor_summary &s) {
    const float max = best_value(s.best), nan = __int_as_float(0x7FC00000);
    double h;
    switch (reduce) {
    case KERN_MAX: return s.row_class == CLASS_NAN ? nan : max;
    case KERN_MIN: return s.row_class == CLASS_NAN ? nan : -max;
    case KERN_SUM: return __double2float_rn(s.a);
    case KERN_LOGSUMEXP:
        return s.row_class == CLASS_NAN      ? nan
               : s.row_class == CLASS_FINITE ? __double2float_rn(s.b)
                                             : max;
    case KERN_ENTROPY:
        if (s.row_class != CLASS_FINITE) return nan;
        h = log(s.a) - s.b / s.a;
        return h > 0 ? __double2float_rn(h) : 0.0f;
    default: return s.a > 0 ? __double2float_rn(sqrt(s.c / s.a)) : nan;
    }
}

/* ---- what becomes of an entry ---- */

GPU_INLINE float cut(float x, int64_t at, const tensor_summary &s, float least) {
    if (best_value(s.best) < least) return at == best_index(s.best) ? x : -INFINITY;
    return x < least ? -INFINITY : x;
}

GPU_INLINE float map_entry(int32_t map, float x, int64_t at, const tensor_summary &s,
                           float parameter) {
    const float nan = __int_as_float(0x7FC00000);
    float d;
    switch (map) {
    case MAP_LOG_SOFTMAX:
        if (s.row_class == CLASS_NONE) return x;
        if (s.row_class == CLASS_NAN) return nan;
        if (s.row_class == CLASS_INF) return __fsub_rn(x, INFINITY);
        return __double2float_rn((double)x - s.b);
    case MAP_SOFTMAX:
        if (s.row_class != CLASS_FINITE) return nan;
        return __fmul_rn(exp_below(x, best_value(s.best), &d), __double2float_rn(s.c));
    case MAP_MIN_P:
        if (s.row_class != CLASS_FINITE || !(parameter > 0)) return x;
        return cut(x, at, s, __fadd_rn(best_value(s.best), logf(parameter)));
    case MAP_CUT: return s.row_class != CLASS_FINITE ? x : cut(x, at, s, parameter);
    default: return __fmul_rn(x, __double2float_rn(s.c));
    }
}

template <int parts>
GPU_INLINE void map_chunk(const row_job &j, int64_t row, const tensor_summary &s,
                          float v[4 * parts]) {
    if (chunk_entry(0) >= j.n) return;
    const float parameter = j.parameter ? j.parameter[row * j.parameter_step] : 0.0f;
    GPU_UNROLL
    for (int i = 0; i < 4 * parts; i++)
        v[i] = map_entry(j.map, v[i], chunk_entry(i / 4) + i % 4, s, parameter);
    chunk_store<parts>(j.out + row * j.n, j.n, v);
}

/* ---- kernels ---- */

/* grid: chunks × rows */
template <int sum> GPU_KERNEL_BOUNDS(THREADS, 2) summarise_rows(row_job j) {
    GPU_SHARED(double, parts, THREADS / 32);
    GPU_SHARED(wide, best_parts, THREADS / 32);
    GPU_SHARED(uint32_t, class_parts, THREADS / 32);
    GPU_SHARED(uint32_t, flag, 1);
    GPU_SHARED(tensor_summary, whole, 1);
    const int64_t row = blockIdx.y;
    const float fill = sum == SUM_PLAIN                          ? 0.0f
                       : sum == SUM_SPREAD || sum == SUM_SQUARES ? INFINITY
                                                                 : -INFINITY;
    float v[N_ENTRIES];
    chunk_load<N_PARTS>(j.x + row * j.n, j.n, fill, v);
    if (j.negates) {
        GPU_UNROLL
        for (int i = 0; i < N_ENTRIES; i++)
            v[i] = chunk_entry(i / 4) + i % 4 < j.n ? -v[i] : -INFINITY;
    }
    tensor_summary s = summarise<sum>(v, j.n, parts, best_parts, class_parts);
    if (j.n_chunks > 1) {
        tensor_summary *partials = j.partials + row * j.n_chunks;
        if (threadIdx.x == 0) partials[blockIdx.x] = s;
        if (!block_is_last(j.counters + row, j.n_chunks, flag) || threadIdx.x >= 32) return;
        s = join_chunks<sum>(partials, j.n_chunks);
    }
    if (threadIdx.x == 0) {
        complete<sum>(&s, j.map);
        if (j.values) j.values[row] = value_of(j.reduce, s);
        if (j.ids) {
            const int32_t fault = class_fault(s.row_class);
            j.ids[row] = fault ? fault : (int32_t)best_index(s.best) + j.base;
        }
        if (j.rows) j.rows[row] = s;
    }
    if (j.n_chunks > 1 || j.map == MAP_NONE) return;
    if (threadIdx.x == 0) whole[0] = s;
    __syncthreads();
    map_chunk<N_PARTS>(j, row, whole[0], v);
}

/* grid: pieces of 4 · THREADS columns × rows */
GPU_KERNEL_BOUNDS(THREADS, 4) map_rows(row_job j) {
    const int64_t row = blockIdx.y;
    const int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4;
    if (at >= j.n) return;
    const float *x = j.x + row * j.n;
    const float4 u = load_4(x, at, j.n, is_aligned(x), 0.0f);
    float v[4] = {u.x, u.y, u.z, u.w};
    const tensor_summary s = j.rows[row];
    const float parameter = j.parameter ? j.parameter[row * j.parameter_step] : 0.0f;
    GPU_UNROLL
    for (int i = 0; i < 4; i++) v[i] = map_entry(j.map, v[i], at + i, s, parameter);
    float *out = j.out + row * j.n;
    store_4(out, at, j.n, is_aligned(out), make_float4(v[0], v[1], v[2], v[3]));
}

static void launch(kern_device *device, int sum, unsigned n_rows, const row_job &j) {
    const dim3 grid(j.n_chunks, n_rows);
    switch (sum) {
    case SUM_NONE: GPU_LAUNCH(device, (summarise_rows<SUM_NONE>), grid, THREADS, 0, j); break;
    case SUM_PLAIN: GPU_LAUNCH(device, (summarise_rows<SUM_PLAIN>), grid, THREADS, 0, j); break;
    case SUM_EXP: GPU_LAUNCH(device, (summarise_rows<SUM_EXP>), grid, THREADS, 0, j); break;
    case SUM_ENTROPY: GPU_LAUNCH(device, (summarise_rows<SUM_ENTROPY>), grid, THREADS, 0, j); break;
    case SUM_SPREAD: GPU_LAUNCH(device, (summarise_rows<SUM_SPREAD>), grid, THREADS, 0, j); break;
    default: GPU_LAUNCH(device, (summarise_rows<SUM_SQUARES>), grid, THREADS, 0, j);
    }
}

/* ---- launches ---- */

/* Rows that fit a launch: few summaries of chunks at a time. */
static int64_t batch_of(int64_t n_rows, int64_t n_chunks) {
    const int64_t most = tensor_least(65536 / n_chunks + 1, TENSOR_MOST_ROWS);
    return tensor_least(n_rows, most);
}

/* Rows first … first + n_rows of the job. */
static row_job part_of(const row_job &whole, int64_t first) {
    row_job j = whole;
    j.x += first * j.n;
    if (j.values) j.values += first;
    if (j.ids) j.ids += first;
    if (j.rows) j.rows += first;
    if (j.out) j.out += first * j.n;
    if (j.parameter) j.parameter += first * j.parameter_step;
    return j;
}

/* All launches but those of maps; j.partials has room for batch_of · n_chunks. */
static void summarise_all(kern_device *device, int sum, const row_job &whole, int64_t n_rows) {
    const int64_t batch = batch_of(n_rows, whole.n_chunks);
    for (int64_t first = 0; first < n_rows; first += batch)
        launch(device, sum, (unsigned)tensor_least(batch, n_rows - first), part_of(whole, first));
}

static int run(kern_device *device, int sum, row_job j, kern_tensor x, const char *name) {
    const int64_t n_chunks = tensor_chunks(x.n_columns);
    const bool two = n_chunks > 1 && j.map != MAP_NONE;
    j.x = cuda_f32(x);
    j.n = x.n_columns;
    j.n_chunks = (uint32_t)n_chunks;
    j.counters = device->counters;
    if (n_chunks > 1) {
        const size_t partials = tensor_padded((size_t)(batch_of(x.n_rows, n_chunks) * n_chunks) *
                                              sizeof(tensor_summary));
        void *scratch;
        const int code = cuda_scratch(
            device, partials + (two ? (size_t)x.n_rows * sizeof(tensor_summary) : 0), &scratch);
        if (code) return code;
        j.partials = (tensor_summary *)scratch;
        if (two) j.rows = (tensor_summary *)(void *)((char *)scratch + partials);
    }
    summarise_all(device, sum, j, x.n_rows);
    const int64_t pieces = (x.n_columns + 4 * THREADS - 1) / (4 * THREADS);
    for (int64_t first = 0; two && first < x.n_rows; first += TENSOR_MOST_ROWS) {
        const dim3 grid((unsigned)pieces,
                        (unsigned)tensor_least(TENSOR_MOST_ROWS, x.n_rows - first));
        GPU_LAUNCH(device, map_rows, grid, THREADS, 0, part_of(j, first));
    }
    return cuda_launched(device, name);
}

size_t tensor_sum_exps_bytes(int64_t n_rows, int64_t n) {
    const int64_t n_chunks = tensor_chunks(n);
    return (size_t)(batch_of(n_rows, n_chunks) * n_chunks) * sizeof(tensor_summary);
}

void tensor_sum_exps(kern_device *device, const float *x, int64_t n_rows, int64_t n, void *scratch,
                     tensor_summary *rows) {
    row_job j = {};
    j.x = x;
    j.n = n;
    j.n_chunks = (uint32_t)tensor_chunks(n);
    j.partials = (tensor_summary *)scratch;
    j.rows = rows;
    j.counters = device->counters;
    summarise_all(device, SUM_EXP, j, n_rows);
}

/* out[R,1] = op(x[R,C]) */
int cuda_tensor_reduce(kern_device *device, kern_reduce op, kern_tensor x, kern_tensor out) {
    const int sum = op == KERN_SUM         ? SUM_PLAIN
                    : op == KERN_LOGSUMEXP ? SUM_EXP
                    : op == KERN_ENTROPY   ? SUM_ENTROPY
                    : op == KERN_STD       ? SUM_SPREAD
                                           : SUM_NONE;
    row_job j = {};
    j.reduce = op;
    j.negates = op == KERN_MIN;
    j.values = cuda_f32(out);
    return run(device, sum, j, x, "reduce");
}

/* ids[R,1] */
int cuda_tensor_argmax(kern_device *device, kern_tensor x, int32_t base, kern_tensor ids) {
    row_job j = {};
    j.ids = cuda_i32(ids);
    j.base = base;
    return run(device, SUM_NONE, j, x, "argmax");
}

/* parameter: [1|R,1], or NULL */
static int run_map(kern_device *device, int sum, int32_t map, kern_tensor x,
                   const kern_tensor *parameter, kern_tensor out, const char *name) {
    row_job j = {};
    j.map = map;
    j.out = cuda_f32(out);
    if (parameter) {
        j.parameter = cuda_f32(*parameter);
        j.parameter_step = parameter->n_rows != 1;
    }
    return run(device, sum, j, x, name);
}

int cuda_tensor_log_softmax(kern_device *device, kern_tensor x, kern_tensor out) {
    return run_map(device, SUM_EXP, MAP_LOG_SOFTMAX, x, NULL, out, "log_softmax");
}

int cuda_tensor_softmax(kern_device *device, kern_tensor x, kern_tensor out) {
    return run_map(device, SUM_EXP, MAP_SOFTMAX, x, NULL, out, "softmax");
}

/* Keeps x ≥ max + ln p, that is, p(x) ≥ p · max p. */
int cuda_tensor_min_p(kern_device *device, kern_tensor x, kern_tensor p, kern_tensor out) {
    return run_map(device, SUM_NONE, MAP_MIN_P, x, &p, out, "min_p");
}

int cuda_tensor_cut_below(kern_device *device, kern_tensor x, kern_tensor least, kern_tensor out) {
    return run_map(device, SUM_NONE, MAP_CUT, x, &least, out, "cut_below");
}

/* out[R,C] = x[R,C], each row divided by its length; rows of zeros stay */
int cuda_tensor_normalize(kern_device *device, kern_tensor x, kern_tensor out) {
    return run_map(device, SUM_SQUARES, MAP_NORMALIZE, x, NULL, out, "normalize");
}
