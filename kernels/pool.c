/* pool.c: the threads of a device. Four words are waited on: `turn` (a run begins, or the pool
 * closes), `phase` (all threads have come to the barrier), `gathered` (one more has come to thread
 * 0) and `news` (whatever the run's work means by it). A waiter spins for about 50 µs, then sleeps
 * on the word's futex; where there are fewer cores than threads it sleeps at once.
 *
 * Where other processes take the cores, threads wait long for each other: a run may then be faster
 * on the caller's thread alone. So runs are judged, some 15 ms of them at a time, by the time they
 * took against the processor time that their threads worked, which is what they would have taken
 * alone. If that is less the next 0.1 s of runs are done alone, up to 2 s while it stays so.
 * Results never depend on the number of threads. */
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
#define SHORT_SPINS 64 /* no wait worth a look at the clock */
#define JUDGED_NS   15000000
#define ALONE_LEAST 100000000
#define ALONE_MOST  2000000000

/* A word on its own cache line, and how many sleep on it. */
typedef struct pool_word {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t n_asleep;
} pool_word;

struct kern_pool {
    pool_word turn, phase, gathered, news;
    _Alignas(64) _Atomic int n_arrived;
    _Alignas(64) _Atomic int64_t next;
    kern_work_fn *work; /* of the present run; NULL: close */
    void *data;
    int n_threads;                /* with the caller */
    int n_active;                 /* of the present run: n_threads or 1 */
    uint32_t n_gathered;          /* `gathered` when all have come */
    int64_t alone_ns, alone_next; /* for which runs are still done alone; and the next time */
    int64_t took_ns;              /* runs since they were last judged */
    _Atomic int64_t worked_ns;    /* processor time of all threads in them, without spinning */
    bool spin;
    int n_started; /* workers that run; 0 before the first run */
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

static int64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
static int64_t worked_ns(void) { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

/* Returns when the word is no longer `old`: how long it span, in ns; 0 if not long. */
static int64_t word_wait(pool_word *word, uint32_t old, bool spin) {
    for (int i = 0; i < SHORT_SPINS && spin; i++) {
        if (atomic_load_explicit(&word->value, memory_order_acquire) != old) return 0;
        relax();
    }
    const int64_t began = now_ns();
    int64_t span = 0;
    while (spin && span < SPIN_NS) {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(&word->value, memory_order_acquire) != old) return span;
            relax();
        }
        span = now_ns() - began;
    }
    atomic_fetch_add(&word->n_asleep, 1);
    while (atomic_load(&word->value) == old)
        syscall(SYS_futex, (uint32_t *)&word->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&word->n_asleep, 1);
    return span < SPIN_NS ? span : SPIN_NS; /* a look at the clock may come late */
}

/* Moves the word on. Either the sleeper is counted here, or it sees the new value before it sleeps.
 */
static void word_next(pool_word *word) {
    atomic_fetch_add(&word->value, 1);
    if (atomic_load(&word->n_asleep))
        syscall(SYS_futex, (uint32_t *)&word->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void note_work(kern_pool *pool, int64_t ns) {
    atomic_fetch_add_explicit(&pool->worked_ns, ns, memory_order_relaxed);
}

static void wait_in_run(kern_pool *pool, pool_word *word, uint32_t old) {
    const int64_t span = word_wait(word, old, pool->spin);
    if (span > 0) note_work(pool, -span);
}

void kern_pool_release(kern_pool *pool) {
    atomic_store(&pool->next, 0);
    word_next(&pool->phase);
}

void kern_pool_barrier(kern_pool *pool) {
    const uint32_t phase = atomic_load(&pool->phase.value);
    if (atomic_fetch_add(&pool->n_arrived, 1) == pool->n_active - 1) {
        atomic_store(&pool->n_arrived, 0);
        kern_pool_release(pool);
    } else {
        wait_in_run(pool, &pool->phase, phase);
    }
}

bool kern_pool_gather(kern_pool *pool, int i_thread) {
    if (i_thread > 0) {
        const uint32_t phase = atomic_load(&pool->phase.value);
        word_next(&pool->gathered);
        wait_in_run(pool, &pool->phase, phase);
        return false;
    }
    pool->n_gathered += (uint32_t)pool->n_active - 1;
    for (uint32_t n; (n = atomic_load(&pool->gathered.value)) != pool->n_gathered;)
        wait_in_run(pool, &pool->gathered, n);
    return true;
}

uint32_t kern_pool_news(kern_pool *pool) { return atomic_load(&pool->news.value); }
void kern_pool_await(kern_pool *pool, uint32_t news) { wait_in_run(pool, &pool->news, news); }
void kern_pool_tell(kern_pool *pool) { word_next(&pool->news); }

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
        const int64_t began = worked_ns();
        pool->work(pool->data, self->i_thread, pool->n_active);
        kern_pool_barrier(pool);
        note_work(pool, worked_ns() - began);
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

/* An eighth less alone is not worth the change. What a thread worked may be counted a little later
 * than the run that it worked in. */
static void judge_runs(kern_pool *pool, int64_t took_ns) {
    pool->took_ns += took_ns;
    if (pool->took_ns < JUDGED_NS) return;
    const int64_t worked = atomic_exchange(&pool->worked_ns, 0);
    if (pool->took_ns - pool->took_ns / 8 < worked) {
        pool->alone_next = ALONE_LEAST;
    } else {
        pool->alone_ns = pool->alone_next;
        if (pool->alone_next < ALONE_MOST) pool->alone_next *= 2;
    }
    pool->took_ns = 0;
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
    pool->n_active = pool->alone_ns > 0 ? 1 : pool->n_threads;
    const int64_t began = now_ns();
    if (pool->n_active == 1) {
        work(data, 0, 1);
        kern_pool_barrier(pool);
        pool->alone_ns -= now_ns() - began;
        return;
    }
    const int64_t work_began = worked_ns();
    word_next(&pool->turn);
    work(data, 0, pool->n_active);
    kern_pool_barrier(pool);
    note_work(pool, worked_ns() - work_began);
    judge_runs(pool, now_ns() - began);
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
