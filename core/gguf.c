/* gguf.c: opens, checks and indexes a GGUF file. Owns the mapping and the two tables.
 *
 *   "GGUF"  version u32  n_tensors u64  n_values u64
 *   n_values  × { key string, type u32, value }           string = { length u64, bytes }
 *   n_tensors × { name string, n_dims u32, dims u64 × n_dims, type u32, offset u64 }
 *   padding to the alignment, then the data that offsets count from
 *
 * The file is hostile until checked: no table is made larger than what the remaining bytes can
 * hold. */
#include "gguf.h"

#include "../kernels/memory.h"
#include "error.h"
#include "hash.h"
#include "utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    MIN_VALUE_BYTES = 8 + 1 + 4 + 1,          /* a key of one byte, a type, a bool */
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8, /* a name of one byte, one dimension */
    MAX_KEY_BYTES = 65535,
    MAX_NAME_BYTES = 64,
    MAX_DIMS = 4,
    DEFAULT_ALIGNMENT = 32,
    MIN_ALIGNMENT = 8,
    MAX_ALIGNMENT = 65536,
    HASH_STEP = 16 << 20 /* bytes between two looks at the stop flag */
};

struct gguf_file {
    char *name;
    const char *data;
    size_t bytes;
    bool mapped;
    gguf_identity identity; /* of what is mapped */
    int version;
    size_t n_values, n_tensors;
    gguf_value *values;
    gguf_tensor *tensors;
    text_map values_by_key, tensors_by_name;
};

/* What is read next; `at` never passes `bytes`. */
typedef struct reader {
    const gguf_file *file;
    const char *data;
    size_t at, bytes;
    llm_error *err;
} reader;

static int fail(const gguf_file *file, llm_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The message, after the file's name. */
static int fail(const gguf_file *file, llm_error *err, const char *format, ...) {
    char what[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return llm_fail(err, LLM_MISUSE, "%s: %s", utf8_show(file->name, strlen(file->name)).text,
                    what);
}

/* ---- reading ---- */

static int read_bytes(reader *r, void *out, size_t n, const char *what) {
    if (n > r->bytes - r->at)
        return fail(r->file, r->err, "truncated at byte %zu: %s needs %zu bytes, %zu are left",
                    r->at, what, n, r->bytes - r->at);
    memcpy(out, r->data + r->at, n);
    r->at += n;
    return 0;
}

static int read_u32(reader *r, uint32_t *out, const char *what) {
    return read_bytes(r, out, sizeof *out, what);
}

static int read_u64(reader *r, uint64_t *out, const char *what) {
    return read_bytes(r, out, sizeof *out, what);
}

static int read_string(reader *r, gguf_string *out, const char *what) {
    uint64_t n = 0;
    if (read_u64(r, &n, what)) return -1;
    if (n > r->bytes - r->at)
        return fail(r->file, r->err,
                    "truncated at byte %zu: %s is %" PRIu64 " bytes long, %zu are left", r->at,
                    what, n, r->bytes - r->at);
    *out = (gguf_string){r->data + r->at, (size_t)n};
    r->at += (size_t)n;
    return 0;
}

static size_t scalar_bytes(gguf_type type) {
    switch (type) {
    case GGUF_UINT8:
    case GGUF_INT8:
    case GGUF_BOOL: return 1;
    case GGUF_UINT16:
    case GGUF_INT16: return 2;
    case GGUF_UINT32:
    case GGUF_INT32:
    case GGUF_FLOAT32: return 4;
    case GGUF_UINT64:
    case GGUF_INT64:
    case GGUF_FLOAT64: return 8;
    default: return 0;
    }
}

static int check_bools(reader *r, const gguf_value *value) {
    for (size_t i = 0; i < value->n; i++)
        if ((unsigned char)value->data[i] > 1)
            return fail(r->file, r->err, "\"%s\": a bool is %d, 0 or 1 expected",
                        utf8_show(value->key.data, value->key.n).text,
                        (unsigned char)value->data[i]);
    return 0;
}

/* Steps over value->n items of value->item_type. */
static int read_items(reader *r, gguf_value *value) {
    size_t left = r->bytes - r->at;
    size_t item_bytes = value->item_type == GGUF_STRING ? 8 : scalar_bytes(value->item_type);
    value->data = r->data + r->at;
    if (value->n > left / item_bytes)
        return fail(r->file, r->err,
                    "truncated: \"%s\" has %zu items of at least %zu bytes, %zu bytes are left",
                    utf8_show(value->key.data, value->key.n).text, value->n, item_bytes, left);
    if (value->item_type == GGUF_STRING) {
        gguf_string ignored;
        utf8_shown key = utf8_show(value->key.data, value->key.n);
        for (size_t i = 0; i < value->n; i++)
            if (read_string(r, &ignored, key.text)) return -1;
        return 0;
    }
    r->at += value->n * item_bytes;
    return value->item_type == GGUF_BOOL ? check_bools(r, value) : 0;
}

static int read_value(reader *r, gguf_value *value) {
    uint32_t type = 0, item_type;
    uint64_t n = 1;
    if (read_string(r, &value->key, "a key")) return -1;
    if (value->key.n == 0) return fail(r->file, r->err, "a key is empty (byte %zu)", r->at);
    utf8_shown key = utf8_show(value->key.data, value->key.n);
    if (value->key.n > MAX_KEY_BYTES)
        return fail(r->file, r->err, "key \"%s\" is %zu bytes long, at most %d are allowed",
                    key.text, value->key.n, MAX_KEY_BYTES);
    if (read_u32(r, &type, "the type of a value")) return -1;
    item_type = type;
    if (type == GGUF_ARRAY) {
        if (read_u32(r, &item_type, "the type of an array")) return -1;
        if (read_u64(r, &n, "the length of an array")) return -1;
        if (item_type == GGUF_ARRAY)
            return fail(r->file, r->err, "\"%s\" is an array of arrays, which is not supported",
                        key.text);
    }
    if (item_type >= GGUF_N_TYPES)
        return fail(r->file, r->err,
                    "\"%s\" has the unknown value type %" PRIu32 " (known: 0 to %d)", key.text,
                    item_type, GGUF_N_TYPES - 1);
    if (n > SIZE_MAX / 8)
        return fail(r->file, r->err, "truncated: \"%s\" has %" PRIu64 " items, %zu bytes are left",
                    key.text, n, r->bytes - r->at);
    value->type = (gguf_type)type;
    value->item_type = (gguf_type)item_type;
    value->n = (size_t)n;
    return read_items(r, value);
}

static int read_values(gguf_file *file, reader *r, uint64_t n) {
    size_t left = r->bytes - r->at;
    if (n > left / MIN_VALUE_BYTES)
        return fail(file, r->err, "truncated: %" PRIu64 " keys are announced, %zu bytes are left",
                    n, left);
    file->values = kern_alloc_array((size_t)n, sizeof *file->values);
    if (!file->values)
        return llm_fail_memory(r->err, (size_t)n * sizeof *file->values, "the metadata");
    if (text_map_init(&file->values_by_key, (size_t)n, r->err)) return -1;
    for (size_t i = 0; i < n; i++) {
        gguf_value *value = &file->values[i];
        if (read_value(r, value)) return -1;
        if (text_map_add(&file->values_by_key, value->key.data, value->key.n, (int32_t)i) !=
            (int32_t)i)
            return fail(file, r->err, "key \"%s\" is there twice",
                        utf8_show(value->key.data, value->key.n).text);
        file->n_values = i + 1;
    }
    return 0;
}

/* ---- tensors ---- */

static int fail_type(reader *r, const char *name, uint32_t type) {
    char known[256] = "";
    for (const kern_format *f = kern_formats; f->name; f++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s=%d", used ? " " : "", f->name, f->id);
    }
    return fail(r->file, r->err, "tensor \"%s\" has the unknown type %" PRId32 " (known: %s)", name,
                (int32_t)type, known);
}

/* Reads the dimensions and the type, and sets tensor->bytes. */
static int read_shape(reader *r, gguf_tensor *tensor, const char *name) {
    uint32_t n_dims = 0, type = 0;
    int64_t n = 1;
    if (read_u32(r, &n_dims, "a number of dimensions")) return -1;
    if (n_dims < 1 || n_dims > MAX_DIMS)
        return fail(r->file, r->err,
                    "tensor \"%s\" has %" PRIu32 " dimensions, 1 to %d are allowed", name, n_dims,
                    MAX_DIMS);
    tensor->n_dims = (int)n_dims;
    for (uint32_t i = 0; i < MAX_DIMS; i++) {
        uint64_t dim = 1;
        if (i < n_dims && read_u64(r, &dim, "a dimension")) return -1;
        if (dim < 1 || dim > INT64_MAX)
            return fail(r->file, r->err,
                        "tensor \"%s\": dimension %" PRIu32 " is %" PRIu64 ", 1 to %" PRId64
                        " are allowed",
                        name, i + 1, dim, INT64_MAX);
        tensor->dims[i] = (int64_t)dim;
        if (__builtin_mul_overflow(n, (int64_t)dim, &n))
            return fail(r->file, r->err,
                        "tensor \"%s\": dimension %" PRIu32 " of %" PRIu64
                        " makes more than 2^63 values",
                        name, i + 1, dim);
    }
    if (read_u32(r, &type, "the type of a tensor")) return -1;
    tensor->format = type <= INT32_MAX ? kern_format_find((int32_t)type) : NULL;
    if (!tensor->format) return fail_type(r, name, type);
    const int32_t block = tensor->format->block_size;
    if (tensor->dims[0] % block != 0)
        return fail(r->file, r->err,
                    "tensor \"%s\": rows of %" PRId64 " values are no multiple of the %d"
                    " of a block of %s",
                    name, tensor->dims[0], block, tensor->format->name);
    if (__builtin_mul_overflow((size_t)(n / block), (size_t)tensor->format->block_bytes,
                               &tensor->bytes))
        return fail(r->file, r->err, "tensor \"%s\": %" PRId64 " values are too many", name, n);
    return 0;
}

/* Leaves the offset in *offset; tensor->data is set when the data's place is known. */
static int read_tensor(reader *r, gguf_tensor *tensor, uint64_t *offset) {
    if (read_string(r, &tensor->name, "a tensor's name")) return -1;
    if (tensor->name.n == 0)
        return fail(r->file, r->err, "a tensor's name is empty (byte %zu)", r->at);
    utf8_shown name = utf8_show(tensor->name.data, tensor->name.n);
    if (tensor->name.n > MAX_NAME_BYTES)
        return fail(r->file, r->err, "tensor name \"%s\" is %zu bytes long, at most %d are allowed",
                    name.text, tensor->name.n, MAX_NAME_BYTES);
    if (read_shape(r, tensor, name.text)) return -1;
    return read_u64(r, offset, "the offset of a tensor");
}

static int read_tensors(gguf_file *file, reader *r, uint64_t n, uint64_t *offsets) {
    if (text_map_init(&file->tensors_by_name, (size_t)n, r->err)) return -1;
    for (size_t i = 0; i < n; i++) {
        gguf_tensor *tensor = &file->tensors[i];
        if (read_tensor(r, tensor, &offsets[i])) return -1;
        if (text_map_add(&file->tensors_by_name, tensor->name.data, tensor->name.n, (int32_t)i) !=
            (int32_t)i)
            return fail(file, r->err, "tensor \"%s\" is there twice",
                        utf8_show(tensor->name.data, tensor->name.n).text);
        file->n_tensors = i + 1;
    }
    return 0;
}

static int read_alignment(const gguf_file *file, size_t *alignment, llm_error *err) {
    int64_t wanted = DEFAULT_ALIGNMENT;
    if (gguf_get_int(file, "general.alignment", MIN_ALIGNMENT, MAX_ALIGNMENT, &wanted, err) < 0)
        return -1;
    if (wanted & (wanted - 1))
        return fail(file, err,
                    "general.alignment is %" PRId64 ", a power of two from %d to %d expected",
                    wanted, MIN_ALIGNMENT, MAX_ALIGNMENT);
    *alignment = (size_t)wanted;
    return 0;
}

/* Points every tensor into the data that begins at byte `start`. */
static int place_tensors(gguf_file *file, const uint64_t *offsets, size_t start, size_t alignment,
                         llm_error *err) {
    size_t room = start < file->bytes ? file->bytes - start : 0;
    for (size_t i = 0; i < file->n_tensors; i++) {
        gguf_tensor *tensor = &file->tensors[i];
        utf8_shown name = utf8_show(tensor->name.data, tensor->name.n);
        if (offsets[i] % alignment)
            return fail(file, err,
                        "tensor \"%s\": offset %" PRIu64 " is no multiple of the alignment %zu",
                        name.text, offsets[i], alignment);
        if (offsets[i] > room || tensor->bytes > room - offsets[i])
            return fail(file, err,
                        "tensor \"%s\": %zu bytes at offset %" PRIu64
                        " end past the file's %zu bytes of data",
                        name.text, tensor->bytes, offsets[i], room);
        tensor->data = file->data + start + offsets[i];
    }
    return 0;
}

static int compare_places(const void *a, const void *b) {
    const gguf_tensor *x = *(const gguf_tensor *const *)a, *y = *(const gguf_tensor *const *)b;
    const char *p = x->data, *q = y->data;
    return p < q ? -1 : p > q;
}

static int check_overlap(const gguf_file *file, llm_error *err) {
    const gguf_tensor **order = kern_alloc_array(file->n_tensors, sizeof *order);
    if (!order) return llm_fail_memory(err, file->n_tensors * sizeof *order, "the tensors");
    for (size_t i = 0; i < file->n_tensors; i++) order[i] = &file->tensors[i];
    if (file->n_tensors) qsort(order, file->n_tensors, sizeof *order, compare_places);
    int result = 0;
    for (size_t i = 1; i < file->n_tensors && result == 0; i++) {
        const gguf_tensor *x = order[i - 1], *y = order[i];
        size_t apart = (size_t)((const char *)y->data - (const char *)x->data);
        if (x->bytes > apart)
            result = fail(file, err, "tensors \"%s\" and \"%s\" overlap: %zu bytes, %zu apart",
                          utf8_show(x->name.data, x->name.n).text,
                          utf8_show(y->name.data, y->name.n).text, x->bytes, apart);
    }
    kern_free(order);
    return result;
}

/* The tensors' infos begin where r stands. */
static int bind_tensors(gguf_file *file, reader *r, uint64_t n) {
    size_t left = r->bytes - r->at, alignment = 0;
    if (n > left / MIN_TENSOR_BYTES)
        return fail(file, r->err,
                    "truncated: %" PRIu64 " tensors are announced, %zu bytes are left", n, left);
    if (read_alignment(file, &alignment, r->err)) return -1;
    file->tensors = kern_alloc_array((size_t)n, sizeof *file->tensors);
    uint64_t *offsets = kern_alloc_array((size_t)n, sizeof *offsets);
    int result = -1;
    if (!file->tensors || !offsets) {
        llm_fail_memory(r->err, (size_t)n * sizeof *file->tensors, "the tensors");
    } else if (read_tensors(file, r, n, offsets) == 0) {
        size_t start = (r->at + alignment - 1) & ~(alignment - 1);
        result = place_tensors(file, offsets, start, alignment, r->err);
    }
    kern_free(offsets);
    return result ? result : check_overlap(file, r->err);
}

/* ---- what the file is ---- */

/* What a file without the magic looks like, or NULL. */
static const char *guess_kind(const char *data, size_t bytes) {
    static const struct {
        const char *magic;
        size_t n, at;
        const char *kind;
    } known[] = {
        {"FUGG", 4, 0, "a byte-swapped GGUF file"},
        {"lmgg", 4, 0, "an old GGML file; convert it to GGUF"},
        {"fmgg", 4, 0, "an old GGML file; convert it to GGUF"},
        {"tjgg", 4, 0, "an old GGML file; convert it to GGUF"},
        {"PK\3\4", 4, 0, "a zip archive, perhaps a PyTorch checkpoint"},
        {"{\"", 2, 8, "a safetensors file"},
        {"\x1f\x8b", 2, 0, "a gzip archive"},
        {"\x28\xb5\x2f\xfd", 4, 0, "a zstd archive"},
        {"\x7f"
         "ELF",
         4, 0, "a program"},
        {"\x89HDF", 4, 0, "an HDF5 file"},
        {"\x80\x02", 2, 0, "a Python pickle"},
        {"version https://git-lfs", 23, 0, "a git-lfs pointer, not the file itself"},
        {"<!DOCTYPE", 9, 0, "an HTML page"},
        {"<html", 5, 0, "an HTML page"},
        {"\0\0\0\0", 4, 0, "zeros, perhaps an unfinished download"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (bytes >= known[i].at + known[i].n &&
            memcmp(data + known[i].at, known[i].magic, known[i].n) == 0)
            return known[i].kind;
    for (size_t i = 0; i < bytes && i < 256;) {
        uint32_t code = 0;
        size_t length = utf8_length(data + i, bytes - i, &code);
        if (length == 0 || (code < 0x20 && code != '\n' && code != '\r' && code != '\t'))
            return NULL;
        i += length;
    }
    return "text";
}

static int check_magic(gguf_file *file, reader *r) {
    uint32_t version = 0;
    if (file->bytes == 0) return fail(file, r->err, "not a GGUF file: it is empty");
    if (file->bytes < 4 || memcmp(file->data, "GGUF", 4) != 0) {
        const char *kind = guess_kind(file->data, file->bytes);
        return fail(file, r->err, "not a GGUF file%s%s", kind ? ": it looks like " : "",
                    kind ? kind : "");
    }
    r->at = 4;
    if (read_u32(r, &version, "the version")) return -1;
    if (version == 0x02000000 || version == 0x03000000)
        return fail(file, r->err, "a big-endian GGUF file, only little-endian ones are supported");
    if (version != 2 && version != 3)
        return fail(file, r->err, "GGUF version %" PRIu32 ", only 2 and 3 are supported", version);
    file->version = (int)version;
    return 0;
}

static int gguf_parse(gguf_file *file, llm_error *err) {
    reader r = {file, file->data, 0, file->bytes, err};
    uint64_t n_tensors = 0, n_values = 0;
    if (check_magic(file, &r)) return -1;
    if (read_u64(&r, &n_tensors, "the number of tensors")) return -1;
    if (read_u64(&r, &n_values, "the number of keys")) return -1;
    if (read_values(file, &r, n_values)) return -1;
    return bind_tensors(file, &r, n_tensors);
}

/* ---- open and close ---- */

static int64_t nanoseconds(struct timespec t) { return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec; }

static gguf_identity identity_of(const struct stat *info) {
    return (gguf_identity){(uint64_t)info->st_dev,
                           (uint64_t)info->st_ino,
                           (uint64_t)info->st_size,
                           {nanoseconds(info->st_mtim), nanoseconds(info->st_ctim)}};
}

static int map_file(gguf_file *file, const char *path, llm_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return fail(file, err, "cannot open: %s", strerror(errno));
    struct stat info;
    int result = -1;
    if (fstat(fd, &info) != 0) {
        fail(file, err, "cannot read: %s", strerror(errno));
    } else if (S_ISDIR(info.st_mode)) {
        fail(file, err, "is a directory, a GGUF file expected");
    } else if (!S_ISREG(info.st_mode)) {
        fail(file, err, "is not a regular file, a GGUF file expected");
    } else if ((uintmax_t)info.st_size > PTRDIFF_MAX) {
        fail(file, err, "is too large: %jd bytes", (intmax_t)info.st_size);
    } else if (info.st_size == 0) {
        result = 0; /* cannot be mapped; check_magic says that it is empty */
    } else {
        void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            fail(file, err, "cannot map %jd bytes: %s", (intmax_t)info.st_size, strerror(errno));
        } else {
            file->data = data;
            file->bytes = (size_t)info.st_size;
            file->mapped = true;
            file->identity = identity_of(&info);
            result = 0;
        }
    }
    close(fd);
    return result;
}

static gguf_file *gguf_new(const char *name, llm_error *err) {
    gguf_file *file = kern_alloc(sizeof *file);
    size_t n = strlen(name) + 1;
    if (file) file->name = kern_alloc(n);
    if (!file || !file->name) {
        kern_free(file);
        llm_fail_memory(err, sizeof *file + n, "a model file");
        return NULL;
    }
    memcpy(file->name, name, n);
    return file;
}

gguf_file *gguf_open(const char *path, llm_error *err) {
    gguf_file *file = gguf_new(path, err);
    if (!file) return NULL;
    if (map_file(file, path, err) == 0 && gguf_parse(file, err) == 0) return file;
    gguf_close(file);
    return NULL;
}

gguf_file *gguf_open_memory(const void *data, size_t bytes, const char *name, llm_error *err) {
    gguf_file *file = gguf_new(name, err);
    if (!file) return NULL;
    file->data = data;
    file->bytes = bytes;
    if ((uintptr_t)data % MIN_ALIGNMENT)
        fail(file, err, "the memory is not aligned to %d bytes", MIN_ALIGNMENT);
    else if (gguf_parse(file, err) == 0)
        return file;
    gguf_close(file);
    return NULL;
}

void gguf_close(gguf_file *file) {
    if (!file) return;
    text_map_free(&file->values_by_key);
    text_map_free(&file->tensors_by_name);
    kern_free(file->values);
    kern_free(file->tensors);
    if (file->mapped) munmap((void *)(uintptr_t)file->data, file->bytes);
    kern_free(file->name);
    kern_free(file);
}

/* ---- what is in it ---- */

const char *gguf_name(const gguf_file *file) { return file->name; }
int gguf_version(const gguf_file *file) { return file->version; }

const void *gguf_data(const gguf_file *file, size_t *bytes) {
    *bytes = file->bytes;
    return file->data;
}

gguf_identity gguf_identify(const gguf_file *file) { return file->identity; }

bool gguf_is_unchanged(const gguf_file *file) {
    struct stat info;
    if (!file->mapped || stat(file->name, &info) != 0) return false;
    const gguf_identity now = identity_of(&info);
    return memcmp(&now, &file->identity, sizeof now) == 0;
}

void gguf_release(const gguf_file *file, const void *data, size_t bytes) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)data;
    const uintptr_t start = (uintptr_t)file->data;
    if (!file->mapped || at < start || at - start > file->bytes) return;
    const uintptr_t first = (at + page - 1) & ~(page - 1), end = (at + bytes) & ~(page - 1);
    if (first < end) madvise((void *)first, end - first, MADV_DONTNEED);
}

size_t gguf_n_tensors(const gguf_file *file) { return file->n_tensors; }
const gguf_tensor *gguf_tensor_at(const gguf_file *file, size_t i) { return &file->tensors[i]; }

const gguf_tensor *gguf_tensor_find(const gguf_file *file, const char *name) {
    int32_t i = text_map_find(&file->tensors_by_name, name, strlen(name), -1);
    return i < 0 ? NULL : &file->tensors[i];
}

size_t gguf_n_values(const gguf_file *file) { return file->n_values; }
const gguf_value *gguf_value_at(const gguf_file *file, size_t i) { return &file->values[i]; }

const gguf_value *gguf_find(const gguf_file *file, const char *key) {
    int32_t i = text_map_find(&file->values_by_key, key, strlen(key), -1);
    return i < 0 ? NULL : &file->values[i];
}

bool gguf_hash(const gguf_file *file, const volatile int *stop, uint64_t hash[2]) {
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    for (size_t at = 0; at < file->bytes; at += HASH_STEP) {
        if (stop && *stop) return false;
        const size_t left = file->bytes - at;
        XXH3_128bits_update(&state, file->data + at, left < HASH_STEP ? left : HASH_STEP);
    }
    XXH128_hash_t h = XXH3_128bits_digest(&state);
    hash[0] = h.low64;
    hash[1] = h.high64;
    return true;
}
