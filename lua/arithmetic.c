/* arithmetic.c: how many operations a second this machine's cores do with a tier's instructions, in
 * registers alone: the other roof that scripts/bench.lua compares products with. A multiplication
 * and an addition are two operations. All threads work at once, each times itself; the best of
 * several rounds counts. */
#include "sys.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define ROUNDS 20
#define STEPS  20000 /* of a round, about 0.1 ms */
#define CHAINS 10    /* sums that do not wait for each other */

/* STEPS steps of CHAINS independent sums; what it returns only keeps them from being left out. */
typedef int (*step_fn)(int n);

typedef struct kernel {
    const char *tier;
    bool is_int8;
    int step_operations; /* of one instruction sequence */
    step_fn run;
} kernel;

#if defined(__x86_64__)
/* One step of every sum; the compiler must not see that w and x stay what they are. */
#define CHAIN_LOOP(w, x, sums, step)                                                               \
    for (int i = 0; i < STEPS; i++)                                                                \
        for (int j = 0; j < CHAINS; j++) {                                                         \
            __asm__ volatile("" : "+v"(w), "+v"(x));                                               \
            sums[j] = step;                                                                        \
        }

__attribute__((target("avx2,fma"))) static int fma_avx2(int n) {
    __m256 w = _mm256_set1_ps((float)n), x = w, sums[CHAINS] = {w};
    CHAIN_LOOP(w, x, sums, _mm256_fmadd_ps(w, x, sums[j]))
    for (int j = 1; j < CHAINS; j++) sums[0] = _mm256_add_ps(sums[0], sums[j]);
    return _mm_cvtsi128_si32(_mm256_castsi256_si128(_mm256_castps_si256(sums[0])));
}

__attribute__((target("avx2"))) static int dot_avx2(int n) {
    __m256i w = _mm256_set1_epi8((char)n), x = w, ones = _mm256_set1_epi16(1), sums[CHAINS] = {w};
    CHAIN_LOOP(w, x, sums,
               _mm256_add_epi32(sums[j], _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), ones)))
    for (int j = 1; j < CHAINS; j++) sums[0] = _mm256_add_epi32(sums[0], sums[j]);
    return _mm_cvtsi128_si32(_mm256_castsi256_si128(sums[0]));
}

__attribute__((target("avxvnni"))) static int dot_avxvnni(int n) {
    __m256i w = _mm256_set1_epi8((char)n), x = w, sums[CHAINS] = {w};
    CHAIN_LOOP(w, x, sums, _mm256_dpbusd_avx_epi32(sums[j], w, x))
    for (int j = 1; j < CHAINS; j++) sums[0] = _mm256_add_epi32(sums[0], sums[j]);
    return _mm_cvtsi128_si32(_mm256_castsi256_si128(sums[0]));
}

__attribute__((target("avx512f"))) static int fma_avx512(int n) {
    __m512 w = _mm512_set1_ps((float)n), x = w, sums[CHAINS] = {w};
    CHAIN_LOOP(w, x, sums, _mm512_fmadd_ps(w, x, sums[j]))
    for (int j = 1; j < CHAINS; j++) sums[0] = _mm512_add_ps(sums[0], sums[j]);
    return _mm_cvtsi128_si32(_mm512_castsi512_si128(_mm512_castps_si512(sums[0])));
}

__attribute__((target("avx512f,avx512vnni"))) static int dot_avx512(int n) {
    __m512i w = _mm512_set1_epi32(n), x = w, sums[CHAINS] = {w};
    CHAIN_LOOP(w, x, sums, _mm512_dpbusd_epi32(sums[j], w, x))
    for (int j = 1; j < CHAINS; j++) sums[0] = _mm512_add_epi32(sums[0], sums[j]);
    return _mm_cvtsi128_si32(_mm512_castsi512_si128(sums[0]));
}
#endif

static const kernel kernels[] = {
#if defined(__x86_64__)
    {"avx2", false, 16, fma_avx2},
    {"avx2", true, 64, dot_avx2},
    {"avxvnni", false, 16, fma_avx2},
    {"avxvnni", true, 64, dot_avxvnni},
    {"avx512", false, 32, fma_avx512},
    {"avx512", true, 128, dot_avx512},
#endif
    {NULL, false, 0, NULL},
};

typedef struct worker {
    const kernel *kernel;
    double rate;
    int result;
    pthread_t thread;
} worker;

static void *worker_main(void *argument) {
    worker *w = argument;
    double best = 1e30;
    for (int i = 0; i < ROUNDS; i++) {
        double start = sys_clock();
        w->result ^= w->kernel->run(i);
        double took = sys_clock() - start;
        if (took < best) best = took;
    }
    w->rate = (double)STEPS * CHAINS * w->kernel->step_operations / best;
    return NULL;
}

double arithmetic_peak(int n_threads, const char *tier, bool is_int8) {
    const kernel *k = kernels;
    while (k->tier && (strcmp(k->tier, tier) != 0 || k->is_int8 != is_int8)) k++;
    worker *workers = k->tier ? calloc((size_t)n_threads, sizeof *workers) : NULL;
    if (!workers) return -1;
    double rate = 0;
    int n = 1;
    for (int i = 0; i < n_threads; i++) workers[i].kernel = k;
    while (n < n_threads && pthread_create(&workers[n].thread, NULL, worker_main, &workers[n]) == 0)
        n++;
    worker_main(&workers[0]);
    for (int i = 1; i < n; i++) pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < n; i++) rate += workers[i].rate;
    free(workers);
    return rate;
}
