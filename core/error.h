/* error.h: how core reports a failure. */
#ifndef LLM_CORE_ERROR_H
#define LLM_CORE_ERROR_H

#include "llm.h"

/* Fills err (which may be NULL) and returns -1, so that `return llm_fail(…)` reads well. A message
 * that is too long is cut. */
int llm_fail(llm_error *err, llm_kind kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* "out of memory: N bytes for WHAT". */
int llm_fail_memory(llm_error *err, size_t bytes, const char *what);

#endif
