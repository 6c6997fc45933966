/* test_store.c: what the cpu backend makes of weights: strips as pack.c packs them, vectors, tables
 * left where they are; interrupted, without memory, and from an image. */
#include "check.h"
#include "cpu/pack.h"
#include "host.h"
#include "memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { N_WEIGHTS = 6, TABLE = 1, VECTOR = 2, HALVES = 5 };

typedef struct fixture {
    kern_device *device;
    kern_weight weights[N_WEIGHTS];
    unsigned char *data[N_WEIGHTS];
    atomic_int n_spent[N_WEIGHTS];
    int64_t done, total;
    bool f16_as_bf16;
    int stop, n_stop_after; /* calls of progress; 0: never */
    /* an image in memory */
    unsigned char *image;
    uint64_t layout;
    size_t bytes;
    int n_kept, n_opened;
    atomic_int n_read, n_until_failure; /* 0: never */
} fixture;

static void progress(void *data, int64_t done, int64_t total) {
    fixture *f = data;
    f->done = done;
    f->total = total;
    if (f->n_stop_after && --f->n_stop_after == 0) f->stop = 1;
}

static void spent(void *data, const kern_weight *w) {
    fixture *f = data;
    f->n_spent[w - f->weights]++;
}

static bool image_open(void *data, uint64_t layout, size_t bytes) {
    fixture *f = data;
    f->n_opened++;
    const bool same = f->image && f->layout == layout && f->bytes == bytes;
    f->layout = layout;
    f->bytes = bytes;
    return same;
}

static bool image_read(void *data, size_t offset, void *to, size_t bytes) {
    fixture *f = data;
    if (offset % KERN_IMAGE_PIECE || offset + bytes > f->bytes) abort();
    f->n_read++;
    if (f->n_until_failure && --f->n_until_failure == 0) return false;
    memcpy(to, f->image + offset, bytes);
    return true;
}

static void image_keep(void *data, const void *from) {
    fixture *f = data;
    f->n_kept++;
    free(f->image);
    f->image = malloc(f->bytes);
    if (!f->image) abort();
    memcpy(f->image, from, f->bytes);
}

static void weight_make(fixture *f, int i, int32_t format, int64_t n_rows, int64_t n_columns,
                        bool product) {
    const kern_format *row = kern_format_find(format);
    const size_t bytes = kern_format_bytes(row, n_rows * n_columns);
    f->data[i] = malloc(bytes + 1);
    if (!f->data[i]) abort();
    for (size_t j = 0; j <= bytes; j++)
        f->data[i][j] = (unsigned char)((j + i) * 2654435761u >> 11);
    if (format == KERN_F32)
        for (int64_t j = 0; j < n_rows * n_columns; j++)
            memcpy(f->data[i] + 1 + 4 * j, &(float){(float)j / 7}, 4);
    f->weights[i] = (kern_weight){.name = "w",
                                  .format = row,
                                  .data = f->data[i] + 1,
                                  .n_rows = n_rows,
                                  .n_columns = n_columns,
                                  .product = product};
}

static fixture *fixture_open(const kern_backend *backend, int n_threads) {
    fixture *f = calloc(1, sizeof *f);
    char message[200];
    if (!f) abort();
    f->device =
        backend->open(&(kern_device_options){.n_threads = n_threads}, message, sizeof message);
    if (!f->device) abort();
    weight_make(f, 0, KERN_Q4_1, 1000, 576, true);
    weight_make(f, TABLE, KERN_Q8_0, 50, 576, false);
    weight_make(f, VECTOR, KERN_F32, 1, 577, false);
    weight_make(f, 3, KERN_Q6_K, 2051, 512, true);
    weight_make(f, 4, KERN_F32, 1, 1001, true); /* a matrix of one row */
    weight_make(f, HALVES, KERN_F16, 40, 333, true);
    return f;
}

static void fixture_close(fixture *f) {
    f->device->backend->close(f->device);
    for (int i = 0; i < N_WEIGHTS; i++) free(f->data[i]);
    free(f->image);
    free(f);
}

static kern_image image_of(fixture *f) {
    return (kern_image){f, image_open, image_read, image_keep};
}

static int bind(fixture *f, const kern_image *image, kern_binding *b, kern_store **store) {
    *b = (kern_binding){.weights = f->weights,
                        .n_weights = N_WEIGHTS,
                        .f16_as_bf16 = f->f16_as_bf16,
                        .stop = &f->stop,
                        .progress = progress,
                        .spent = spent,
                        .data = f,
                        .image = image};
    return f->device->backend->bind(f->device, b, store);
}

/* Whether every product's strips are what packing it at once gives. */
static bool strips_are_right(const fixture *f) {
    for (int i = 0; i < N_WEIGHTS; i++) {
        const kern_weight *w = &f->weights[i];
        if (!w->product) continue;
        const int64_t n = cpu_strips(w->n_rows);
        const size_t bytes = (size_t)n * cpu_strip_bytes(cpu_packed(w), w->n_columns);
        unsigned char *strips = kern_alloc_aligned(64, bytes);
        if (!strips) abort();
        cpu_pack(w, 0, n, strips);
        const bool same =
            w->bound && (uintptr_t)w->bound % 64 == 0 && memcmp(w->bound, strips, bytes) == 0;
        kern_free_aligned(strips);
        if (!same) return false;
    }
    return true;
}

static void test_made(int n_threads) {
    fixture *f = fixture_open(&kern_cpu, n_threads);
    kern_binding b;
    kern_store *store;
    CHECK(bind(f, NULL, &b, &store) == KERN_OK, "%s", kern_cpu.last_error(f->device));
    CHECK(strips_are_right(f), "strips on %d threads", n_threads);
    CHECK(!f->weights[TABLE].bound, "a table that is only looked up stays where it is");
    const float *vector = f->weights[VECTOR].bound;
    CHECK(vector && memcmp(vector, f->weights[VECTOR].data, 577 * 4) == 0, "a vector is f32");
    CHECK(f->done == f->total && f->total > 0 && b.bytes > (size_t)f->total, "progress to the end");
    for (int i = 0; i < N_WEIGHTS; i++)
        CHECK(f->n_spent[i] == f->weights[i].product, "weight %d spent %d times", i, f->n_spent[i]);
    kern_cpu.unbind(f->device, store);
    CHECK(!f->weights[0].bound && !f->weights[VECTOR].bound, "unbind takes all back");
    kern_cpu.unbind(f->device, NULL);
    fixture_close(f);
}

static void test_interrupted(void) {
    fixture *f = fixture_open(&kern_cpu, 1); /* others might finish meanwhile */
    kern_binding b;
    kern_store *store;
    const kern_image image = image_of(f);
    f->n_stop_after = 1;
    CHECK(bind(f, &image, &b, &store) == KERN_INTERRUPTED && !store && !f->weights[0].bound,
          "interrupted while packing");
    CHECK(f->n_kept == 0, "nothing is kept then");
    f->stop = f->n_stop_after = 0;
    CHECK(bind(f, &image, &b, &store) == KERN_OK && strips_are_right(f), "again");
    kern_cpu.unbind(f->device, store);
    f->n_stop_after = 1;
    CHECK(bind(f, &image, &b, &store) == KERN_INTERRUPTED && !store && f->n_kept == 1,
          "interrupted while reading");
    fixture_close(f);
}

static void test_memory(void) {
    fixture *f = fixture_open(&kern_cpu, 1);
    kern_binding b;
    kern_store *store;
    f->weights[0].n_rows = (int64_t)1 << 42; /* its data is never touched */
    CHECK(bind(f, NULL, &b, &store) == KERN_NO_MEMORY && !store, "no memory");
    const char *message = kern_cpu.last_error(f->device);
    long long asked = 0, available = 0;
    CHECK(sscanf(message, "out of memory: %lld bytes asked, %lld are available", &asked,
                 &available) == 2 &&
              asked > available && available > 0,
          "%s", message);
    f->weights[0].n_rows = INT64_MAX / 2;
    CHECK(bind(f, NULL, &b, &store) == KERN_NO_MEMORY && !store, "more than can be counted");
    fixture_close(f);
}

static void test_image(void) {
    fixture *f = fixture_open(&kern_cpu, 2);
    kern_binding b;
    kern_store *store;
    const kern_image image = image_of(f);
    CHECK(bind(f, &image, &b, &store) == KERN_OK && !b.from_image && f->n_kept == 1, "kept");
    const uint64_t layout = f->layout;
    CHECK(f->bytes > 4 * KERN_IMAGE_PIECE && f->bytes % KERN_IMAGE_PIECE, "%zu bytes", f->bytes);
    kern_cpu.unbind(f->device, store);
    for (int i = 0; i < N_WEIGHTS; i++) f->n_spent[i] = 0;
    CHECK(bind(f, &image, &b, &store) == KERN_OK && b.from_image && f->n_kept == 1, "read");
    CHECK(strips_are_right(f) && f->layout == layout && f->n_read > 4, "the same strips");
    CHECK(f->n_spent[0] == 0 && f->done == f->total, "the file is not read");
    CHECK(f->weights[VECTOR].bound != NULL, "vectors are made all the same");
    kern_cpu.unbind(f->device, store);
    f->n_until_failure = 3;
    CHECK(bind(f, &image, &b, &store) == KERN_OK && !b.from_image && f->n_kept == 2 &&
              strips_are_right(f),
          "packed where reading fails, and kept again");
    kern_cpu.unbind(f->device, store);
    f->weights[3].n_rows--;
    CHECK(bind(f, &image, &b, &store) == KERN_OK && !b.from_image && f->layout != layout,
          "another shape is another layout");
    kern_cpu.unbind(f->device, store);
    fixture_close(f);
}

/* Row r, column c of a bound matrix of BF16. */
static uint16_t bound_pair(const kern_weight *w, int64_t r, int64_t c) {
    const unsigned char *strip =
        (const unsigned char *)w->bound + (size_t)(r / CPU_STRIP) * (size_t)(334 * CPU_STRIP * 2);
    uint16_t h;
    memcpy(&h, strip + 2 * ((c / 2 * CPU_STRIP + r % CPU_STRIP) * 2 + c % 2), sizeof h);
    return h;
}

static void test_rounded(void) {
    fixture *f = fixture_open(&kern_cpu, 2);
    kern_weight *w = &f->weights[HALVES];
    kern_binding b;
    kern_store *store;
    const kern_image image = image_of(f);
    CHECK(bind(f, &image, &b, &store) == KERN_OK && !w->bound_as, "F16 as it is");
    const uint64_t layout = f->layout;
    kern_cpu.unbind(f->device, store);
    f->f16_as_bf16 = true;
    CHECK(bind(f, &image, &b, &store) == KERN_OK && !b.from_image && f->layout != layout,
          "rounded weights are another image");
    CHECK(w->bound_as && w->bound_as->id == KERN_BF16 && !f->weights[0].bound_as,
          "what is not F16 stays as it is");
    CHECK(strips_are_right(f), "strips of rounded weights");
    int n_wrong = 0;
    for (int64_t r = 0; r < 48; r++) {
        for (int64_t c = 0; c < 334; c++) {
            uint16_t half = 0;
            if (r < 40 && c < 333) memcpy(&half, f->data[HALVES] + 1 + 2 * (r * 333 + c), 2);
            n_wrong += bound_pair(w, r, c) != kern_f32_to_bf16(kern_f16_to_f32(half));
        }
    }
    CHECK(n_wrong == 0, "%d numbers are not the nearest bf16", n_wrong);
    kern_cpu.unbind(f->device, store);
    CHECK(bind(f, &image, &b, &store) == KERN_OK && b.from_image && strips_are_right(f), "read");
    kern_cpu.unbind(f->device, store);
    fixture_close(f);
    f = fixture_open(&kern_ref, 1);
    f->f16_as_bf16 = true;
    CHECK(bind(f, NULL, &b, &store) == KERN_UNSUPPORTED, "ref rounds nothing");
    fixture_close(f);
}

/* What was in the memory before does not show: strips are kept in files. */
static void test_whole(void) {
    for (const kern_format *f = kern_formats; f->name; f++) {
        const int64_t k = f->block_size == 1 ? 33 : 3 * f->block_size;
        const size_t bytes = 3 * cpu_strip_bytes(f, k);
        unsigned char *rows = calloc(35, kern_format_bytes(f, k));
        unsigned char *a = kern_alloc_aligned(64, bytes), *b = kern_alloc_aligned(64, bytes);
        if (!rows || !a || !b) abort();
        const kern_weight w = {.format = f, .data = rows, .n_rows = 35, .n_columns = k};
        memset(a, 0x55, bytes);
        memset(b, 0xaa, bytes);
        cpu_pack(&w, 0, 3, a);
        cpu_pack(&w, 0, 3, b);
        CHECK(memcmp(a, b, bytes) == 0, "%s: bytes that are not written", f->name);
        free(rows);
        kern_free_aligned(a);
        kern_free_aligned(b);
    }
}

static void test_ref(void) {
    fixture *f = fixture_open(&kern_ref, 1);
    kern_binding b;
    kern_store *store;
    const kern_image image = image_of(f);
    CHECK(bind(f, &image, &b, &store) == KERN_OK && b.bytes == 0 && f->n_opened == 0,
          "ref reads weights where they are");
    kern_ref.unbind(f->device, store);
    fixture_close(f);
}

int main(void) {
    for (int n_threads = 1; n_threads <= 3; n_threads++) test_made(n_threads);
    test_interrupted();
    test_memory();
    test_image();
    test_rounded();
    test_whole();
    test_ref();
    return check_end();
}
