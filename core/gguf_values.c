/* gguf_values.c: reads single values and arrays of a file's metadata, with their types and ranges
 * checked. Owns nothing. */
#include "error.h"
#include "gguf.h"
#include "utf8.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *const type_names[GGUF_N_TYPES] = {
    "uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
    "bool",  "string", "array",  "uint64", "int64",  "float64"};

const char *gguf_type_name(gguf_type type) {
    return (unsigned)type < GGUF_N_TYPES ? type_names[type] : "?";
}

bool gguf_is_float(gguf_type type) { return type == GGUF_FLOAT32 || type == GGUF_FLOAT64; }

bool gguf_is_int(gguf_type type) {
    return type <= GGUF_INT32 || type == GGUF_UINT64 || type == GGUF_INT64;
}

static utf8_shown name_of(const gguf_file *file) {
    return utf8_show(gguf_name(file), strlen(gguf_name(file)));
}

static int fail_type(const gguf_file *file, const gguf_value *value, const char *key,
                     const char *expected, llm_error *err) {
    bool array = value->type == GGUF_ARRAY;
    return llm_fail(err, LLM_MISUSE, "%s: %s is %s%s, %s expected", name_of(file).text, key,
                    array ? "an array of " : "a value of type ",
                    gguf_type_name(array ? value->item_type : value->type), expected);
}

int gguf_missing(const gguf_file *file, const char *key, llm_error *err) {
    return llm_fail(err, LLM_MISUSE, "%s: %s is missing", name_of(file).text, key);
}

/* ---- items ---- */

#define ITEM(type, i) (*(type *)memcpy(&(type){0}, value->data + (i) * sizeof(type), sizeof(type)))

int64_t gguf_item_int(const gguf_value *value, size_t i) {
    switch (value->item_type) {
    case GGUF_UINT8:
    case GGUF_BOOL: return ITEM(uint8_t, i);
    case GGUF_INT8: return ITEM(int8_t, i);
    case GGUF_UINT16: return ITEM(uint16_t, i);
    case GGUF_INT16: return ITEM(int16_t, i);
    case GGUF_UINT32: return ITEM(uint32_t, i);
    case GGUF_INT32: return ITEM(int32_t, i);
    case GGUF_INT64: return ITEM(int64_t, i);
    case GGUF_UINT64: {
        uint64_t x = ITEM(uint64_t, i);
        return x > INT64_MAX ? INT64_MAX : (int64_t)x;
    }
    default: return 0;
    }
}

double gguf_item_float(const gguf_value *value, size_t i) {
    if (value->item_type == GGUF_FLOAT32) return (double)ITEM(float, i);
    if (value->item_type == GGUF_FLOAT64) return ITEM(double, i);
    return (double)gguf_item_int(value, i);
}

gguf_string gguf_next_string(const char **at) {
    uint64_t n;
    memcpy(&n, *at, sizeof n);
    gguf_string s = {*at + sizeof n, (size_t)n};
    *at = s.data + s.n;
    return s;
}

/* ---- values by key ---- */

int gguf_get_string(const gguf_file *file, const char *key, gguf_string *out, llm_error *err) {
    const gguf_value *value = gguf_find(file, key);
    if (!value) return 0;
    if (value->type != GGUF_STRING) return fail_type(file, value, key, "a string", err);
    const char *at = value->data;
    *out = gguf_next_string(&at);
    return 1;
}

int gguf_get_bool(const gguf_file *file, const char *key, bool *out, llm_error *err) {
    const gguf_value *value = gguf_find(file, key);
    if (!value) return 0;
    if (value->type != GGUF_BOOL) return fail_type(file, value, key, "a bool", err);
    *out = gguf_item_int(value, 0) != 0;
    return 1;
}

static int check_range(const gguf_file *file, const char *key, int64_t x, int64_t min, int64_t max,
                       llm_error *err) {
    if (x >= min && x <= max) return 0;
    return llm_fail(err, LLM_MISUSE, "%s: %s is %" PRId64 ", %" PRId64 " to %" PRId64 " expected",
                    name_of(file).text, key, x, min, max);
}

int gguf_get_int(const gguf_file *file, const char *key, int64_t min, int64_t max, int64_t *out,
                 llm_error *err) {
    const gguf_value *value = gguf_find(file, key);
    if (!value) return 0;
    if (!gguf_is_int(value->type)) return fail_type(file, value, key, "an integer", err);
    int64_t x = gguf_item_int(value, 0);
    if (check_range(file, key, x, min, max, err)) return -1;
    *out = x;
    return 1;
}

int gguf_get_float(const gguf_file *file, const char *key, double min, double max, double *out,
                   llm_error *err) {
    const gguf_value *value = gguf_find(file, key);
    if (!value) return 0;
    if (!gguf_is_float(value->type) && !gguf_is_int(value->type))
        return fail_type(file, value, key, "a number", err);
    double x = gguf_item_float(value, 0);
    if (!isfinite(x) || x < min || x > max)
        return llm_fail(err, LLM_MISUSE, "%s: %s is %g, %g to %g expected", name_of(file).text, key,
                        x, min, max);
    *out = x;
    return 1;
}

int gguf_get_ints(const gguf_file *file, const char *key, int64_t min, int64_t max, int64_t *out,
                  size_t n, llm_error *err) {
    const gguf_value *value = gguf_find(file, key);
    if (!value) return 0;
    if (!gguf_is_int(value->item_type))
        return fail_type(file, value, key, "an integer or an array of integers", err);
    bool array = value->type == GGUF_ARRAY;
    if (array && value->n < n)
        return llm_fail(err, LLM_MISUSE, "%s: %s has %zu items, %zu expected", name_of(file).text,
                        key, value->n, n);
    for (size_t i = 0; i < n; i++)
        if (check_range(file, key, gguf_item_int(value, array ? i : 0), min, max, err)) return -1;
    for (size_t i = 0; i < n; i++) out[i] = gguf_item_int(value, array ? i : 0);
    return 1;
}

int gguf_get_array(const gguf_file *file, const char *key, gguf_type like, const gguf_value **out,
                   llm_error *err) {
    const gguf_value *value = gguf_find(file, key);
    *out = NULL;
    if (!value) return 0;
    gguf_type item = value->item_type;
    bool fits = like == GGUF_FLOAT32 ? gguf_is_float(item)
                : like == GGUF_INT32 ? gguf_is_int(item)
                                     : item == like;
    if (value->type != GGUF_ARRAY || !fits) {
        const char *expected = like == GGUF_FLOAT32 ? "an array of floats"
                               : like == GGUF_INT32 ? "an array of integers"
                               : like == GGUF_BOOL  ? "an array of bools"
                                                    : "an array of strings";
        return fail_type(file, value, key, expected, err);
    }
    *out = value;
    return 1;
}
