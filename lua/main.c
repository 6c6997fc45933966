/* main.c: the program `llmlua`: a Lua state with the standard libraries and the engine, the modules
 * carried inside, Ctrl-C, and then the Lua module llm.host, which is all the rest. */
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sys_host host;

#define SIGNAL_ECHO 0.2 /* s: `timeout` signals the process and then its group: one wish */

/* The first Ctrl-C asks; a second one kills. */
static void on_signal(int sig) {
    static double asked;
    double now = sys_clock();
    if (host.stop && now - asked > SIGNAL_ECHO) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
    if (!host.stop) asked = now;
    host.stop = sig;
}

/* Files are read where they are mapped. One that became shorter meanwhile leaves nothing to go on
 * with, wherever that is noticed. */
static void on_bus_error(int sig, siginfo_t *info, void *context) {
    static const char message[] = "llmlua: a file that was being read (a model?) has become "
                                  "shorter: it was changed in place\n";
    (void)context;
    if (info->si_code != BUS_ADRERR) {
        signal(sig, SIG_DFL);
        raise(sig);
        return;
    }
    const ssize_t n_written = write(STDERR_FILENO, message, sizeof message - 1);
    (void)n_written; /* nothing can be done about it */
    _exit(1);
}

static void watch_signals(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    action.sa_handler = on_signal;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = on_bus_error;
    sigaction(SIGBUS, &action, NULL);
    signal(SIGPIPE, SIG_DFL); /* whoever reads has gone: end, quietly */
    signal(SIGXFSZ, SIG_IGN); /* a file may grow no further: write fails, as on a full disk */
}

/* A package searcher: "llm.host" is "lua/llm/host.lua", "samplers.x" is "samplers/x.lua". */
static int search_embedded(lua_State *L) {
    const char *module = luaL_checkstring(L, 1);
    const char *path = luaL_gsub(L, module, ".", "/");
    const char *name = lua_pushfstring(L, "lua/%s.lua", path);
    const embed_file *file = sys_find_file(embed_files, name);
    if (!file) {
        name = lua_pushfstring(L, "%s.lua", path);
        file = sys_find_file(embed_files, name);
    }
    if (!file) {
        lua_pushfstring(L, "no bundled file '%s'", name);
        return 1;
    }
    const char *chunk = lua_pushfstring(L, "@%s", file->name);
    if (luaL_loadbufferx(L, (const char *)file->data, file->size, chunk, "t") != LUA_OK)
        return lua_error(L);
    lua_pushstring(L, file->name);
    return 2;
}

/* Right after package.preload. */
static void add_searcher(lua_State *L) {
    lua_getglobal(L, "package");
    lua_getfield(L, -1, "searchers");
    for (lua_Integer i = (lua_Integer)lua_rawlen(L, -1); i >= 2; i--) {
        lua_rawgeti(L, -1, i);
        lua_rawseti(L, -2, i + 1);
    }
    lua_pushcfunction(L, search_embedded);
    lua_rawseti(L, -2, 2);
    lua_pop(L, 2);
}

static int add_traceback(lua_State *L) {
    luaL_traceback(L, L, luaL_tolstring(L, 1, NULL), 1);
    return 1;
}

/* (argc, argv) → llm.host.main{[0] = program, arguments …} → exit status */
static int run_host(lua_State *L) {
    int argc = (int)lua_tointeger(L, 1);
    char **argv = lua_touserdata(L, 2);
    static const llm_watch watch = {&host.stop, sys_progress, &host};
    luaL_openlibs(L);
    luaL_requiref(L, "llm", luaopen_llm, 1);
    luaL_requiref(L, "llm.sys", luaopen_llm_sys, 0);
    luaL_requiref(L, "llm.requests", luaopen_llm_requests, 0);
    binding_set_watch(L, &watch);
    const embed_file *model = sys_find_file(embed_files, "models/builtin.gguf");
    if (model) binding_set_builtin(L, model->data, model->size);
    add_searcher(L);
    lua_getglobal(L, "require");
    lua_pushliteral(L, "llm.host");
    lua_call(L, 1, 1);
    lua_getfield(L, -1, "main");
    lua_createtable(L, argc, 1);
    for (int i = 0; i < argc; i++) {
        lua_pushstring(L, argv[i]);
        lua_rawseti(L, -2, i);
    }
    lua_call(L, 1, 1);
    return 1;
}

static int state_run(lua_State *L, int argc, char **argv) {
    int status = EXIT_FAILURE;
    lua_pushcfunction(L, add_traceback);
    lua_pushcfunction(L, run_host);
    lua_pushinteger(L, argc);
    lua_pushlightuserdata(L, argv);
    if (lua_pcall(L, 2, 1, 1) == LUA_OK)
        status = (int)lua_tointeger(L, -1);
    else
        fprintf(stderr, "llmlua: %s\n", lua_tostring(L, -1));
    return status;
}

/* Standard streams that were closed must not become the user's files. */
static void open_streams(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) < 0)
            _exit(EXIT_FAILURE);
}

int main(int argc, char **argv) {
    open_streams();
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("llmlua %s\n", LLM_VERSION);
        if (fflush(stdout) == 0) return EXIT_SUCCESS;
        fputs("llmlua: cannot write to standard output\n", stderr);
        return EXIT_FAILURE;
    }
    lua_State *L = luaL_newstate();
    if (!L) {
        fputs("llmlua: out of memory\n", stderr);
        return EXIT_FAILURE;
    }
    host.files = embed_files;
    sys_set_host(L, &host);
    watch_signals();
    int status = state_run(L, argc, argv);
    lua_close(L);
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == EXIT_SUCCESS) {
        fputs("llmlua: cannot write to standard output\n", stderr);
        status = EXIT_FAILURE;
    }
    return status;
}
