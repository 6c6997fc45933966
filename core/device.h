/* device.h: a backend that is open, its thread pool and its pool of tensor memory. */
#ifndef LLM_CORE_DEVICE_H
#define LLM_CORE_DEVICE_H

#include "../kernels/kern.h"
#include "error.h"

struct llm_device {
    const kern_backend *backend;
    kern_device *kern;
    int index; /* of several GPUs */
    int references;
    uint64_t forward_rows, prefix_tokens, passes; /* counted by forward */
    double step_s, between_s,
        last_end;    /* seconds in passes, between them; when the last one ended */
    int n_profiles;  /* models that have a profile: tensor_s is counted */
    double tensor_s; /* seconds in operations on tensors */
    int64_t pages_used;
    struct tensor_pool *pool;
    struct queue *queue; /* NULL where the host sees the memory */
    char note[320];      /* what a user should know of it */
};

llm_device *device_retain(llm_device *);

/* A device of what a backend has opened, closed with it, on failure too. It has no tensors. */
llm_device *device_wrap(const kern_backend *, kern_device *, llm_error *err);

/* Seconds of a clock that only goes forward. */
double device_clock(void);

/* Turns a backend's return code into an error (and -1), or KERN_OK into 0. */
int device_check(llm_device *, int code, const char *what, llm_error *err);

#endif
