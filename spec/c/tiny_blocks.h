/* tiny_blocks.h: random numbers and random weights of any format, for tests. */
#ifndef SPEC_TINY_BLOCKS_H
#define SPEC_TINY_BLOCKS_H

#include "formats.h"

#include <string.h>

static uint32_t tiny_random(uint64_t *state) { /* splitmix64 */
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32 ^ x >> 1);
}

/* In [-1, 1). */
static float tiny_uniform(uint64_t *state) { return (float)tiny_random(state) / 0x1p31f - 1; }

/* Random blocks: bytes, with f16 scales of a size that gives values of about ±size. */
static void tiny_blocks(uint64_t *state, const kern_format *format, unsigned char *to, int64_t n,
                        float size) {
    static const struct {
        int32_t id, at[2];
        float largest;
    } scales[] = {
        {KERN_Q4_0, {0, -1}, 8},      {KERN_Q4_1, {0, 2}, 16},     {KERN_Q5_0, {0, -1}, 16},
        {KERN_Q5_1, {0, 2}, 32},      {KERN_Q8_0, {0, -1}, 127},   {KERN_Q2_K, {80, 82}, 45},
        {KERN_Q3_K, {108, -1}, 128},  {KERN_Q4_K, {0, 2}, 945},    {KERN_Q5_K, {0, 2}, 1953},
        {KERN_Q6_K, {208, -1}, 4096}, {KERN_IQ4_NL, {0, -1}, 127}, {KERN_IQ4_XS, {0, -1}, 4064},
    };
    for (int64_t i = 0; i < n; i += format->block_size, to += format->block_bytes) {
        if (format->block_size == 1) {
            const float x = tiny_uniform(state) * size;
            const uint16_t h = format->id == KERN_F16 ? kern_f32_to_f16(x) : kern_f32_to_bf16(x);
            memcpy(to, format->id == KERN_F32 ? (const void *)&x : &h, (size_t)format->block_bytes);
            continue;
        }
        for (int j = 0; j < format->block_bytes; j++) to[j] = (unsigned char)tiny_random(state);
        for (size_t k = 0; k < sizeof scales / sizeof *scales; k++) {
            if (scales[k].id != format->id) continue;
            const uint16_t d = kern_f32_to_f16(size / scales[k].largest);
            memcpy(to + scales[k].at[0], &d, 2);
            if (scales[k].at[1] >= 0) memcpy(to + scales[k].at[1], &d, 2);
        }
    }
}

#endif
