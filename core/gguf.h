/* gguf.h: a model file in the GGUF format, versions 2 and 3, little-endian. Owns the mapping and
 * the index of its metadata and tensors; knows nothing of architectures. Every size, offset and
 * product of the file is checked when it is opened, so what is handed out lies inside the mapping.
 *
 * All strings are (pointer, length) into the mapping: not terminated, any bytes. */
#ifndef LLM_CORE_GGUF_H
#define LLM_CORE_GGUF_H

#include "../kernels/formats.h"
#include "llm.h"

typedef struct gguf_file gguf_file;

typedef enum gguf_type { /* the numbers are the format's */
                         GGUF_UINT8 = 0,
                         GGUF_INT8,
                         GGUF_UINT16,
                         GGUF_INT16,
                         GGUF_UINT32,
                         GGUF_INT32,
                         GGUF_FLOAT32,
                         GGUF_BOOL,
                         GGUF_STRING,
                         GGUF_ARRAY,
                         GGUF_UINT64,
                         GGUF_INT64,
                         GGUF_FLOAT64,
                         GGUF_N_TYPES
} gguf_type;

typedef struct gguf_string {
    const char *data;
    size_t n;
} gguf_string;

typedef struct gguf_value {
    gguf_string key;
    gguf_type type;      /* GGUF_ARRAY for arrays */
    gguf_type item_type; /* of an array's items; else equal to type; never GGUF_ARRAY */
    size_t n;            /* an array's items; else 1 */
    const char *data;    /* the first item, unaligned */
} gguf_value;

typedef struct gguf_tensor {
    gguf_string name;
    int n_dims;      /* 1…4 */
    int64_t dims[4]; /* ≥ 1, the fastest first; 1 beyond n_dims */
    const kern_format *format;
    const void *data; /* aligned to the file's alignment (at least 8) within the mapping */
    size_t bytes;
} gguf_tensor;

/* Maps the file read-only. */
gguf_file *gguf_open(const char *path, llm_error *err);

/* Borrows the memory, which must be aligned to 8 bytes and outlive the file. `name` (copied) is
 * what messages call it. */
gguf_file *gguf_open_memory(const void *data, size_t bytes, const char *name, llm_error *err);
void gguf_close(gguf_file *file);

const char *gguf_name(const gguf_file *file); /* the path, as given */
int gguf_version(const gguf_file *file);
const void *gguf_data(const gguf_file *file, size_t *bytes); /* the whole file */

/* Which file it is, and as of when. All 0: none, memory. */
typedef struct gguf_identity {
    uint64_t device, inode, bytes;
    int64_t changed_ns[2]; /* its content (mtime) and whatever else of it (ctime) */
} gguf_identity;
gguf_identity gguf_identify(const gguf_file *file);
/* Whether the file at the path still is the same, as far as the system knows. */
bool gguf_is_unchanged(const gguf_file *file);

/* Gives back the memory that a part of the mapping was read into; it is read again when it is
 * touched. Does nothing to what lies elsewhere. */
void gguf_release(const gguf_file *file, const void *data, size_t bytes);

/* ---- tensors, in the file's order ---- */
size_t gguf_n_tensors(const gguf_file *file);
const gguf_tensor *gguf_tensor_at(const gguf_file *file, size_t i);
const gguf_tensor *gguf_tensor_find(const gguf_file *file, const char *name); /* or NULL */

/* ---- metadata, in the file's order ---- */
size_t gguf_n_values(const gguf_file *file);
const gguf_value *gguf_value_at(const gguf_file *file, size_t i);
const gguf_value *gguf_find(const gguf_file *file, const char *key); /* or NULL */

/* 1: found, *out set. 0: no such key, *out untouched, so that it holds the default.
 * -1: another type, or outside min … max; err names key, value and range. */
int gguf_get_string(const gguf_file *file, const char *key, gguf_string *out, llm_error *err);
int gguf_get_bool(const gguf_file *file, const char *key, bool *out, llm_error *err);
int gguf_get_int(const gguf_file *file, const char *key, int64_t min, int64_t max, int64_t *out,
                 llm_error *err);
/* Any number; NaN and infinities are refused. */
int gguf_get_float(const gguf_file *file, const char *key, double min, double max, double *out,
                   llm_error *err);
/* n numbers from an array of at least n integers, or one integer for all n. */
int gguf_get_ints(const gguf_file *file, const char *key, int64_t min, int64_t max, int64_t *out,
                  size_t n, llm_error *err);
/* An array whose items are of the kind of `like`: GGUF_STRING, GGUF_FLOAT32 (any float type),
 * GGUF_INT32 (any integer type) or GGUF_BOOL. *out is NULL and the result 0 if there is none. */
int gguf_get_array(const gguf_file *file, const char *key, gguf_type like, const gguf_value **out,
                   llm_error *err);
/* Returns -1 with "file: key is missing". */
int gguf_missing(const gguf_file *file, const char *key, llm_error *err);

/* Item i (< value->n) of a value of an integer or bool type, of any number type. A uint64 beyond
 * int64 gives the largest int64. */
int64_t gguf_item_int(const gguf_value *value, size_t i);
double gguf_item_float(const gguf_value *value, size_t i);
bool gguf_is_int(gguf_type type);
bool gguf_is_float(gguf_type type);
const char *gguf_type_name(gguf_type type);

/* The strings of a value, in order: `const char *at = value->data;` then value->n times
 * `s = gguf_next_string(&at)`. */
gguf_string gguf_next_string(const char **at);

/* A hash of the whole file's content. Reads all of it; false: *stop (may be NULL) became non-zero.
 */
bool gguf_hash(const gguf_file *file, const volatile int *stop, uint64_t hash[2]);

#endif
