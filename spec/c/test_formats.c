/* test_formats.c: every block type against golden values (spec/data/formats), the conversions of
 * single numbers over their whole range. */
#include "check.h"
#include "formats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* One type of the file: blocks at an odd address, in memory of exactly their size. */
static void check_type(FILE *file, const char *name, int n, const char *hex) {
    const kern_format *format = NULL;
    for (const kern_format *f = kern_formats; f->name; f++)
        if (strcmp(f->name, name) == 0) format = f;
    CHECK(format, "no format %s", name);
    if (!format) return;
    const size_t n_bytes = strlen(hex) / 2;
    CHECK(kern_format_bytes(format, n) == n_bytes, "%s: %d values are %zu bytes, not %zu", name, n,
          kern_format_bytes(format, n), n_bytes);
    unsigned char *memory = malloc(n_bytes + 1);
    float *y = malloc((size_t)n * sizeof *y);
    if (!memory || !y) abort();
    for (size_t i = 0; i < n_bytes; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1) abort();
        memory[1 + i] = (unsigned char)byte;
    }
    format->dequantise(memory + 1, y, n);
    int n_wrong = 0;
    for (int i = 0; i < n; i++) {
        unsigned want;
        if (fscanf(file, "%x", &want) != 1) abort();
        n_wrong += want != bits_of(y[i]);
    }
    CHECK(n_wrong == 0, "%s: %d of %d values differ", name, n_wrong, n);
    free(memory);
    free(y);
}

static void check_golden(void) {
    FILE *file = fopen("spec/data/formats/blocks.txt", "r");
    CHECK(file, "run from the repository: spec/data/formats/blocks.txt not found");
    if (!file) return;
    char name[16];
    static char hex[4096];
    int n, n_types = 0, n_table = 0;
    for (; fscanf(file, "%15s %d %4095s", name, &n, hex) == 3; n_types++)
        check_type(file, name, n, hex);
    fclose(file);
    for (const kern_format *f = kern_formats; f->name; f++) n_table++;
    CHECK(n_types == 15 && n_table == 15, "%d types in the file, %d in the table", n_types,
          n_table);
}

static void check_table(void) {
    for (const kern_format *f = kern_formats; f->name; f++)
        CHECK(kern_format_find(f->id) == f, "%s is not found by its number", f->name);
    static const int32_t unknown[] = {-1, 4, 5, 9, 15, 16, 24, 31, 255, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        CHECK(!kern_format_find(unknown[i]), "number %d is found", unknown[i]);
}

/* A block whose scale is NaN is NaN, for every type that has one. */
static void check_nan(void) {
    for (const kern_format *f = kern_formats; f->name; f++) {
        unsigned char block[256];
        float y[256];
        memset(block, 0xff, sizeof block);
        f->dequantise(block, y, f->block_size);
        int n_nan = 0;
        for (int i = 0; i < f->block_size; i++) n_nan += isnan(y[i]) != 0;
        CHECK(n_nan == f->block_size, "%s: %d NaN of %d", f->name, n_nan, f->block_size);
    }
}

/* Halfway between two neighbours the even one is chosen; a little off it, the nearer. */
static void check_rounding(uint16_t (*round)(float), float (*value)(uint16_t), uint16_t largest,
                           const char *name) {
    int n_wrong = 0;
    for (uint32_t h = 0; h < largest; h++) {
        const double low = value((uint16_t)h), high = value((uint16_t)(h + 1));
        const float middle = (float)((low + high) / 2);
        n_wrong += round(middle) != (h & 1 ? h + 1 : h);
        n_wrong += round(nextafterf(middle, INFINITY)) != h + 1;
        n_wrong += round(nextafterf(middle, 0)) != h;
        n_wrong += round(-middle) != (0x8000 | (h & 1 ? h + 1 : h));
    }
    CHECK(n_wrong == 0, "%s: %d roundings wrong", name, n_wrong);
}

static void check_round_trip(uint16_t (*round)(float), float (*value)(uint16_t), const char *name) {
    int n_wrong = 0;
    for (uint32_t h = 0; h < 65536; h++) {
        const float x = value((uint16_t)h);
        n_wrong += isnan(x) ? !isnan(value(round(x))) : round(x) != h;
    }
    CHECK(n_wrong == 0, "%s: %d of 65536 do not come back", name, n_wrong);
}

int main(void) {
    check_table();
    check_golden();
    check_nan();
    check_round_trip(kern_f32_to_f16, kern_f16_to_f32, "f16");
    check_round_trip(kern_f32_to_bf16, kern_bf16_to_f32, "bf16");
    check_rounding(kern_f32_to_f16, kern_f16_to_f32, 0x7bff, "f16");
    check_rounding(kern_f32_to_bf16, kern_bf16_to_f32, 0x7f7f, "bf16");
    CHECK(kern_f32_to_f16(65519.99f) == 0x7bff && kern_f32_to_f16(65520.0f) == 0x7c00,
          "f16 overflow");
    CHECK(kern_f32_to_f16(0x1p-25f) == 0 && kern_f32_to_f16(-0.0f) == 0x8000, "f16 underflow");
    CHECK(isnan(kern_f16_to_f32(kern_f32_to_f16(float_of(0x7f800001)))), "f16 NaN of low bits");
    CHECK(isnan(kern_bf16_to_f32(kern_f32_to_bf16(float_of(0x7f800001)))), "bf16 NaN of low bits");
    return check_end();
}
