/* memory.h: the one door to the heap, for kernels and core. The contract is that of calloc, realloc
 * and free. A build with LLMLUA_FAULTS can make the n-th allocation from now fail, which is how the
 * specs walk every failure path. */
#ifndef KERN_MEMORY_H
#define KERN_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Zeroed memory, or NULL. A size of 0 gives a unique pointer. */
void *kern_alloc(size_t bytes);

/* count × bytes, zeroed; NULL too when the product overflows. */
void *kern_alloc_array(size_t count, size_t bytes);

/* Like realloc: on failure the old block stays as it was. New bytes are not zeroed. */
void *kern_realloc(void *block, size_t bytes);

/* Zeroed memory at a multiple of `alignment` (a power of two); freed by kern_free_aligned. */
void *kern_alloc_aligned(size_t alignment, size_t bytes);
void kern_free_aligned(void *block);

/* Memory for what is large and read often: at a multiple of 2 MB and of huge pages where the system
 * gives them, so that reading it is not held up by the tables of pages. Not zeroed. Freed by
 * kern_free_aligned. */
void *kern_alloc_huge(size_t bytes);

/* Bytes that could still be had without driving others out: free, or used for files. SIZE_MAX: not
 * known. */
size_t kern_memory_available(void);
void kern_free(void *block);

#ifdef LLMLUA_FAULTS
/* The n-th allocation from now (1: the next) fails, and only that one; 0 switches it off. */
void kern_alloc_fail_at(int64_t n);
/* Allocations made since the process began. */
int64_t kern_alloc_count(void);
#endif

#endif
