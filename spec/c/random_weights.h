/* random_weights.h: what the tests of the cpu backend share: weights of random numbers, devices,
 * and how weights are bound. */
#ifndef SPEC_RANDOM_WEIGHTS_H
#define SPEC_RANDOM_WEIGHTS_H

#include "check.h"
#include "host.h"
#include "memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 1;
static uint32_t random_word(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}
static float random_float(void) { return (float)random_word() / 2147483648.0f - 1.0f; }

static void put_f16(unsigned char *p, float x) {
    uint16_t h = kern_f32_to_f16(x);
    memcpy(p, &h, sizeof h);
}

/* Random blocks whose scales are small numbers. */
static void fill_blocks(const kern_format *f, unsigned char *p, int64_t n) {
    static const struct {
        int id, d, m;
    } scales[] = {{KERN_Q4_0, 0, -1},   {KERN_Q4_1, 0, 2},    {KERN_Q5_0, 0, -1},
                  {KERN_Q5_1, 0, 2},    {KERN_Q8_0, 0, -1},   {KERN_Q2_K, 80, 82},
                  {KERN_Q3_K, 108, -1}, {KERN_Q4_K, 0, 2},    {KERN_Q5_K, 0, 2},
                  {KERN_Q6_K, 208, -1}, {KERN_IQ4_NL, 0, -1}, {KERN_IQ4_XS, 0, -1}};
    for (int64_t i = 0; i < n / f->block_size; i++, p += f->block_bytes) {
        float x = random_float();
        uint16_t h;
        if (f->id == KERN_F32)
            memcpy(p, &x, sizeof x);
        else if (f->id == KERN_F16)
            put_f16(p, x);
        else if (f->id == KERN_BF16)
            h = kern_f32_to_bf16(x), memcpy(p, &h, sizeof h);
        for (int j = 0; j < f->block_bytes && f->block_size > 1; j++)
            p[j] = (unsigned char)random_word();
        for (size_t j = 0; j < sizeof scales / sizeof *scales; j++) {
            if (scales[j].id != f->id) continue;
            put_f16(p + scales[j].d, 0.02f * random_float());
            if (scales[j].m >= 0) put_f16(p + scales[j].m, 0.1f * random_float());
        }
    }
}

/* A weight whose data has an odd address. */
static kern_weight *weight_new(int32_t format, int64_t n_rows, int64_t n_columns) {
    kern_weight *w = kern_alloc(sizeof *w);
    const kern_format *f = kern_format_find(format);
    size_t bytes = (size_t)n_rows * kern_format_bytes(f, n_columns);
    unsigned char *data = kern_alloc(bytes + 1);
    fill_blocks(f, data + 1, n_rows * n_columns);
    *w = (kern_weight){
        .name = "w", .format = f, .data = data + 1, .n_rows = n_rows, .n_columns = n_columns};
    return w;
}
static void weight_free(kern_weight *w) {
    if (w == NULL) return;
    kern_free((unsigned char *)(uintptr_t)w->data - 1);
    kern_free(w);
}

/* Of the devices and bindings that are made. */
static bool rounds_bf16, f16_as_bf16;

static kern_device *device_new(const kern_backend *b, const char *tier, int n_threads) {
    char message[200] = "";
    kern_device *d = b->open(&(kern_device_options){.n_threads = n_threads, .tier = tier}, message,
                             sizeof message);
    if (d == NULL) printf("%s\n", message), exit(1);
    d->rounds_bf16 = rounds_bf16;
    return d;
}

/* Makes one weight ready; NULL: none. */
static kern_store *bind(kern_device *d, kern_weight *w, bool product) {
    kern_binding binding = {.weights = w,
                            .n_weights = w != NULL,
                            .f16_as_bf16 = f16_as_bf16 && d->backend == &kern_cpu};
    kern_store *store;
    if (w != NULL) w->product = product;
    if (d->backend->bind(d, &binding, &store) != KERN_OK) printf("bind\n"), exit(1);
    return store;
}

static int same_bits(const float *a, const float *b, int64_t n) {
    return memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

#endif
