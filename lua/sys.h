/* sys.h: what the host program lends to the Lua side through the module `llm.sys`. */
#ifndef LLMLUA_SYS_H
#define LLMLUA_SYS_H

#include "binding.h"
#include "embed.h"

/* Lives as long as the state; main.c owns the one there is. In llm.so there is none, and the
 * functions that need it say "no". */
typedef struct sys_host {
    volatile int stop;       /* set by the first Ctrl-C */
    const embed_file *files; /* carried inside the program */
    bool bar_wanted;         /* a terminal is there and the run is not quiet */
    bool bar_drawn;
    const char *bar_what;
    double bar_start, bar_last; /* s */
    double prefill_end;         /* s, monotonic: when the first feed was done; 0: not yet */
    int64_t prefill_tokens;
} sys_host;

int luaopen_llm_sys(lua_State *L);
void sys_set_host(lua_State *L, sys_host *host);
const embed_file *sys_find_file(const embed_file *files, const char *name);
/* An llm_watch.progress; data is the sys_host. */
void sys_progress(void *data, const char *what, int64_t done, int64_t total);
double sys_clock(void); /* s, monotonic */

/* bandwidth.c: the best rate, in bytes a second, at which n_threads read `bytes` of fresh memory;
 * -1 if memory or threads are not to be had. */
double bandwidth_read(int n_threads, size_t bytes);

#endif
