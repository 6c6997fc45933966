/* tokenizer_bpe.c: byte-level BPE ("gpt2"): the text is cut into words by the pre-tokenizer, each
 * byte of a word is a token, and pairs of tokens are merged by the rank of their merge. */
#include "tokenizer_parts.h"

#include "../kernels/memory.h"
#include "error.h"
#include "lists.h"
#include "utf8.h"

#include <stdio.h>
#include <string.h>

/* The byte that a character of the vocabulary stands for, or -1. Printable bytes stand for
 * themselves (as code points), the 68 others are U+0100 and following, in order. */
static int byte_of(uint32_t code) {
    if ((code >= 0x21 && code <= 0x7E) || (code >= 0xA1 && code <= 0xFF && code != 0xAD))
        return (int)code;
    if (code < 0x100 || code >= 0x144) return -1;
    uint32_t i = code - 0x100;
    return (int)(i < 33 ? i : i < 67 ? i - 33 + 0x7F : 0xAD);
}

size_t bpe_text_to_bytes(const char *text, size_t n, char *out) {
    size_t written = 0, length;
    for (size_t i = 0; i < n; i += length) {
        uint32_t code = 0;
        length = utf8_length(text + i, n - i, &code);
        int byte = length ? byte_of(code) : -1;
        if (length == 0) length = 1;
        if (byte >= 0) {
            out[written++] = (char)byte;
        } else {
            memcpy(out + written, text + i, length);
            written += length;
        }
    }
    return written;
}

/* Stores the merge "left right"; `bytes` has room for the text. */
static int add_merge(tokenizer *t, gguf_string merge, uint32_t rank, char *bytes, llm_error *err) {
    const char *space = merge.n > 1 ? memchr(merge.data + 1, ' ', merge.n - 1) : NULL;
    size_t n_left = space ? (size_t)(space - merge.data) : 0;
    if (!space || n_left + 1 == merge.n)
        return llm_fail(err, LLM_MISUSE, "%s: merge %u is \"%s\", two tokens expected",
                        gguf_name(t->file), rank, utf8_show(merge.data, merge.n).text);
    size_t left_bytes = bpe_text_to_bytes(merge.data, n_left, bytes);
    size_t right_bytes = bpe_text_to_bytes(space + 1, merge.n - n_left - 1, bytes + left_bytes);
    int32_t left = text_map_find(&t->by_text, bytes, left_bytes, -1);
    int32_t right = text_map_find(&t->by_text, bytes + left_bytes, right_bytes, -1);
    int32_t joined = text_map_find(&t->by_text, bytes, left_bytes + right_bytes, -1);
    if (left < 0 || right < 0 || joined < 0)
        return llm_fail(err, LLM_MISUSE,
                        "%s: merge %u, \"%s\", is of a token that is not in the vocabulary",
                        gguf_name(t->file), rank, utf8_show(merge.data, merge.n).text);
    if (t->types[joined] == TOKEN_CONTROL || t->types[joined] == TOKEN_UNKNOWN)
        return 0; /* text must not be able to make a control token */
    return number_map_add(&t->merges, (uint64_t)left << 32 | (uint32_t)right,
                          (uint64_t)rank << 32 | (uint32_t)joined, err);
}

static int read_merges(tokenizer *t, const gguf_file *file, llm_error *err) {
    const gguf_value *merges;
    const char *key = "tokenizer.ggml.merges";
    int found = gguf_get_array(file, key, GGUF_STRING, &merges, err);
    if (found <= 0) return found < 0 ? -1 : gguf_missing(file, key, err);
    if (number_map_init(&t->merges, merges->n, err)) return -1;
    size_t longest = 0;
    const char *at = merges->data;
    for (size_t i = 0; i < merges->n; i++) {
        gguf_string merge = gguf_next_string(&at);
        if (merge.n > longest) longest = merge.n;
    }
    char *bytes = kern_alloc(longest);
    if (!bytes) return llm_fail_memory(err, longest, "a merge");
    int result = 0;
    at = merges->data;
    for (size_t i = 0; i < merges->n && result == 0; i++)
        result = add_merge(t, gguf_next_string(&at), (uint32_t)i, bytes, err);
    kern_free(bytes);
    return result;
}

int bpe_init(tokenizer *t, const gguf_file *file, llm_error *err) {
    gguf_string pre = {"default", 7};
    int found = gguf_get_string(file, "tokenizer.ggml.pre", &pre, err);
    if (found < 0) return -1;
    if (found == 0)
        snprintf(t->warning, sizeof t->warning,
                 "tokenizer.ggml.pre is missing: the words of a text may be cut wrongly (as "
                 "\"default\")");
    t->pre = pre_tokenizer_new(pre, err);
    if (!t->pre) return -1;
    snprintf(t->description, sizeof t->description, "gpt2/%.*s", (int)pre.n, pre.data);
    t->add_bos = pre_tokenizer_adds_bos(t->pre);
    if (t->unknown >= 0 && t->types[t->unknown] != TOKEN_UNKNOWN)
        t->unknown = -1; /* often the end-of-text token, which text must not turn into */
    for (int byte = 0; byte < 256; byte++)
        t->byte_ids[byte] = tokenizer_find(t, &(char){(char)byte}, 1);
    return read_merges(t, file, err);
}

/* ---- encoding ---- */

static bool merge_pair(const tokenizer *t, const char *text, const merge_piece *left,
                       const merge_piece *right, int32_t *id, uint32_t *priority) {
    (void)text;
    if (left->id < 0 || right->id < 0) return false;
    const uint64_t *found =
        number_map_find(&t->merges, (uint64_t)left->id << 32 | (uint32_t)right->id);
    if (!found) return false;
    *id = (int32_t)(uint32_t)*found;
    *priority = (uint32_t)(*found >> 32);
    return true;
}

typedef struct bpe_job {
    tokenizer *t;
    llm_ids *out;
} bpe_job;

static int encode_word(void *data, const char *word, size_t n, llm_error *err) {
    bpe_job *job = data;
    tokenizer *t = job->t;
    if (n == 1 && t->byte_ids[(unsigned char)*word] >= 0)
        return llm_ids_push(job->out, t->byte_ids[(unsigned char)*word], err);
    if (pre_tokenizer_takes_whole_words(t->pre)) {
        int32_t id = tokenizer_find(t, word, n);
        if (id >= 0) return llm_ids_push(job->out, id, err);
    }
    if (merge_reserve(&t->merge, n, err)) return -1;
    merge_piece *pieces = t->merge.pieces;
    for (size_t i = 0; i < n; i++)
        pieces[i] =
            (merge_piece){t->byte_ids[(unsigned char)word[i]], 1, i ? (uint32_t)i - 1 : MERGE_NONE};
    if (merge_run(&t->merge, t, word, n, merge_pair, err)) return -1;
    for (size_t at = 0; at < n; at += pieces[at].n_bytes) {
        if (pieces[at].id < 0 ? tokenizer_push_bytes(t, word + at, 1, job->out, err)
                              : llm_ids_push(job->out, pieces[at].id, err))
            return -1;
    }
    return 0;
}

int bpe_encode(tokenizer *t, const char *text, size_t n, llm_ids *out, llm_error *err) {
    return pre_tokenizer_split(t->pre, text, n, encode_word, &(bpe_job){t, out}, err);
}
