/* tensor_tally.cu: the first step of a selection, counting the keys of a list, and the last, in
 * which an entry stays or becomes −inf: see tensor_select.h. */
#include "tensor_select.h"

/* p in f32 and probabilities of rounded logits miss an exact tie by some ulp: see tensor_filter.c
 */
#define TOLERANCE 5e-7

/* ---- what is needed ---- */

/* p · Σ weights · (1 − tolerance) as a number of n_bits bits, in units of 2^−unit. */
GPU_INLINE void need_mass(double p, double total, int32_t n_bits, int32_t *unit, wide *need) {
    const double mass = __dmul_rn(__dmul_rn(p, 1 - TOLERANCE), total);
    const uint64_t bits = (uint64_t)__double_as_longlong(mass), one = (uint64_t)1 << 52;
    const bool is_some = mass > 0;
    *unit = is_some ? n_bits + 1022 - (int32_t)(bits >> 52) : n_bits;
    *need = is_some ? ((bits & (one - 1)) | one) >> (53 - n_bits) : 0;
}

/* What is needed of a list; false: all of it. */
template <int mode> GPU_INLINE bool list_open(const select_job &j, int64_t list, list_state *s) {
    *s = {};
    if (mode == SELECT_MASS) {
        const double p = (double)j.masses[list * j.need_step];
        if (!(p < 1) || j.rows[list].row_class != CLASS_FINITE) return false;
        need_mass(p, j.rows[list].a, mass_bits(j), &s->unit, &s->need_mass);
        return true;
    }
    int64_t count = j.counts ? j.counts[list * j.need_step] : j.count;
    if (count < 1) count = 1;
    s->need_count = (uint32_t)(count < j.n ? count : j.n);
    return mode == SELECT_BEST || count < j.n;
}

/* ---- tally ---- */

/* grid: chunks × lists */
template <int mode> GPU_KERNEL_BOUNDS(SELECT_THREADS, 2) tally(select_job j) {
    GPU_SHARED(uint32_t, count, N_BINS);
    GPU_SHARED(uint32_t, mass_low, mode == SELECT_MASS ? N_BINS : 1);
    GPU_SHARED(uint32_t, mass_high, mode == SELECT_MASS ? N_BINS : 1);
    GPU_SHARED(uint32_t, count_parts, SELECT_THREADS / 32);
    GPU_SHARED(wide, mass_parts, SELECT_THREADS / 32);
    GPU_SHARED(uint32_t, found, 3);
    GPU_SHARED(uint32_t, flag, 1);
    const bins b = {count, mass_low, mass_high, found, count_parts, mass_parts};
    const int64_t list = blockIdx.y;
    uint32_t *counters = j.counters + list * COUNTER_WORDS;
    wide *masses = reinterpret_cast<wide *>(counters + MASSES);
    list_state s;
    if (!list_open<mode>(j, list, &s)) {
        if (blockIdx.x == 0 && threadIdx.x == 0) j.lists[list] = s;
        return;
    }
    bins_clear<mode>(b);
    float v[N_ENTRIES];
    uint32_t keys[N_ENTRIES], list_class = CLASS_NONE;
    chunk_load<N_PARTS>(j.x + list * j.n, j.n, -INFINITY, v);
    chunk_keys(j, list, v, keys);
    GPU_UNROLL
    for (int i = 0; i < N_ENTRIES; i++) {
        const int64_t at = chunk_entry(i / 4) + i % 4;
        if (at >= j.n) continue;
        const uint32_t c = ranked_class(j, v[i], at);
        if (c > list_class) list_class = c;
        if (takes_part<mode>(v[i]))
            bins_add<mode>(b, keys[i] >> BIN_SHIFT,
                           mode == SELECT_MASS ? weight_of(j, list, v[i], s.unit) : 0);
    }
    list_class = block_max(list_class, count_parts); /* and a barrier */
    for (uint32_t i = threadIdx.x; i < N_BINS; i += SELECT_THREADS) {
        if (!count[i]) continue;
        atomicAdd(counters + COUNTS + i, (uint32_t)count[i]);
        if (mode == SELECT_MASS)
            atomicAdd(masses + i, (wide)(uint32_t)mass_high[i] << 32 | (uint32_t)mass_low[i]);
    }
    if (threadIdx.x == 0 && list_class) atomicMax(counters + CLASS, list_class);
    if (!block_is_last(counters + DONE, j.n_chunks, flag)) return;
    /* the list's bins, which become 0 again */
    own_bins own;
    GPU_UNROLL
    for (int i = 0; i < BINS_EACH; i++) {
        const uint32_t bin = threadIdx.x * BINS_EACH + (uint32_t)i;
        own.count[i] = counters[COUNTS + bin];
        own.mass[i] = mode == SELECT_MASS ? masses[bin] : 0;
        counters[COUNTS + bin] = 0;
        if (mode == SELECT_MASS) masses[bin] = 0;
    }
    const uint32_t all_class = counters[CLASS];
    bins_find<mode>(b, own, &s); /* and a barrier */
    if (threadIdx.x != 0) return;
    counters[CLASS] = 0;
    s.fault = class_fault(all_class & 3);
    s.is_cut = s.is_cut && !s.fault;
    j.lists[list] = s;
}

void tensor_tally(kern_device *device, int mode, const select_job &j, unsigned n_lists) {
    const dim3 grid(j.n_chunks, n_lists);
    if (mode == SELECT_COUNT)
        GPU_LAUNCH(device, (tally<SELECT_COUNT>), grid, SELECT_THREADS, 0, j);
    else if (mode == SELECT_MASS)
        GPU_LAUNCH(device, (tally<SELECT_MASS>), grid, SELECT_THREADS, 0, j);
    else
        GPU_LAUNCH(device, (tally<SELECT_BEST>), grid, SELECT_THREADS, 0, j);
}

/* ---- keep ---- */

/* grid: pieces of 4 · SELECT_THREADS entries × lists */
GPU_KERNEL_BOUNDS(SELECT_THREADS, 2) keep(select_job j) {
    const int64_t list = blockIdx.y;
    const int64_t at = ((int64_t)blockIdx.x * SELECT_THREADS + threadIdx.x) * 4;
    const float *x = j.x + list * j.n, *key = j.key ? j.key + list * j.key_step : NULL;
    float *out = j.out + list * j.n;
    const bool is_cut = j.lists[list].is_cut;
    const wide last = j.lists[list].last;
    if (at >= j.n || (!is_cut && out == x)) return;
    const float4 u = load_4(x, at, j.n, is_aligned(x), 0.0f);
    float v[4] = {u.x, u.y, u.z, u.w}, k[4] = {-u.x, -u.y, -u.z, -u.w};
    if (key) {
        const float4 w = load_4(key, at, j.n, is_aligned(key), 0.0f);
        k[0] = w.x;
        k[1] = w.y;
        k[2] = w.z;
        k[3] = w.w;
    }
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        if (is_cut && name_of(j, order_key(k[i]), at + i) > last) v[i] = -INFINITY;
    store_4(out, at, j.n, is_aligned(out), make_float4(v[0], v[1], v[2], v[3]));
}

void tensor_keep(kern_device *device, const select_job &j, unsigned n_lists) {
    const int64_t n_pieces = (j.n + 4 * SELECT_THREADS - 1) / (4 * SELECT_THREADS);
    GPU_LAUNCH(device, keep, dim3((unsigned)n_pieces, n_lists), SELECT_THREADS, 0, j);
}
