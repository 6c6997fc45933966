/* image.c: finding and reading images of weights. */
#include "image.h"

#include "../kernels/memory.h"
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define LEAST_BYTES ((size_t)32 << 20) /* of a file: smaller ones load at once */

/* ---- files ---- */

static bool is_own(int fd, mode_t kind) {
    struct stat info;
    if (fstat(fd, &info) != 0) return false;
    errno = EPERM;
    return (info.st_mode & S_IFMT) == kind && info.st_uid == geteuid() && !(info.st_mode & 022);
}

static int own_or_close(int fd, mode_t kind) {
    if (fd < 0 || is_own(fd, kind)) return fd;
    const int why = errno;
    close(fd);
    errno = why;
    return -1;
}

/* Makes the folders of a path, for the user alone. 0, or why the last one could not be made. */
static int make_folders(const char *path) {
    const size_t n = strlen(path) + 1;
    char *copy = kern_alloc(n);
    if (!copy) return ENOMEM;
    memcpy(copy, path, n);
    for (char *at = copy + 1; *at; at++) {
        if (*at != '/') continue;
        *at = '\0';
        const int code = mkdir(copy, 0700);
        *at = '/';
        if (code != 0 && errno != EEXIST) break; /* no folder below it can be made either */
    }
    const int why = mkdir(copy, 0700) == 0 || errno == EEXIST ? 0 : errno;
    kern_free(copy);
    return why;
}

int image_open_folder(const char *path, bool make) {
    const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    int fd = open(path, flags);
    if (fd < 0 && errno == ENOENT && make) {
        const int why = make_folders(path);
        fd = open(path, flags);
        if (fd < 0 && why != 0) errno = why;
    }
    return own_or_close(fd, S_IFDIR);
}

const char *image_why_not(const char *path) {
    const int why = errno;
    struct stat info;
    if (why != EPERM || stat(path, &info) != 0) return strerror(why);
    if (info.st_uid != geteuid()) return "the folder belongs to another user";
    return info.st_mode & 022 ? "others may write to the folder" : strerror(why);
}

int image_open_file(int folder, const char *name) {
    return own_or_close(openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC),
                        S_IFREG);
}

bool image_read_at(int fd, void *to, size_t bytes, uint64_t at) {
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = pread(fd, (char *)to + done, bytes - done, (off_t)(at + done));
        if (n == 0) errno = 0;
        if (n == 0 || (n < 0 && errno != EINTR)) return false;
        if (n > 0) done += (size_t)n;
    }
    return true;
}

bool image_write_at(int fd, const void *from, size_t bytes, uint64_t at) {
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = pwrite(fd, (const char *)from + done, bytes - done, (off_t)(at + done));
        if (n == 0) errno = ENOSPC;
        if (n == 0 || (n < 0 && errno != EINTR)) return false;
        if (n > 0) done += (size_t)n;
    }
    return true;
}

/* ---- the header ---- */

uint64_t image_header_sum(const image_header *h) {
    return XXH3_64bits(h, offsetof(image_header, header_sum));
}

/* All but the sums. */
image_header image_header_of(const image *m) {
    image_header h = {.version = IMAGE_VERSION,
                      .piece_bytes = (uint32_t)KERN_IMAGE_PIECE,
                      .content = {m->hash[0], m->hash[1]},
                      .layout = m->layout,
                      .bytes = m->bytes};
    memcpy(h.magic, IMAGE_MAGIC, sizeof h.magic);
    return h;
}

/* Whether the file is the image that is wanted, whole; takes its table of sums. */
static bool read_header(image *m) {
    const size_t table = 8 * (size_t)image_n_pieces(m->bytes);
    image_header h, wanted = image_header_of(m);
    struct stat info;
    if (fstat(m->fd, &info) != 0 || (uint64_t)info.st_size != image_data_at(m->bytes) + m->bytes ||
        !image_read_at(m->fd, &h, sizeof h, 0))
        return false;
    wanted.sums_sum = h.sums_sum;
    wanted.header_sum = image_header_sum(&wanted);
    if (memcmp(&h, &wanted, sizeof h) != 0) return false;
    m->sums = kern_alloc(table);
    return m->sums && image_read_at(m->fd, m->sums, table, sizeof h) &&
           XXH3_64bits(m->sums, table) == h.sums_sum;
}

/* ---- the backend's calls ---- */

static bool call_open(void *data, uint64_t layout, size_t bytes) {
    image *m = data;
    if (bytes == 0 || !image_find_hash(m)) return false;
    m->layout = layout;
    m->bytes = bytes;
    m->data_at = image_data_at(bytes);
    snprintf(m->name, sizeof m->name, "%016" PRIx64 "-%016" PRIx64 "%016" PRIx64 ".image", layout,
             m->hash[0], m->hash[1]);
    const int folder = image_open_folder(m->folder, false);
    if (folder < 0) return false;
    m->fd = image_open_file(folder, m->name);
    m->is_refused = m->fd < 0 && errno != ENOENT;
    close(folder);
    if (m->fd < 0) return false;
    if (!read_header(m)) {
        m->is_refused = true;
        return false;
    }
    futimens(m->fd, NULL); /* used now; where that is not allowed it grows old */
    return true;
}

static bool call_read(void *data, size_t offset, void *to, size_t bytes) {
    image *m = data;
    if (image_read_at(m->fd, to, bytes, m->data_at + offset) &&
        XXH3_64bits(to, bytes) == m->sums[offset / KERN_IMAGE_PIECE])
        return true;
    __atomic_store_n(&m->is_refused, true, __ATOMIC_RELAXED); /* by several threads, the same */
    return false;
}

/* The thread is started at once and has no signals of its own: what a limit of the process sends to
 * a writer (SIGXFSZ) stays with it. */
static void call_keep(void *data, const void *from) {
    image *m = data;
    if (!*m->name || !m->is_hashed) return;
    m->kept = from;
    m->process = (long)getpid();
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    m->is_writing = pthread_create(&m->writer, NULL, image_write, m) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---- open and close ---- */

/* The folder that `wanted` (or the environment) means; NULL: none. *is_named: it said so itself. */
static char *choose_folder(const char *wanted, bool *is_named) {
    static const char *const parts[] = {"LLMLUA_WEIGHT_CACHE", "XDG_CACHE_HOME", "HOME"};
    static const char *const ends[] = {"", "/llmlua/weights", "/.cache/llmlua/weights"};
    *is_named = wanted && *wanted;
    const char *start = *is_named ? wanted : NULL, *end = "";
    for (size_t i = 0; i < 3 && !start; i++) {
        start = getenv(parts[i]);
        end = ends[i];
        if (start && (!*start || (i > 0 && *start != '/'))) start = NULL;
    }
    if (!start) return NULL;
    const size_t n = strlen(start) + strlen(end) + 1;
    char *folder = kern_alloc(n);
    if (folder) snprintf(folder, n, "%s%s", start, end);
    return folder;
}

static bool is_off(const char *wanted) {
    if (!wanted || !*wanted) wanted = getenv("LLMLUA_WEIGHT_CACHE");
    return wanted && strcmp(wanted, "off") == 0;
}

image *image_open(const gguf_file *file, const char *wanted, const volatile int *stop) {
    bool is_named;
    const gguf_identity identity = gguf_identify(file);
    if (!identity.bytes || is_off(wanted)) return NULL;
    char *folder = choose_folder(wanted, &is_named);
    image *m = is_named || identity.bytes >= LEAST_BYTES ? kern_alloc(sizeof *m) : NULL;
    if (!m) {
        kern_free(folder);
        return NULL;
    }
    if (!folder)
        snprintf(m->note, sizeof m->note,
                 "no folder to keep weights in: neither "
                 "LLMLUA_WEIGHT_CACHE nor, as an absolute path, XDG_CACHE_HOME or HOME names one");
    m->file = file;
    m->stop = stop;
    m->folder = folder;
    m->fd = -1;
    m->most = IMAGE_MOST;
    m->calls = (kern_image){m, call_open, call_read, call_keep};
    pthread_mutex_init(&m->mutex, NULL);
    pthread_cond_init(&m->hurry, NULL);
    return m;
}

void image_settle(image *m) {
    if (!m) return;
    if (m->fd >= 0) close(m->fd);
    m->fd = -1;
    kern_free(m->sums);
    m->sums = NULL;
}

/* In a child made by fork() the thread does not exist. */
void image_finish(image *m, bool cancel) {
    if (!m || !m->is_writing || m->process != (long)getpid()) return;
    pthread_mutex_lock(&m->mutex);
    m->is_hurried = true;
    if (cancel) m->is_cancelled = true;
    pthread_cond_signal(&m->hurry);
    pthread_mutex_unlock(&m->mutex);
    pthread_join(m->writer, NULL);
    m->is_writing = false;
}

void image_close(image *m) {
    if (!m) return;
    image_finish(m, m->stop && *m->stop);
    image_settle(m);
    if (!m->is_writing) { /* not in such a child, where both are in use for ever */
        pthread_mutex_destroy(&m->mutex);
        pthread_cond_destroy(&m->hurry);
    }
    kern_free(m->folder);
    kern_free(m);
}

const kern_image *image_calls(image *m) { return m && m->folder ? &m->calls : NULL; }
double image_hash_s(const image *m) { return m ? m->hash_s : 0; }
const uint64_t *image_hash(image *m) { return m && m->is_hashed ? m->hash : NULL; }
const char *image_note(const image *m) { return m && *m->note ? m->note : NULL; }
