/* test_tokenizer.c: the tokenizers.
 *
 *   test_tokenizer                              on small vocabularies made here
 *   test_tokenizer MODEL.gguf CASES.jsonl…      lines {text, ids[, ids_special | add_special,
 *                                               parse_special]} or {ids, render_special,
 *                                               text_bytes_hex}
 *   test_tokenizer --speed MODEL.gguf [LIMIT]   a megabyte of each kind of text, with its time
 *   test_tokenizer --speed                      the same with every pre-tokenizer
 *   test_tokenizer --faults MODEL.gguf          every allocation made to fail once (LLMLUA_FAULTS)
 */
#include "../../core/lists.h"
#include "../../core/tokenizer.h"
#include "../../kernels/memory.h"
#include "gguf_writer.h"
#include "json_lines.h"

#include <time.h>

static int n_passed, n_failed;

static void check(bool ok, const char *what) {
    if (ok)
        n_passed++;
    else
        n_failed++;
    if (!ok) printf("FAILED: %s\n", what);
}

static bool same_ids(const llm_ids *a, const llm_ids *b) {
    return a->n == b->n && (a->n == 0 || memcmp(a->data, b->data, a->n * sizeof *a->data) == 0);
}

static void show_ids(const char *what, const llm_ids *ids) {
    printf("  %s:", what);
    for (size_t i = 0; i < ids->n && i < 60; i++) printf(" %d", ids->data[i]);
    printf("\n");
}

static void expect_ids(tokenizer *t, const char *text, size_t n, bool add_special,
                       bool parse_special, const llm_ids *expected, const char *line) {
    llm_ids ids = {0};
    llm_error err;
    bool ok = tokenizer_encode(t, text, n, add_special, parse_special, &ids, &err) == 0;
    if (!ok) printf("  %s\n", err.message);
    ok = ok && same_ids(&ids, expected);
    check(ok, line);
    if (!ok) {
        show_ids("expected", expected);
        show_ids("got     ", &ids);
    }
    llm_ids_free(&ids);
}

static void expect_bytes(tokenizer *t, const llm_ids *ids, bool render_special, const char *bytes,
                         size_t n, const char *line) {
    llm_bytes got = {0};
    bool ok = tokenizer_decode(t, ids->data, ids->n, render_special, &got, NULL) == 0 &&
              got.n == n && (n == 0 || memcmp(got.data, bytes, n) == 0);
    check(ok, line);
    if (!ok) printf("  got %zu bytes: %.*s\n", got.n, (int)got.n, got.data ? got.data : "");
    llm_bytes_free(&got);
}

static void run_line(tokenizer *t, const char *line) {
    llm_ids ids = {0};
    llm_bytes text = {0};
    const char *hex = json_field(line, "text_bytes_hex"),
               *special = json_field(line, "ids_special");
    json_ids(json_field(line, "ids"), &ids);
    if (hex) {
        unsigned byte;
        for (hex++; sscanf(hex, "%2x", &byte) == 1; hex += 2)
            llm_bytes_append(&text, &(char){(char)byte}, 1, NULL);
        expect_bytes(t, &ids, json_bool(line, "render_special"), text.data, text.n, line);
    } else {
        json_string(json_field(line, "text"), &text);
        bool parse = special || json_bool(line, "parse_special");
        expect_ids(t, text.data, text.n, json_bool(line, "add_special"), parse, &ids, line);
        if (!json_bool(line, "add_special")) { /* and back */
            llm_bytes back = {0};
            tokenizer_decode(t, ids.data, ids.n, true, &back, NULL);
            check(back.n == text.n && (back.n == 0 || memcmp(back.data, text.data, back.n) == 0),
                  "decoding gives the text back");
            llm_bytes_free(&back);
        }
        if (special) {
            json_ids(special, &ids);
            expect_ids(t, text.data, text.n, true, true, &ids, line);
        }
    }
    llm_ids_free(&ids);
    llm_bytes_free(&text);
}

static void run_file(tokenizer *t, const char *path) {
    FILE *file = fopen(path, "rb");
    check(file != NULL, path);
    if (!file) return;
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, file) > 0) run_line(t, line);
    free(line);
    fclose(file);
}

/* ---- small vocabularies ---- */

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define IDS(...)                                                                                   \
    (&(llm_ids){(int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t), 0})

typedef struct fixture {
    gguf_writer w;
    gguf_file *file;
    tokenizer *t;
    llm_error err;
} fixture;

static void fixture_open(fixture *f) {
    put_data(&f->w, 32, 0);
    writer_end(&f->w);
    f->err.message[0] = 0;
    f->file = gguf_open_memory(f->w.data, f->w.n, "test", &f->err);
    f->t = f->file ? tokenizer_new(f->file, &f->err) : NULL;
}

static void fixture_close(fixture *f) {
    tokenizer_free(f->t);
    gguf_close(f->file);
    writer_free(&f->w);
}

/* Ids: 0 <unk>, 1 <s>, 2 </s>, 3 + b the byte b, then the texts. */
enum { FIRST_TEXT = 3 + 256 };

static void spm_begin(fixture *f, const char *const *texts, const int32_t *text_types,
                      const float *text_scores, size_t n) {
    static char names[256][8];
    const char *all[FIRST_TEXT + 64] = {"<unk>", "<s>", "</s>"};
    int32_t types[FIRST_TEXT + 64] = {TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_CONTROL};
    float scores[FIRST_TEXT + 64] = {0};
    for (int i = 0; i < 256; i++) {
        snprintf(names[i], sizeof names[i], "<0x%02X>", (unsigned)i & 0xFF);
        all[3 + i] = names[i];
        types[3 + i] = TOKEN_BYTE;
    }
    for (size_t i = 0; i < n; i++) {
        all[FIRST_TEXT + i] = texts[i];
        types[FIRST_TEXT + i] = text_types ? text_types[i] : TOKEN_NORMAL;
        scores[FIRST_TEXT + i] = text_scores ? text_scores[i] : -(float)i;
    }
    writer_begin(&f->w, 3);
    put_vocabulary(&f->w, "llama", all, types, scores, FIRST_TEXT + n);
    put_u32_value(&f->w, "tokenizer.ggml.bos_token_id", 1);
    put_u32_value(&f->w, "tokenizer.ggml.eos_token_id", 2);
    put_u32_value(&f->w, "tokenizer.ggml.unknown_token_id", 0);
}

static void encode_is(fixture *f, const char *text, bool add_special, bool parse_special,
                      const llm_ids *ids) {
    expect_ids(f->t, text, strlen(text), add_special, parse_special, ids, text);
}

static void decode_is(fixture *f, const llm_ids *ids, bool render_special, const char *text) {
    expect_bytes(f->t, ids, render_special, text, strlen(text), text);
}

static void test_spm(void) {
    enum { S1 = FIRST_TEXT, S2, S3, S4, HELLO, WORLD, USER, START };
    const char *texts[] = {"▁",  "▁▁",  "▁▁▁", "▁▁▁▁", "▁Hello", "▁world", "user", "<|im_start|>",
                           "H",  "e",   "l",   "o",    "He",     "ll",     "llo",  "▁He",
                           "▁w", "▁wo", "ld",  "r",    "▁wor",   "w",      "d",    "us",
                           "er", "u",   "s"};
    int32_t types[COUNT(texts)];
    for (size_t i = 0; i < COUNT(texts); i++) types[i] = TOKEN_NORMAL;
    types[START - FIRST_TEXT] = TOKEN_CONTROL;
    float scores[COUNT(texts)];
    for (size_t i = 0; i < COUNT(texts); i++) scores[i] = i < 4 ? -100.0f - (float)i : -(float)i;
    fixture f;
    spm_begin(&f, texts, types, scores, COUNT(texts));
    fixture_open(&f);
    check(f.t != NULL, f.err.message);
    if (!f.t) return fixture_close(&f);
    encode_is(&f, "Hello world", false, false, IDS(HELLO, WORLD));
    encode_is(&f, "Hello world", true, false, IDS(1, HELLO, WORLD));
    encode_is(&f, " Hello world", false, false, IDS(S1, HELLO, WORLD));
    encode_is(&f, "  Hello", false, false, IDS(S2, HELLO));
    encode_is(&f, "   Hello", false, false, IDS(S3, HELLO));
    encode_is(&f, "    Hello", false, false, IDS(S4, HELLO));
    encode_is(&f, "<|im_start|>user", false, true, IDS(START, USER));
    encode_is(&f, "<s>Hello", false, true, IDS(1, HELLO));
    decode_is(&f, IDS(1, HELLO, WORLD), false, "Hello world");
    decode_is(&f, IDS(1, HELLO, WORLD), true, "<s>Hello world");
    decode_is(&f, IDS(WORLD), false, "world");
    decode_is(&f, IDS(S1, HELLO, WORLD), false, " Hello world");
    decode_is(&f, IDS(USER, HELLO), false, "user Hello");
    decode_is(&f, IDS(3 + 0xEA, 3 + 0xB9, 3 + 0xB0), false, "\xEA\xB9\xB0");
    encode_is(&f, "\xEA\xB9\xB0", false, false, IDS(S1, 3 + 0xEA, 3 + 0xB9, 3 + 0xB0));
    encode_is(&f, "\xFF", false, false, IDS(S1, 3 + 0xFF));
    decode_is(&f, IDS(START, USER), false, "user");
    check(tokenizer_decode(f.t, &(int32_t){9999}, 1, true, &(llm_bytes){0}, &f.err) != 0 &&
              strstr(f.err.message, "9999"),
          "an id outside the vocabulary is refused by number");
    int32_t eog[3];
    check(tokenizer_eog(f.t, eog) == 1 && eog[0] == 2, "eog is the file's eos");
    fixture_close(&f);
}

/* A token made only of unused ones is taken apart; control text never becomes the control token. */
static void test_spm_types(void) {
    enum { A = FIRST_TEXT, B, AB, ABA, LT, SS, GT, LTS, SGT, TWO, THREE };
    const char *texts[] = {"a", "b", "ab", "aba", "<", "s", ">", "<s", "s>", "  ", "   "};
    int32_t types[COUNT(texts)];
    for (size_t i = 0; i < COUNT(texts); i++) types[i] = TOKEN_NORMAL;
    types[ABA - FIRST_TEXT] = TOKEN_UNUSED;
    types[TWO - FIRST_TEXT] = types[THREE - FIRST_TEXT] = TOKEN_USER_DEFINED;
    fixture f;
    spm_begin(&f, texts, types, NULL, COUNT(texts));
    put_bool_value(&f.w, "tokenizer.ggml.add_space_prefix", 0);
    fixture_open(&f);
    check(f.t != NULL, f.err.message);
    if (!f.t) return fixture_close(&f);
    encode_is(&f, "aba", false, false, IDS(AB, A));
    encode_is(&f, "<s>", false, false, IDS(LTS, GT));
    encode_is(&f, "<s>", false, true, IDS(1));
    encode_is(&f, "a     b", false, false, IDS(A, THREE, TWO, B));
    decode_is(&f, IDS(A, THREE, B), false, "a   b");
    fixture_close(&f);
}

static void test_spm_without_types(void) {
    const char *texts[] = {"<unk>", "<s>", "<0xEA>", "<0xB9>", "<0xB0>", "x"};
    fixture f;
    writer_begin(&f.w, 2);
    put_vocabulary(&f.w, "llama", texts, NULL, (float[6]){0}, 6);
    put_u32_value(&f.w, "tokenizer.ggml.unknown_token_id", 0);
    put_bool_value(&f.w, "tokenizer.ggml.add_space_prefix", 0);
    fixture_open(&f);
    check(f.t != NULL, f.err.message);
    if (!f.t) return fixture_close(&f);
    decode_is(&f, IDS(2, 3, 4), false, "\xEA\xB9\xB0");
    encode_is(&f, "x\xEA\xB9\xB0", false, false, IDS(5, 2, 3, 4));
    encode_is(&f, "xyzx", false, false, IDS(5, 0, 5)); /* unknown, once in a row */
    check(!tokenizer_adds_bos(f.t), "no bos is added where the file names none");
    fixture_close(&f);
}

/* Ids: the bytes in the order of their stand-ins, then "in", " in", "123". */
static void bpe_begin(fixture *f, const char *pre) {
    static char names[256][3];
    const char *texts[256 + 8];
    int32_t types[256 + 8];
    uint32_t spare = 0x100;
    for (uint32_t b = 0; b < 256; b++) {
        bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
        uint32_t c = printable ? b : spare++;
        llm_bytes name = {0};
        put_code(&name, c);
        memcpy(names[b], name.data, name.n);
        names[b][name.n] = 0;
        llm_bytes_free(&name);
        texts[b] = names[b];
        types[b] = TOKEN_NORMAL;
    }
    const char *more[] = {"in", "Ġin", "12", "123", "<|end|>", "<think>", "word", "wo"};
    for (int i = 0; i < 8; i++) {
        texts[256 + i] = more[i];
        types[256 + i] = i == 4 ? TOKEN_CONTROL : i == 5 ? TOKEN_USER_DEFINED : TOKEN_NORMAL;
    }
    writer_begin(&f->w, 3);
    put_vocabulary(&f->w, "gpt2", texts, types, NULL, 264);
    put_merges(&f->w, (const char *[]){"i n", "Ġ in", "1 2", "12 3", "w o"}, 5);
    if (pre) put_string_value(&f->w, "tokenizer.ggml.pre", pre);
    put_u32_value(&f->w, "tokenizer.ggml.eos_token_id", 260);
    put_u32_value(&f->w, "tokenizer.ggml.eot_token_id", 260);
    fixture_open(f);
}

static void test_bpe(void) {
    fixture f;
    bpe_begin(&f, "gpt-2");
    check(f.t != NULL, f.err.message);
    if (!f.t) return fixture_close(&f);
    encode_is(&f, "in in", false, false, IDS(256, 257));
    encode_is(&f, "123", false, false, IDS(259));
    encode_is(&f, "word", false, false, IDS(263, 'r', 'd'));
    encode_is(&f, "<|end|>", false, true, IDS(260));
    encode_is(&f, "<|end|>", false, false, IDS('<', '|', 'e', 'n', 'd', '|', '>'));
    encode_is(&f, "a<think>b", false, false, IDS('a', 261, 'b'));
    decode_is(&f, IDS('a', 260, 261, 257), false, "a<think> in");
    decode_is(&f, IDS('a', 260, 261, 257), true, "a<|end|><think> in");
    int32_t eog[3];
    check(tokenizer_eog(f.t, eog) == 1 && eog[0] == 260, "eos and eot of one id are one");
    check(tokenizer_warning(f.t) == NULL, "a known pre-tokenizer gives no warning");
    char all[512];
    for (int i = 0; i < 512; i++) all[i] = (char)(i < 256 ? i : 511 - i);
    llm_ids ids = {0};
    llm_bytes back = {0};
    check(tokenizer_encode(f.t, all, 512, false, true, &ids, NULL) == 0 &&
              tokenizer_decode(f.t, ids.data, ids.n, true, &back, NULL) == 0 && back.n == 512 &&
              memcmp(back.data, all, 512) == 0,
          "every byte survives encoding and decoding, invalid UTF-8 too");
    llm_ids_free(&ids);
    llm_bytes_free(&back);
    fixture_close(&f);
}

static const char *const rule_names[] = {
    "default",    "gpt-2",        "phi-2",          "llama-bpe",   "llama3",      "llama-v3",
    "falcon",     "mpt",          "starcoder",      "refact",      "command-r",   "qwen2",
    "qwen35",     "deepseek-llm", "deepseek-coder", "deepseek-v3", "smollm",      "codeshell",
    "olmo",       "dbrx",         "stablelm2",      "poro-chat",   "chatglm-bpe", "viking",
    "tekken",     "exaone",       "gpt-4o",         "llama4",      "hunyuan",     "kimi-k2",
    "bailingmoe", "seed-coder",   "superbpe",       "chameleon",   "youtu",       "bloom"};

static void test_pre_tokenizers(void) {
    const struct {
        const char *name, *text;
        llm_ids ids;
    } cases[] = {
#define CASE(name, text, ...)                                                                      \
    {                                                                                              \
        name, text, {                                                                              \
            (int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t), 0        \
        }                                                                                          \
    }
        CASE("gpt-2", "1123 in", '1', 259, 257),
        CASE("llama-bpe", "1123 in", '1', 258, '3', 257),
        CASE("qwen2", "123 in", '1', '2', '3', 257),
        CASE("smollm", "123 in", '1', '2', '3', 257),
        CASE("falcon", "12123", 258, '1', '2', '3'),
        CASE("default", "1231", 259, '1'),
        CASE("deepseek-v3", "1231", 259, '1'),
        CASE("superbpe", "1123", '1', 259),
        CASE("superbpe", "123123", 259, 259),
        CASE("llama-bpe", "word", 262),
        CASE("gpt-2", "word", 263, 'r', 'd'),
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        fixture f;
        bpe_begin(&f, cases[i].name);
        check(f.t != NULL, f.err.message);
        if (f.t)
            expect_ids(f.t, cases[i].text, strlen(cases[i].text), false, false, &cases[i].ids,
                       cases[i].name);
        fixture_close(&f);
    }
    const char *text =
        "Hello WORLD naïve 東京 \t\n\n  x1234567 don't \xF0\x9F\x99\x82\x80\xFF — ...\r\n ";
    for (size_t i = 0; i < COUNT(rule_names); i++) {
        fixture f;
        bpe_begin(&f, rule_names[i]);
        llm_ids ids = {0};
        llm_bytes back = {0};
        check(f.t && tokenizer_encode(f.t, text, strlen(text), false, false, &ids, &f.err) == 0 &&
                  tokenizer_decode(f.t, ids.data, ids.n, true, &back, NULL) == 0 &&
                  back.n == strlen(text) && memcmp(back.data, text, back.n) == 0,
              rule_names[i]);
        if (*f.err.message) printf("  %s: %s\n", rule_names[i], f.err.message);
        llm_ids_free(&ids);
        llm_bytes_free(&back);
        fixture_close(&f);
    }
    fixture f;
    bpe_begin(&f, "no-such-rule");
    check(!f.t && strstr(f.err.message, "no-such-rule") && strstr(f.err.message, "gpt-2"),
          "an unknown pre-tokenizer is refused by name with the known ones");
    fixture_close(&f);
    bpe_begin(&f, NULL);
    check(f.t && tokenizer_warning(f.t), "a missing pre-tokenizer is warned of");
    fixture_close(&f);
}

static void test_unigram(void) {
    const char *texts[] = {"<pad>", "</s>", "<unk>", "▁",   "▁the", "▁th",
                           "e",     "▁cat", "s",     "cat", "▁cats"};
    int32_t types[] = {3, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1};
    float scores[] = {0, 0, 0, -2, -3, -2, -4, -5, -3, -6, -7.5f};
    fixture f;
    writer_begin(&f.w, 3);
    put_vocabulary(&f.w, "t5", texts, types, scores, COUNT(texts));
    put_u32_value(&f.w, "tokenizer.ggml.eos_token_id", 1);
    put_u32_value(&f.w, "tokenizer.ggml.unknown_token_id", 2);
    put_bool_value(&f.w, "tokenizer.ggml.remove_extra_whitespaces", 1);
    fixture_open(&f);
    check(f.t != NULL, f.err.message);
    if (!f.t) return fixture_close(&f);
    encode_is(&f, "the cats", true, false, IDS(4, 10, 1));
    encode_is(&f, "  the   cat ", false, false, IDS(4, 7));
    encode_is(&f, "thee", false, false, IDS(4, 6));
    encode_is(&f, "xyz e", false, false, IDS(3, 2, 3, 6));
    encode_is(&f, "", true, false, IDS(1));
    decode_is(&f, IDS(4, 10, 1), false, "the cats");
    fixture_close(&f);
}

static void expect_refused(fixture *f, const char *what) {
    fixture_open(f);
    check(f->t == NULL && strstr(f->err.message, what) != NULL, what);
    if (f->t || !strstr(f->err.message, what)) printf("  got: %s\n", f->err.message);
    fixture_close(f);
}

static void test_refusals(void) {
    const char *texts[] = {"a", "b", "ab"};
    const int32_t types[] = {1, 1, 1};
    const float scores[] = {0, 0, 0};
    fixture f;
    writer_begin(&f.w, 3);
    expect_refused(&f, "tokenizer.ggml.model is missing");
    writer_begin(&f.w, 3);
    put_vocabulary(&f.w, "rwkv", texts, types, scores, 3);
    expect_refused(&f, "unknown tokenizer \"rwkv\" (known: gpt2 llama t5)");
    writer_begin(&f.w, 3);
    put_vocabulary(&f.w, "llama", texts, types, NULL, 3);
    expect_refused(&f, "tokenizer.ggml.scores is missing");
    writer_begin(&f.w, 3);
    put_vocabulary(&f.w, "gpt2", texts, types, NULL, 3);
    expect_refused(&f, "tokenizer.ggml.merges is missing");
    writer_begin(&f.w, 3);
    put_vocabulary(&f.w, "gpt2", texts, types, NULL, 3);
    put_merges(&f.w, (const char *[]){"a c"}, 1);
    expect_refused(&f, "not in the vocabulary");
    writer_begin(&f.w, 3);
    put_vocabulary(&f.w, "gpt2", texts, types, NULL, 3);
    put_merges(&f.w, (const char *[]){"ab"}, 1);
    expect_refused(&f, "two tokens expected");
    writer_begin(&f.w, 3);
    put_vocabulary(&f.w, "llama", texts, (int32_t[]){1, 1, 9}, scores, 3);
    expect_refused(&f, "token 2 has type 9");
    writer_begin(&f.w, 3);
    put_vocabulary(&f.w, "llama", texts, (int32_t[]){1, 6, 1}, scores, 3);
    expect_refused(&f, "byte token 1 is \"b\"");
    writer_begin(&f.w, 3);
    put_vocabulary(&f.w, "llama", texts, types, scores, 3);
    put_u32_value(&f.w, "tokenizer.ggml.eos_token_id", 3);
    expect_refused(&f, "tokenizer.ggml.eos_token_id is 3, 0 to 2 expected");
    writer_begin(&f.w, 3);
    put_vocabulary(&f.w, "llama", texts, types, (float[]){0, 0.0f / 0.0f, 0}, 3);
    expect_refused(&f, "the score of token 1 is");
    writer_begin(&f.w, 3);
    put_vocabulary(&f.w, "llama", texts, types, scores, 3);
    put_bool_value(&f.w, "tokenizer.ggml.add_bos_token", 1);
    expect_refused(&f, "tokenizer.ggml.bos_token_id is missing");
    writer_begin(&f.w, 3);
    put_vocabulary(&f.w, "llama", NULL, NULL, NULL, 0);
    expect_refused(&f, "a vocabulary of 0 tokens");
}

/* ---- speed ---- */

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void time_text(tokenizer *t, const char *what, const char *pattern, size_t n, double limit) {
    const size_t length = strlen(pattern);
    char *text = malloc(n);
    if (!text) abort();
    for (size_t i = 0; i < n; i++) text[i] = pattern[i % length];
    llm_ids ids = {0};
    llm_bytes back = {0};
    double start = seconds();
    bool ok = tokenizer_encode(t, text, n, false, false, &ids, NULL) == 0;
    double took = seconds() - start;
    ok = ok && tokenizer_decode(t, ids.data, ids.n, true, &back, NULL) == 0 && back.n == n &&
         memcmp(back.data, text, n) == 0;
    printf("%-14s %-10s %7zu bytes in %.2f s, %zu tokens\n", tokenizer_describe(t), what, n, took,
           ids.n);
    check(ok, what);
    check(took < limit, "a long text is tokenized in a few seconds of processor time");
    llm_ids_free(&ids);
    llm_bytes_free(&back);
    free(text);
}

static void run_speed(tokenizer *t, size_t n, double limit) {
    time_text(
        t, "prose",
        "When Mr. Bilbo Baggins of Bag End announced that he'd shortly be celebrating his "
        "eleventy-first birthday (111!), there was much talk in Hobbiton; naïve café, 東京.\n",
        n, limit);
    time_text(t, "a letter", "a", n, limit);
    time_text(t, "letters", "abcdefghijklmnopqrstuvwxyz", n, limit);
    time_text(t, "spaces", " ", n, limit);
    time_text(t, "newlines", "\n", n, limit);
    time_text(t, "digits", "1", n, limit);
    time_text(t, "dots", ".", n, limit);
    time_text(t, "mixed", " \n\t", n, limit);
    time_text(t, "spaces, 1", "                                                          x", n,
              limit);
    time_text(t, "capitals", "A", n, limit);
    time_text(t, "han", "東", n, limit);
    time_text(t, "bytes", "\x80\x81", n, limit);
}

/* ---- failing allocations ---- */

static void run_faults(const char *path) {
#ifdef LLMLUA_FAULTS
    for (int64_t n = 1; n < 10000; n++) {
        llm_error err = {0};
        llm_ids ids = {0};
        llm_bytes back = {0};
        kern_alloc_fail_at(n);
        gguf_file *file = gguf_open(path, &err);
        tokenizer *t = file ? tokenizer_new(file, &err) : NULL;
        const char *text = "Hello world, it's 2024! naïve 東京";
        bool ok = t && tokenizer_encode(t, text, strlen(text), true, true, &ids, &err) == 0 &&
                  tokenizer_decode(t, ids.data, ids.n, true, &back, &err) == 0;
        kern_alloc_fail_at(0);
        tokenizer_free(t);
        gguf_close(file);
        llm_ids_free(&ids);
        llm_bytes_free(&back);
        if (ok) {
            printf("%d allocations failed, one at a time\n", (int)n - 1);
            check(n > 5, "allocations were made to fail");
            return;
        }
        check(err.kind == LLM_OUT_OF_MEMORY, err.message);
    }
    check(false, "it ends");
#else
    printf("built without LLMLUA_FAULTS: %s is not tried\n", path);
#endif
}

/* Every pre-tokenizer on every kind of text: none is quadratic. */
static void run_rules(double limit) {
    for (size_t i = 0; i < COUNT(rule_names); i++) {
        fixture f;
        bpe_begin(&f, rule_names[i]);
        check(f.t != NULL, f.err.message);
        if (f.t) run_speed(f.t, 200000, limit);
        fixture_close(&f);
    }
}

static tokenizer *open_model(const char *path, gguf_file **file) {
    llm_error err = {0};
    *file = gguf_open(path, &err);
    tokenizer *t = *file ? tokenizer_new(*file, &err) : NULL;
    check(t != NULL, err.message);
    return t;
}

int main(int argc, char **argv) {
    gguf_file *file = NULL;
    tokenizer *t = NULL;
    if (argc == 1) {
        test_spm();
        test_spm_types();
        test_spm_without_types();
        test_bpe();
        test_pre_tokenizers();
        test_unigram();
        test_refusals();
    } else if (argc == 3 && strcmp(argv[1], "--faults") == 0) {
        run_faults(argv[2]);
    } else if (strcmp(argv[1], "--speed") == 0 && argc == 2) {
        run_rules(1.0);
    } else if (strcmp(argv[1], "--speed") == 0) {
        double start = seconds();
        t = open_model(argv[2], &file);
        printf("opened in %.3f s\n", seconds() - start);
        if (t) run_speed(t, 1000000, argc > 3 ? atof(argv[3]) : 5.0);
    } else {
        t = open_model(argv[1], &file);
        for (int i = 2; t && i < argc; i++) run_file(t, argv[i]);
    }
    tokenizer_free(t);
    gguf_close(file);
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed != 0;
}
