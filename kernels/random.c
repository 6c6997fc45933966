/* random.c: random blocks of every format: random bits, but for the f16 scales of a block, which
 * would be infinite or NaN now and then. Which scale gives numbers of the wanted size is measured.
 */
#include "random.h"
#include "noise.h"

#include <math.h>
#include <string.h>

/* Where a block has its scale, and its least number or what is subtracted (-1: it has none), which
 * is `mean` times the scale so that the numbers are about 0 in the mean. */
typedef struct block_scales {
    int32_t id, scale_at, least_at;
    float mean;
} block_scales;

static const block_scales scales_of[] = {
    {KERN_Q4_0, 0, -1, 0},     {KERN_Q4_1, 0, 2, -7.5f}, {KERN_Q5_0, 0, -1, 0},
    {KERN_Q5_1, 0, 2, -15.5f}, {KERN_Q8_0, 0, -1, 0},    {KERN_Q2_K, 80, 82, 1.5f},
    {KERN_Q3_K, 108, -1, 0},   {KERN_Q4_K, 0, 2, 7.5f},  {KERN_Q5_K, 0, 2, 15.5f},
    {KERN_Q6_K, 208, -1, 0},   {KERN_IQ4_NL, 0, -1, 0},  {KERN_IQ4_XS, 0, -1, 0}};
enum { N_SCALES = sizeof scales_of / sizeof *scales_of };

static const block_scales *find_scales(int32_t id) {
    for (int i = 0; i < N_SCALES; i++)
        if (scales_of[i].id == id) return &scales_of[i];
    return NULL;
}

static void fill_bits(uint64_t seed, unsigned char *to, size_t bytes) {
    for (size_t done = 0; done < bytes; done += 16) {
        const uint64_t i = done / 16;
        const uint32_t counter[4] = {(uint32_t)i, (uint32_t)(i >> 32), 0, 0};
        uint32_t words[4];
        kern_philox(seed, counter, words);
        memcpy(to + done, words, bytes - done < 16 ? bytes - done : 16);
    }
}

static void set_scales(const kern_format *f, const block_scales *s, unsigned char *to,
                       int64_t n_blocks, float scale) {
    const uint16_t d = kern_f32_to_f16(scale);
    const uint16_t least = kern_f32_to_f16(kern_f16_to_f32(d) * s->mean);
    for (int64_t i = 0; i < n_blocks; i++, to += f->block_bytes) {
        memcpy(to + s->scale_at, &d, sizeof d);
        if (s->least_at >= 0) memcpy(to + s->least_at, &least, sizeof least);
    }
}

/* The root mean square of the first blocks. */
static double measure(const kern_format *f, const unsigned char *blocks, int64_t n_blocks) {
    float values[256];
    double sum = 0;
    const int64_t n = n_blocks < 64 ? n_blocks : 64;
    for (int64_t i = 0; i < n; i++) {
        f->dequantise(blocks + i * f->block_bytes, values, f->block_size);
        for (int32_t j = 0; j < f->block_size; j++) sum += (double)values[j] * values[j];
    }
    return sqrt(sum / (double)(n * f->block_size));
}

/* Numbers that are no blocks, evenly in ±√3 · RMS. */
static void fill_numbers(const kern_format *f, uint64_t seed, unsigned char *to, int64_t n) {
    const float most = (float)(KERN_RANDOM_RMS * 1.7320508075688772);
    uint32_t words[4];
    for (int64_t i = 0; i < n; i++, to += f->block_bytes) {
        const uint32_t counter[4] = {(uint32_t)(i / 4), (uint32_t)(i / 4 >> 32), 0, 0};
        if (i % 4 == 0) kern_philox(seed, counter, words);
        const float x = most * (float)(int32_t)words[i % 4] * 0x1p-31f;
        const uint16_t half = f->id == KERN_F16 ? kern_f32_to_f16(x) : kern_f32_to_bf16(x);
        if (f->id == KERN_F32)
            memcpy(to, &x, sizeof x);
        else
            memcpy(to, &half, sizeof half);
    }
}

void kern_random_blocks(const kern_format *f, uint64_t seed, void *to, int64_t n) {
    const block_scales *s = find_scales(f->id);
    const int64_t n_blocks = n / f->block_size;
    if (!n_blocks) return;
    if (!s) {
        fill_numbers(f, seed, to, n);
        return;
    }
    fill_bits(seed, to, kern_format_bytes(f, n));
    set_scales(f, s, to, n_blocks, 1);
    set_scales(f, s, to, n_blocks, (float)(KERN_RANDOM_RMS / measure(f, to, n_blocks)));
}
