/* pool.c: the threads of a device. Two words are waited on: `turn` (a run begins, or the pool
 * closes) and `phase` (all threads have come to the barrier). A waiter spins for about 50 µs, then
 * sleeps on the word's futex; where there are fewer cores than threads it sleeps at once.
 *
 * Where other processes take the cores, threads come late to most barriers and each costs a sleep:
 * a short run is then many times faster on the caller's thread alone. So when a run slept too much,
 * the next ones are done alone, 16 at first, up to 256 while it stays so. Results never depend on
 * the number of threads. */
#include "pool.h"
#include "memory.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS     50000
#define SLEEP_NS    100000 /* what a sleep and its wake cost, about */
#define ALONE_LEAST 16
#define ALONE_MOST  256

/* A word on its own cache line, and how many sleep on it. */
typedef struct pool_word {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t n_asleep;
} pool_word;

struct kern_pool {
    pool_word turn, phase;
    _Alignas(64) _Atomic int n_arrived;
    _Alignas(64) _Atomic int64_t next;
    kern_work_fn *work; /* of the present run; NULL: close */
    void *data;
    int n_threads;         /* with the caller */
    int n_active;          /* of the present run: n_threads or 1 */
    int alone, alone_next; /* runs still to be done alone; how many the next time */
    _Atomic int n_slept;   /* barriers of this run that a thread slept at */
    int n_started;         /* workers that run; 0 before the first run */
    bool spin;
    pid_t process;
    struct pool_worker {
        kern_pool *pool;
        pthread_t thread;
        int i_thread;
    } workers[]; /* n_threads - 1 */
};

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Returns when the word is no longer `old`; whether it slept. */
static bool word_wait(pool_word *word, uint32_t old, bool spin) {
    if (spin) {
        const int64_t end = now_ns() + SPIN_NS;
        do {
            for (int i = 0; i < 32; i++) {
                if (atomic_load_explicit(&word->value, memory_order_acquire) != old) return false;
                relax();
            }
        } while (now_ns() < end);
    }
    atomic_fetch_add(&word->n_asleep, 1);
    while (atomic_load(&word->value) == old)
        syscall(SYS_futex, (uint32_t *)&word->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&word->n_asleep, 1);
    return true;
}

/* Moves the word on. Either the sleeper is counted here, or it sees the new value before it sleeps.
 */
static void word_next(pool_word *word) {
    atomic_fetch_add(&word->value, 1);
    if (atomic_load(&word->n_asleep))
        syscall(SYS_futex, (uint32_t *)&word->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void kern_pool_barrier(kern_pool *pool) {
    const uint32_t phase = atomic_load(&pool->phase.value);
    if (atomic_fetch_add(&pool->n_arrived, 1) == pool->n_active - 1) {
        atomic_store(&pool->n_arrived, 0);
        atomic_store(&pool->next, 0);
        word_next(&pool->phase);
    } else if (word_wait(&pool->phase, phase, pool->spin)) {
        atomic_fetch_add_explicit(&pool->n_slept, 1, memory_order_relaxed);
    }
}

int64_t kern_pool_next(kern_pool *pool, int64_t n_units) {
    const int64_t i = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
    return i < n_units ? i : -1;
}

static void *worker_main(void *argument) {
    struct pool_worker *self = argument;
    kern_pool *pool = self->pool;
    for (uint32_t turn = 0;; turn++) { /* workers start before the first run moves the word */
        word_wait(&pool->turn, turn, pool->spin);
        if (!pool->work) return NULL;
        pool->work(pool->data, self->i_thread, pool->n_active);
        kern_pool_barrier(pool);
    }
}

kern_pool *kern_pool_open(int n_threads) {
    if (n_threads < 1 || n_threads > 4096) return NULL;
    const size_t bytes = sizeof(kern_pool) + (size_t)(n_threads - 1) * sizeof(struct pool_worker);
    kern_pool *pool = kern_alloc_aligned(64, bytes);
    if (!pool) return NULL;
    pool->n_threads = n_threads;
    pool->alone_next = ALONE_LEAST;
    pool->spin = n_threads <= kern_pool_cores();
    pool->process = getpid();
    return pool;
}

/* Threads that cannot be had are done without. Signals are for the caller's thread. */
static void start_workers(kern_pool *pool) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool->n_started < pool->n_threads - 1) {
        struct pool_worker *worker = &pool->workers[pool->n_started];
        worker->pool = pool;
        worker->i_thread = pool->n_started + 1;
        if (pthread_create(&worker->thread, NULL, worker_main, worker) != 0) break;
        pool->n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pool->n_threads = pool->n_started + 1;
}

/* In a child made by fork() the workers do not exist: it goes on alone. */
static bool is_child(const kern_pool *pool) { return pool->process != getpid(); }

int kern_pool_threads(const kern_pool *pool) { return is_child(pool) ? 1 : pool->n_threads; }

/* Whether the run that took so long lost more than a quarter of it in sleeps. */
static void judge_run(kern_pool *pool, int64_t took_ns) {
    const int n_slept = atomic_load(&pool->n_slept);
    if (n_slept < 4 || (int64_t)n_slept * SLEEP_NS * 4 < took_ns) {
        pool->alone_next = ALONE_LEAST;
        return;
    }
    pool->alone = pool->alone_next;
    if (pool->alone_next < ALONE_MOST) pool->alone_next *= 2;
}

void kern_pool_run(kern_pool *pool, kern_work_fn *work, void *data) {
    if (is_child(pool)) {
        pool->n_threads = 1;
        pool->n_started = 0;
        pool->process = getpid();
    }
    if (pool->n_started < pool->n_threads - 1) start_workers(pool);
    pool->work = work;
    pool->data = data;
    pool->n_active = pool->alone > 0 ? 1 : pool->n_threads;
    if (pool->n_active == 1) {
        pool->alone -= pool->alone > 0;
        work(data, 0, 1);
        kern_pool_barrier(pool);
        return;
    }
    const int64_t began = now_ns();
    atomic_store(&pool->n_slept, 0);
    word_next(&pool->turn);
    work(data, 0, pool->n_threads);
    kern_pool_barrier(pool);
    judge_run(pool, now_ns() - began);
}

void kern_pool_close(kern_pool *pool) {
    if (!pool) return;
    if (pool->n_started && !is_child(pool)) {
        pool->work = NULL;
        word_next(&pool->turn);
        for (int i = 0; i < pool->n_started; i++) pthread_join(pool->workers[i].thread, NULL);
    }
    kern_free_aligned(pool);
}
