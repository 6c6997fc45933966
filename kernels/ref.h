/* ref.h: shared by the files of the ref backend: one pass, and the steps that its operations are.
 */
#ifndef KERN_REF_H
#define KERN_REF_H

#include "host.h"

/* Memory of the ref backend beside the activations; lies in kern_work.scratch. */
typedef struct ref_scratch {
    float *w, *bias; /* vectors of the present operation */
    float *threads;  /* thread_floats for each thread */
    size_t thread_floats;
    host_row *rows; /* of the batch */
} ref_scratch;

/* One operation of one pass, as the threads see it. */
typedef struct ref_pass {
    kern_pool *pool;
    const kern_pages *pages;
    const kern_batch *batch;
    const plan_op *op;
    const ref_scratch *scratch;
    float *in, *in2, *out;
    int32_t in_width, out_width;
} ref_pass;

/* Steps: thread i_thread of n_threads does its share; what a share holds never changes a result. */
typedef void ref_step(const ref_pass *, int i_thread, int n_threads);
void ref_matmul(const ref_pass *, int i_thread, int n_threads);
void ref_kv_append(const ref_pass *, int i_thread, int n_threads);
void ref_attend(const ref_pass *, int i_thread, int n_threads);

/* Floats of a thread's scratch that these steps use. */
size_t ref_matmul_scratch(const plan_op *);
size_t ref_attend_scratch(const plan_op *);

/* Thread's scratch. */
static inline float *ref_thread(const ref_pass *pass, int i_thread) {
    return pass->scratch->threads + (size_t)i_thread * pass->scratch->thread_floats;
}

/* The caller wants the pass to end. */
static inline bool ref_stopped(const kern_batch *batch) {
    return batch->stop && __atomic_load_n(batch->stop, __ATOMIC_RELAXED) != 0;
}

/* x[n] · y[n]: partial sum j holds elements j, j + 16, …; then 16 sums become 8, 4, 2, 1. */
float ref_dot(const float *x, const float *y, int64_t n);

#endif
