/* hostile_files.h: small GGUF files, right and wrong ones, each with what the loader has to say of
 * it. Shared by test_gguf.c and make_corpus.c. */
#ifndef SPEC_HOSTILE_FILES_H
#define SPEC_HOSTILE_FILES_H

#include "gguf_writer.h"

typedef struct hostile_file {
    const char *name;
    const char *expected; /* part of the message; NULL: the file is right */
    void (*build)(gguf_writer *w);
} hostile_file;

static void begin_with_key(gguf_writer *w) {
    writer_begin(w, 3);
    put_string_value(w, "general.architecture", "llama");
}

static void one_tensor(gguf_writer *w, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                       uint64_t offset) {
    begin_with_key(w);
    put_tensor(w, "x", n_dims, dims, type, offset);
    put_data(w, 32, 64);
    writer_end(w);
}

#define DIMS(...) ((const uint64_t[]){__VA_ARGS__})

static void build_right(gguf_writer *w) {
    begin_with_key(w);
    put_u32_value(w, "general.alignment", 64);
    put_bool_value(w, "a.bool", 1);
    put_key(w, "a.uint8", GGUF_UINT8), put(w, &(uint8_t){200}, 1);
    put_key(w, "a.int8", GGUF_INT8), put(w, &(int8_t){-3}, 1);
    put_key(w, "a.uint16", GGUF_UINT16), put(w, &(uint16_t){60000}, 2);
    put_key(w, "a.int16", GGUF_INT16), put(w, &(int16_t){-300}, 2);
    put_key(w, "a.int32", GGUF_INT32), put(w, &(int32_t){-70000}, 4);
    put_key(w, "a.float32", GGUF_FLOAT32), put(w, &(float){0.5f}, 4);
    put_key(w, "a.uint64", GGUF_UINT64), put(w, &(uint64_t){UINT64_MAX}, 8);
    put_key(w, "a.int64", GGUF_INT64), put(w, &(int64_t){-5000000000}, 8);
    put_key(w, "a.float64", GGUF_FLOAT64), put(w, &(double){0.25}, 8);
    put_array(w, "a.strings", GGUF_STRING, 3);
    put_string(w, "one"), put_string(w, ""), put_string(w, "three");
    put_array(w, "a.ints", GGUF_INT32, 3), put(w, (int32_t[]){1, -2, 3}, 12);
    put_array(w, "a.floats", GGUF_FLOAT32, 2), put(w, (float[]){1.5f, -2.5f}, 8);
    put_array(w, "a.none", GGUF_UINT8, 0);
    put_tensor(w, "x", 2, DIMS(4, 3), KERN_F32, 0);
    put_tensor(w, "q", 3, DIMS(32, 2, 1), KERN_Q8_0, 64);
    put_data(w, 64, 64 + 68);
    writer_end(w);
}

static void build_empty(gguf_writer *w) { *w = (gguf_writer){0}; }
static void build_text(gguf_writer *w) { put(w, "What is this?\n", 14); }
static void build_short(gguf_writer *w) { put(w, "GGUF\3", 5); }
static void build_zip(gguf_writer *w) { put(w, "PK\3\4 and more of it", 20); }
static void build_safetensors(gguf_writer *w) { put(w, "\x50\0\0\0\0\0\0\0{\"x\":{}}", 16); }
static void build_lfs(gguf_writer *w) { put(w, "version https://git-lfs.example/spec/v1\n", 40); }
static void build_noise(gguf_writer *w) { put(w, "\x9C\xFE\x01\x88zz\x90\x91", 8); }

static void build_version(gguf_writer *w, uint32_t version) {
    begin_with_key(w);
    writer_end(w);
    memcpy(w->data + 4, &version, 4);
}
static void build_version_1(gguf_writer *w) { build_version(w, 1); }
static void build_version_9(gguf_writer *w) { build_version(w, 9); }
static void build_big_endian(gguf_writer *w) { build_version(w, 0x03000000); }
static void build_version_2(gguf_writer *w) { build_version(w, 2); }

static void build_many_keys(gguf_writer *w) {
    begin_with_key(w);
    w->n_values = UINT64_MAX;
    writer_end(w);
}
static void build_many_tensors(gguf_writer *w) {
    begin_with_key(w);
    w->n_tensors = (uint64_t)1 << 40;
    writer_end(w);
}
static void build_key_missing(gguf_writer *w) {
    begin_with_key(w);
    put_data(w, 64, 0);
    w->n_values = 3;
    writer_end(w);
}
static void build_long_string(gguf_writer *w) {
    writer_begin(w, 3);
    put_key(w, "general.name", GGUF_STRING);
    put_u64(w, (uint64_t)1 << 30);
    put(w, "tiny", 4);
    writer_end(w);
}
static void build_longest_string(gguf_writer *w) {
    writer_begin(w, 3);
    put_key(w, "general.name", GGUF_STRING);
    put_u64(w, UINT64_MAX);
    put(w, "tiny", 4);
    writer_end(w);
}
static void build_array(gguf_writer *w, uint32_t type, uint64_t n) {
    writer_begin(w, 3);
    put_array(w, "an.array", type, n);
    put_u64(w, 1);
    put_u64(w, 2);
    writer_end(w);
}
static void build_long_array(gguf_writer *w) { build_array(w, GGUF_UINT8, (uint64_t)1 << 30); }
static void build_longest_array(gguf_writer *w) { build_array(w, GGUF_UINT64, UINT64_MAX / 8 + 1); }
static void build_long_strings(gguf_writer *w) { build_array(w, GGUF_STRING, (uint64_t)1 << 28); }
static void build_nested(gguf_writer *w) { build_array(w, GGUF_ARRAY, 1); }
static void build_array_type(gguf_writer *w) { build_array(w, 13, 1); }
static void build_bad_string_item(gguf_writer *w) {
    writer_begin(w, 3);
    put_array(w, "an.array", GGUF_STRING, 2);
    put_string(w, "one");
    put_u64(w, (uint64_t)1 << 62);
    writer_end(w);
}
static void build_value_type(gguf_writer *w) {
    writer_begin(w, 3);
    put_key(w, "a.key", 99);
    put_u64(w, 0);
    writer_end(w);
}
static void build_negative_value_type(gguf_writer *w) {
    writer_begin(w, 3);
    put_key(w, "a.key", (uint32_t)-1);
    put_u64(w, 0);
    writer_end(w);
}
static void build_bad_bool(gguf_writer *w) {
    writer_begin(w, 3);
    put_bool_value(w, "a.bool", 7);
    put_data(w, 32, 0);
    writer_end(w);
}
static void build_empty_key(gguf_writer *w) {
    writer_begin(w, 3);
    put_u32_value(w, "", 1);
    writer_end(w);
}
static void build_twice(gguf_writer *w) {
    begin_with_key(w);
    put_string_value(w, "general.architecture", "gpt2");
    writer_end(w);
}
static void build_line_in_key(gguf_writer *w) {
    writer_begin(w, 3);
    put_u32_value(w, "two\nlines\xFF", 1);
    put_u32_value(w, "two\nlines\xFF", 1);
    writer_end(w);
}
static void build_alignment(gguf_writer *w, uint32_t alignment) {
    writer_begin(w, 3);
    put_u32_value(w, "general.alignment", alignment);
    put_tensor(w, "x", 1, DIMS(8), KERN_F32, 0);
    put_data(w, 32, 64);
    writer_end(w);
}
static void build_alignment_0(gguf_writer *w) { build_alignment(w, 0); }
static void build_alignment_24(gguf_writer *w) { build_alignment(w, 24); }
static void build_alignment_large(gguf_writer *w) { build_alignment(w, 1u << 30); }
static void build_alignment_text(gguf_writer *w) {
    writer_begin(w, 3);
    put_string_value(w, "general.alignment", "32");
    writer_end(w);
}
static void build_dim_0(gguf_writer *w) { one_tensor(w, 2, DIMS(4, 0), KERN_F32, 0); }
static void build_dims_0(gguf_writer *w) { one_tensor(w, 0, NULL, KERN_F32, 0); }
static void build_dims_9(gguf_writer *w) {
    one_tensor(w, 9, DIMS(1, 1, 1, 1, 1, 1, 1, 1, 1), KERN_F32, 0);
}
static void build_dim_largest(gguf_writer *w) {
    one_tensor(w, 4, DIMS(UINT64_MAX, 2, 1, 1), KERN_F32, 0);
}
static void build_product(gguf_writer *w) {
    one_tensor(w, 3, DIMS((uint64_t)1 << 42, (uint64_t)1 << 42, 2), KERN_F32, 0);
}
static void build_product_bytes(gguf_writer *w) {
    one_tensor(w, 1, DIMS((uint64_t)1 << 62), KERN_F32, 0);
}
static void build_dim_large(gguf_writer *w) {
    one_tensor(w, 1, DIMS(((uint64_t)1 << 42) + 1), KERN_F32, 0);
}
static void build_block(gguf_writer *w) { one_tensor(w, 1, DIMS(33), KERN_Q8_0, 0); }
static void build_type(gguf_writer *w) { one_tensor(w, 1, DIMS(4), 77, 0); }
static void build_type_removed(gguf_writer *w) { one_tensor(w, 1, DIMS(4), 4, 0); }
static void build_type_negative(gguf_writer *w) { one_tensor(w, 1, DIMS(4), (uint32_t)-2, 0); }
static void build_offset_end(gguf_writer *w) { one_tensor(w, 1, DIMS(4), KERN_F32, 64); }
static void build_offset_far(gguf_writer *w) {
    one_tensor(w, 1, DIMS(4), KERN_F32, (uint64_t)1 << 40);
}
static void build_offset_header(gguf_writer *w) {
    one_tensor(w, 1, DIMS(4), KERN_F32, (uint64_t)0 - 64);
}
static void build_offset_odd(gguf_writer *w) { one_tensor(w, 1, DIMS(4), KERN_F32, 4); }
static void build_too_large(gguf_writer *w) { one_tensor(w, 1, DIMS(17), KERN_F32, 0); }
static void build_tensor_twice(gguf_writer *w) {
    begin_with_key(w);
    put_tensor(w, "x", 1, DIMS(4), KERN_F32, 0);
    put_tensor(w, "x", 1, DIMS(4), KERN_F32, 32);
    put_data(w, 32, 64);
    writer_end(w);
}
static void build_overlap(gguf_writer *w) {
    begin_with_key(w);
    put_tensor(w, "x", 1, DIMS(12), KERN_F32, 0);
    put_tensor(w, "y", 1, DIMS(4), KERN_F32, 32);
    put_data(w, 32, 64);
    writer_end(w);
}
static void build_tensor_unnamed(gguf_writer *w) {
    begin_with_key(w);
    put_tensor(w, "", 1, DIMS(4), KERN_F32, 0);
    put_data(w, 32, 64);
    writer_end(w);
}
static void build_tensor_long_name(gguf_writer *w) {
    char name[80];
    memset(name, 'n', 79);
    name[79] = 0;
    begin_with_key(w);
    put_tensor(w, name, 1, DIMS(4), KERN_F32, 0);
    put_data(w, 32, 64);
    writer_end(w);
}

static const hostile_file hostile_files[] = {
    {"right", NULL, build_right},
    {"version-2", NULL, build_version_2},
    {"empty", "it is empty", build_empty},
    {"text", "it looks like text", build_text},
    {"short", "truncated at byte 4", build_short},
    {"zip", "a zip archive", build_zip},
    {"safetensors", "a safetensors file", build_safetensors},
    {"lfs", "a git-lfs pointer", build_lfs},
    {"noise", "not a GGUF file", build_noise},
    {"version-1", "GGUF version 1, only 2 and 3", build_version_1},
    {"version-9", "GGUF version 9, only 2 and 3", build_version_9},
    {"big-endian", "a big-endian GGUF file", build_big_endian},
    {"many-keys", "18446744073709551615 keys are announced", build_many_keys},
    {"many-tensors", "1099511627776 tensors are announced", build_many_tensors},
    {"key-missing", "is empty", build_key_missing},
    {"long-string", "1073741824 bytes long, 4 are left", build_long_string},
    {"longest-string", "18446744073709551615 bytes long, 4 are left", build_longest_string},
    {"long-array", "\"an.array\" has 1073741824 items", build_long_array},
    {"longest-array", "\"an.array\" has", build_longest_array},
    {"long-strings", "\"an.array\" has 268435456 items", build_long_strings},
    {"nested-array", "an array of arrays", build_nested},
    {"array-type", "unknown value type 13", build_array_type},
    {"string-item", "an.array is 4611686018427387904 bytes long", build_bad_string_item},
    {"value-type", "unknown value type 99", build_value_type},
    {"negative-value-type", "unknown value type 4294967295", build_negative_value_type},
    {"bad-bool", "\"a.bool\": a bool is 7", build_bad_bool},
    {"empty-key", "a key is empty", build_empty_key},
    {"key-twice", "key \"general.architecture\" is there twice", build_twice},
    {"line-in-key", "key \"two\\x0Alines\\xFF\" is there twice", build_line_in_key},
    {"alignment-0", "general.alignment is 0", build_alignment_0},
    {"alignment-24", "general.alignment is 24", build_alignment_24},
    {"alignment-2-30", "general.alignment is 1073741824", build_alignment_large},
    {"alignment-text", "general.alignment is a value of type string", build_alignment_text},
    {"dimension-0", "dimension 2 is 0", build_dim_0},
    {"dimensions-0", "0 dimensions, 1 to 4", build_dims_0},
    {"dimensions-9", "9 dimensions, 1 to 4", build_dims_9},
    {"dimension-largest", "dimension 1 is 18446744073709551615", build_dim_largest},
    {"product", "makes more than 2^63 values", build_product},
    {"product-bytes", "4611686018427387904 values are too many", build_product_bytes},
    {"dimension-large", "end past the file's 64 bytes of data", build_dim_large},
    {"block", "rows of 33 values are no multiple of the 32", build_block},
    {"type", "unknown type 77 (known: F32=0", build_type},
    {"type-removed", "unknown type 4 (known: F32=0", build_type_removed},
    {"type-negative", "unknown type -2 (known: F32=0", build_type_negative},
    {"offset-end", "16 bytes at offset 64 end past the file's 64 bytes", build_offset_end},
    {"offset-far", "at offset 1099511627776 end past", build_offset_far},
    {"offset-header", "at offset 18446744073709551552 end past", build_offset_header},
    {"offset-odd", "offset 4 is no multiple of the alignment 32", build_offset_odd},
    {"too-large", "68 bytes at offset 0 end past the file's 64 bytes", build_too_large},
    {"tensor-twice", "tensor \"x\" is there twice", build_tensor_twice},
    {"overlap", "tensors \"x\" and \"y\" overlap: 48 bytes, 32 apart", build_overlap},
    {"tensor-unnamed", "a tensor's name is empty", build_tensor_unnamed},
    {"tensor-long-name", "79 bytes long, at most 64", build_tensor_long_name},
};

enum { N_HOSTILE_FILES = sizeof hostile_files / sizeof *hostile_files };

#endif
