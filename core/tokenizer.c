/* tokenizer.c: the vocabulary, the special tokens and the public calls; the kinds are in
 * tokenizer_bpe.c, tokenizer_spm.c and tokenizer_ugm.c. Owns all memory of a tokenizer. */
#include "../kernels/memory.h"
#include "error.h"
#include "lists.h"
#include "tokenizer_parts.h"
#include "utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    tokenizer_kind kind;
} kinds[] = {{"gpt2", TOKENIZER_BPE}, {"llama", TOKENIZER_SPM}, {"t5", TOKENIZER_UGM}};

#define SPACE_MARK "\xE2\x96\x81" /* U+2581, a space in a SentencePiece vocabulary */

/* ---- reading the vocabulary ---- */

static int read_kind(tokenizer *t, const gguf_file *file, llm_error *err) {
    const char *key = "tokenizer.ggml.model";
    gguf_string name;
    int found = gguf_get_string(file, key, &name, err);
    if (found <= 0) return found < 0 ? -1 : gguf_missing(file, key, err);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strlen(kinds[i].name) != name.n || memcmp(kinds[i].name, name.data, name.n)) continue;
        t->kind = kinds[i].kind;
        snprintf(t->description, sizeof t->description, "%s", kinds[i].name);
        return 0;
    }
    return llm_fail(err, LLM_MISUSE, "%s: unknown tokenizer \"%s\" (known: gpt2 llama t5)",
                    gguf_name(file), utf8_show(name.data, name.n).text);
}

/* The byte that "<0xEA>" names, or -1. */
static int parse_byte(gguf_string text) {
    int byte = 0;
    if (text.n != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>') return -1;
    for (int i = 3; i < 5; i++) {
        const char *digits = "0123456789ABCDEFabcdef";
        const char *digit = memchr(digits, text.data[i], 22);
        if (!digit) return -1;
        int value = (int)(digit - digits);
        byte = byte * 16 + (value < 16 ? value : value - 6);
    }
    return byte;
}

/* Writes what a token stands for to out[text.n]; returns how many bytes. */
static size_t token_to_bytes(const tokenizer *t, gguf_string text, token_type type, char *out) {
    size_t n = 0;
    if (type == TOKEN_BYTE) {
        int byte = parse_byte(text);
        if (byte < 0) return 0;
        out[n++] = (char)byte;
    } else if (type != TOKEN_NORMAL && type != TOKEN_UNUSED) {
        memcpy(out, text.data, n = text.n);
    } else if (t->kind == TOKENIZER_BPE) {
        n = bpe_text_to_bytes(text.data, text.n, out);
    } else {
        for (size_t i = 0; i < text.n;) {
            bool space = text.n - i >= 3 && memcmp(text.data + i, SPACE_MARK, 3) == 0;
            out[n++] = space ? ' ' : text.data[i];
            i += space ? 3 : 1;
        }
    }
    return n;
}

static int read_type(const gguf_file *file, const gguf_value *types, int32_t id, gguf_string text,
                     bool names_bytes, uint8_t *type, llm_error *err) {
    int64_t number = types ? gguf_item_int(types, (size_t)id) : TOKEN_NORMAL;
    if (number < TOKEN_NORMAL || number > TOKEN_BYTE)
        return llm_fail(err, LLM_MISUSE,
                        "%s: token %" PRId32 " has type %" PRId64 ", 1 to 6 are known",
                        gguf_name(file), id, number);
    if (number == TOKEN_NORMAL && names_bytes && parse_byte(text) >= 0) number = TOKEN_BYTE;
    if (number == TOKEN_BYTE && parse_byte(text) < 0)
        return llm_fail(err, LLM_MISUSE,
                        "%s: byte token %" PRId32 " is \"%s\", <0x00> to <0xFF> expected",
                        gguf_name(file), id, utf8_show(text.data, text.n).text);
    *type = (uint8_t)number;
    return 0;
}

/* Fills types, bytes and starts. */
static int read_texts(tokenizer *t, const gguf_file *file, const gguf_value *texts,
                      const gguf_value *types, llm_error *err) {
    size_t n = texts->n, n_bytes = 0;
    const char *at = texts->data;
    for (size_t i = 0; i < n; i++) n_bytes += gguf_next_string(&at).n;
    t->types = kern_alloc(n);
    t->starts = kern_alloc_array(n + 1, sizeof *t->starts);
    t->bytes = kern_alloc(n_bytes);
    if (!t->types || !t->starts || !t->bytes)
        return llm_fail_memory(err, n_bytes + n * (1 + sizeof *t->starts), "the vocabulary");
    at = texts->data;
    for (size_t i = 0; i < n; i++) {
        gguf_string text = gguf_next_string(&at);
        if (read_type(file, types, (int32_t)i, text, t->kind != TOKENIZER_BPE || !types,
                      &t->types[i], err))
            return -1;
        t->starts[i + 1] = t->starts[i] + token_to_bytes(t, text, (token_type)t->types[i],
                                                         t->bytes + t->starts[i]);
    }
    return 0;
}

static bool is_hidden(const tokenizer *t, int32_t id) {
    return t->types[id] == TOKEN_CONTROL || t->types[id] == TOKEN_UNKNOWN;
}

static int index_texts(tokenizer *t, llm_error *err) {
    if (text_map_init(&t->by_text, (size_t)t->n_tokens, err)) return -1;
    for (int pass = 0; pass < 2; pass++) /* tokens that text may become come first */
        for (int32_t id = 0; id < t->n_tokens; id++) {
            bool last = is_hidden(t, id) || t->types[id] == TOKEN_BYTE;
            gguf_string s = tokenizer_token_bytes(t, id);
            if (last != (pass == 1) || s.n == 0) continue;
            if (s.n > UINT32_MAX)
                return llm_fail(err, LLM_MISUSE, "token %" PRId32 " is %zu bytes long", id, s.n);
            text_map_add(&t->by_text, s.data, s.n, id);
        }
    for (int byte = 0; byte < 256; byte++) t->byte_ids[byte] = -1;
    for (int32_t id = t->n_tokens - 1; id >= 0; id--)
        if (t->types[id] == TOKEN_BYTE)
            t->byte_ids[(unsigned char)tokenizer_token_bytes(t, id).data[0]] = id;
    return 0;
}

static int index_specials(tokenizer *t, llm_error *err) {
    for (int pass = 0; pass < 2; pass++) /* a text that is both is the user-defined one */
        for (int32_t id = 0; id < t->n_tokens; id++) {
            gguf_string s = tokenizer_token_bytes(t, id);
            bool user_defined = t->types[id] == TOKEN_USER_DEFINED;
            if (s.n == 0 || (pass == 0 ? !user_defined : !is_hidden(t, id))) continue;
            if (trie_add(&t->specials, s.data, s.n, id, err)) return -1;
            t->special_starts[(unsigned char)s.data[0]] = true;
        }
    return 0;
}

static int read_scores(tokenizer *t, const gguf_file *file, llm_error *err) {
    const gguf_value *scores;
    const char *key = "tokenizer.ggml.scores";
    int found = gguf_get_array(file, key, GGUF_FLOAT32, &scores, err);
    if (found <= 0 || t->kind == TOKENIZER_BPE) return found < 0 ? -1 : 0;
    if (scores->n != (size_t)t->n_tokens)
        return llm_fail(err, LLM_MISUSE, "%s: %s has %zu items for %" PRId32 " tokens",
                        gguf_name(file), key, scores->n, t->n_tokens);
    t->scores = kern_alloc_array(scores->n, sizeof *t->scores);
    if (!t->scores) return llm_fail_memory(err, scores->n * sizeof *t->scores, "the vocabulary");
    for (size_t i = 0; i < scores->n; i++) {
        t->scores[i] = (float)gguf_item_float(scores, i);
        if (!isfinite(t->scores[i]))
            return llm_fail(err, LLM_MISUSE, "%s: the score of token %zu is %g", gguf_name(file), i,
                            (double)t->scores[i]);
    }
    return 0;
}

static int read_vocabulary(tokenizer *t, const gguf_file *file, llm_error *err) {
    const gguf_value *texts, *types;
    const char *key = "tokenizer.ggml.tokens";
    int found = gguf_get_array(file, key, GGUF_STRING, &texts, err);
    if (found <= 0) return found < 0 ? -1 : gguf_missing(file, key, err);
    if (texts->n == 0 || texts->n > INT32_MAX / 2)
        return llm_fail(err, LLM_MISUSE, "%s: a vocabulary of %zu tokens, 1 to %d are supported",
                        gguf_name(file), texts->n, INT32_MAX / 2);
    t->n_tokens = (int32_t)texts->n;
    if (gguf_get_array(file, "tokenizer.ggml.token_type", GGUF_INT32, &types, err) < 0) return -1;
    if (types && types->n != texts->n)
        return llm_fail(err, LLM_MISUSE,
                        "%s: tokenizer.ggml.token_type has %zu items for %zu tokens",
                        gguf_name(file), types->n, texts->n);
    if (read_texts(t, file, texts, types, err) || index_texts(t, err)) return -1;
    return index_specials(t, err) || read_scores(t, file, err) ? -1 : 0;
}

/* ---- reading what is added ---- */

static int read_id(const gguf_file *file, const char *key, const tokenizer *t, int32_t *id,
                   llm_error *err) {
    int64_t number = -1;
    if (gguf_get_int(file, key, 0, t->n_tokens - 1, &number, err) < 0) return -1;
    *id = (int32_t)number;
    return 0;
}

static int read_ids(tokenizer *t, const gguf_file *file, llm_error *err) {
    return read_id(file, "tokenizer.ggml.bos_token_id", t, &t->bos, err) ||
                   read_id(file, "tokenizer.ggml.eos_token_id", t, &t->eos, err) ||
                   read_id(file, "tokenizer.ggml.eot_token_id", t, &t->eot, err) ||
                   read_id(file, "tokenizer.ggml.eom_token_id", t, &t->eom, err) ||
                   read_id(file, "tokenizer.ggml.unknown_token_id", t, &t->unknown, err)
               ? -1
               : 0;
}

/* The flag of a key; `*flag` holds the kind's default, which counts only if the token exists. */
static int read_flag(const gguf_file *file, const char *key, const char *id_key, int32_t id,
                     bool *flag, llm_error *err) {
    int found = gguf_get_bool(file, key, flag, err);
    if (found < 0) return -1;
    if (*flag && id < 0) {
        if (found)
            return llm_fail(err, LLM_MISUSE, "%s: %s is true, but %s is missing", gguf_name(file),
                            key, id_key);
        *flag = false;
    }
    return 0;
}

static int read_flags(tokenizer *t, const gguf_file *file, llm_error *err) {
    return read_flag(file, "tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id", t->bos,
                     &t->add_bos, err) ||
                   read_flag(file, "tokenizer.ggml.add_eos_token", "tokenizer.ggml.eos_token_id",
                             t->eos, &t->add_eos, err) ||
                   gguf_get_string(file, "tokenizer.chat_template", &t->chat_template, err) < 0
               ? -1
               : 0;
}

static int tokenizer_read(tokenizer *t, const gguf_file *file, llm_error *err) {
    if (read_kind(t, file, err) || read_vocabulary(t, file, err) || read_ids(t, file, err))
        return -1;
    t->add_bos = t->kind == TOKENIZER_SPM;
    t->add_eos = t->kind == TOKENIZER_UGM;
    t->space_prefix = t->kind != TOKENIZER_BPE;
    int result = t->kind == TOKENIZER_BPE   ? bpe_init(t, file, err)
                 : t->kind == TOKENIZER_SPM ? spm_init(t, file, err)
                                            : unigram_init(t, file, err);
    if (result || read_flags(t, file, err)) return -1;
    bool ignored;
    return gguf_get_bool(file, "tokenizer.ggml.add_space_prefix",
                         t->kind == TOKENIZER_BPE ? &ignored : &t->space_prefix, err) < 0
               ? -1
               : 0;
}

tokenizer *tokenizer_new(const gguf_file *file, llm_error *err) {
    tokenizer *t = kern_alloc(sizeof *t);
    if (!t) {
        llm_fail_memory(err, sizeof *t, "the tokenizer");
        return NULL;
    }
    t->file = file;
    if (tokenizer_read(t, file, err) == 0) return t;
    tokenizer_free(t);
    return NULL;
}

void tokenizer_free(tokenizer *t) {
    if (!t) return;
    kern_free(t->bytes);
    kern_free(t->starts);
    kern_free(t->types);
    kern_free(t->scores);
    text_map_free(&t->by_text);
    trie_free(&t->specials);
    pre_tokenizer_free(t->pre);
    number_map_free(&t->merges);
    kern_free(t->unused_left);
    unigram_free(&t->ugm);
    merge_free(&t->merge);
    kern_free(t);
}

/* ---- what is in it ---- */

int32_t tokenizer_n_tokens(const tokenizer *t) { return t->n_tokens; }
token_type tokenizer_token_type(const tokenizer *t, int32_t id) { return (token_type)t->types[id]; }
int32_t tokenizer_bos(const tokenizer *t) { return t->bos; }
int32_t tokenizer_eos(const tokenizer *t) { return t->eos; }
int32_t tokenizer_eot(const tokenizer *t) { return t->eot; }
int32_t tokenizer_eom(const tokenizer *t) { return t->eom; }
bool tokenizer_adds_bos(const tokenizer *t) { return t->add_bos; }
bool tokenizer_adds_eos(const tokenizer *t) { return t->add_eos; }
gguf_string tokenizer_chat_template(const tokenizer *t) { return t->chat_template; }
const char *tokenizer_warning(const tokenizer *t) { return *t->warning ? t->warning : NULL; }
const char *tokenizer_describe(const tokenizer *t) { return t->description; }

gguf_string tokenizer_token_bytes(const tokenizer *t, int32_t id) {
    return (gguf_string){t->bytes + t->starts[id], t->starts[id + 1] - t->starts[id]};
}

int tokenizer_eog(const tokenizer *t, int32_t ids[3]) {
    int n = 0;
    if (t->eos >= 0) ids[n++] = t->eos;
    if (t->eot >= 0 && t->eot != t->eos) ids[n++] = t->eot;
    if (t->eom >= 0 && t->eom != t->eos && t->eom != t->eot) ids[n++] = t->eom;
    return n;
}

int32_t tokenizer_find(const tokenizer *t, const char *bytes, size_t n) {
    int32_t id = text_map_find(&t->by_text, bytes, n, -1);
    return id >= 0 && (is_hidden(t, id) || t->types[id] == TOKEN_BYTE) ? -1 : id;
}

int tokenizer_push_bytes(const tokenizer *t, const char *text, size_t n, llm_ids *out,
                         llm_error *err) {
    bool all = true;
    for (size_t i = 0; i < n; i++) all = all && t->byte_ids[(unsigned char)text[i]] >= 0;
    for (size_t i = 0; all && i < n; i++)
        if (llm_ids_push(out, t->byte_ids[(unsigned char)text[i]], err)) return -1;
    if (all) return 0;
    if (t->unknown < 0)
        return llm_fail(err, LLM_MISUSE, "\"%s\" has no token in this vocabulary",
                        utf8_show(text, n).text);
    if (out->n > 0 && out->data[out->n - 1] == t->unknown) return 0;
    return llm_ids_push(out, t->unknown, err);
}

/* ---- encoding ---- */

/* The length of the longest special token that begins the text, and its id; or 0. */
static size_t match_special(const tokenizer *t, const char *text, size_t n, bool parse_special,
                            int32_t *id) {
    size_t longest = 0;
    if (!t->special_starts[(unsigned char)*text]) return 0;
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        node = trie_step(&t->specials, node, (unsigned char)text[i]);
        if (node == TRIE_NONE) break;
        int32_t here = t->specials.values[node];
        if (here < 0 || (!parse_special && t->types[here] != TOKEN_USER_DEFINED)) continue;
        longest = i + 1;
        *id = here;
    }
    return longest;
}

static bool restarts(const tokenizer *t, int32_t id) { return id == t->bos || id == t->eos; }

/* Text without special tokens; at_start: where a space prefix belongs. */
static int encode_text(tokenizer *t, const char *text, size_t n, bool at_start, llm_ids *out,
                       llm_error *err) {
    if (n == 0) return 0;
    if (t->kind == TOKENIZER_BPE) return bpe_encode(t, text, n, out, err);
    if (t->kind == TOKENIZER_UGM) return unigram_encode(t, text, n, out, err);
    if (!at_start || !t->space_prefix) return spm_encode(t, text, n, out, err);
    char *prefixed = kern_alloc(n + 1);
    if (!prefixed) return llm_fail_memory(err, n + 1, "tokenizing");
    prefixed[0] = ' ';
    memcpy(prefixed + 1, text, n);
    int result = spm_encode(t, prefixed, n + 1, out, err);
    kern_free(prefixed);
    return result;
}

static int encode_all(tokenizer *t, const char *text, size_t n, bool parse_special, llm_ids *out,
                      llm_error *err) {
    bool at_start = true;
    size_t begin = 0;
    for (size_t at = 0; at < n;) {
        int32_t id;
        size_t length = match_special(t, text + at, n - at, parse_special, &id);
        if (length == 0) {
            at++;
            continue;
        }
        if (encode_text(t, text + begin, at - begin, at_start, out, err)) return -1;
        if (llm_ids_push(out, id, err)) return -1;
        begin = at += length;
        at_start = restarts(t, id);
    }
    return encode_text(t, text + begin, n - begin, at_start, out, err);
}

int tokenizer_encode(tokenizer *t, const char *text, size_t n, bool add_special, bool parse_special,
                     llm_ids *out, llm_error *err) {
    size_t n_before = out->n;
    int result = 0;
    if (n > INT32_MAX / 4)
        return llm_fail(err, LLM_MISUSE, "a text of %zu bytes, at most %d are supported", n,
                        INT32_MAX / 4);
    if (add_special && t->add_bos) result = llm_ids_push(out, t->bos, err);
    if (result == 0) result = encode_all(t, text, n, parse_special, out, err);
    if (result == 0 && add_special && t->add_eos) result = llm_ids_push(out, t->eos, err);
    if (result) out->n = n_before;
    merge_trim(&t->merge);
    return result;
}

/* ---- decoding ---- */

int tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, bool render_special,
                     llm_bytes *out, llm_error *err) {
    size_t n_before = out->n;
    bool at_start = t->space_prefix;
    for (size_t i = 0; i < n; i++) {
        int32_t id = ids[i];
        int result = 0;
        if (id < 0 || id >= t->n_tokens) {
            result = llm_fail(err, LLM_MISUSE,
                              "token id %" PRId32 " is not in the vocabulary of %" PRId32, id,
                              t->n_tokens);
        } else if (render_special || !is_hidden(t, id)) {
            gguf_string s = tokenizer_token_bytes(t, id);
            size_t skip = at_start && t->types[id] == TOKEN_NORMAL && s.n > 0 && *s.data == ' ';
            result = llm_bytes_append(out, s.data + skip, s.n - skip, err);
        }
        if (result) {
            out->n = n_before;
            return -1;
        }
        at_start = t->space_prefix && restarts(t, id);
    }
    return 0;
}
