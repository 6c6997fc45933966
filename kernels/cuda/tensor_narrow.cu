/* tensor_narrow.cu: the second step of a selection, from the bin of keys in which it ends to its
 * last name, or to the k best: see tensor_select.h. */
#include "tensor_select.h"

/* What a list's last block goes through: what was gathered, or the list once more. */
typedef struct items {
    const wide *gathered; /* or NULL */
    int64_t n;
} items;

#define NO_NAME (~(wide)0) /* comes after all names */

template <int mode>
GPU_INLINE wide item_name(const select_job &j, int64_t list, const items &from, int64_t i) {
    if (from.gathered) return from.gathered[i];
    const float x = j.x[list * j.n + i];
    return takes_part<mode>(x) ? name_of(j, key_of(j, list, i, x), i) : NO_NAME;
}

/* Gathers the entries of the bin, and those before it for the k best; true in the last block. */
template <int mode>
GPU_INLINE bool gather(const select_job &j, int64_t list, const list_state &s, const bins &b,
                       uint32_t *counters, wide *gathered) {
    float v[N_ENTRIES];
    uint32_t keys[N_ENTRIES], wanted = 0, total;
    chunk_load<N_PARTS>(j.x + list * j.n, j.n, -INFINITY, v);
    chunk_keys(j, list, v, keys);
    GPU_UNROLL
    for (int i = 0; i < N_ENTRIES; i++) {
        const uint32_t bin = keys[i] >> BIN_SHIFT;
        const bool is_wanted = bin == s.bin || (mode == SELECT_BEST && bin < s.bin);
        if (is_wanted && chunk_entry(i / 4) + i % 4 < j.n && takes_part<mode>(v[i]))
            wanted |= 1u << i;
    }
    uint32_t at = block_scan((uint32_t)__popc(wanted), b.count_parts, &total);
    if (threadIdx.x == 0) b.found[0] = total ? atomicAdd(counters + GATHERED, total) : 0;
    __syncthreads();
    at += b.found[0];
    GPU_UNROLL
    for (int i = 0; i < N_ENTRIES; i++)
        if (wanted >> i & 1) gathered[at++] = name_of(j, keys[i], chunk_entry(i / 4) + i % 4);
    if (!block_is_last(counters + DONE, j.n_chunks, b.found)) return false;
    if (threadIdx.x == 0) counters[GATHERED] = 0;
    return true;
}

/* From the bin on: halves it by the next bits of names until few are in it. Names that begin as
 * `low` does, above its lowest `size` bits, are left. */
template <int mode>
GPU_INLINE void narrow_names(const select_job &j, int64_t list, const items &from, const bins &b,
                             list_state *s, wide *low, int32_t *size) {
    *size = BIN_SHIFT + j.index_bits;
    *low = (wide)s->bin << *size;
    while (s->n_in_bin > N_SORTED) {
        const int32_t shift = *size > BIN_BITS ? *size - BIN_BITS : 0;
        bins_clear<mode>(b);
        for (int64_t i = threadIdx.x; i < from.n; i += SELECT_THREADS) {
            const wide name = item_name<mode>(j, list, from, i);
            if (name >> *size != *low >> *size) continue;
            const float x = mode == SELECT_MASS ? j.x[list * j.n + index_of(j, name)] : 0;
            bins_add<mode>(b, (uint32_t)((name - *low) >> shift),
                           mode == SELECT_MASS ? weight_of(j, list, x, s->unit) : 0);
        }
        __syncthreads();
        const own_bins own = bins_own<mode>(b);
        bins_find<mode>(b, own, s);
        *low += (wide)s->bin << shift;
        *size = shift;
    }
}

/* Sorts what is left into `names`; for the k best what comes before it too. Returns how many. */
template <int mode>
GPU_INLINE uint32_t sort_names(const select_job &j, int64_t list, const items &from, const bins &b,
                               wide low, int32_t size, gpu_shared<wide> names) {
    const wide end = low + ((wide)1 << size);
    __syncthreads();
    if (threadIdx.x == 0) b.found[0] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < from.n; i += SELECT_THREADS) {
        const wide name = item_name<mode>(j, list, from, i);
        if (name < end && (mode == SELECT_BEST || name >= low))
            names[atomicAdd(b.found, 1u)] = name;
    }
    __syncthreads();
    const uint32_t n = b.found[0];
    uint32_t power = 2;
    while (power < n) power *= 2;
    for (uint32_t i = n + threadIdx.x; i < power; i += SELECT_THREADS) names[i] = NO_NAME;
    __syncthreads();
    block_sort(names, power);
    return n;
}

/* The first of n sorted names with which the mass is there. */
GPU_INLINE wide name_of_mass(const select_job &j, int64_t list, const list_state &s, const bins &b,
                             gpu_shared<wide> names, uint32_t n) {
    const uint32_t first = threadIdx.x * NAMES_EACH;
    wide weights[NAMES_EACH], own = 0, all;
    GPU_UNROLL
    for (int i = 0; i < NAMES_EACH; i++) {
        weights[i] = 0;
        if (first + (uint32_t)i < n)
            weights[i] =
                weight_of(j, list, j.x[list * j.n + index_of(j, names[first + i])], s.unit);
        own += weights[i];
    }
    wide mass = s.mass_before + block_scan(own, b.mass_parts, &all);
    if (threadIdx.x == 0) b.found[0] = n - 1;
    __syncthreads();
    GPU_UNROLL
    for (int i = 0; i < NAMES_EACH; i++) {
        mass += weights[i];
        if (first + (uint32_t)i < n && mass >= s.need_mass) atomicMin(b.found, first + (uint32_t)i);
    }
    __syncthreads();
    return names[b.found[0]];
}

/* Result i of a list. */
GPU_INLINE void write_best(const select_job &j, int64_t list, int64_t i, float score, int32_t id,
                           int64_t row) {
    const int64_t at = (j.first_list + list) * j.count + i;
    j.scores[at] = score;
    j.ids[at] = id;
    if (j.best_rows)
        j.best_rows[at] = (int32_t)((j.first_list + list) * (j.n / j.n_columns) + row + 1);
}
GPU_INLINE void write_name(const select_job &j, int64_t list, int64_t i, wide name) {
    const int64_t index = index_of(j, name), row = index / j.n_columns;
    write_best(j, list, i, j.x[list * j.n + index], (int32_t)(index - row * j.n_columns) + j.base,
               row);
}
GPU_INLINE void write_fault(const select_job &j, int64_t list, int64_t i, int32_t fault) {
    const float nan = __int_as_float(0x7FC00000);
    write_best(j, list, i, fault == KERN_ID_NO_FINITE ? -INFINITY : nan, fault, 0);
}

/* grid: chunks × lists */
template <int mode> GPU_KERNEL_BOUNDS(SELECT_THREADS, 2) narrow(select_job j) {
    GPU_SHARED(uint32_t, count, N_BINS);
    GPU_SHARED(uint32_t, mass_low, mode == SELECT_MASS ? N_BINS : 1);
    GPU_SHARED(uint32_t, mass_high, mode == SELECT_MASS ? N_BINS : 1);
    GPU_SHARED(wide, names, mode == SELECT_BEST ? 2 * N_SORTED : N_SORTED);
    GPU_SHARED(uint32_t, count_parts, SELECT_THREADS / 32);
    GPU_SHARED(wide, mass_parts, SELECT_THREADS / 32);
    GPU_SHARED(uint32_t, found, 3);
    const bins b = {count, mass_low, mass_high, found, count_parts, mass_parts};
    const int64_t list = blockIdx.y;
    list_state s = j.lists[list];
    if (!s.is_cut) {
        const int64_t n_faults = mode == SELECT_BEST && blockIdx.x == 0 ? j.count : 0;
        for (int64_t i = threadIdx.x; i < n_faults; i += SELECT_THREADS)
            write_fault(j, list, i, s.fault);
        return;
    }
    const uint32_t n_wanted = s.n_in_bin + (mode == SELECT_BEST ? s.n_before : 0);
    items from = {NULL, j.n};
    if (n_wanted <= N_GATHERED) {
        wide *gathered = j.gathered + list * N_GATHERED;
        if (!gather<mode>(j, list, s, b, j.counters + list * COUNTER_WORDS, gathered)) return;
        from.gathered = gathered;
        from.n = n_wanted;
    } else if (blockIdx.x != 0) {
        return;
    }
    wide low;
    int32_t size;
    narrow_names<mode>(j, list, from, b, &s, &low, &size);
    const uint32_t n = sort_names<mode>(j, list, from, b, low, size, names);
    if (mode == SELECT_BEST) {
        for (uint32_t i = threadIdx.x; i < (uint32_t)j.count; i += SELECT_THREADS)
            write_name(j, list, i, names[i]);
        return;
    }
    const wide last = mode == SELECT_MASS ? name_of_mass(j, list, s, b, names, n)
                                          : (wide)names[s.need_count - s.n_before - 1];
    if (threadIdx.x == 0) j.lists[list].last = last;
}

/* The k best of names that are sorted, where k is large. grid: pieces of k × lists */
GPU_KERNEL_BOUNDS(SELECT_THREADS, 2) write_names(select_job j, const wide *names) {
    const int64_t list = blockIdx.y, i = (int64_t)blockIdx.x * SELECT_THREADS + threadIdx.x;
    const int32_t fault = j.lists[list].fault;
    if (i >= j.count) return;
    if (fault)
        write_fault(j, list, i, fault);
    else
        write_name(j, list, i, names[list * j.n + i]);
}

void tensor_narrow(kern_device *device, int mode, const select_job &j, unsigned n_lists) {
    const dim3 grid(j.n_chunks, n_lists);
    if (mode == SELECT_COUNT)
        GPU_LAUNCH(device, (narrow<SELECT_COUNT>), grid, SELECT_THREADS, 0, j);
    else if (mode == SELECT_MASS)
        GPU_LAUNCH(device, (narrow<SELECT_MASS>), grid, SELECT_THREADS, 0, j);
    else
        GPU_LAUNCH(device, (narrow<SELECT_BEST>), grid, SELECT_THREADS, 0, j);
}

void tensor_write_names(kern_device *device, const select_job &j, unsigned n_lists,
                        const wide *names) {
    const int64_t n_pieces = (j.count + SELECT_THREADS - 1) / SELECT_THREADS;
    GPU_LAUNCH(device, write_names, dim3((unsigned)n_pieces, n_lists), SELECT_THREADS, 0, j, names);
}
