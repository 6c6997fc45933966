/* sys.h: what the host program lends to the Lua side through the module `llm.sys`. */
#ifndef LLMLUA_SYS_H
#define LLMLUA_SYS_H

#include "binding.h"
#include "embed.h"

/* Lives as long as the state. In the program it is main.c's, in llm.so one without files. */
typedef struct sys_host {
    volatile int stop;       /* the signal that asks to end (Ctrl-C), or 0 */
    const embed_file *files; /* carried inside the program */
    bool bar_wanted;         /* a terminal is there and the run is not quiet */
    bool bar_drawn;
    const char *bar_what;
    double bar_start, bar_last; /* s */
    double deadline;            /* s, monotonic: guarded coroutines end then; 0: none */
} sys_host;

int luaopen_llm_sys(lua_State *L);
void sys_set_host(lua_State *L, sys_host *host);
const embed_file *sys_find_file(const embed_file *files, const char *name);
/* An llm_watch.progress; data is the sys_host. */
void sys_progress(void *data, const char *what, int64_t done, int64_t total);
/* Whether coroutines with this hook must end, and why; data is the sys_host. */
llm_kind sys_over(void *data, lua_Hook hook);
double sys_clock(void);         /* s, monotonic */
bool sys_stopped(lua_State *L); /* whether Ctrl-C has asked */

/* sys_file.c: adds its functions to the table on the top of the stack. */
void sys_add_files(lua_State *L);

/* bandwidth.c: the best rate, in bytes a second, at which n_threads read `bytes` of fresh memory;
 * -1 if memory or threads are not to be had. */
double bandwidth_read(int n_threads, size_t bytes);

/* arithmetic.c: operations a second of n_threads with a tier's instructions, on 8-bit integers or
 * f32; -1 if the tier is not known there. The processor must have it. */
double arithmetic_peak(int n_threads, const char *tier, bool is_int8);

#endif
