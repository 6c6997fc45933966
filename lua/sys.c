/* sys.c: the module `llm.sys`: the few things of the system that the Lua modules of the host need
 * and plain Lua lacks. It keeps no state of its own but the host's, which main.c lends. */
#include "sys.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char host_key = 0;

void sys_set_host(lua_State *L, sys_host *host) {
    lua_pushlightuserdata(L, host);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &host_key);
}

static sys_host *host_of(lua_State *L) {
    lua_rawgetp(L, LUA_REGISTRYINDEX, &host_key);
    sys_host *host = lua_touserdata(L, -1);
    lua_pop(L, 1);
    return host;
}

double sys_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- progress ---- */

#define BAR_WIDTH  30
#define BAR_DELAY  0.2  /* s: what is done sooner shows no bar */
#define BAR_PERIOD 0.05 /* s between two drawings */

static void bar_draw(sys_host *host, int64_t done, int64_t total) {
    char bar[BAR_WIDTH + 1];
    int filled = total > 0 ? (int)((double)done / (double)total * BAR_WIDTH) : 0;
    if (filled < 0) filled = 0;
    if (filled > BAR_WIDTH) filled = BAR_WIDTH;
    memset(bar, '.', BAR_WIDTH);
    memset(bar, '#', (size_t)filled);
    bar[BAR_WIDTH] = 0;
    fprintf(stderr, "\r%s [%s] %d %%\x1b[K", host->bar_what, bar, filled * 100 / BAR_WIDTH);
    host->bar_drawn = true;
}

static void bar_clear(sys_host *host) {
    if (host->bar_drawn) fputs("\r\x1b[K", stderr);
    host->bar_drawn = false;
    host->bar_what = NULL;
}

void sys_progress(void *data, const char *what, int64_t done, int64_t total) {
    sys_host *host = data;
    double now = sys_clock();
    if (!host->bar_wanted) return;
    if (done >= total) {
        bar_clear(host);
        return;
    }
    if (!host->bar_what || strcmp(host->bar_what, what) != 0) {
        host->bar_what = what;
        host->bar_start = now;
        host->bar_last = 0;
    }
    if (now - host->bar_start < BAR_DELAY || now - host->bar_last < BAR_PERIOD) return;
    host->bar_last = now;
    bar_draw(host, done, total);
}

/* progress(on): whether the bar may be drawn from now on; what stands there is wiped. */
static int f_progress(lua_State *L) {
    sys_host *host = host_of(L);
    if (!host) return 0;
    bar_clear(host);
    host->bar_wanted = lua_toboolean(L, 1) && isatty(STDERR_FILENO);
    return 0;
}

/* bar(done, total): so many tokens of a prefill are done. */
static int f_bar(lua_State *L) {
    sys_host *host = host_of(L);
    if (host) sys_progress(host, "prefill", luaL_checkinteger(L, 1), luaL_checkinteger(L, 2));
    return 0;
}

/* ---- Ctrl-C ---- */

static void guard_hook(lua_State *L, lua_Debug *at);
static void job_hook(lua_State *L, lua_Debug *at);

llm_kind sys_over(void *data, lua_Hook hook) {
    const sys_host *host = data;
    if (hook && host->stop) return LLM_INTERRUPTED;
    return hook == job_hook && host->deadline > 0 && sys_clock() > host->deadline ? LLM_TIME
                                                                                  : LLM_OK;
}

/* Fires in Lua code that calls nothing of llm. Once it is over it fires at each instruction, so
 * that no pcall loop swallows it; the hook belongs to the coroutine that was guarded and those it
 * makes. */
static void end_if_over(lua_State *L, lua_Debug *at, lua_Hook hook) {
    sys_host *host = host_of(L);
    llm_kind over = host ? sys_over(host, hook) : LLM_OK;
    if (over == LLM_OK) return;
    lua_getinfo(L, "S", at);
    if (strstr(at->source, "llm/coroutines.lua")) return; /* it closes what the script left open */
    lua_sethook(L, hook, LUA_MASKCOUNT, 1);
    lua_pushstring(L, over == LLM_TIME ? "the job's time is over (--max-seconds)" : "interrupted");
    lua_error(L);
}

static void guard_hook(lua_State *L, lua_Debug *at) { end_if_over(L, at, guard_hook); }

static void job_hook(lua_State *L, lua_Debug *at) { end_if_over(L, at, job_hook); }

/* deadline(t or nil): coroutines guarded under a deadline end when clock() is past it. Returns the
 * one before. */
static int f_deadline(lua_State *L) {
    sys_host *host = host_of(L);
    double t = luaL_optnumber(L, 1, 0);
    if (host && host->deadline > 0)
        lua_pushnumber(L, host->deadline);
    else
        lua_pushnil(L);
    if (host) host->deadline = t;
    return 1;
}

/* over() → nil, "interrupted" or "time": whether a job must end now */
static int f_over(lua_State *L) {
    sys_host *host = host_of(L);
    llm_kind over = host ? sys_over(host, job_hook) : LLM_OK;
    if (over == LLM_OK) return 0;
    lua_pushstring(L, llm_kind_name(over));
    return 1;
}

/* guard([coroutine]): Ctrl-C ends what runs there, by an error; so do deadlines, if one stands. */
static int f_guard(lua_State *L) {
    const sys_host *host = host_of(L);
    lua_State *co = lua_isthread(L, 1) ? lua_tothread(L, 1) : L;
    lua_sethook(co, host && host->deadline > 0 ? job_hook : guard_hook, LUA_MASKCOUNT, 1000);
    return 0;
}

static int f_unguard(lua_State *L) {
    lua_State *co = lua_isthread(L, 1) ? lua_tothread(L, 1) : L;
    lua_sethook(co, NULL, 0, 0);
    return 0;
}

/* scope(table or nil): caches made from now on are keys of the table, so that the host can close
 * those that a job leaves behind. The binding looks at the registry's "llm.scope". */
static int f_scope(lua_State *L) {
    lua_settop(L, 1);
    lua_setfield(L, LUA_REGISTRYINDEX, "llm.scope");
    return 0;
}

bool sys_stopped(lua_State *L) {
    const sys_host *host = host_of(L);
    return host && host->stop;
}

static int f_interrupted(lua_State *L) {
    lua_pushboolean(L, sys_stopped(L));
    return 1;
}

/* stop_status() → the exit status of a program that the signal has ended */
static int f_stop_status(lua_State *L) {
    const sys_host *host = host_of(L);
    lua_pushinteger(L, 128 + (host && host->stop ? host->stop : SIGINT));
    return 1;
}

static int f_clear_interrupt(lua_State *L) {
    sys_host *host = host_of(L);
    if (host) host->stop = 0;
    return 0;
}

/* ---- files and the process ---- */

static int f_isatty(lua_State *L) {
    lua_pushboolean(L, isatty((int)luaL_checkinteger(L, 1)));
    return 1;
}

static int f_clock(lua_State *L) {
    lua_pushnumber(L, sys_clock());
    return 1;
}

/* peak_rss() → bytes */
static int f_peak_rss(lua_State *L) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    lua_pushinteger(L, (lua_Integer)usage.ru_maxrss * 1024);
    return 1;
}

/* stdin_kind() → "terminal", "pipe", "file" (with something left to read) or "none". */
static int f_stdin_kind(lua_State *L) {
    struct stat st;
    const char *kind = "none";
    if (fstat(STDIN_FILENO, &st) == 0) {
        if (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode))
            kind = "pipe";
        else if (S_ISREG(st.st_mode) && lseek(STDIN_FILENO, 0, SEEK_CUR) < st.st_size)
            kind = "file";
        else if (isatty(STDIN_FILENO))
            kind = "terminal";
    }
    lua_pushstring(L, kind);
    return 1;
}

/* path_kind(path) → "file", "folder", "other", or nil, message */
static int f_path_kind(lua_State *L) {
    struct stat st;
    if (stat(luaL_checkstring(L, 1), &st) != 0) {
        lua_pushnil(L);
        lua_pushstring(L, strerror(errno));
        return 2;
    }
    lua_pushstring(L, S_ISREG(st.st_mode) ? "file" : S_ISDIR(st.st_mode) ? "folder" : "other");
    return 1;
}

/* write(fd, bytes) → true, or nil, message, "pipe" when the reader has gone (else "error").
 * Unbuffered. */
static int f_write(lua_State *L) {
    int fd = (int)luaL_checkinteger(L, 1);
    size_t n;
    const char *bytes = luaL_checklstring(L, 2, &n);
    while (n > 0) {
        ssize_t written = write(fd, bytes, n);
        if (written < 0 && errno == EAGAIN) { /* a pipe that does not block: wait for room */
            struct pollfd room = {.fd = fd, .events = POLLOUT};
            if (poll(&room, 1, -1) >= 0) continue;
        }
        sys_host *host = host_of(L);
        if (written < 0 && errno == EINTR && !(host && host->stop)) continue;
        if (written < 0) {
            int code = errno;
            lua_pushnil(L);
            lua_pushstring(L, strerror(code));
            lua_pushstring(L, code == EPIPE ? "pipe" : "error");
            return 3;
        }
        bytes += written;
        n -= (size_t)written;
    }
    lua_pushboolean(L, 1);
    return 1;
}

const embed_file *sys_find_file(const embed_file *files, const char *name) {
    for (; files && files->name; files++)
        if (strcmp(files->name, name) == 0) return files;
    return NULL;
}

/* file(name) → bytes of an embedded file, or nil */
static int f_file(lua_State *L) {
    const char *name = luaL_checkstring(L, 1);
    sys_host *host = host_of(L);
    const embed_file *file = host ? sys_find_file(host->files, name) : NULL;
    if (file)
        lua_pushlstring(L, (const char *)file->data, file->size);
    else
        lua_pushnil(L);
    return 1;
}

/* files() → the names of the embedded files, in order */
static int f_files(lua_State *L) {
    sys_host *host = host_of(L);
    lua_newtable(L);
    for (const embed_file *file = host ? host->files : NULL; file && file->name; file++) {
        lua_pushstring(L, file->name);
        lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
    }
    return 1;
}

/* read_bandwidth(threads, bytes) → bytes a second, or nil, message */
static int f_read_bandwidth(lua_State *L) {
    lua_Integer n_threads = luaL_checkinteger(L, 1), bytes = luaL_checkinteger(L, 2);
    luaL_argcheck(L, n_threads >= 1 && n_threads <= 1024, 1, "1 to 1024 threads");
    luaL_argcheck(L, bytes >= 1 << 20 && bytes <= (lua_Integer)1 << 36, 2, "1 MiB to 64 GiB");
    double rate = bandwidth_read((int)n_threads, (size_t)bytes);
    if (rate > 0) {
        lua_pushnumber(L, rate);
        return 1;
    }
    lua_pushnil(L);
    lua_pushliteral(L, "no memory or threads for the bandwidth test");
    return 2;
}

/* peak_operations(threads, tier, int8) → operations a second, or nil if the tier is not known */
static int f_peak_operations(lua_State *L) {
    lua_Integer n_threads = luaL_checkinteger(L, 1);
    luaL_argcheck(L, n_threads >= 1 && n_threads <= 1024, 1, "1 to 1024 threads");
    double rate = arithmetic_peak((int)n_threads, luaL_checkstring(L, 2), lua_toboolean(L, 3));
    if (rate < 0) return 0;
    lua_pushnumber(L, rate);
    return 1;
}

static const luaL_Reg functions[] = {
    {"progress", f_progress},
    {"bar", f_bar},
    {"deadline", f_deadline},
    {"over", f_over},
    {"guard", f_guard},
    {"unguard", f_unguard},
    {"scope", f_scope},
    {"interrupted", f_interrupted},
    {"stop_status", f_stop_status},
    {"clear_interrupt", f_clear_interrupt},
    {"isatty", f_isatty},
    {"clock", f_clock},
    {"peak_rss", f_peak_rss},
    {"stdin_kind", f_stdin_kind},
    {"path_kind", f_path_kind},
    {"write", f_write},
    {"file", f_file},
    {"files", f_files},
    {"read_bandwidth", f_read_bandwidth},
    {"peak_operations", f_peak_operations},
    {NULL, NULL},
};

__attribute__((visibility("default"))) int luaopen_llm_sys(lua_State *L) {
    if (!host_of(L)) { /* llm.so: there is no program */
        sys_host *own = lua_newuserdatauv(L, sizeof *own, 0);
        memset(own, 0, sizeof *own);
        sys_set_host(L, own);
        lua_rawsetp(L, LUA_REGISTRYINDEX, own);
    }
    binding_set_over(L, sys_over, host_of(L));
    luaL_newlib(L, functions);
    sys_add_files(L);
    lua_pushliteral(L, LLM_VERSION);
    lua_setfield(L, -2, "version");
    return 1;
}
