/* bandwidth.c: how fast this machine reads memory, the roof that scripts/bench.lua compares
 * decoding with. Each thread reads its own region, touched by itself first (so that it lies near)
 * and backed by huge pages where the system gives them, as several streams with the widest loads
 * there are; the best of all repeats and stream counts counts. */
#include "sys.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define REPEATS     3
#define MAX_STREAMS 8
#define STEP        256 /* bytes a stream gives before the next one's turn */
#define HUGE_PAGE   ((size_t)2 << 20)

typedef uint64_t (*read_fn)(const char *p, size_t stream_bytes, int n_streams);

/* sum over n_streams runs of stream_bytes, which lie one after the other from p */
static uint64_t read_plain(const char *p, size_t stream_bytes, int n_streams) {
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (size_t at = 0; at < stream_bytes; at += STEP)
        for (int s = 0; s < n_streams; s++) {
            const uint64_t *x = (const uint64_t *)(const void *)(p + (size_t)s * stream_bytes + at);
            for (size_t i = 0; i < STEP / 8; i += 4) {
                a ^= x[i];
                b ^= x[i + 1];
                c ^= x[i + 2];
                d ^= x[i + 3];
            }
        }
    return a ^ b ^ c ^ d;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t read_avx2(const char *p, size_t stream_bytes,
                                                          int n_streams) {
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t at = 0; at < stream_bytes; at += STEP)
        for (int s = 0; s < n_streams; s++) {
            const __m256i *x = (const __m256i *)(const void *)(p + (size_t)s * stream_bytes + at);
            a = _mm256_xor_si256(_mm256_xor_si256(a, _mm256_load_si256(x)),
                                 _mm256_load_si256(x + 4));
            b = _mm256_xor_si256(_mm256_xor_si256(b, _mm256_load_si256(x + 1)),
                                 _mm256_load_si256(x + 5));
            c = _mm256_xor_si256(_mm256_xor_si256(c, _mm256_load_si256(x + 2)),
                                 _mm256_load_si256(x + 6));
            d = _mm256_xor_si256(_mm256_xor_si256(d, _mm256_load_si256(x + 3)),
                                 _mm256_load_si256(x + 7));
        }
    a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
    uint64_t out[4];
    memcpy(out, &a, sizeof out);
    return out[0] ^ out[1] ^ out[2] ^ out[3];
}

__attribute__((target("avx512f"))) static uint64_t read_avx512(const char *p, size_t stream_bytes,
                                                               int n_streams) {
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t at = 0; at < stream_bytes; at += STEP)
        for (int s = 0; s < n_streams; s++) {
            const char *x = p + (size_t)s * stream_bytes + at;
            a = _mm512_xor_si512(a, _mm512_load_si512(x));
            b = _mm512_xor_si512(b, _mm512_load_si512(x + 64));
            c = _mm512_xor_si512(c, _mm512_load_si512(x + 128));
            d = _mm512_xor_si512(d, _mm512_load_si512(x + 192));
        }
    a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
    uint64_t out[8], sum = 0;
    memcpy(out, &a, sizeof out);
    for (int i = 0; i < 8; i++) sum ^= out[i];
    return sum;
}
#endif

static read_fn best_reader(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return read_avx512;
    if (__builtin_cpu_supports("avx2")) return read_avx2;
#endif
    return read_plain;
}

typedef struct crew {
    pthread_mutex_t gate; /* held until all threads are there, or `go` stays false */
    bool go;
    pthread_barrier_t barrier;
    size_t bytes; /* of each thread, a multiple of STEP · MAX_STREAMS */
    read_fn read;
} crew;

typedef struct worker {
    crew *crew;
    char *region;
    uint64_t sum;
    pthread_t thread;
} worker;

/* Every thread does the same rounds; the first one times them. Returns the least time of one, in s.
 */
static double worker_rounds(worker *w) {
    crew *c = w->crew;
    double best = 1e30;
    memset(w->region, 1, c->bytes);
    for (int n_streams = 1; n_streams <= MAX_STREAMS; n_streams *= 2)
        for (int i = 0; i < REPEATS; i++) {
            pthread_barrier_wait(&c->barrier);
            double start = sys_clock();
            w->sum += c->read(w->region, c->bytes / (size_t)n_streams, n_streams);
            pthread_barrier_wait(&c->barrier);
            double took = sys_clock() - start;
            if (took < best) best = took;
        }
    return best;
}

static void *worker_main(void *arg) {
    worker *w = arg;
    pthread_mutex_lock(&w->crew->gate);
    bool go = w->crew->go;
    pthread_mutex_unlock(&w->crew->gate);
    if (go) worker_rounds(w);
    return NULL;
}

/* Runs workers[0 … n_threads − 1]; the least time of a round, or -1 if not all threads could be
 * made. */
static double crew_run(crew *c, worker *workers, int n_threads) {
    double best = -1;
    int n = 1;
    pthread_mutex_init(&c->gate, NULL);
    pthread_barrier_init(&c->barrier, NULL, (unsigned)n_threads);
    pthread_mutex_lock(&c->gate);
    while (n < n_threads && pthread_create(&workers[n].thread, NULL, worker_main, &workers[n]) == 0)
        n++;
    c->go = n == n_threads;
    pthread_mutex_unlock(&c->gate);
    if (c->go) best = worker_rounds(&workers[0]);
    for (int i = 1; i < n; i++) pthread_join(workers[i].thread, NULL);
    pthread_barrier_destroy(&c->barrier);
    pthread_mutex_destroy(&c->gate);
    return best;
}

double bandwidth_read(int n_threads, size_t bytes) {
    crew c = {.read = best_reader()};
    c.bytes = bytes / (size_t)n_threads / HUGE_PAGE * HUGE_PAGE;
    if (c.bytes == 0) c.bytes = HUGE_PAGE;
    size_t mapped = c.bytes * (size_t)n_threads + HUGE_PAGE;
    worker *workers = calloc((size_t)n_threads, sizeof *workers);
    char *memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    double rate = -1;
    if (workers && memory != MAP_FAILED) {
        char *first = memory + (HUGE_PAGE - (uintptr_t)memory % HUGE_PAGE) % HUGE_PAGE;
        madvise(first, c.bytes * (size_t)n_threads, MADV_HUGEPAGE);
        for (int i = 0; i < n_threads; i++) {
            workers[i].crew = &c;
            workers[i].region = first + (size_t)i * c.bytes;
        }
        double took = crew_run(&c, workers, n_threads);
        if (took > 0) rate = (double)c.bytes * n_threads / took;
    }
    if (memory != MAP_FAILED) munmap(memory, mapped);
    free(workers);
    return rate;
}
