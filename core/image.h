/* image.h: a model's weights as the backend made them, kept in a folder of the user's, so that the
 * next start reads them instead of making them (kern_image in kern.h is what the backend sees).
 *
 *   FOLDER/LAYOUT-CONTENT.image   the bytes, found by the backend's layout and the content of the
 *                                 model's file, whatever its name; readable by the user alone
 *   FOLDER/DEVICE-INODE.content   the content's hash of a file as of its times, so that it is not
 *                                 read for that at each start
 *   FOLDER/….part                 being written; left ones go after a day
 *
 * Whatever goes wrong here, the model loads all the same. Nothing in the folder is trusted: files
 * must be the user's own, and every piece has a checksum. Used images become young; when there is
 * no room the oldest go. */
#ifndef LLM_CORE_IMAGE_H
#define LLM_CORE_IMAGE_H

#include "../kernels/kern.h"
#include "gguf.h"

typedef struct image image;

/* For the weights of a file. `wanted`: "off", a folder, or NULL: what LLMLUA_WEIGHT_CACHE says so,
 * else the user's cache folder. NULL: no image is wanted (also of small files, unless `wanted`
 * names a folder, and of what is no file), or there is no memory. Where nothing names a folder it
 * has no calls, only a note. */
image *image_open(const gguf_file *file, const char *wanted, const volatile int *stop);

/* The calls for the backend, or NULL; they work until the image is closed. */
const kern_image *image_calls(image *);

/* The backend has bound: gives back what reading took. */
void image_settle(image *);

/* What was kept is written by a thread, a while after it was kept or when this is called (cancel:
 * given up instead); returns when that is over. */
void image_finish(image *, bool cancel);
void image_close(image *); /* finishes; accepts NULL */

double image_hash_s(const image *);    /* seconds that the content's hash took */
const uint64_t *image_hash(image *);   /* the content's hash, or NULL: not computed */
const char *image_note(const image *); /* after image_finish: why nothing was kept; or NULL */

/* ---- inside (image_*.c) ---- */

#include <pthread.h>
#include <stdatomic.h>

enum { IMAGE_NAME = 64 };

struct image {
    const gguf_file *file;
    const volatile int *stop;
    char *folder;
    kern_image calls;
    uint64_t hash[2];
    bool is_hashed;
    double hash_s;
    /* what the backend asked for */
    char name[IMAGE_NAME];
    uint64_t layout, bytes;
    uint64_t most;   /* bytes that all images may take together, where the disk has room */
    bool is_refused; /* there is one, of no use */
    int fd;          /* of the one that is read; -1 */
    uint64_t data_at, *sums;
    /* writing */
    const unsigned char *kept;
    pthread_t writer;
    pthread_mutex_t mutex;
    pthread_cond_t hurry;
    bool is_writing; /* there is a thread */
    long process;    /* that has it */
    atomic_bool is_hurried, is_cancelled;
    char note[256];
};

typedef struct image_header {
    char magic[8];
    uint32_t version, piece_bytes;
    uint64_t content[2], layout, bytes;
    uint64_t sums_sum;   /* of the table of sums that follows, one a piece */
    uint64_t header_sum; /* of all before it */
} image_header;

#define IMAGE_MAGIC   "llmluawt"
#define IMAGE_VERSION 1
#define IMAGE_MOST    ((uint64_t)8 << 30)

image_header image_header_of(const image *);
uint64_t image_header_sum(const image_header *);
static inline uint64_t image_n_pieces(uint64_t bytes) {
    return (bytes + KERN_IMAGE_PIECE - 1) / KERN_IMAGE_PIECE;
}
/* Where the data begins, after header and table. */
static inline uint64_t image_data_at(uint64_t bytes) {
    return (sizeof(image_header) + 8 * image_n_pieces(bytes) + 4095) / 4096 * 4096;
}

/* Opens the folder; makes it if wanted. It must be the user's, and writable by nobody else. -1:
 * errno says why, and image_why_not more. */
int image_open_folder(const char *path, bool make);
const char *image_why_not(const char *path); /* right afterwards */
/* Opens one of its files, which must be the user's too. */
int image_open_file(int folder, const char *name);
/* read and write that go on; false: errno, or 0: the file is too short. */
bool image_read_at(int fd, void *to, size_t bytes, uint64_t at);
bool image_write_at(int fd, const void *from, size_t bytes, uint64_t at);

/* The content's hash, from memory of earlier starts or by reading the file; false: stopped. */
bool image_find_hash(image *);

void *image_write(void *); /* the thread */

#endif
