/* tensor_select.cu: the operations that select: the k best, and the filters by number and by mass.
 * How is told in tensor_select.h. */
#include "tensor_select.h"

static int32_t bits_of(int64_t n) { /* n < 2^bits */
    int32_t bits = 1;
    while (n >> bits) bits++;
    return bits;
}

static int check_size(kern_device *device, int64_t n, const char *name) {
    if (n < ((int64_t)1 << 31)) return KERN_OK;
    return cuda_fail(device, KERN_UNSUPPORTED, "%s: %lld entries to choose from, at most %lld",
                     name, (long long)n, (long long)1 << 31);
}

/* Lists first_list … of the job. */
static select_job part_of(const select_job &whole, int64_t first) {
    select_job j = whole;
    j.first_list = first;
    j.x += first * j.n;
    if (j.key) j.key += first * j.key_step;
    if (j.counts) j.counts += first * j.need_step;
    if (j.masses) j.masses += first * j.need_step;
    if (j.rows) j.rows += first;
    if (j.out) j.out += first * j.n;
    return j;
}

static void select_lists(kern_device *device, int mode, const select_job &whole, int64_t n_lists) {
    for (int64_t first = 0; first < n_lists; first += MOST_LISTS) {
        const select_job j = part_of(whole, first);
        const unsigned n = (unsigned)tensor_least(MOST_LISTS, n_lists - first);
        tensor_tally(device, mode, j, n);
        tensor_narrow(device, mode, j, n);
        if (j.out) tensor_keep(device, j, n);
    }
}

/* Scratch of n_lists at a time, of `more` bytes besides, which *extra gets. */
static int job_init(kern_device *device, select_job *j, int64_t n_lists, size_t gathered,
                    size_t more, void **extra) {
    const size_t n = (size_t)tensor_least(n_lists, MOST_LISTS);
    const size_t states = tensor_padded(n * sizeof(list_state)),
                 names = tensor_padded(n * gathered * sizeof(wide));
    void *scratch;
    const int code = cuda_scratch(device, states + names + more, &scratch);
    j->n_chunks = (uint32_t)tensor_chunks(j->n);
    j->index_bits = bits_of(j->n);
    j->counters = device->counters;
    j->lists = (list_state *)scratch;
    j->gathered = (wide *)(void *)((char *)scratch + states);
    *extra = (char *)scratch + states + names;
    return code;
}

/* ---- the k best ---- */

/* More than are sorted in a block: all names are sorted. */
static int topk_many(kern_device *device, select_job *whole, int64_t n_lists) {
    const int64_t list_bytes = 2 * whole->n * (int64_t)sizeof(wide);
    int64_t batch = tensor_least(tensor_least(n_lists, MOST_LISTS), TENSOR_SORT_BYTES / list_bytes);
    if (batch < 1) batch = 1;
    void *extra;
    const int code = job_init(device, whole, batch, 0, (size_t)(batch * list_bytes), &extra);
    if (code) return code;
    wide *a = (wide *)extra, *b = a + batch * whole->n;
    for (int64_t first = 0; first < n_lists; first += batch) {
        const select_job j = part_of(*whole, first);
        const unsigned n = (unsigned)tensor_least(batch, n_lists - first);
        tensor_tally(device, SELECT_BEST, j, n);
        tensor_write_names(device, j, n,
                           tensor_sort_names(device, j.x, n, j.n, j.index_bits, a, b));
    }
    return cuda_launched(device, "topk");
}

static int topk(kern_device *device, kern_tensor x, int64_t k, int64_t groups, int32_t base,
                float *scores, int32_t *ids, int32_t *rows, const char *name) {
    if (groups == 0 || k == 0) return KERN_OK;
    select_job j = {};
    j.x = cuda_f32(x);
    j.n = x.n_rows / groups * x.n_columns;
    j.n_columns = x.n_columns;
    j.count = k;
    j.base = base;
    j.scores = scores;
    j.ids = ids;
    j.best_rows = rows;
    int code = check_size(device, j.n, name);
    if (code) return code;
    if (k > N_SORTED) return topk_many(device, &j, groups);
    void *extra;
    code = job_init(device, &j, groups, N_GATHERED, 0, &extra);
    if (code) return code;
    select_lists(device, SELECT_BEST, j, groups);
    return cuda_launched(device, name);
}

/* scores, ids[R,k] */
int cuda_tensor_topk(kern_device *device, kern_tensor x, int64_t k, int32_t base,
                     kern_tensor scores, kern_tensor ids) {
    return topk(device, x, k, x.n_rows, base, cuda_f32(scores), cuda_i32(ids), NULL, "topk");
}

/* scores, ids, rows[groups · k, 1] */
int cuda_tensor_topk_joint(kern_device *device, kern_tensor x, int64_t k, int64_t groups,
                           int32_t base, kern_tensor scores, kern_tensor ids, kern_tensor rows) {
    return topk(device, x, k, groups, base, cuda_f32(scores), cuda_i32(ids), cuda_i32(rows),
                "topk_joint");
}

/* ---- filters ---- */

static select_job filter_of(kern_tensor x, kern_tensor need, kern_tensor key, kern_tensor out) {
    select_job j = {};
    j.x = cuda_f32(x);
    j.n = j.n_columns = x.n_columns;
    j.need_step = need.n_rows != 1;
    j.out = cuda_f32(out);
    if (key.buffer) {
        j.key = cuda_f32(key);
        j.key_step = key.n_rows == 1 ? 0 : key.n_columns;
    }
    return j;
}

/* out[R,C]; k[1|R,1], key[1|R,C] or none */
int cuda_tensor_threshold_k(kern_device *device, kern_tensor x, kern_tensor k_i32, kern_tensor key,
                            kern_tensor out) {
    if (x.n_rows == 0 || x.n_columns == 0) return KERN_OK;
    select_job j = filter_of(x, k_i32, key, out);
    j.counts = cuda_i32(k_i32);
    void *extra;
    int code = check_size(device, j.n, "threshold_k");
    if (!code) code = job_init(device, &j, x.n_rows, N_GATHERED, 0, &extra);
    if (code) return code;
    select_lists(device, SELECT_COUNT, j, x.n_rows);
    return cuda_launched(device, "threshold_k");
}

/* out[R,C]; p[1|R,1], key[1|R,C] or none */
int cuda_tensor_threshold_mass(kern_device *device, kern_tensor x, kern_tensor p, kern_tensor key,
                               kern_tensor out) {
    if (x.n_rows == 0 || x.n_columns == 0) return KERN_OK;
    select_job j = filter_of(x, p, key, out);
    j.masses = cuda_f32(p);
    const size_t rows = tensor_padded((size_t)x.n_rows * sizeof(tensor_summary));
    void *extra;
    int code = check_size(device, j.n, "threshold_mass");
    if (!code)
        code = job_init(device, &j, x.n_rows, N_GATHERED,
                        rows + tensor_sum_exps_bytes(x.n_rows, j.n), &extra);
    if (code) return code;
    j.rows = (const tensor_summary *)extra;
    tensor_sum_exps(device, j.x, x.n_rows, j.n, (char *)extra + rows, (tensor_summary *)extra);
    select_lists(device, SELECT_MASS, j, x.n_rows);
    return cuda_launched(device, "threshold_mass");
}
