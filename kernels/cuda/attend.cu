/* attend.cu: which kernel attends, in how many blocks; decode's kernels. */
#include "attend_kernel.h"

/* Scratch is taken for so many rows as fit these bytes, but for one at least: more rows fill the
 * device without sharing out their streams. */
#define ATTEND_WORK_MOST ((size_t)16 << 20)

static size_t row_bytes(const plan_op *op) {
    return (size_t)op->n_heads * ATTEND_STREAMS * (size_t)(2 + cuda_round_up(op->head_dim_v, 8)) *
           sizeof(float);
}

static int32_t slices_of(const plan_op *op) {
    return cuda_round_up(op->n_heads / op->n_heads_kv, ATTEND_QUERIES) / ATTEND_QUERIES;
}

/* Rows whose streams may be shared out. */
static int32_t rows_split(const plan_op *op) {
    const size_t fit = ATTEND_WORK_MOST / row_bytes(op);
    return fit < 1 ? 1 : (int32_t)fit;
}

size_t cuda_attend_bytes(const cuda_page_shape *, const cuda_attention *a, int32_t n_rows,
                         int32_t) {
    const int32_t most = rows_split(a->op);
    return (size_t)(n_rows < most ? n_rows : most) * row_bytes(a->op);
}

int32_t cuda_attend_counters(const cuda_attention *a, int32_t n_rows) {
    return n_rows * a->op->n_heads_kv * slices_of(a->op);
}

/* Blocks a unit's streams are shared out to: enough for four on each multiprocessor, and no more
 * than the longest row has chunks. */
static int32_t splits_of(const kern_device *device, const cuda_step *step, const plan_op *op,
                         int32_t n_units) {
    int32_t n = 1;
    if (step->n_rows > rows_split(op)) return n;
    while (n < ATTEND_STREAMS &&
           2 * (int64_t)n * n_units <= 4 * (int64_t)device->n_multiprocessors &&
           (int64_t)n * ATTEND_CHUNK < step->most_positions)
        n *= 2;
    return n;
}

int cuda_attend(kern_device *device, const cuda_page_shape *pages, const cuda_step *step,
                const cuda_attention *attention) {
    const plan_op *op = attention->op;
    if (op->head_dim_v > 256 || op->head_dim > 512)
        return cuda_fail(device, KERN_UNSUPPORTED,
                         "heads of %d and %d numbers, at most 512 and 256 are served", op->head_dim,
                         op->head_dim_v);
    const int32_t n_group = op->n_heads / op->n_heads_kv, n_slices = slices_of(op);
    const bool small = step->one_each || step->trees || pages->kv.type == KERN_KV_F32 ||
                       op->head_dim_v > ATTEND_NARROW;
    const int32_t most = small ? ATTEND_QUERIES : 2 * ATTEND_QUERIES;
    const bool together = !step->one_each || step->shared_worth;
    const int32_t fit = most / (n_group < ATTEND_QUERIES ? n_group : ATTEND_QUERIES);
    attend_args a;
    a.at = cuda_head_at(&pages->kv, op->layer - 1);
    a.form = head_form_of(attention);
    a.rows = step->rows, a.sequences = step->sequences, a.pages = step->pages;
    a.n_shared_pages = step->n_shared_pages;
    a.q = attention->q, a.k = attention->k, a.v = attention->v, a.out = attention->out;
    a.partials = (float *)step->attend_work, a.counters = step->attend_counters;
    a.n_rows = step->n_rows, a.n_sequences = step->n_sequences;
    a.n_heads = op->n_heads, a.n_heads_kv = op->n_heads_kv;
    a.dim = op->head_dim, a.dim_v = op->head_dim_v, a.window = op->window, a.scale = op->scale;
    a.n_group = n_group, a.n_slices = n_slices;
    a.tile_rows = together && n_slices == 1 ? fit : 1;
    int32_t n_tiles = (step->n_rows + a.tile_rows - 1) / a.tile_rows;
    if (!step->one_each) { /* each sequence's last tile may be a part */
        n_tiles = step->n_rows / a.tile_rows + step->n_sequences;
        n_tiles = n_tiles < step->n_rows ? n_tiles : step->n_rows;
    }
    a.n_splits = splits_of(device, step, op, n_tiles * op->n_heads_kv * n_slices);
    if (step->one_each)
        attend_decode(device, pages->kv.type, a, n_tiles);
    else if (step->trees)
        attend_tree(device, pages->kv.type, a, n_tiles);
    else
        attend_prefill(device, pages->kv.type, a, n_tiles);
    return cuda_launched(device, "attention");
}

void attend_decode(kern_device *device, kern_kv type, const attend_args &a, int32_t n_tiles) {
    attend_launch_any<1, true, false>(device, type, a, n_tiles);
}
