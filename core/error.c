/* error.c: error texts and the names of their kinds. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

const char *llm_kind_name(llm_kind kind) {
    static const char *const names[] = {"ok",          "misuse", "cache_full", "out_of_memory",
                                        "interrupted", "time",   "nan",        "no_finite",
                                        "device",      "script", "input"};
    return (size_t)kind < sizeof names / sizeof *names ? names[kind] : "misuse";
}

int llm_fail(llm_error *err, llm_kind kind, const char *format, ...) {
    if (!err) return -1;
    err->kind = kind;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(err->message, sizeof err->message, format, arguments);
    va_end(arguments);
    for (char *c = err->message; *c; c++)
        if ((unsigned char)*c < ' ') *c = ' ';
    return -1;
}

int llm_fail_memory(llm_error *err, size_t bytes, const char *what) {
    return llm_fail(err, LLM_OUT_OF_MEMORY, "out of memory: %zu bytes for %s", bytes, what);
}
