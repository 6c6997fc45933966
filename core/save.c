/* save.c: caches in files. Little-endian: magic, version, KV type and shape, the model's content
 * hash, the ids, then keys and values position by position as the backend's position_bytes says,
 * and a hash of all that went before. Independent of page size and instruction tier; written
 * beside, then renamed. */
#include "cache.h"

#include "../kernels/memory.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#define SAVE_MAGIC   "llmluakv"
#define SAVE_VERSION 1

typedef struct save_header {
    char magic[8];
    uint32_t version, kv_type, n_layers, n_heads_kv, head_dim_k, head_dim_v;
    uint64_t model[2];
    uint64_t n_tokens, position_bytes;
} save_header;

static save_header header_of(llm_cache *c) {
    const kern_kv_shape *s = &c->model->pages.shape;
    const uint64_t *hash = model_hash(c->model);
    save_header h = {.version = SAVE_VERSION,
                     .kv_type = s->type,
                     .n_layers = (uint32_t)s->n_layers,
                     .n_heads_kv = (uint32_t)s->n_heads_kv,
                     .head_dim_k = (uint32_t)s->head_dim_k,
                     .head_dim_v = (uint32_t)s->head_dim_v,
                     .model = {hash[0], hash[1]},
                     .n_tokens = (uint64_t)c->n,
                     .position_bytes = (uint64_t)c->model->info.position_bytes};
    memcpy(h.magic, SAVE_MAGIC, sizeof h.magic);
    return h;
}

/* ---- a file that is hashed as it goes ---- */

typedef struct stream {
    FILE *file;
    XXH3_state_t hash;
    const char *path;
} stream;

static int stream_fail(const stream *s, const char *verb, llm_error *err) {
    return llm_fail(err, LLM_INPUT, "%s: %s: %s", s->path, verb,
                    errno ? strerror(errno) : "file too short");
}

static int stream_write(stream *s, const void *data, size_t n, llm_error *err) {
    if (n == 0) return 0;
    XXH3_64bits_update(&s->hash, data, n);
    errno = 0;
    return fwrite(data, 1, n, s->file) == n ? 0 : stream_fail(s, "cannot write", err);
}

static int stream_read(stream *s, void *data, size_t n, llm_error *err) {
    if (n == 0) return 0;
    errno = 0;
    if (fread(data, 1, n, s->file) != n) return stream_fail(s, "cannot read", err);
    XXH3_64bits_update(&s->hash, data, n);
    return 0;
}

/* ---- save ---- */

static int write_positions(stream *s, llm_cache *c, llm_error *err) {
    page_pool *pool = &c->model->pages;
    const kern_backend *backend = pool->device->backend;
    size_t bytes = backend->position_bytes(&pool->shape);
    void *position = kern_alloc(bytes);
    if (!position) return llm_fail_memory(err, bytes, "a position of a save file");
    int failed = 0;
    for (int64_t i = 0; i < c->n && !failed; i++) {
        int code =
            backend->page_read(pool->device->kern, pool->kern, c->pages[i / KERN_PAGE_POSITIONS],
                               (int32_t)(i % KERN_PAGE_POSITIONS), position);
        failed = device_check(pool->device, code, "reading the cache", err) ||
                 stream_write(s, position, bytes, err);
    }
    kern_free(position);
    return failed;
}

static int write_all(stream *s, llm_cache *c, bool sync, llm_error *err) {
    if (cache_settle(c, err)) return -1;
    save_header h = header_of(c);
    if (stream_write(s, &h, sizeof h, err) ||
        stream_write(s, c->ids, (size_t)c->n * sizeof *c->ids, err) || write_positions(s, c, err))
        return -1;
    uint64_t hash = XXH3_64bits_digest(&s->hash);
    if (stream_write(s, &hash, sizeof hash, err)) return -1;
    errno = 0;
    if (fflush(s->file) || (sync && fsync(fileno(s->file))))
        return stream_fail(s, "cannot write", err);
    return 0;
}

/* Writes beside the file that path leads to and renames it into place; into what is no regular file
 * (a pipe, a device) it writes directly. */
static int save_to(llm_cache *c, const char *path, llm_error *err) {
    struct stat st;
    bool direct = stat(path, &st) == 0 && !S_ISREG(st.st_mode);
    size_t n = strlen(path) + 32;
    char *temporary = kern_alloc(n);
    if (!temporary) return llm_fail_memory(err, n, "a path");
    snprintf(temporary, n, "%s.%ld.part", path, (long)getpid());
    if (!direct) remove(temporary); /* left by a process of the same number that was killed */
    stream s = {.file = fopen(direct ? path : temporary, direct ? "wb" : "wbx"), .path = path};
    int failed = 0;
    if (!s.file) {
        failed = stream_fail(&s, "cannot create", err);
    } else {
        XXH3_64bits_reset(&s.hash);
        failed = write_all(&s, c, !direct, err);
        errno = 0;
        if (fclose(s.file) && !failed) failed = stream_fail(&s, "cannot write", err);
        if (!direct && !failed && rename(temporary, path))
            failed = stream_fail(&s, "cannot rename", err);
        if (!direct && failed) remove(temporary);
    }
    kern_free(temporary);
    return failed ? -1 : 0;
}

int llm_cache_save(llm_cache *c, const char *path, llm_error *err) {
    if (cache_check_free(c, 0, err)) return -1;
    if (c->tree || cache_depth(c) < c->model->info.n_layers)
        return llm_fail(
            err, LLM_MISUSE,
            "%s: a cache with a tree, or with positions of %d of %lld layers, cannot be saved",
            path, cache_depth(c), (long long)c->model->info.n_layers);
    char *target = realpath(path, NULL); /* a link stays a link; NULL: there is nothing yet */
    int failed = save_to(c, target ? target : path, err);
    free(target);
    return failed;
}

/* ---- restore ---- */

static int check_header(const save_header *h, llm_cache *c, const char *path, llm_error *err) {
    save_header own = header_of(c);
    if (memcmp(h->magic, SAVE_MAGIC, sizeof h->magic))
        return llm_fail(err, LLM_INPUT, "%s: not a saved cache", path);
    if (h->version != SAVE_VERSION)
        return llm_fail(err, LLM_INPUT, "%s: save file version %u, this program reads %d", path,
                        h->version, SAVE_VERSION);
    if (h->model[0] != own.model[0] || h->model[1] != own.model[1])
        return llm_fail(err, LLM_INPUT,
                        "%s: saved from another model (hash %016llx), this is %s (%016llx)", path,
                        (unsigned long long)h->model[0], c->model->path,
                        (unsigned long long)own.model[0]);
    if (h->kv_type != own.kv_type)
        return llm_fail(err, LLM_INPUT, "%s: saved with kv %s, the model is loaded with kv %s",
                        path,
                        h->kv_type <= KERN_KV_Q8_0 ? kv_names[h->kv_type] : "of an unknown type",
                        kv_names[own.kv_type]);
    if (h->n_layers != own.n_layers || h->n_heads_kv != own.n_heads_kv ||
        h->head_dim_k != own.head_dim_k || h->head_dim_v != own.head_dim_v ||
        h->position_bytes != own.position_bytes)
        return llm_fail(err, LLM_INPUT, "%s: %llu bytes a token, the model's cache has %llu", path,
                        (unsigned long long)h->position_bytes,
                        (unsigned long long)own.position_bytes);
    if (h->n_tokens > (uint64_t)c->model->info.ctx)
        return llm_fail(err, LLM_INPUT, "%s: %llu tokens do not fit into a context of %lld", path,
                        (unsigned long long)h->n_tokens, (long long)c->model->info.ctx);
    return 0;
}

static int check_size(const save_header *h, FILE *file, const char *path, llm_error *err) {
    struct stat st;
    if (fstat(fileno(file), &st)) return llm_fail(err, LLM_INPUT, "%s: %s", path, strerror(errno));
    uint64_t wanted = sizeof *h + h->n_tokens * (4 + h->position_bytes) +
                      8; /* small: both factors were checked */
    if ((uint64_t)st.st_size == wanted) return 0;
    return llm_fail(err, LLM_INPUT, "%s: %lld bytes, a cache of %llu tokens has %llu", path,
                    (long long)st.st_size, (unsigned long long)h->n_tokens,
                    (unsigned long long)wanted);
}

static int read_positions(stream *s, llm_cache *c, int64_t n, llm_error *err) {
    page_pool *pool = &c->model->pages;
    const kern_backend *backend = pool->device->backend;
    size_t bytes = backend->position_bytes(&pool->shape);
    void *position = kern_alloc(bytes);
    if (!position) return llm_fail_memory(err, bytes, "a position of a save file");
    int failed = 0;
    for (int64_t i = 0; i < n && !failed; i++) {
        failed = stream_read(s, position, bytes, err);
        if (failed) break;
        int code =
            backend->page_write(pool->device->kern, pool->kern, c->pages[i / KERN_PAGE_POSITIONS],
                                (int32_t)(i % KERN_PAGE_POSITIONS), position);
        failed = device_check(pool->device, code, "writing the cache", err);
    }
    kern_free(position);
    return failed;
}

static int read_all(stream *s, llm_cache *c, int32_t **ids, llm_error *err) {
    save_header h;
    if (stream_read(s, &h, sizeof h, err) || check_header(&h, c, s->path, err) ||
        check_size(&h, s->file, s->path, err))
        return -1;
    int64_t n = (int64_t)h.n_tokens;
    size_t bytes = (size_t)n * sizeof **ids;
    *ids = kern_alloc(bytes);
    if (!*ids) return llm_fail_memory(err, bytes, "the ids of a cache");
    if (stream_read(s, *ids, bytes, err)) return -1;
    if (model_check_ids(c->model, *ids, (size_t)n, err) || (n && cache_extend(c, n, err)) ||
        read_positions(s, c, n, err))
        return -1;
    uint64_t expected = XXH3_64bits_digest(&s->hash), hash;
    if (stream_read(s, &hash, sizeof hash, err)) return -1;
    if (hash != expected)
        return llm_fail(err, LLM_INPUT, "%s: damaged: hash %016llx, expected %016llx", s->path,
                        (unsigned long long)hash, (unsigned long long)expected);
    cache_commit(c, *ids, n, (int32_t)c->model->info.n_layers);
    c->is_foreign = true;
    return 0;
}

llm_cache *llm_cache_restore(llm_model *m, const char *path, llm_error *err) {
    stream s = {.file = fopen(path, "rb"), .path = path};
    if (!s.file) {
        stream_fail(&s, "cannot open", err);
        return NULL;
    }
    XXH3_64bits_reset(&s.hash);
    int32_t *ids = NULL;
    llm_cache *c = llm_cache_new(m, err);
    if (c && read_all(&s, c, &ids, err)) {
        llm_cache_close(c); /* gives back pages beyond its ids too */
        c = NULL;
    }
    kern_free(ids);
    fclose(s.file);
    return c;
}
