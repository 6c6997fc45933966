/* image_write.c: writing an image: in a thread of its own that waits until the first tokens are
 * out, into a file beside, which gets the image's name when it is whole. Makes room by removing the
 * images that were not used for longest. */
#include "image.h"

#include "../kernels/memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    WAIT_S = 2,              /* before it begins, unless hurried */
    NICENESS = 10,           /* beside threads that decode */
    DAY_S = 24 * 3600,       /* until a file being written counts as left */
    MEMO_S = 90 * 24 * 3600, /* until a remembered hash goes */
    STEP_PIECES = 32         /* pieces between two calls that start writing to the disk */
};
#define SHARE 10 /* all images together take at most a tenth of what the file system has free */

static void give_up(image *m, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void give_up(image *m, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(m->note, sizeof m->note, format, arguments);
    va_end(arguments);
}

/* What a file in the folder is, by the form of its name (image.h): nothing else is ours. */
typedef enum file_kind { THEIRS, IMAGE, MEMO, PART } file_kind;

static size_t n_digits(const char *text) { return strspn(text, "0123456789abcdef"); }

static bool begins_with(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

static file_kind kind_of(const char *name) {
    const size_t n_first = n_digits(name);
    if (n_first == 0 || name[n_first] != '-') return THEIRS;
    const size_t n_second = n_digits(name + n_first + 1);
    const char *end = name + n_first + 1 + n_second;
    file_kind kind = THEIRS;
    if (n_first == 16 && n_second == 32 && begins_with(end, ".image"))
        kind = IMAGE;
    else if (n_first <= 16 && n_second > 0 && n_second <= 16 && begins_with(end, ".content"))
        kind = MEMO;
    if (kind == THEIRS) return THEIRS;
    end += strlen(kind == IMAGE ? ".image" : ".content");
    if (*end == '\0') return kind;
    const size_t n_numbers = strspn(end, ".-0123456789"); /* with the dot of what follows */
    return n_numbers > 2 && strcmp(end + n_numbers - 1, ".part") == 0 ? PART : THEIRS;
}

static bool is_cancelled(const image *m) { return m->is_cancelled || (m->stop && *m->stop); }

/* ---- room ---- */

typedef struct room {
    uint64_t used; /* bytes of all images but the one to be written */
    char oldest[NAME_MAX + 1];
    uint64_t oldest_bytes;
    struct timespec oldest_time;
} room;

static bool is_before(struct timespec a, struct timespec b) {
    return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

static void look_at(const image *m, int folder, const char *name, room *r) {
    struct stat info;
    if (fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode)) return;
    const time_t age = time(NULL) - info.st_mtim.tv_sec;
    const file_kind kind = kind_of(name);
    if ((kind == PART && age > DAY_S) || (kind == MEMO && age > MEMO_S)) unlinkat(folder, name, 0);
    if (kind != IMAGE || strcmp(name, m->name) == 0) return;
    r->used += (uint64_t)info.st_size;
    if (*r->oldest && !is_before(info.st_mtim, r->oldest_time)) return;
    snprintf(r->oldest, sizeof r->oldest, "%s", name);
    r->oldest_bytes = (uint64_t)info.st_size;
    r->oldest_time = info.st_mtim;
}

static bool survey(const image *m, int folder, room *r) {
    *r = (room){0};
    const int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *files = fd < 0 ? NULL : fdopendir(fd);
    if (!files) {
        if (fd >= 0) close(fd);
        return false;
    }
    for (const struct dirent *file; (file = readdir(files));) look_at(m, folder, file->d_name, r);
    closedir(files);
    return true;
}

/* Removes images, the longest unused first, until one of so many bytes has room. */
static bool make_room(image *m, int folder, uint64_t bytes) {
    room r;
    struct statvfs disk;
    while (survey(m, folder, &r) && fstatvfs(folder, &disk) == 0) {
        const uint64_t part = ((uint64_t)disk.f_bavail * disk.f_frsize + r.used) / SHARE;
        const uint64_t most = part < m->most ? part : m->most;
        if (bytes > most) {
            give_up(m, "an image of %llu bytes is more than the %llu that %s may take",
                    (unsigned long long)bytes, (unsigned long long)most, m->folder);
            return false;
        }
        if (r.used + bytes <= most) return true;
        if (unlinkat(folder, r.oldest, 0) != 0) break;
    }
    give_up(m, "no room could be made in %s: %s", m->folder, strerror(errno));
    return false;
}

/* ---- the file ---- */

/* The pieces, with their sums. */
static bool write_pieces(image *m, int fd, uint64_t *sums) {
    const uint64_t n = image_n_pieces(m->bytes);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t at = i * KERN_IMAGE_PIECE;
        const size_t bytes = m->bytes - at < KERN_IMAGE_PIECE ? m->bytes - at : KERN_IMAGE_PIECE;
        if (is_cancelled(m)) return false;
        sums[i] = XXH3_64bits(m->kept + at, bytes);
        if (!image_write_at(fd, m->kept + at, bytes, m->data_at + at)) return false;
        if (i % STEP_PIECES == STEP_PIECES - 1) sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    }
    return true;
}

/* Waits for the disk, unless the model is being closed: sums tell an image that a fall of power
 * left torn. */
static bool settle(image *m, int fd) {
    const uint64_t step = STEP_PIECES * KERN_IMAGE_PIECE, end = m->data_at + m->bytes;
    for (uint64_t at = 0; at < end && !m->is_hurried; at += step)
        sync_file_range(fd, (off_t)at, (off_t)step,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                            SYNC_FILE_RANGE_WAIT_AFTER);
    return m->is_hurried || fsync(fd) == 0;
}

static bool write_all(image *m, int fd) {
    const size_t table = 8 * (size_t)image_n_pieces(m->bytes);
    uint64_t *sums = kern_alloc(table);
    errno = sums ? 0 : ENOMEM;
    /* a full disk is noticed before anything is written, where the file system can tell */
    bool ok = sums && (fallocate(fd, 0, 0, (off_t)(m->data_at + m->bytes)) == 0 ||
                       errno == EOPNOTSUPP || errno == ENOSYS);
    ok = ok && write_pieces(m, fd, sums);
    if (ok) {
        image_header h = image_header_of(m);
        h.sums_sum = XXH3_64bits(sums, table);
        h.header_sum = image_header_sum(&h);
        ok = image_write_at(fd, sums, table, sizeof h) && image_write_at(fd, &h, sizeof h, 0) &&
             settle(m, fd);
    }
    kern_free(sums);
    return ok && !is_cancelled(m);
}

/* Whether another start has written it meanwhile. */
static bool is_there(const image *m, int folder) {
    struct stat info;
    return !m->is_refused && fstatat(folder, m->name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
           (uint64_t)info.st_size == m->data_at + m->bytes;
}

static void write_beside(image *m, int folder) {
    char part[IMAGE_NAME + 64];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(part, sizeof part, "%s.%ld-%lld.part", m->name, (long)getpid(),
             (long long)now.tv_sec * 1000000000 + now.tv_nsec);
    const int fd = openat(folder, part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && write_all(m, fd);
    if (fd >= 0 && close(fd) != 0) ok = false;
    /* what was packed is of the content that was hashed */
    if (ok && !gguf_is_unchanged(m->file)) {
        unlinkat(folder, part, 0);
        return;
    }
    if (ok && renameat(folder, part, folder, m->name) == 0) return;
    if (!is_cancelled(m)) give_up(m, "no image in %s: %s", m->folder, strerror(errno));
    if (fd >= 0) unlinkat(folder, part, 0);
}

static void wait_for_hurry(image *m) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    pthread_mutex_lock(&m->mutex);
    while (!m->is_hurried && pthread_cond_timedwait(&m->hurry, &m->mutex, &until) == 0) continue;
    pthread_mutex_unlock(&m->mutex);
}

void *image_write(void *data) {
    image *m = data;
    wait_for_hurry(m);
    if (is_cancelled(m)) return NULL;
    if (!m->is_hurried) setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICENESS);
    const int folder = image_open_folder(m->folder, true);
    if (folder < 0) {
        give_up(m, "no image in %s: %s", m->folder, image_why_not(m->folder));
        return NULL;
    }
    if (!is_there(m, folder) && make_room(m, folder, m->data_at + m->bytes))
        write_beside(m, folder);
    close(folder);
    return NULL;
}
