/* work.c: the scratch of a work: one block of memory, sized from the plan, made once. */
#include "../memory.h"
#include "cpu.h"

enum { PARTIAL_BYTES = 4 << 20 }; /* at most, for attention split into chunks */

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

typedef struct sizes {
    int64_t blocks, floats, pairs; /* columns of the widest input of a product in each form */
    int64_t embed;                 /* the widest learned position */
    size_t attend;                 /* bytes a thread */
    int64_t partials;              /* floats of all chunks of one row */
    int32_t group;                 /* query heads of a KV head, at most */
    int32_t n_ropes;
    int64_t rope_floats; /* of a row, all tables */
} sizes;

static int rope_known(const plan *p, int32_t n, const plan_rope *rope) {
    for (int32_t i = 0; i < n; i++)
        if (p->ops[i].kind == PLAN_ROPE && p->ops[i].rope == rope) return 1;
    return 0;
}

static void size_input(sizes *s, const kern_device *device, const kern_weight *w) {
    const int form = cpu_wants(device, w);
    int64_t *columns = form == CPU_WANTS_BLOCKS  ? &s->blocks
                       : form == CPU_WANTS_PAIRS ? &s->pairs
                                                 : &s->floats;
    *columns = larger(*columns, w->n_columns);
}

static sizes sizes_of(const kern_device *device, const plan *p, const kern_pages *pages) {
    sizes s = {.group = 1};
    for (int32_t i = 0; i < p->n_ops; i++) {
        const plan_op *op = &p->ops[i];
        if (op->kind == PLAN_MATMUL) size_input(&s, device, op->w);
        if (op->kind == PLAN_EMBED_AT) s.embed = larger(s.embed, op->w->n_columns);
        if (op->kind == PLAN_ROPE && !rope_known(p, i, op->rope)) {
            s.n_ropes++;
            s.rope_floats += op->rope->n_rotary / 2 * 2;
        }
        if (op->kind != PLAN_ATTEND) continue;
        int64_t partial = cpu_partial_floats(op->head_dim_v);
        size_t bytes = CPU_ATTEND_BYTES + sizeof(float) * 2 * CPU_QUERIES * (size_t)partial;
        if (pages != NULL) bytes += CPU_CHUNK * (pages->key_row_bytes + pages->value_row_bytes);
        s.attend = bytes > s.attend ? bytes : s.attend;
        s.group = (int32_t)larger(s.group, op->n_heads / op->n_heads_kv);
        int64_t n_chunks =
            pages != NULL ? (int64_t)pages->n_pages * KERN_PAGE_POSITIONS / CPU_CHUNK + 2 : 0;
        s.partials = larger(s.partials, (n_chunks + 1) * op->n_heads * partial);
    }
    return s;
}

/* The next `bytes` of a block, at a cache line. */
static void *take(unsigned char **at, size_t bytes) {
    void *p = *at;
    *at += (bytes + 63) / 64 * 64;
    return p;
}

/* Lays the parts out from `at` on; returns the end. With at = NULL it only measures. */
static unsigned char *lay_out(unsigned char *at, cpu_scratch *s, const sizes *z, int32_t max_rows,
                              int n_threads) {
    size_t rows = (size_t)max_rows;
    s->rows = take(&at, rows * sizeof *s->rows);
    s->tiles = take(&at, rows * sizeof *s->tiles);
    s->rope_positions = take(&at, rows * sizeof *s->rope_positions);
    s->ropes = take(&at, (size_t)z->n_ropes * sizeof *s->ropes);
    s->rope_tables = take(&at, (size_t)z->n_ropes * sizeof *s->rope_tables);
    s->rope_memory = take(&at, rows * (size_t)z->rope_floats * sizeof(float));
    size_t padded = rows + CPU_TILE_MOST - 1; /* whole tiles */
    size_t n_bands = rows / CPU_BAND_ROWS;    /* at a time; threads may become fewer than asked */
    if (n_bands > (size_t)n_threads) n_bands = (size_t)n_threads;
    if (padded < CPU_BAND_MOST * n_bands) padded = CPU_BAND_MOST * n_bands;
    s->bands = take(&at, (rows / CPU_BAND_LEAST + 1) * sizeof *s->bands);
    s->k_blocks = z->blocks;
    s->k_floats = z->floats;
    s->k_pairs = z->pairs;
    size_t n_blocks = padded * (size_t)(z->blocks / 32);
    s->blocks = take(&at, n_blocks * sizeof *s->blocks);
    s->rests = take(&at, n_blocks * sizeof *s->rests);
    s->flags = take(&at, n_blocks * CPU_FLAGS);
    s->floats = take(&at, padded * cpu_in_row_bytes(CPU_WANTS_FLOATS, z->floats));
    s->pairs = take(&at, padded * cpu_in_row_bytes(CPU_WANTS_PAIRS, z->pairs));
    s->n_partials = (max_rows < CPU_QUERIES ? max_rows : CPU_QUERIES) * z->partials;
    if (s->n_partials > PARTIAL_BYTES / (int64_t)sizeof(float))
        s->n_partials = PARTIAL_BYTES / (int64_t)sizeof(float);
    s->partials = take(&at, (size_t)s->n_partials * sizeof(float));
    size_t bytes = z->attend;
    if ((size_t)z->embed * sizeof(float) > bytes) bytes = (size_t)z->embed * sizeof(float);
    s->thread_bytes = (bytes + 4095) / 4096 * 4096;
    s->threads = take(&at, s->thread_bytes * (size_t)n_threads);
    return at;
}

static void set_ropes(cpu_scratch *s, const plan *p, int32_t max_rows) {
    float *at = s->rope_memory;
    for (int32_t i = 0; i < p->n_ops; i++) {
        const plan_op *op = &p->ops[i];
        if (op->kind != PLAN_ROPE || rope_known(p, i, op->rope)) continue;
        s->ropes[s->n_ropes] = op->rope;
        s->rope_tables[s->n_ropes++] = at;
        at += (int64_t)max_rows * (op->rope->n_rotary / 2 * 2);
    }
}

int cpu_work_open(kern_device *device, const plan *p, kern_pages *pages, int32_t max_rows,
                  kern_work **out) {
    *out = NULL;
    kern_work *work;
    int code = host_work_open(device, p, pages, max_rows, &work);
    if (code != KERN_OK) return code;
    sizes z = sizes_of(device, p, pages);
    cpu_scratch measured = {0};
    size_t head = (sizeof(cpu_scratch) + 63) / 64 * 64;
    int n_threads = kern_pool_threads(device->pool);
    work->scratch_bytes =
        head + (size_t)(uintptr_t)lay_out(NULL, &measured, &z, max_rows, n_threads);
    work->scratch = kern_alloc_aligned(64, work->scratch_bytes);
    if (work->scratch == NULL) {
        code = host_fail(device, KERN_NO_MEMORY, "out of memory: %zu bytes asked for a pass",
                         work->scratch_bytes);
        host_work_close(device, work);
        return code;
    }
    cpu_scratch *s = (cpu_scratch *)work->scratch;
    lay_out((unsigned char *)work->scratch + head, s, &z, max_rows, n_threads);
    set_ropes(s, p, max_rows);
    s->tile_rows = z.group < CPU_QUERIES ? CPU_QUERIES / z.group : 1;
    *out = work;
    return KERN_OK;
}
