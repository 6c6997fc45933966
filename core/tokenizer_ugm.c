/* tokenizer_ugm.c: SentencePiece unigram ("t5"): of all ways to cut the text into tokens the one
 * with the highest sum of scores (Viterbi). Before that the text is normalised by the file's
 * precompiled table, if it has one, and its spaces are tidied. Owns the trie of the tokens. */
#include "tokenizer_parts.h"

#include "../kernels/memory.h"
#include "error.h"
#include "lists.h"
#include "utf8.h"

#include <float.h>
#include <string.h>

/* Scores of T5's family lie about 10 above that of an unknown character. */
#define UNKNOWN_PENALTY 10.0f

/* tokenizer.ggml.precompiled_charsmap: u32 bytes of the double array, its units, then texts that
 * end with NUL. */
static int read_charsmap(tokenizer *t, const gguf_file *file, llm_error *err) {
    const char *key = "tokenizer.ggml.precompiled_charsmap";
    const gguf_value *map;
    int found = gguf_get_array(file, key, GGUF_INT32, &map, err);
    if (found <= 0 || map->n == 0) return found < 0 ? -1 : 0;
    uint32_t bytes = 0;
    bool ok = (map->item_type == GGUF_INT8 || map->item_type == GGUF_UINT8) && map->n >= 4;
    if (ok) memcpy(&bytes, map->data, 4);
    if (!ok || bytes % 4 || bytes > map->n - 4 || (map->n > 4 + bytes && map->data[map->n - 1]))
        return llm_fail(err, LLM_MISUSE, "%s: %s of %zu bytes is broken (its table has %u)",
                        gguf_name(file), key, map->n, bytes);
    t->ugm.charsmap = map->data + 4;
    t->ugm.n_units = bytes / 4;
    t->ugm.texts = map->data + 4 + bytes;
    t->ugm.texts_bytes = map->n - 4 - bytes;
    return 0;
}

int unigram_init(tokenizer *t, const gguf_file *file, llm_error *err) {
    if (!t->scores) return gguf_missing(file, "tokenizer.ggml.scores", err);
    if (gguf_get_bool(file, "tokenizer.ggml.remove_extra_whitespaces", &t->ugm.remove_extra_spaces,
                      err) < 0 ||
        read_charsmap(t, file, err))
        return -1;
    float lowest = FLT_MAX;
    for (int32_t id = 0; id < t->n_tokens; id++) {
        gguf_string s = tokenizer_token_bytes(t, id);
        if (t->types[id] != TOKEN_NORMAL || s.n == 0) continue;
        if (t->scores[id] < lowest) lowest = t->scores[id];
        if (trie_add(&t->ugm.pieces, s.data, s.n, id, err)) return -1;
    }
    t->ugm.unknown_score = (lowest == FLT_MAX ? 0.0f : lowest) - UNKNOWN_PENALTY;
    return 0;
}

void unigram_free(unigram *u) { trie_free(&u->pieces); }

/* ---- normalisation ---- */

static uint32_t unit_at(const unigram *u, size_t i) {
    uint32_t unit = 0;
    if (i < u->n_units) memcpy(&unit, u->charsmap + i * 4, 4);
    return unit;
}

static size_t unit_offset(uint32_t unit) { return (size_t)(unit >> 10) << ((unit & 0x200) >> 6); }

/* The longest beginning of the text that the table replaces: its length, and what by. A unit holds
 * a label in its low byte (bit 31: none), a leaf flag in bit 8 and an offset; a leaf its value. */
static size_t charsmap_match(const unigram *u, const char *text, size_t n, gguf_string *by) {
    size_t longest = 0, node = unit_offset(unit_at(u, 0));
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)text[i];
        node ^= byte;
        uint32_t unit = unit_at(u, node);
        if (node >= u->n_units || (unit & 0x800000FFu) != byte) break;
        node ^= unit_offset(unit);
        if (unit >> 8 & 1) {
            size_t value = unit_at(u, node) & 0x7FFFFFFF;
            if (value >= u->texts_bytes) break;
            *by = (gguf_string){u->texts + value, strlen(u->texts + value)};
            longest = i + 1;
        }
    }
    return longest;
}

/* Appends a normalised piece; with remove_extra_spaces a run of spaces becomes one. */
static int append_tidied(const unigram *u, gguf_string piece, llm_bytes *out, llm_error *err) {
    for (size_t i = 0; i < piece.n; i++) {
        bool after_space = out->n == 0 || out->data[out->n - 1] == ' ';
        if (u->remove_extra_spaces && piece.data[i] == ' ' && after_space) continue;
        if (llm_bytes_append(out, piece.data + i, 1, err)) return -1;
    }
    return 0;
}

static int normalise(const unigram *u, const char *text, size_t n, llm_bytes *out, llm_error *err) {
    for (size_t at = 0; at < n;) {
        gguf_string by;
        size_t length = u->n_units ? charsmap_match(u, text + at, n - at, &by) : 0;
        if (length == 0) {
            length = utf8_length(text + at, n - at, NULL);
            if (length == 0) length = 1;
            by = (gguf_string){text + at, length};
        }
        if (append_tidied(u, by, out, err)) return -1;
        at += length;
    }
    if (u->remove_extra_spaces && out->n > 0 && out->data[out->n - 1] == ' ') out->n--;
    return 0;
}

/* ---- Viterbi ---- */

typedef struct viterbi_step { /* the best way to reach a byte of the text */
    double score;
    uint32_t from; /* where its last token begins */
    int32_t id;    /* -1: an unknown character */
} viterbi_step;

static void reach(viterbi_step *step, double score, size_t from, int32_t id) {
    if (score > step->score) *step = (viterbi_step){score, (uint32_t)from, id};
}

static void find_best(const tokenizer *t, const char *text, size_t n, viterbi_step *steps) {
    for (size_t i = 1; i <= n; i++) steps[i].score = -DBL_MAX;
    for (size_t at = 0, length; at < n; at += length) {
        double score = steps[at].score;
        length = utf8_length(text + at, n - at, NULL);
        if (length == 0) length = 1;
        bool single = false;
        uint32_t node = t->ugm.pieces.n_nodes ? 0 : TRIE_NONE;
        for (size_t i = at; i < n && node != TRIE_NONE; i++) {
            node = trie_step(&t->ugm.pieces, node, (unsigned char)text[i]);
            if (node == TRIE_NONE) break;
            int32_t id = t->ugm.pieces.values[node];
            if (id < 0) continue;
            if (i + 1 == at + length) single = true;
            reach(&steps[i + 1], score + (double)t->scores[id], at, id);
        }
        if (!single) reach(&steps[at + length], score + (double)t->ugm.unknown_score, at, -1);
    }
}

static int push_best(const tokenizer *t, const char *text, size_t n, viterbi_step *steps,
                     llm_ids *out, llm_error *err) {
    for (size_t at = n; at > 0;) { /* turn the chain round: from becomes the next token's end */
        viterbi_step *step = &steps[at];
        size_t from = step->from;
        steps[from].score = (double)at;
        at = from;
    }
    for (size_t at = 0; at < n;) {
        size_t end = (size_t)steps[at].score;
        int32_t id = steps[end].id;
        if (id >= 0 ? llm_ids_push(out, id, err)
                    : tokenizer_push_bytes(t, text + at, end - at, out, err))
            return -1;
        at = end;
    }
    return 0;
}

int unigram_encode(tokenizer *t, const char *text, size_t n, llm_ids *out, llm_error *err) {
    llm_bytes normal = {0};
    viterbi_step *steps = NULL;
    int result = normalise(&t->ugm, text, n, &normal, err);
    if (result == 0 && t->space_prefix && normal.n > 0 &&
        (normal.data[0] != ' ' || !t->ugm.remove_extra_spaces)) {
        result = llm_bytes_append(&normal, " ", 1, err);
        if (result == 0) {
            memmove(normal.data + 1, normal.data, normal.n - 1);
            normal.data[0] = ' ';
        }
    }
    if (result == 0 && normal.n > 0) {
        steps = kern_alloc_array(normal.n + 1, sizeof *steps);
        if (!steps) {
            result = llm_fail_memory(err, normal.n * sizeof *steps, "tokenizing");
        } else {
            find_best(t, normal.data, normal.n, steps);
            result = push_best(t, normal.data, normal.n, steps, out, err);
        }
    }
    kern_free(steps);
    llm_bytes_free(&normal);
    return result;
}
