/* test_image.c: images of weights in files: found again, refused when anything about them is wrong,
 * bounded in number, given up where they cannot be written. */
#include "check.h"
#include "gguf_writer.h"
#include "image.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 3 * 256 * 1024 + 64 };

static char root[] = "/tmp/llmlua-image-XXXXXX";
static char folder[64], model_path[64], shell[256];
static unsigned char kept[BYTES], got[BYTES];

static void sh(const char *command) {
    snprintf(shell, sizeof shell, "cd %s && %s", root, command);
    CHECK(system(shell) == 0, "%s", shell);
}

/* A model file whose content is a number. */
static void write_model(int number) {
    gguf_writer w;
    writer_begin(&w, 3);
    put_u32_value(&w, "a.number", (uint32_t)number);
    writer_end(&w);
    FILE *file = fopen(model_path, "wb");
    if (!file || fwrite(w.data, 1, w.n, file) != w.n || fclose(file)) abort();
    writer_free(&w);
}

/* The file of the folder that ends so; how many there are. */
static int find(const char *end, char *path, size_t n) {
    int count = 0;
    DIR *files = opendir(folder);
    for (const struct dirent *f; files && (f = readdir(files));) {
        const size_t length = strlen(f->d_name), n_end = strlen(end);
        if (length < n_end || strcmp(f->d_name + length - n_end, end) != 0) continue;
        snprintf(path, n, "%s/%s", folder, f->d_name);
        count++;
    }
    if (files) closedir(files);
    return count;
}
static int count(const char *end) {
    char path[400];
    return find(end, path, sizeof path);
}

/* What a backend does at a start: whether it got its bytes. Else it keeps them. `most`: 0, or the
 * bound on all images. *note (may be NULL) is why they were not. */
static bool start(uint64_t layout, size_t bytes, uint64_t most, char *note) {
    llm_error err;
    gguf_file *file = gguf_open(model_path, &err);
    image *m = file ? image_open(file, folder, NULL) : NULL;
    if (!m) abort();
    if (most) m->most = most;
    const kern_image *calls = image_calls(m);
    bool is_read = calls->open(calls->data, layout, bytes);
    memset(got, 0, sizeof got);
    for (size_t at = 0; at < bytes && is_read; at += KERN_IMAGE_PIECE) {
        const size_t left = bytes - at < KERN_IMAGE_PIECE ? bytes - at : KERN_IMAGE_PIECE;
        is_read = calls->read(calls->data, at, got + at, left);
    }
    if (is_read) CHECK(memcmp(got, kept, bytes) == 0, "what is read is what was kept");
    if (!is_read) calls->keep(calls->data, kept);
    image_settle(m);
    image_finish(m, false);
    if (note) snprintf(note, 256, "%s", image_note(m) ? image_note(m) : "");
    image_close(m);
    gguf_close(file);
    return is_read;
}

static mode_t mode_of(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 ? info.st_mode & 07777 : 0;
}

static void test_found(void) {
    char path[400], note[256];
    CHECK(!start(1, BYTES, 0, note) && !*note, "there is none at first: %s", note);
    CHECK(find(".image", path, sizeof path) == 1 && count(".part") == 0, "one is written");
    CHECK(mode_of(path) == 0600 && mode_of(folder) == 0700, "for the user alone: %o in %o",
          mode_of(path), mode_of(folder));
    CHECK(start(1, BYTES, 0, NULL), "and found");
    CHECK(!start(2, BYTES, 0, NULL) && count(".image") == 2, "another layout is another image");
    CHECK(!start(1, BYTES - 64, 0, NULL) && start(1, BYTES - 64, 0, NULL), "another size replaces");
    CHECK(!start(1, BYTES, 0, NULL), "it");
    sh("cp model.gguf other && mv other model.gguf");
    CHECK(start(1, BYTES, 0, NULL), "a copy of the file is the same content");
    write_model(2);
    CHECK(!start(1, BYTES, 0, NULL) && count(".image") == 3, "another content is another image");
    write_model(1);
    CHECK(start(1, BYTES, 0, NULL) && start(2, BYTES, 0, NULL), "the others are still there");
}

/* Each change makes the image useless; the next start replaces it. */
static void test_refused(void) {
    static const struct {
        const char *what, *command;
    } changes[] = {
        {"a byte of its data", "printf '\\377' | dd of=$f bs=1 seek=300000 conv=notrunc"},
        {"its last byte", "printf '\\377' | dd of=$f bs=1 seek=$(($(stat -c %s $f) - 1)) "
                          "conv=notrunc"},
        {"its version", "printf '\\377' | dd of=$f bs=1 seek=8 conv=notrunc"},
        {"its table of sums", "printf '\\377' | dd of=$f bs=1 seek=80 conv=notrunc"},
        {"a shorter file", "truncate -s -1 $f"},
        {"a longer file", "truncate -s +1 $f"},
        {"a file cut to its header", "truncate -s 4096 $f"},
        {"an empty file", ": >$f"},
        {"a hole in place of data", "fallocate -p -o 8192 -l 4096 $f || "
                                    "dd if=/dev/zero of=$f bs=4096 seek=2 count=1 conv=notrunc"},
        {"a file that others may write", "chmod 666 $f"},
        {"a link", "mv $f real && ln -s ../real $f"},
        {"a folder", "rm $f && mkdir $f && touch $f/x"},
    };
    memset(kept, 1, sizeof kept);
    sh("rm -rf weights");
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        CHECK(!start(1, BYTES, 0, NULL), "%s: written", changes[i].what);
        CHECK(start(1, BYTES, 0, NULL), "%s: read before", changes[i].what);
        char command[200];
        snprintf(command, sizeof command, "f=$(ls weights/*.image) && { %s; } 2>/dev/null",
                 changes[i].what ? changes[i].command : "");
        sh(command);
        CHECK(!start(1, BYTES, 0, NULL), "%s is noticed", changes[i].what);
        const bool is_folder = strcmp(changes[i].what, "a folder") == 0;
        CHECK(start(1, BYTES, 0, NULL) || is_folder, "%s is replaced", changes[i].what);
        CHECK(count(".part") == 0, "%s: nothing is left over", changes[i].what);
        sh("rm -rf weights");
    }
}

/* The newest two of three fit; using one makes it young. */
static void test_bounded(void) {
    const uint64_t most = 2 * (BYTES + 4096) + 10;
    char note[256];
    for (uint64_t layout = 1; layout <= 2; layout++) {
        CHECK(!start(layout, BYTES, most, note) && !*note, "image %d", (int)layout);
        usleep(20000); /* of a coarse clock of files */
    }
    CHECK(start(1, BYTES, most, NULL), "used: now the younger one");
    usleep(20000);
    CHECK(!start(3, BYTES, most, NULL) && count(".image") == 2, "a third has room for one");
    CHECK(start(1, BYTES, most, NULL) && start(3, BYTES, most, NULL), "the oldest has gone");
    CHECK(!start(4, BYTES, BYTES, note) && count(".image") == 2, "too large for all there is");
    CHECK(strstr(note, "an image of 790592 bytes is more than the 786496"), "%s", note);
    /* what only looks like one of ours stays and takes nothing of the room */
    sh("cd weights && i=$(ls *.image | head -1) && "
       "touch -d '2 days ago' $i.7-1.part 1-1.content.7.part && touch $i.8-1.part && "
       "touch -d '1 year ago' 1-1.content");
    sh("cd weights && i=$(ls *.image | head -1) && "
       "for f in x.image x$i x-$i 0-0.image a.content $i.part x.part 1-1.content.x.part x; do "
       "truncate -s 9G $f && touch -d '1 year ago' $f; done");
    CHECK(!start(5, BYTES, most, note) && !*note, "written: %s", note);
    sh("cd weights && test $(ls *.7-1.part *.7.part 1-1.content 2>/dev/null | wc -l) = 0 && "
       "test $(ls *.8-1.part | wc -l) = 1 && test $(find . -size +8G | wc -l) = 9 && "
       "cd .. && rm -r weights");
}

static void test_given_up(void) {
    char note[256], name[sizeof folder];
    strcpy(name, folder);
    snprintf(folder, sizeof folder, "%s/model.gguf/weights", root);
    CHECK(!start(1, BYTES, 0, note) && strstr(note, "ot a directory"), "%s", note);
    strcpy(folder, name);
    sh("mkdir weights && chmod 777 weights");
    CHECK(!start(1, BYTES, 0, note) && strstr(note, "others may write") && count("image") == 0,
          "a folder that others may write: %s", note);
    sh("rmdir weights");
    /* the limit's signal would end the process */
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    limit = before;
    limit.rlim_cur = 100000;
    setrlimit(RLIMIT_FSIZE, &limit);
    CHECK(!start(1, BYTES, 0, note) && strstr(note, "ile too large"), "%s", note);
    limit.rlim_cur = 0;
    setrlimit(RLIMIT_FSIZE, &limit);
    CHECK(!start(1, BYTES, 0, note) && *note, "no byte at all may be written");
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK(count(".image") == 0 && count(".part") == 0, "nothing is left");
}

static image *open_model(gguf_file **file, const volatile int *stop) {
    *file = gguf_open(model_path, NULL);
    image *m = *file ? image_open(*file, folder, stop) : NULL;
    if (!m) abort();
    return m;
}

/* A disk that becomes full, in place of libc's calls: n_writes more succeed (−1: all), one writes
 * half of what is asked, one nothing; then there is room again. */
static atomic_int n_writes = -1;
static bool allocates = true, renames = true, syncs = true;

static int full(void) {
    errno = ENOSPC;
    return -1;
}

ssize_t pwrite(int fd, const void *from, size_t n, off_t at) {
    const int left = n_writes;
    if (left == 0) n /= 2;
    if (left != -1) n_writes = left == -2 ? -1 : left == 0 ? -2 : left - 1;
    if (left == -2) return full();
    return syscall(SYS_pwrite64, fd, from, n, at);
}
int fallocate(int fd, int mode, off_t at, off_t n) {
    errno = EOPNOTSUPP; /* a file system that cannot tell beforehand */
    return allocates ? (int)syscall(SYS_fallocate, fd, mode, at, n) : -1;
}
int renameat(int from_fd, const char *from, int to_fd, const char *to) {
    return renames ? (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0) : full();
}
int fsync(int fd) { return syncs ? (int)syscall(SYS_fsync, fd) : full(); }

/* Whether a start left nothing but its reason. */
static bool is_given_up(const char *note) {
    return strstr(note, "No space left on device") && count(".image") == 0 && count(".part") == 0;
}

static void test_full(void) {
    enum { WRITES = 6 }; /* four pieces, their sums, the header */
    char note[256];
    sh("rm -rf weights");
    allocates = false;
    for (int n = 0; n < WRITES; n++) {
        n_writes = n;
        CHECK(!start(1, BYTES, 0, note) && n_writes == -1 && is_given_up(note),
              "full after %d writes: \"%s\", %d parts", n, note, count(".part"));
    }
    n_writes = WRITES;
    CHECK(!start(1, BYTES, 0, note) && !*note && n_writes == 0, "as many fit: %s", note);
    n_writes = -1;
    CHECK(start(1, BYTES, 0, NULL), "and are whole");
    allocates = true;
    sh("rm weights/*");
    renames = false;
    CHECK(!start(1, BYTES, 0, note) && is_given_up(note), "no room for the name: \"%s\"", note);
    renames = true;
    syncs = false; /* told when the disk is waited for, which a start that ends does not */
    gguf_file *file;
    image *m = open_model(&file, NULL);
    image_calls(m)->open(m, 1, BYTES);
    image_calls(m)->keep(m, kept);
    sleep(3);
    image_finish(m, false);
    CHECK(image_note(m) && is_given_up(image_note(m)), "no room found late");
    image_close(m);
    gguf_close(file);
    syncs = true;
}

static void test_interrupted(void) {
    gguf_file *file;
    volatile int stop = 1;
    image *m = open_model(&file, &stop);
    sh("rm -rf weights");
    CHECK(!image_calls(m)->open(m, 1, BYTES) && !image_hash(m), "hashing is interrupted");
    stop = 0;
    CHECK(!image_calls(m)->open(m, 1, BYTES) && image_hash(m), "not interrupted");
    image_calls(m)->keep(m, kept);
    stop = 1;
    image_close(m); /* cancels */
    gguf_close(file);
    CHECK(count(".image") == 0 && count(".part") == 0, "nothing is kept then");
    m = open_model(&file, NULL);
    image_calls(m)->open(m, 1, BYTES);
    write_model(3); /* the same length, in the same file */
    image_calls(m)->keep(m, kept);
    image_close(m);
    gguf_close(file);
    CHECK(count(".image") == 0 && count(".part") == 0, "a file that changed meanwhile");
    write_model(1);
}

/* A child made by fork() has no thread to wait for, and several starts at once are harmless. */
static void test_processes(void) {
    gguf_file *file;
    image *m = open_model(&file, NULL);
    image_calls(m)->open(m, 1, BYTES);
    image_calls(m)->keep(m, kept);
    pid_t child = fork();
    if (child == 0) {
        image_close(m);
        _exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "a child closes it");
    image_close(m);
    gguf_close(file);
    CHECK(count(".image") == 1, "the parent has written it");
    for (int i = 0; i < 6; i++)
        if (fork() == 0) {
            start(2, BYTES, 0, NULL);
            const bool is_read = start(2, BYTES, 0, NULL);
            _exit(is_read && n_failed == 0 ? 0 : 1);
        }
    for (int i = 0; i < 6; i++) CHECK(wait(&status) > 0 && status == 0, "starts at once");
    CHECK(count(".image") == 2 && count(".part") == 0, "one image, nothing left over");
}

static void test_remembered(void) {
    char path[400];
    gguf_file *file;
    sh("rm -rf weights");
    start(1, BYTES, 0, NULL);
    CHECK(count(".content") == 0, "a file that changed just now may change again");
    sleep(2);
    usleep(100000);
    CHECK(start(1, BYTES, 0, NULL) && find(".content", path, sizeof path) == 1, "its hash is kept");
    CHECK(mode_of(path) == 0600 && start(1, BYTES, 0, NULL), "and used");
    volatile int stop = 1; /* whoever hashes is interrupted */
    image *m = open_model(&file, &stop);
    CHECK(image_calls(m)->open(m, 1, BYTES), "without reading the file");
    image_close(m);
    gguf_close(file);
    sh("for f in weights/*.content; do printf '\\377' | dd of=$f bs=1 seek=50 conv=notrunc "
       "2>/dev/null; done");
    m = open_model(&file, &stop);
    CHECK(!image_calls(m)->open(m, 1, BYTES), "an altered one is not used");
    image_close(m);
    gguf_close(file);
    CHECK(start(1, BYTES, 0, NULL), "but made anew");
    write_model(2);
    CHECK(!start(1, BYTES, 0, NULL), "nor that of a file that has changed");
    write_model(1);
}

static void test_places(void) {
    gguf_file *file = gguf_open(model_path, NULL);
    setenv("LLMLUA_WEIGHT_CACHE", "off", 1);
    CHECK(!image_open(file, NULL, NULL) && !image_open(file, "off", NULL), "off");
    setenv("LLMLUA_WEIGHT_CACHE", folder, 1);
    CHECK(!image_open(file, NULL, NULL), "a small file is not worth it unless asked for");
    CHECK(truncate(model_path, 40 << 20) == 0, "larger");
    gguf_close(file);
    file = gguf_open(model_path, NULL);
    image *m = image_open(file, NULL, NULL);
    CHECK(m && strcmp(m->folder, folder) == 0, "a folder of the environment");
    image_close(m);
    unsetenv("LLMLUA_WEIGHT_CACHE");
    setenv("XDG_CACHE_HOME", "/xdg", 1);
    setenv("HOME", "/home", 1);
    m = image_open(file, NULL, NULL);
    CHECK(m && strcmp(m->folder, "/xdg/llmlua/weights") == 0, "the user's cache folder");
    image_close(m);
    setenv("XDG_CACHE_HOME", "relative", 1);
    m = image_open(file, NULL, NULL);
    CHECK(m && strcmp(m->folder, "/home/.cache/llmlua/weights") == 0, "else that of home");
    image_close(m);
    unsetenv("HOME");
    m = image_open(file, NULL, NULL);
    CHECK(m && !image_calls(m) && strstr(image_note(m), "no folder"), "no folder, and why");
    image_close(m);
    gguf_close(file);
}

int main(void) {
    if (!mkdtemp(root)) return 1;
    snprintf(folder, sizeof folder, "%s/weights", root);
    snprintf(model_path, sizeof model_path, "%s/model.gguf", root);
    for (size_t i = 0; i < sizeof kept; i++) kept[i] = (unsigned char)(i * 2654435761u >> 9);
    write_model(1);
    test_found();
    test_refused();
    test_bounded();
    test_given_up();
    test_full();
    test_interrupted();
    test_processes();
    test_remembered();
    test_places();
    sh("cd / && rm -r \"$OLDPWD\"");
    return check_end();
}
