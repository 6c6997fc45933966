/* gguf_writer.h: builds GGUF files in memory for the C tests, right and wrong ones. A test program
 * includes it once; running out of memory ends the program. */
#ifndef SPEC_GGUF_WRITER_H
#define SPEC_GGUF_WRITER_H

#include "../../core/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct gguf_writer {
    char *data;
    size_t n, capacity;
    uint64_t n_values, n_tensors; /* written into the header by writer_end */
} gguf_writer;

static inline void put(gguf_writer *w, const void *data, size_t n) {
    if (w->n + n > w->capacity) {
        w->capacity = (w->n + n) * 2 + 64;
        w->data = realloc(w->data, w->capacity);
        if (!w->data) abort();
    }
    if (n) memcpy(w->data + w->n, data, n);
    w->n += n;
}

static inline void put_u32(gguf_writer *w, uint32_t x) { put(w, &x, 4); }
static inline void put_u64(gguf_writer *w, uint64_t x) { put(w, &x, 8); }

static inline void put_bytes(gguf_writer *w, const char *s, size_t n) {
    put_u64(w, n);
    put(w, s, n);
}

static inline void put_string(gguf_writer *w, const char *s) { put_bytes(w, s, strlen(s)); }

static inline void writer_begin(gguf_writer *w, uint32_t version) {
    *w = (gguf_writer){0};
    put(w, "GGUF", 4);
    put_u32(w, version);
    put_u64(w, 0);
    put_u64(w, 0);
}

static inline void put_key(gguf_writer *w, const char *key, uint32_t type) {
    w->n_values++;
    put_string(w, key);
    put_u32(w, type);
}

static inline void put_array(gguf_writer *w, const char *key, uint32_t item_type, uint64_t n) {
    put_key(w, key, GGUF_ARRAY);
    put_u32(w, item_type);
    put_u64(w, n);
}

static inline void put_string_value(gguf_writer *w, const char *key, const char *value) {
    put_key(w, key, GGUF_STRING);
    put_string(w, value);
}

static inline void put_u32_value(gguf_writer *w, const char *key, uint32_t value) {
    put_key(w, key, GGUF_UINT32);
    put_u32(w, value);
}

static inline void put_bool_value(gguf_writer *w, const char *key, int value) {
    char byte = (char)value;
    put_key(w, key, GGUF_BOOL);
    put(w, &byte, 1);
}

static inline void put_tensor(gguf_writer *w, const char *name, uint32_t n_dims,
                              const uint64_t *dims, uint32_t type, uint64_t offset) {
    w->n_tensors++;
    put_string(w, name);
    put_u32(w, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) put_u64(w, dims[i]);
    put_u32(w, type);
    put_u64(w, offset);
}

/* Pads to the alignment and appends n zero bytes of tensor data. */
static inline void put_data(gguf_writer *w, size_t alignment, size_t n) {
    while (w->n % alignment) put(w, "", 1);
    for (size_t i = 0; i < n; i++) put(w, "", 1);
}

static inline void writer_end(gguf_writer *w) {
    memcpy(w->data + 8, &w->n_tensors, 8);
    memcpy(w->data + 16, &w->n_values, 8);
}

static inline void writer_free(gguf_writer *w) {
    free(w->data);
    *w = (gguf_writer){0};
}

/* A vocabulary: texts, types (NULL: no such key) and scores (NULL: none). */
static inline void put_vocabulary(gguf_writer *w, const char *model, const char *const *texts,
                                  const int32_t *types, const float *scores, size_t n) {
    put_string_value(w, "tokenizer.ggml.model", model);
    put_array(w, "tokenizer.ggml.tokens", GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) put_string(w, texts[i]);
    if (types) {
        put_array(w, "tokenizer.ggml.token_type", GGUF_INT32, n);
        put(w, types, n * sizeof *types);
    }
    if (scores) {
        put_array(w, "tokenizer.ggml.scores", GGUF_FLOAT32, n);
        put(w, scores, n * sizeof *scores);
    }
}

static inline void put_merges(gguf_writer *w, const char *const *merges, size_t n) {
    put_array(w, "tokenizer.ggml.merges", GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) put_string(w, merges[i]);
}

#endif
