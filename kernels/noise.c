/* noise.c: Philox4x32-10 and the two distributions made of it. Keeps no state. */
#include "noise.h"

#include <string.h>

void kern_philox(uint64_t seed, const uint32_t counter[4], uint32_t out[4]) {
    uint32_t key_low = (uint32_t)seed, key_high = (uint32_t)(seed >> 32);
    uint32_t a = counter[0], b = counter[1], c = counter[2], d = counter[3];
    for (int round = 0; round < 10; round++) {
        const uint64_t left = (uint64_t)0xD2511F53u * a, right = (uint64_t)0xCD9E8D57u * c;
        a = (uint32_t)(right >> 32) ^ b ^ key_low;
        c = (uint32_t)(left >> 32) ^ d ^ key_high;
        b = (uint32_t)right;
        d = (uint32_t)left;
        key_low += 0x9E3779B9u;
        key_high += 0xBB67AE85u;
    }
    out[0] = a;
    out[1] = b;
    out[2] = c;
    out[3] = d;
}

static double word_uniform(uint32_t word) {
    const double u = ((double)word + 0.5) * 0x1p-32, most = 1 - 0x1p-24;
    return u < most ? u : most;
}

/* The natural logarithm of a positive normal number, to about 2^-51. x = 2^k m, m from sqrt(1/2) to
 * sqrt(2): ln x = k ln 2 + 2 artanh((m - 1) / (m + 1)), whose power series has the terms
 * 2 s^(2i+1) / (2i+1). The same steps as the vectors of tensor_rows.inc, hence the same bits. */
static double log_positive(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint64_t biased_k = (bits - NOISE_LOG_LEAST + ((uint64_t)1024 << 52)) >> 52;
    bits -= (biased_k - 1024) << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    const double f = m - 1, s = f / (m + 1), z = s * s;
    static const double terms[] = NOISE_LOG_TERMS;
    double sum = 2.0 / 21;
    for (int i = 9; i > 0; i--) sum = sum * z + terms[i - 1];
    return ((double)biased_k - 1024) * NOISE_LN_2 + (s * z * sum + 2 * s);
}

float kern_word_gumbel(uint32_t word) {
    return (float)-log_positive(-log_positive(1 - word_uniform(word)));
}

static uint32_t key_word(kern_key key, uint32_t v) {
    const uint32_t counter[4] = {v / 4, key.position, (uint32_t)key.stream,
                                 (uint32_t)(key.stream >> 32)};
    uint32_t words[4];
    kern_philox(key.seed, counter, words);
    return words[v % 4];
}

double kern_uniform(kern_key key, uint32_t v) { return word_uniform(key_word(key, v)); }

float kern_gumbel(kern_key key, uint32_t v) { return kern_word_gumbel(key_word(key, v)); }
