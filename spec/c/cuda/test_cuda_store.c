/* test_cuda_store.c: weights on the device: each lies as its use asks, tiles made in runs of strips
 * are those made at once, and what is interrupted or does not fit leaves nothing behind. */
#include "cuda_device.h"
#include "formats.h"

enum { N_WEIGHTS = 8 };

typedef struct fixture {
    kern_device *device;
    kern_weight weights[N_WEIGHTS];
    unsigned char *data[N_WEIGHTS];
    int n_spent[N_WEIGHTS];
    int64_t done, total;
    int stop, n_stop_after; /* calls of progress; 0: never */
} fixture;

static void progress(void *data, int64_t done, int64_t total) {
    fixture *f = data;
    CHECK(done > f->done && done <= total, "progress goes on: %lld after %lld of %lld",
          (long long)done, (long long)f->done, (long long)total);
    f->done = done;
    f->total = total;
    if (f->n_stop_after && --f->n_stop_after == 0) f->stop = 1;
}

static void spent(void *data, const kern_weight *w) {
    fixture *f = data;
    f->n_spent[w - f->weights]++;
}

static void make(fixture *f, int i, int32_t format, int64_t n_rows, int64_t n_columns, bool product,
                 bool looked_up) {
    const kern_format *row = kern_format_find(format);
    f->data[i] = emulated_bytes(kern_format_bytes(row, n_rows * n_columns) + 1, (unsigned)i);
    f->weights[i] = (kern_weight){.name = "w",
                                  .format = row,
                                  .data = f->data[i] + 1,
                                  .n_rows = n_rows,
                                  .n_columns = n_columns,
                                  .product = product,
                                  .looked_up = looked_up};
}

static fixture *fixture_open(void) {
    fixture *f = calloc(1, sizeof *f);
    if (!f) abort();
    f->device = emulated_open(false);
    make(f, 0, KERN_Q4_0, 40, 576, true, false);
    make(f, 1, KERN_Q8_0, 50, 576, false, true);  /* a table */
    make(f, 2, KERN_F32, 1, 577, false, false);   /* a vector */
    make(f, 3, KERN_F16, 4099, 2048, true, true); /* a tied head of several runs */
    make(f, 4, KERN_IQ4_NL, 33, 64, true, false); /* no tiles of its own */
    make(f, 5, KERN_BF16, 64, 32, false, false);  /* only slices of it are used: */
    make(f, 6, KERN_BF16, 17, 32, true, false);
    make(f, 7, KERN_Q6_K, 1, 512, true, false); /* a matrix of one row */
    f->weights[6].data = (char *)f->weights[5].data + 16 * 32 * 2;
    f->weights[6].slice = true;
    f->weights[2].owned = f->data[2];
    return f;
}

static void fixture_close(fixture *f) {
    emulated_close(f->device);
    for (int i = 0; i < N_WEIGHTS; i++) free(f->data[i]);
    free(f);
}

static int bind(fixture *f, kern_binding *b, kern_store **store) {
    *b = (kern_binding){.weights = f->weights,
                        .n_weights = N_WEIGHTS,
                        .stop = &f->stop,
                        .progress = progress,
                        .spent = spent,
                        .data = f};
    f->done = 0;
    return f->device->backend->bind(f->device, b, store);
}

/* Whether the device holds the weight as tiles made of it at once, or as it is in the file. */
static bool lies_right(const fixture *f, int i) {
    kern_device *d = f->device;
    const kern_weight *w = &f->weights[i];
    const cuda_matrix *m = cuda_bound(w);
    const size_t plain = kern_format_bytes(w->format, w->n_rows * w->n_columns);
    const size_t tiled = w->product ? cuda_tiled_bytes(w->format, w->n_rows, w->n_columns) : 0;
    if (!m || !m->gpu || m->format != w->format || m->n_rows != w->n_rows ||
        m->n_columns != w->n_columns || m->bytes != (tiled ? tiled : plain) ||
        m->layout != (tiled ? CUDA_TILED : CUDA_PLAIN))
        return false;
    unsigned char *got = malloc(m->bytes), *wanted = malloc(m->bytes);
    if (!got || !wanted) abort();
    bool ok = cuda_fetch(d, m->gpu, got, m->bytes) == KERN_OK;
    if (tiled) {
        kern_buffer rows, tiles;
        ok = ok && !cuda_alloc(d, plain, &rows) && !cuda_alloc(d, tiled, &tiles) &&
             !cuda_write(d, &rows, 0, w->data, plain) &&
             !cuda_tile(d, w->format, w->n_rows, w->n_columns, rows.data, tiles.data) &&
             !cuda_read(d, &tiles, 0, wanted, tiled);
        cuda_free(d, &rows);
        cuda_free(d, &tiles);
    } else {
        memcpy(wanted, w->data, plain);
    }
    ok = ok && memcmp(got, wanted, m->bytes) == 0;
    free(got);
    free(wanted);
    return ok;
}

static void test_made(void) {
    fixture *f = fixture_open();
    kern_binding b;
    kern_store *store;
    CHECK(bind(f, &b, &store) == KERN_OK, "%s", f->device->message);
    size_t bytes = 0;
    for (int i = 0; i < N_WEIGHTS; i++) {
        if (i == 5) continue;
        CHECK(lies_right(f, i), "weight %d", i);
        CHECK(f->n_spent[i] == !f->weights[i].owned, "weight %d spent %d times", i, f->n_spent[i]);
        bytes += cuda_bound(&f->weights[i])->bytes;
    }
    CHECK(!f->weights[5].bound && !f->n_spent[5], "what has only its slices used stays away");
    CHECK(b.bytes == bytes && !b.from_image, "%zu bytes, %zu asked", bytes, b.bytes);
    CHECK(f->done == f->total && f->total > 0, "progress to the end");
    f->device->backend->unbind(f->device, store);
    for (int i = 0; i < N_WEIGHTS; i++) CHECK(!f->weights[i].bound, "unbind takes all back");
    f->device->backend->unbind(f->device, NULL);
    fixture_close(f);
}

static void test_interrupted(void) {
    fixture *f = fixture_open();
    kern_binding b;
    kern_store *store;
    f->n_stop_after = 4;
    CHECK(bind(f, &b, &store) == KERN_INTERRUPTED && !store && !f->weights[0].bound, "interrupted");
    f->stop = 0;
    CHECK(bind(f, &b, &store) == KERN_OK && lies_right(f, 3), "again: %s", f->device->message);
    f->device->backend->unbind(f->device, store);
    fixture_close(f);
}

static void test_no_memory(void) {
    emulated_set("LLMLUA_EMULATION_MEMORY", "20000000");
    fixture *f = fixture_open();
    kern_binding b;
    kern_store *store;
    size_t asked = 0, n_free = 0, total = 0;
    CHECK(bind(f, &b, &store) == KERN_NO_MEMORY && !store && f->done == 0, "no memory");
    CHECK(sscanf(f->device->message,
                 "out of memory: %zu bytes asked of the GPU, %zu of %zu are free", &asked, &n_free,
                 &total) == 3 &&
              asked > n_free && total == 20000000,
          "%s", f->device->message);
    fixture_close(f);
    emulated_set("LLMLUA_EMULATION_MEMORY", NULL);
}

int main(void) {
    test_made();
    test_interrupted();
    if (EMULATED) test_no_memory();
    return check_end();
}
