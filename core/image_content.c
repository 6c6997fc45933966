/* image_content.c: the hash of a model file's content, remembered under the file's identity. */
#include "image.h"

#include "device.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define MEMO_MAGIC "llmluach"
#define SETTLED_NS 2000000000 /* a file changed later than this ago may change within one tick */

typedef struct memo {
    char magic[8];
    gguf_identity identity;
    uint64_t hash[2];
    uint64_t sum; /* of all before it */
} memo;

static uint64_t sum_of(const memo *o) { return XXH3_64bits(o, offsetof(memo, sum)); }

static void name_of(const gguf_identity *identity, char name[IMAGE_NAME]) {
    snprintf(name, IMAGE_NAME, "%" PRIx64 "-%" PRIx64 ".content", identity->device,
             identity->inode);
}

static bool recall(image *m, const gguf_identity *identity) {
    char name[IMAGE_NAME];
    memo o;
    const int folder = image_open_folder(m->folder, false);
    if (folder < 0) return false;
    name_of(identity, name);
    const int fd = image_open_file(folder, name);
    close(folder);
    if (fd < 0) return false;
    const bool is_read = image_read_at(fd, &o, sizeof o, 0);
    close(fd);
    if (!is_read || memcmp(o.magic, MEMO_MAGIC, sizeof o.magic) != 0 || o.sum != sum_of(&o) ||
        memcmp(&o.identity, identity, sizeof *identity) != 0)
        return false;
    memcpy(m->hash, o.hash, sizeof m->hash);
    return true;
}

static void write_memo(int folder, const char *name, const memo *o) {
    char part[IMAGE_NAME + 32];
    snprintf(part, sizeof part, "%s.%ld.part", name, (long)getpid());
    unlinkat(folder, part, 0);
    const int fd = openat(folder, part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return;
    const bool is_written = image_write_at(fd, o, sizeof *o, 0);
    if (close(fd) != 0 || !is_written || renameat(folder, part, folder, name) != 0)
        unlinkat(folder, part, 0);
}

/* Written without the signal that a limit on the size of files would send. */
static void remember(const image *m, const gguf_identity *identity) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const int64_t age = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - identity->changed_ns[1];
    if (age < SETTLED_NS || !gguf_is_unchanged(m->file)) return;
    const int folder = image_open_folder(m->folder, true);
    if (folder < 0) return;
    memo o = {.identity = *identity, .hash = {m->hash[0], m->hash[1]}};
    memcpy(o.magic, MEMO_MAGIC, sizeof o.magic);
    o.sum = sum_of(&o);
    char name[IMAGE_NAME];
    name_of(identity, name);
    sigset_t limit, before;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &limit, &before);
    write_memo(folder, name, &o);
    sigtimedwait(&limit, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(folder);
}

bool image_find_hash(image *m) {
    const double started = device_clock();
    const gguf_identity identity = gguf_identify(m->file);
    if (!m->is_hashed) m->is_hashed = recall(m, &identity);
    if (!m->is_hashed) {
        m->is_hashed = gguf_hash(m->file, m->stop, m->hash);
        if (m->is_hashed) remember(m, &identity);
        size_t bytes;
        const void *data = gguf_data(m->file, &bytes);
        gguf_release(m->file, data, bytes); /* else it were there twice while it is packed */
    }
    m->hash_s = device_clock() - started;
    return m->is_hashed;
}
