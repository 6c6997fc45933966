/* test_pool.c: the thread pool: every thread comes once, barriers hold, units are given out once,
 * more threads than cores, sleeping threads, a child of fork(). */
#include "check.h"
#include "host.h"
#include "pool.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 64
#define N_ROUNDS    40
#define N_UNITS     1000

typedef struct shared {
    kern_pool *pool;
    _Atomic int n_calls, n_wrong, n_expected, n_units[N_ROUNDS];
    int round[MAX_THREADS];
    _Atomic int64_t sum;
} shared;

/* Between barriers each thread sees all the others in its own round. */
static void work_rounds(void *data, int i_thread, int n_threads) {
    shared *s = data;
    s->n_calls++;
    if (i_thread == 0) s->n_expected += n_threads; /* a run may be done alone: see pool.c */
    for (int round = 1; round <= N_ROUNDS; round++) {
        s->round[i_thread] = round;
        kern_pool_barrier(s->pool);
        for (int i = 0; i < n_threads; i++) s->n_wrong += s->round[i] != round;
        int64_t unit;
        while ((unit = kern_pool_next(s->pool, N_UNITS)) >= 0) {
            s->n_units[round - 1]++;
            s->sum += unit;
        }
        kern_pool_barrier(s->pool);
    }
}

/* What thread 0 does when all are gathered, all see when it has released them. */
static void work_gather(void *data, int i_thread, int n_threads) {
    shared *s = data;
    if (i_thread == 0) s->n_expected += n_threads;
    for (int round = 1; round <= N_ROUNDS; round++) {
        s->n_calls++;
        if (kern_pool_gather(s->pool, i_thread)) {
            s->n_wrong += i_thread != 0;
            s->n_wrong += s->n_calls != n_threads * round;
            s->round[0]++;
            kern_pool_release(s->pool);
        }
        s->n_wrong += s->round[0] != round;
        s->n_wrong += kern_pool_next(s->pool, n_threads) < 0;
        kern_pool_barrier(s->pool);
    }
}

/* A chain of units: each waits for the one before it, whoever does that. */
static void work_chain(void *data, int i_thread, int n_threads) {
    shared *s = data;
    if (i_thread == 0) s->n_expected += n_threads;
    int64_t unit;
    while ((unit = kern_pool_next(s->pool, N_UNITS)) >= 0) {
        for (uint32_t news; news = kern_pool_news(s->pool), s->n_calls < unit;)
            kern_pool_await(s->pool, news);
        s->n_wrong += s->n_calls != unit;
        s->n_calls++;
        kern_pool_tell(s->pool);
    }
}

static void check_chain(int n_threads, int n_runs) {
    kern_pool *pool = kern_pool_open(n_threads);
    for (int run = 0; run < n_runs; run++) {
        shared s = {.pool = pool};
        kern_pool_run(pool, work_chain, &s);
        CHECK(s.n_wrong == 0 && s.n_calls == N_UNITS, "%d threads: %d wrong in %d units", n_threads,
              (int)s.n_wrong, (int)s.n_calls);
    }
    kern_pool_close(pool);
}

static void check_gather(int n_threads, int n_runs) {
    kern_pool *pool = kern_pool_open(n_threads);
    for (int run = 0; run < n_runs; run++) {
        shared s = {.pool = pool};
        kern_pool_run(pool, work_gather, &s);
        CHECK(s.n_wrong == 0 && s.n_calls == s.n_expected * N_ROUNDS,
              "%d threads: %d wrong in %d calls", n_threads, (int)s.n_wrong, (int)s.n_calls);
    }
    kern_pool_close(pool);
}

static void check_rounds(int n_threads, int n_runs) {
    shared s = {.pool = kern_pool_open(n_threads)};
    CHECK(s.pool && kern_pool_threads(s.pool) == n_threads, "pool of %d", n_threads);
    if (!s.pool) return;
    for (int run = 0; run < n_runs; run++) kern_pool_run(s.pool, work_rounds, &s);
    CHECK(s.n_calls == s.n_expected && s.n_calls >= n_threads, "%d threads: %d calls of %d",
          n_threads, (int)s.n_calls, (int)s.n_expected);
    CHECK(s.n_wrong == 0, "%d threads: a barrier let %d through", n_threads, (int)s.n_wrong);
    int n_wrong = 0;
    for (int i = 0; i < N_ROUNDS; i++) n_wrong += s.n_units[i] != N_UNITS * n_runs;
    CHECK(n_wrong == 0, "%d threads: units lost or doubled", n_threads);
    CHECK(s.sum == (int64_t)N_UNITS * (N_UNITS - 1) / 2 * N_ROUNDS * n_runs, "sum of units");
    kern_pool_close(s.pool);
}

/* Work of about 300 µs on each thread. */
static void work_long(void *data, int i_thread, int n_threads) {
    (void)i_thread, (void)n_threads;
    struct timespec begun, now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
    do {
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    } while ((now.tv_sec - begun.tv_sec) * 1000000000 + now.tv_nsec - begun.tv_nsec < 300000);
    (*(_Atomic int *)data)++;
}

static void work_count(void *data, int i_thread, int n_threads) {
    (void)i_thread, (void)n_threads;
    (*(_Atomic int *)data)++;
}

/* Runs with pauses longer than the spin: the workers sleep and are woken. For runs of no work that
 * does not pay and they may be done alone; but not for ever. */
static void check_sleep(void) {
    kern_pool *pool = kern_pool_open(2);
    _Atomic int n = 0, n_long = 0;
    int n_least = 2, n_runs = 0;
    for (int i = 0; i < 50; i++) {
        const int before = n;
        kern_pool_run(pool, work_count, &n);
        if (n - before < n_least) n_least = n - before;
        nanosleep(&(struct timespec){.tv_nsec = i % 5 * 100000}, NULL);
    }
    CHECK(n_least >= 1 && n <= 100, "%d calls of 100 after pauses", (int)n);
    for (; n_runs < 20000 && n_long <= n_runs; n_runs++) kern_pool_run(pool, work_long, &n_long);
    CHECK(n_long == n_runs + 1, "%d calls in %d runs of long work", (int)n_long, n_runs);
    kern_pool_close(pool);
}

static int run_in_child(kern_pool *pool) {
    _Atomic int n = 0;
    kern_pool_run(pool, work_count, &n);
    kern_pool_run(pool, work_count, &n);
    const int n_threads = kern_pool_threads(pool);
    kern_pool_close(pool);
    return n == 2 && n_threads == 1 ? 0 : 1;
}

static void check_fork(bool first_run) {
    kern_pool *pool = kern_pool_open(3);
    _Atomic int n = 0;
    if (first_run) kern_pool_run(pool, work_count, &n);
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        _exit(run_in_child(pool));
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0, "a child ends with %d", status);
    n = 0;
    kern_pool_run(pool, work_count, &n);
    CHECK(n == 3, "the parent has %d threads of 3", (int)n);
    kern_pool_close(pool);
}

/* On one core the threads must give way to each other: thousands of barriers in short time. */
static void check_one_core(void) {
    const pid_t child = fork();
    if (child == 0) {
        cpu_set_t one, all;
        sched_getaffinity(0, sizeof all, &all);
        CPU_ZERO(&one);
        for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
            if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
        sched_setaffinity(0, sizeof one, &one);
        n_passed = n_failed = 0;
        CHECK(kern_pool_cores() == 1, "one core allowed, %d found", kern_pool_cores());
        alarm(60);
        check_rounds(2, 20);
        check_rounds(8, 5);
        fflush(stdout);
        _exit(n_failed);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0, "on one core: status %d", status);
}

static void check_tiers(void) {
    static const char *const names[] = {"plain", "neon", "avx2", "avxvnni", "avx512"};
    for (int i = 0; i < 5; i++) {
        kern_tier tier;
        CHECK(kern_tier_parse(names[i], &tier) == 0 && (int)tier == i, "tier %s", names[i]);
        CHECK(strcmp(kern_tier_name((kern_tier)i), names[i]) == 0, "name of tier %d", i);
    }
    kern_tier tier;
    CHECK(kern_tier_parse("sse9", &tier) == -1 && kern_tier_parse("", &tier) == -1,
          "unknown tiers");
    const int best = (int)kern_tier_best();
    CHECK(best >= 0 && best <= KERN_TIER_AVX512, "best tier %d", best);
    for (int i = 0; i <= KERN_TIER_AVX512; i++) {
        const int within = (int)kern_tier_within((kern_tier)i);
        CHECK(within <= i && kern_tier_within((kern_tier)within) == (kern_tier)within,
              "tier %d within %d", within, i);
    }
#if defined(__x86_64__)
    /* processors have one of these without the other */
    CHECK((kern_tier_within(KERN_TIER_AVX512) == KERN_TIER_AVX512) <=
              (__builtin_cpu_supports("avx512vnni") != 0),
          "avx512 without its instructions");
    if (!__builtin_cpu_supports("avx2"))
        CHECK(best == KERN_TIER_PLAIN, "tier %d without AVX2", best);
#endif
}

int main(void) {
    CHECK(!kern_pool_open(0) && !kern_pool_open(-1), "a pool of no threads");
    CHECK(kern_pool_cores() >= 1, "%d cores", kern_pool_cores());
    check_rounds(1, 3);
    check_rounds(2, 50);
    check_rounds(3, 10);
    check_rounds(MAX_THREADS, 2);
    check_gather(1, 2);
    check_gather(2, 20);
    check_gather(5, 5);
    check_chain(1, 2);
    check_chain(2, 20);
    check_chain(5, 5);
    check_sleep();
    check_fork(true);
    check_fork(false);
    check_one_core();
    check_tiers();
    kern_pool_close(kern_pool_open(4)); /* closed before any run */
    kern_pool_close(NULL);
    return check_end();
}
