/* pool.h: the thread pool. One per device; the caller is thread 0. Between operations of one run
 * the threads meet at a spin barrier that sleeps on a futex after about 50 µs. */
#ifndef KERN_POOL_H
#define KERN_POOL_H

#include <stdbool.h>
#include <stdint.h>

typedef struct kern_pool kern_pool;

/* n_threads ≥ 1; NULL when memory or threads are short. Threads start at the first run. */
kern_pool *kern_pool_open(int n_threads);
void kern_pool_close(kern_pool *pool);
int kern_pool_threads(const kern_pool *pool);

/* Calls work(data, i, n) on n threads, i = 0 … n-1, and returns when all have returned. n is
 * kern_pool_threads, or 1 where sharing the work costs more than it brings. Not re-entrant. A pool
 * used after fork() runs everything on the calling thread. */
typedef void kern_work_fn(void *data, int i_thread, int n_threads);
void kern_pool_run(kern_pool *pool, kern_work_fn *work, void *data);

/* Inside a run: no thread goes on before all have come. */
void kern_pool_barrier(kern_pool *pool);

/* The same in two halves, with something in between that needs no barrier of its own: thread 0 gets
 * true when all have come, and then the others wait until it has called release. */
bool kern_pool_gather(kern_pool *pool, int i_thread);
void kern_pool_release(kern_pool *pool);

/* Inside a run: the next unit of a shared counter, 0 … n_units-1, or -1 when there are no more. The
 * counter is reset at each barrier. */
int64_t kern_pool_next(kern_pool *pool, int64_t n_units);

/* Inside a run, apart from barriers: what one thread waits for and another brings about. A waiter
 * takes the news, looks whether it may go on, and if not awaits others than those. */
uint32_t kern_pool_news(kern_pool *pool);
void kern_pool_await(kern_pool *pool, uint32_t news);
void kern_pool_tell(kern_pool *pool); /* there are others */

/* The cores this process may use: affinity mask and cgroup quota, at least 1. */
int kern_pool_cores(void);

#endif
