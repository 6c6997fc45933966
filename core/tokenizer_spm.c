/* tokenizer_spm.c: SentencePiece BPE ("llama"): characters are merged by the score of the token
 * they make, the best and leftmost first; characters that are no token become their bytes. The text
 * is worked on as it is: the vocabulary's U+2581 was turned into a space when it was read. */
#include "tokenizer_parts.h"

#include "../kernels/memory.h"
#include "error.h"
#include "lists.h"
#include "utf8.h"

#include <string.h>

/* Whether a text holds a space behind something that is none. */
static bool crosses_words(gguf_string s) {
    for (size_t i = 1; i < s.n; i++)
        if (s.data[i] == ' ' && s.data[i - 1] != ' ') return true;
    return false;
}

int spm_init(tokenizer *t, const gguf_file *file, llm_error *err) {
    if (!t->scores) return gguf_missing(file, "tokenizer.ggml.scores", err);
    t->splits_words = true;
    bool has_unused = false;
    for (int32_t id = 0; id < t->n_tokens; id++) {
        token_type type = (token_type)t->types[id];
        if (type == TOKEN_UNUSED) has_unused = true;
        if (type != TOKEN_CONTROL && type != TOKEN_UNKNOWN && type != TOKEN_BYTE &&
            crosses_words(tokenizer_token_bytes(t, id)))
            t->splits_words = false;
    }
    if (!has_unused) return 0;
    size_t bytes = (size_t)t->n_tokens * sizeof *t->unused_left;
    t->unused_left = kern_alloc(bytes);
    return t->unused_left ? 0 : llm_fail_memory(err, bytes, "the tokenizer");
}

/* Smaller for a higher score. */
static uint32_t priority_of(float score) {
    uint32_t bits;
    score += 0.0f; /* −0 is 0 */
    memcpy(&bits, &score, sizeof bits);
    uint32_t ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
    return ~ascending;
}

static bool merge_pair(const tokenizer *t, const char *text, const merge_piece *left,
                       const merge_piece *right, int32_t *id, uint32_t *priority) {
    *id = tokenizer_find(t, text, left->n_bytes + right->n_bytes);
    if (*id < 0) return false;
    *priority = priority_of(t->scores[*id]);
    if (t->unused_left && t->types[*id] == TOKEN_UNUSED)
        t->unused_left[*id] = (int32_t)left->n_bytes;
    return true;
}

/* Appends the token of a piece; an unused one is taken apart again as it was put together. */
static int push_piece(const tokenizer *t, const char *text, size_t n, int32_t id, llm_ids *out,
                      llm_error *err) {
    while (id >= 0 && t->types[id] == TOKEN_UNUSED && t->unused_left[id] > 0) {
        size_t n_left = (size_t)t->unused_left[id];
        if (push_piece(t, text, n_left, tokenizer_find(t, text, n_left), out, err)) return -1;
        text += n_left;
        n -= n_left;
        id = tokenizer_find(t, text, n);
    }
    return id >= 0 ? llm_ids_push(out, id, err) : tokenizer_push_bytes(t, text, n, out, err);
}

static int encode_part(tokenizer *t, const char *text, size_t n, llm_ids *out, llm_error *err) {
    int32_t whole = tokenizer_find(t, text, n);
    if (whole >= 0 && utf8_length(text, n, NULL) == n && t->types[whole] != TOKEN_UNUSED)
        return llm_ids_push(out, whole, err);
    if (merge_reserve(&t->merge, n, err)) return -1;
    merge_piece *pieces = t->merge.pieces;
    uint32_t before = MERGE_NONE;
    for (size_t at = 0; at < n; at += pieces[at].n_bytes) {
        size_t length = utf8_length(text + at, n - at, NULL);
        if (length == 0) length = 1;
        int32_t id = tokenizer_find(t, text + at, length);
        pieces[at] = (merge_piece){id, (uint32_t)length, before};
        before = (uint32_t)at;
    }
    if (merge_run(&t->merge, t, text, n, merge_pair, err)) return -1;
    for (size_t at = 0; at < n; at += pieces[at].n_bytes)
        if (push_piece(t, text + at, pieces[at].n_bytes, pieces[at].id, out, err)) return -1;
    return 0;
}

int spm_encode(tokenizer *t, const char *text, size_t n, llm_ids *out, llm_error *err) {
    size_t begin = 0;
    for (size_t i = 1; t->splits_words && i < n; i++) {
        if (text[i] != ' ' || text[i - 1] == ' ') continue;
        if (encode_part(t, text + begin, i - begin, out, err)) return -1;
        begin = i;
    }
    return n > begin ? encode_part(t, text + begin, n - begin, out, err) : 0;
}
