/* tokenizer_pre.c: cuts a text into the words that byte-level BPE merges within. A rule is a
 * sequence of PCRE2 expressions: each cuts what the one before left into its matches and what lies
 * between them. Owns the compiled expressions. */
#include "tokenizer_parts.h"

#include "../kernels/memory.h"
#include "error.h"
#include "utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { MAX_STAGES = 6 };

typedef struct pre_rule {
    const char *names; /* as tokenizer.ggml.pre spells them, between spaces */
    const char *stages[MAX_STAGES];
    bool whole_words; /* a word that is a token is taken whole, whatever the merges say */
    bool add_bos;     /* where tokenizer.ggml.add_bos_token does not say */
} pre_rule;

/* The expressions are those of the models' own tokenizer files; \s is Unicode's White_Space. */
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES       "\\s+(?!\\S)|\\s+"
#define GPT2         "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|" SPACES
#define LLAMA3                                                                                     \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"      \
                 "\\s*[\\r\\n]+|" SPACES
#define QWEN2                                                                                      \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"           \
                 "\\s*[\\r\\n]+|" SPACES
/* words of any capitals, then small letters; the suffix follows each alternative */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(suffix)                                                                              \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER  \
    "*" suffix "|"
#define CASED_REST " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|" SPACES
#define NOT_HAN    "(?!\\p{sc:Han})"
#define DEEPSEEK3                                                                                  \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"           \
    "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|" SPACES
// clang-format off
#define CJK_KANA "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{30FF}]+"
#define CJK_ALL  "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"
#define NO_STOPS                                                                                   \
    " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+"
/* deepseek-llm's letters: those of scripts with two cases */
#define R(first, last) "\\x{" #first "}-\\x{" #last "}"
#define CASED_LETTERS                                                                              \
    "[A-Za-z\\x{B5}" R(C0, D6) R(D8, F6) R(F8, 1BA) R(1BC, 1BF) R(1C4, 293) R(295, 2AF)            \
    R(370, 373) R(376, 377) R(37B, 37D) "\\x{37F}\\x{386}" R(388, 38A) "\\x{38C}" R(38E, 3A1)     \
    R(3A3, 3F5) R(3F7, 481) R(48A, 52F) R(531, 556) R(10A0, 10C5) R(13A0, 13F5) R(13F8, 13FD)      \
    R(1C90, 1CBA) R(1CBD, 1CBF) R(1D00, 1D2B) R(1D6B, 1D77) R(1D79, 1D9A) R(1E00, 1F15)            \
    R(1F18, 1F1D) R(1F20, 1F45) R(1F48, 1F4D) R(1F50, 1F57) "\\x{1F59}\\x{1F5B}\\x{1F5D}"          \
    R(1F5F, 1F7D) R(1F80, 1FB4) R(1FB6, 1FBC) "\\x{1FBE}" R(1FC2, 1FC4) R(1FC6, 1FCC)              \
    R(1FD0, 1FD3) R(1FD6, 1FDB) R(1FE0, 1FEC) R(1FF2, 1FF4) R(1FF6, 1FFC) "\\x{2102}\\x{2107}"     \
    R(210A, 2113) "\\x{2115}" R(2119, 211D) "\\x{2124}\\x{2126}\\x{2128}" R(212A, 212D)            \
    R(212F, 2134) "\\x{2139}" R(213C, 213F) R(2145, 2149) "\\x{214E}" R(2183, 2184) R(2C00, 2C7B)  \
    R(2C7E, 2CE4) R(2CEB, 2CEE) R(2CF2, 2CF3) R(A640, A66D) R(A680, A69B) R(A722, A76F)            \
    R(A771, A787) R(A78B, A78E) R(AB70, ABBF) R(FB00, FB06) R(FB13, FB17) R(FF21, FF3A)            \
    R(FF41, FF5A) R(10400, 1044F) R(104B0, 104D3) R(104D8, 104FB) R(10C80, 10CB2) R(10CC0, 10CF2)  \
    R(118A0, 118DF) R(1E900, 1E943) "]+"
// clang-format on

static const pre_rule rules[] = {
    {" gpt-2 gpt2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe"
     " gigachat a.x-4.0 mellum modern-bert mpt olmo jais trillion granite-docling exaone4 ",
     {GPT2},
     false,
     false},
    {" smollm starcoder refact command-r codeshell exaone minerva-7b ",
     {"\\p{N}", GPT2},
     false,
     false},
    {" default ", {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, false, false},
    {" falcon ", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}, false, false},
    {" llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ",
     {LLAMA3},
     true,
     true},
    {" dbrx smaug-bpe chatglm-bpe glm4 ", {LLAMA3}, false, false},
    {" qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2 ",
     {QWEN2},
     false,
     false},
    {" qwen35 ",
     {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+"
                   "[\\r\\n]*|\\s*[\\r\\n]+|" SPACES},
     false,
     false},
    {" deepseek-llm ",
     {"[\\r\\n]", "\\s?" CASED_LETTERS,
      "\\s?[!-/:-~" R(FF01, FF0F) R(FF1A, FF5E) R(2018, 201F) R(3000, 3002) "]+",
      "(?<!\\s)\\s++\\z", CJK_ALL, "\\p{N}+"},
     false,
     false},
    {" deepseek-coder ",
     {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK_ALL, "\\p{N}"},
     false,
     false},
    {" deepseek-v3 hunyuan-dense joyai-llm ", {"\\p{N}{1,3}", CJK_KANA, DEEPSEEK3}, false, false},
    {" youtu ",
     {"[" R(AC00, D7A3) R(3131, 318E) "]+|[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}\\x{2018}\\x{2019}"
                                      "\\x{2014}\\x{FF1A}\\x{FF1B}\\x{FF0C}" R(3001, 303F)
                                          R(FE30, FE4F) "]+|[" R(3105, 312F) "]+|" CJK_KANA,
      CASED(CONTRACTIONS "?") "\\p{N}|" CASED_REST},
     true,
     false},
    {" bloom poro-chat gpt3-finnish ", {NO_STOPS}, false, false},
    {" viking ", {NO_STOPS, "\\p{N}"}, false, false},
    {" tekken ", {CASED("") "\\p{N}|" CASED_REST}, true, true},
    {" gpt-4o llama4 kanana2 minimax-m2 ",
     {CASED(CONTRACTIONS "?") "\\p{N}{1,3}|" CASED_REST},
     false,
     false},
    {" kimi-k2 ",
     {"\\p{sc:Han}+|[^\\r\\n\\p{L}\\p{N}]?(?:" NOT_HAN UPPER ")*(?:" NOT_HAN LOWER ")+" CONTRACTIONS
      "?|[^\\r\\n\\p{L}\\p{N}]?(?:" NOT_HAN UPPER ")+(?:" NOT_HAN LOWER ")*" CONTRACTIONS
      "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" SPACES},
     false,
     false},
    {" bailingmoe bailingmoe2 llada-moe ",
     {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|"
      "\\s*[\\r\\n]|" SPACES},
     false,
     false},
    {" seed-coder ",
     {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|"
                   "\\s*[\\r\\n]+|" SPACES},
     false,
     false},
    {" superbpe ", /* digits in threes, counted from the right */
     {"\\p{N}+", "(?<!\\p{Nd})\\p{Nd}{1,3}(?=(?:\\p{Nd}{3})*+(?!\\p{Nd}))|"
                 "(?<=\\p{Nd})\\p{Nd}{3}"},
     false,
     false},
    {" chameleon ",
     {"<sentinel:[0-9]+>", "(?:IMGIMG)(?:[A-I]{1,4})Z", "[\\t\\n]|    |  ", "\\p{N}",
      "[\\p{P}!-/:-@\\[-`{-~]", GPT2},
     false,
     true},
};

struct pre_tokenizer {
    const pre_rule *rule;
    int n_stages;
    pcre2_code *codes[MAX_STAGES];
    pcre2_match_data *matches[MAX_STAGES];
    pcre2_match_context *context;
    pcre2_jit_stack *jit_stack; /* made when the default one was too small */
};

/* ---- the table ---- */

static const pre_rule *rule_find(gguf_string name) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        for (const char *at = rules[i].names + 1; *at;) {
            size_t n = strcspn(at, " ");
            if (n == name.n && memcmp(at, name.data, n) == 0) return &rules[i];
            at += n + 1;
        }
    return NULL;
}

/* Names as many of the known ones as fit. */
static void fail_unknown(gguf_string name, llm_error *err) {
    char known[sizeof err->message] = "";
    utf8_shown shown = utf8_show(name.data, name.n);
    size_t used = 0, room = sizeof known - strlen(shown.text) - 48;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        for (const char *at = rules[i].names + 1; *at;) {
            size_t n = strcspn(at, " ") + 1;
            if (used + n < room) {
                memcpy(known + used, at, n);
                used += n;
            }
            at += n;
        }
    if (used) known[used - 1] = 0;
    llm_fail(err, LLM_MISUSE, "unknown pre-tokenizer \"%s\" (known: %s)", shown.text, known);
}

/* Replaces \s and \S of an expression, in classes and outside, by what Unicode calls white space:
 * PCRE2's own \s knows either ASCII or a slightly different set. */
static void expand_spaces(const char *stage, char *out, size_t room) {
    size_t n = 0;
    bool in_class = false;
    for (const char *s = stage; *s && n + 32 < room; s++) {
        if (*s == '\\' && (s[1] == 's' || s[1] == 'S')) {
            const char *set = in_class      ? "\\t-\\r\\x{85}\\p{Z}"
                              : s[1] == 's' ? "[\\t-\\r\\x{85}\\p{Z}]"
                                            : "[^\\t-\\r\\x{85}\\p{Z}]";
            memcpy(out + n, set, strlen(set));
            n += strlen(set);
            s++;
        } else if (*s == '\\') {
            out[n++] = *s++;
            out[n++] = *s;
        } else {
            if (*s == '[') in_class = true;
            if (*s == ']') in_class = false;
            out[n++] = *s;
        }
    }
    out[n] = 0;
}

static int compile_stage(pre_tokenizer *p, const char *stage, llm_error *err) {
    char pattern[4096];
    expand_spaces(stage, pattern, sizeof pattern);
    int code;
    PCRE2_SIZE where;
    pcre2_code *compiled =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &where, NULL);
    if (!compiled)
        return llm_fail(err, code == PCRE2_ERROR_HEAP_FAILED ? LLM_OUT_OF_MEMORY : LLM_MISUSE,
                        "pre-tokenizer expression %d: error %d at byte %zu", p->n_stages + 1, code,
                        (size_t)where);
    pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE); /* without it, matching is only slower */
    p->codes[p->n_stages] = compiled;
    p->matches[p->n_stages] = pcre2_match_data_create(1, NULL);
    p->n_stages++;
    return p->matches[p->n_stages - 1]
               ? 0
               : llm_fail(err, LLM_OUT_OF_MEMORY, "out of memory: the pre-tokenizer");
}

pre_tokenizer *pre_tokenizer_new(gguf_string name, llm_error *err) {
    const pre_rule *rule = rule_find(name);
    if (!rule) {
        fail_unknown(name, err);
        return NULL;
    }
    pre_tokenizer *p = kern_alloc(sizeof *p);
    if (!p) {
        llm_fail_memory(err, sizeof *p, "the pre-tokenizer");
        return NULL;
    }
    p->rule = rule;
    p->context = pcre2_match_context_create(NULL);
    if (!p->context) llm_fail(err, LLM_OUT_OF_MEMORY, "out of memory: the pre-tokenizer");
    bool ok = p->context != NULL;
    for (int i = 0; ok && i < MAX_STAGES && rule->stages[i]; i++)
        ok = compile_stage(p, rule->stages[i], err) == 0;
    if (ok) return p;
    pre_tokenizer_free(p);
    return NULL;
}

void pre_tokenizer_free(pre_tokenizer *p) {
    if (!p) return;
    for (int i = 0; i < p->n_stages; i++) {
        pcre2_code_free(p->codes[i]);
        pcre2_match_data_free(p->matches[i]);
    }
    pcre2_match_context_free(p->context);
    pcre2_jit_stack_free(p->jit_stack);
    kern_free(p);
}

bool pre_tokenizer_takes_whole_words(const pre_tokenizer *p) { return p->rule->whole_words; }
bool pre_tokenizer_adds_bos(const pre_tokenizer *p) { return p->rule->add_bos; }

/* ---- splitting ---- */

/* Finds the next match at or after byte `from`: 1 and [*begin, *end), 0 without one, -1. The text
 * is valid UTF-8. A search that exceeds the small limits is done once more with large ones. */
static int stage_match(pre_tokenizer *p, int stage, const char *text, size_t n, size_t from,
                       size_t *begin, size_t *end, llm_error *err) {
    pcre2_match_data *match = p->matches[stage];
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int found =
        pcre2_match(p->codes[stage], subject, n, from, PCRE2_NO_UTF_CHECK, match, p->context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT && !p->jit_stack) {
        p->jit_stack = pcre2_jit_stack_create(1 << 16, (size_t)1 << 28, NULL);
        pcre2_jit_stack_assign(p->context, NULL, p->jit_stack);
        found =
            pcre2_match(p->codes[stage], subject, n, from, PCRE2_NO_UTF_CHECK, match, p->context);
    }
    if (found == PCRE2_ERROR_MATCHLIMIT || found == PCRE2_ERROR_JIT_STACKLIMIT ||
        found == PCRE2_ERROR_HEAPLIMIT || found == PCRE2_ERROR_DEPTHLIMIT) {
        pcre2_set_match_limit(p->context, UINT32_MAX);
        pcre2_set_depth_limit(p->context, UINT32_MAX);
        pcre2_set_heap_limit(p->context, 1 << 20); /* KiB */
        found = pcre2_match(p->codes[stage], subject, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                            match, p->context);
    }
    if (found == PCRE2_ERROR_NOMATCH) return 0;
    if (found < 0)
        return llm_fail(err, found == PCRE2_ERROR_NOMEMORY ? LLM_OUT_OF_MEMORY : LLM_MISUSE,
                        "the pre-tokenizer failed on a text of %zu bytes (PCRE2 error %d)", n,
                        found);
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(match);
    *begin = span[0];
    *end = span[1];
    return 1;
}

/* Gives text[0, n) to the stage, or as a word if there is none. */
static int stage_split(pre_tokenizer *p, int stage, const char *text, size_t n, pre_word *word,
                       void *data, llm_error *err) {
    if (n == 0) return 0;
    if (stage == p->n_stages) return word(data, text, n, err);
    size_t done = 0, from = 0;
    while (from < n) {
        size_t begin = 0, end = 0;
        int found = stage_match(p, stage, text, n, from, &begin, &end, err);
        if (found < 0) return -1;
        if (found == 0) break;
        if (end == begin) { /* matches nothing: look on behind the next character */
            if (begin >= n) break;
            from = begin + utf8_length(text + begin, n - begin, NULL);
            continue;
        }
        int result = stage_split(p, stage + 1, text + done, begin - done, word, data, err);
        if (result == 0)
            result = stage_split(p, stage + 1, text + begin, end - begin, word, data, err);
        if (result) return result;
        done = from = end;
    }
    return stage_split(p, stage + 1, text + done, n - done, word, data, err);
}

int pre_tokenizer_split(pre_tokenizer *p, const char *text, size_t n, pre_word *word, void *data,
                        llm_error *err) {
    size_t at = 0;
    while (at < n) { /* stretches of valid UTF-8 are split, the bytes between them are words */
        size_t begin = at, length;
        while (at < n && (length = utf8_length(text + at, n - at, NULL)) > 0) at += length;
        int result = stage_split(p, 0, text + begin, at - begin, word, data, err);
        if (result) return result;
        begin = at;
        while (at < n && utf8_length(text + at, n - at, NULL) == 0) at++;
        if (at > begin && (result = word(data, text + begin, at - begin, err)) != 0) return result;
    }
    return 0;
}
