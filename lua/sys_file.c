/* sys_file.c: files for the host's Lua modules, where a line must be written whole or not at all:
 * llm.sys.open gives a file without buffers that can be locked, cut and synced; survey and hash say
 * what a text is. Failures are nil, message. */
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define CLASS_FILE "llm.sys.file"
#define PIECE      65536

typedef struct sys_file {
    int fd; /* -1: closed */
} sys_file;

static int push_failure(lua_State *L, int code) {
    lua_pushnil(L);
    lua_pushstring(L, strerror(code));
    return 2;
}

static int push_true(lua_State *L) {
    lua_pushboolean(L, 1);
    return 1;
}

static int file_close(lua_State *L) {
    sys_file *f = luaL_checkudata(L, 1, CLASS_FILE);
    int fd = f->fd;
    f->fd = -1;
    if (fd > 2 && close(fd) != 0) return push_failure(L, errno);
    return push_true(L);
}

static int check_file(lua_State *L) {
    const sys_file *f = luaL_checkudata(L, 1, CLASS_FILE);
    if (f->fd < 0) luaL_error(L, "file is closed");
    return f->fd;
}

/* open(path, mode): "read"; "append": made if absent, at its end, readable; "new": empty, made if
 * absent; "write": what is there, such as a pipe. Or of a descriptor: open(fd). */
static int f_open(lua_State *L) {
    static const char *const modes[] = {"read", "append", "new", "write", NULL};
    static const int flags[] = {O_RDONLY, O_RDWR | O_CREAT | O_APPEND,
                                O_RDWR | O_CREAT | O_TRUNC | O_APPEND, O_WRONLY};
    int mode = luaL_checkoption(L, 2, "read", modes);
    sys_file *f = lua_newuserdatauv(L, sizeof *f, 0);
    f->fd = -1;
    luaL_setmetatable(L, CLASS_FILE);
    if (lua_isinteger(L, 1)) {
        f->fd = (int)lua_tointeger(L, 1);
        return 1;
    }
    do {
        f->fd = open(luaL_checkstring(L, 1), flags[mode] | O_CLOEXEC, 0666);
    } while (f->fd < 0 && errno == EINTR && !sys_stopped(L));
    return f->fd >= 0 ? 1 : push_failure(L, errno);
}

/* read(n) → at most n bytes, what there is of them; "" at the end; or nil, message. */
static int file_read(lua_State *L) {
    int fd = check_file(L);
    lua_Integer n = luaL_checkinteger(L, 2);
    luaL_argcheck(L, n >= 1 && n <= 1 << 30, 2, "1 byte to 1 GiB");
    luaL_Buffer buffer;
    char *to = luaL_buffinitsize(L, &buffer, (size_t)n);
    ssize_t got;
    while ((got = read(fd, to, (size_t)n)) < 0) {
        int code = errno;
        struct pollfd room = {.fd = fd, .events = POLLIN};
        if (code == EAGAIN && poll(&room, 1, -1) >= 0) continue;
        if ((code == EINTR || code == EAGAIN) && !sys_stopped(L)) continue;
        return push_failure(L, code);
    }
    luaL_pushresultsize(&buffer, (size_t)got);
    return 1;
}

/* ready() → whether read would not wait */
static int file_ready(lua_State *L) {
    struct pollfd room = {.fd = check_file(L), .events = POLLIN};
    lua_pushboolean(L, poll(&room, 1, 0) != 0);
    return 1;
}

/* How much of n bytes may be written now: after Ctrl-C, to what is no plain file, only what does
 * not wait for a reader. */
static size_t find_room(lua_State *L, int fd, const struct stat *st, size_t n) {
    if (S_ISREG(st->st_mode) || !sys_stopped(L)) return n;
    struct pollfd room = {.fd = fd, .events = POLLOUT};
    if (poll(&room, 1, 0) <= 0) return 0;
    return n < PIPE_BUF ? n : PIPE_BUF;
}

/* append(bytes) → true; or nil, message: then a plain file is as it was. There a signal does not
 * cut it. */
static int file_append(lua_State *L) {
    int fd = check_file(L);
    size_t n, done = 0;
    const char *bytes = luaL_checklstring(L, 2, &n);
    struct stat before;
    if (fstat(fd, &before) != 0) return push_failure(L, errno);
    while (done < n) {
        size_t most = find_room(L, fd, &before, n - done);
        if (most == 0) return push_failure(L, EINTR);
        ssize_t written = write(fd, bytes + done, most);
        if (written >= 0) {
            done += (size_t)written;
            continue;
        }
        int code = errno;
        if (code == EINTR) continue;
        if (done > 0 && S_ISREG(before.st_mode) && ftruncate(fd, before.st_size) != 0) {
            lua_pushnil(L);
            lua_pushfstring(L, "%s, and part of a line could not be taken back", strerror(code));
            return 2;
        }
        return push_failure(L, code);
    }
    return push_true(L);
}

static int file_size(lua_State *L) {
    struct stat st;
    if (fstat(check_file(L), &st) != 0) return push_failure(L, errno);
    lua_pushinteger(L, (lua_Integer)st.st_size);
    return 1;
}

static int file_truncate(lua_State *L) {
    if (ftruncate(check_file(L), (off_t)luaL_checkinteger(L, 2)) != 0)
        return push_failure(L, errno);
    return push_true(L);
}

static int file_seek(lua_State *L) {
    if (lseek(check_file(L), (off_t)luaL_checkinteger(L, 2), SEEK_SET) < 0)
        return push_failure(L, errno);
    return push_true(L);
}

static int file_sync(lua_State *L) {
    if (fsync(check_file(L)) != 0 && errno != EINVAL) return push_failure(L, errno);
    return push_true(L);
}

/* lock() → true, or false if another process holds it; until the file is closed. */
static int file_lock(lua_State *L) {
    int fd = check_file(L);
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) {
            lua_pushboolean(L, 0);
            return 1;
        }
        if (errno != EINTR) return push_failure(L, errno);
    }
    return push_true(L);
}

/* same_file(a, b) → whether both paths lead to one file */
static int f_same_file(lua_State *L) {
    struct stat a, b;
    lua_pushboolean(L, stat(luaL_checkstring(L, 1), &a) == 0 &&
                           stat(luaL_checkstring(L, 2), &b) == 0 && a.st_dev == b.st_dev &&
                           a.st_ino == b.st_ino);
    return 1;
}

/* real_path(path) → where the path leads if it is a link, else the path; or nil, message. */
static int f_real_path(lua_State *L) {
    const char *path = luaL_checkstring(L, 1);
    struct stat st;
    if (lstat(path, &st) != 0 || !S_ISLNK(st.st_mode)) {
        lua_settop(L, 1);
        return 1;
    }
    char *real = realpath(path, NULL);
    if (!real) return push_failure(L, errno);
    lua_pushstring(L, real);
    free(real);
    return 1;
}

/* ---- what a text is ---- */

typedef struct text_hash {
    uint64_t h;
} text_hash;

/* FNV-1a (Fowler, Noll, Vo), 64 bits: tells texts apart that nobody made to collide. */
static void hash_bytes(text_hash *hash, const char *bytes, size_t n) {
    uint64_t h = hash->h;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001b3);
    hash->h = h;
}

static void push_hash(lua_State *L, const text_hash *hash) {
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, hash->h);
    lua_pushstring(L, text);
}

static const text_hash hash_start = {UINT64_C(0xcbf29ce484222325)};

/* hash(bytes) → 16 hexadecimal digits */
static int f_hash(lua_State *L) {
    size_t n;
    const char *bytes = luaL_checklstring(L, 1, &n);
    text_hash hash = hash_start;
    hash_bytes(&hash, bytes, n);
    push_hash(L, &hash);
    return 1;
}

/* Counts lines that hold more than white space; a byte order mark is none. */
typedef struct line_count {
    lua_Integer n;
    bool is_filled; /* this line */
} line_count;

static void count_lines(line_count *count, const char *bytes, size_t n, bool is_first) {
    size_t i = is_first && n >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    for (; i < n; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c == '\n') {
            count->n += count->is_filled;
            count->is_filled = false;
        } else if (c != ' ' && (c < '\t' || c > '\r')) {
            count->is_filled = true;
        }
    }
}

/* survey(path) → hash of the content, number of its lines that are not blank */
static int f_survey(lua_State *L) {
    int fd = open(luaL_checkstring(L, 1), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return push_failure(L, errno);
    char piece[PIECE];
    text_hash hash = hash_start;
    line_count count = {0, false};
    ssize_t got;
    for (bool is_first = true; (got = read(fd, piece, sizeof piece)) != 0; is_first = false) {
        if (got < 0 && errno == EINTR && !sys_stopped(L)) continue;
        if (got < 0) break;
        hash_bytes(&hash, piece, (size_t)got);
        count_lines(&count, piece, (size_t)got, is_first);
    }
    int code = errno;
    close(fd);
    if (got < 0) return push_failure(L, code);
    push_hash(L, &hash);
    lua_pushinteger(L, count.n + count.is_filled);
    return 2;
}

static const luaL_Reg file_methods[] = {
    {"read", file_read}, {"ready", file_ready},       {"append", file_append},
    {"size", file_size}, {"truncate", file_truncate}, {"seek", file_seek},
    {"sync", file_sync}, {"lock", file_lock},         {"close", file_close},
    {NULL, NULL},
};

static const luaL_Reg functions[] = {
    {"open", f_open}, {"same_file", f_same_file}, {"real_path", f_real_path},
    {"hash", f_hash}, {"survey", f_survey},       {NULL, NULL},
};

void sys_add_files(lua_State *L) {
    luaL_newmetatable(L, CLASS_FILE);
    lua_pushcfunction(L, file_close);
    lua_setfield(L, -2, "__gc");
    lua_pushcfunction(L, file_close);
    lua_setfield(L, -2, "__close");
    luaL_newlib(L, file_methods);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
    luaL_setfuncs(L, functions, 0);
}
