/* make_corpus.c: writes the fuzzer's first inputs, small right and wrong model files, to a folder.
 *
 *   make_corpus FOLDER     (which exists)
 */
#include "hostile_files.h"

static void write_file(const char *folder, const char *name, gguf_writer *w) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.gguf", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(w->data ? w->data : "", 1, w->n, file) != w->n || fclose(file)) {
        fprintf(stderr, "cannot write %s\n", path);
        exit(1);
    }
    writer_free(w);
}

/* Appends text behind the data, which the fuzzer encodes. */
static void finish(const char *folder, const char *name, gguf_writer *w, const char *text) {
    put_data(w, 32, 0);
    writer_end(w);
    put(w, text, strlen(text));
    write_file(folder, name, w);
}

static void write_spm(const char *folder, const char *model, const char *name) {
    static const char *const texts[] = {"<unk>", "<s>", "</s>",   "<0x20>", "<0xFF>", "▁",
                                        "H",     "e",   "l",      "o",      "▁H",     "▁He",
                                        "ll",    "llo", "▁Hello", "  "};
    const int32_t types[] = {2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1, 1, 5, 1, 4};
    const float scores[] = {0, 0, 0, 0, 0, -1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -11};
    gguf_writer w;
    writer_begin(&w, 3);
    put_vocabulary(&w, model, texts, types, scores, 16);
    put_u32_value(&w, "tokenizer.ggml.bos_token_id", 1);
    put_u32_value(&w, "tokenizer.ggml.eos_token_id", 2);
    put_u32_value(&w, "tokenizer.ggml.unknown_token_id", 0);
    put_bool_value(&w, "tokenizer.ggml.remove_extra_whitespaces", 1);
    if (strcmp(model, "t5") == 0) {
        /* a double array of four units and the texts "x" and "" */
        const uint32_t units[] = {1u << 10, 'H' | 1u << 8, 0x80000000u, 2};
        put_array(&w, "tokenizer.ggml.precompiled_charsmap", GGUF_UINT8, 4 + 16 + 3);
        put_u32(&w, 16);
        put(&w, units, 16);
        put(&w, "x\0", 3);
    }
    finish(folder, name, &w, "Hello  Hello<s>Hello \xFFworld");
}

static void write_bpe(const char *folder, const char *pre) {
    static const char *const texts[] = {"H", "e",       "l",       "o",    "Ġ",  "1",
                                        "2", "ll",      "He",      "Hell", "12", "Ċ",
                                        "ÿ", "<|end|>", "<think>", "'",    "s"};
    const int32_t types[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 4, 1, 1};
    static const char *const merges[] = {"l l", "H e", "He ll", "1 2"};
    char name[64];
    gguf_writer w;
    writer_begin(&w, 3);
    put_vocabulary(&w, "gpt2", texts, types, NULL, 17);
    put_merges(&w, merges, 4);
    put_string_value(&w, "tokenizer.ggml.pre", pre);
    put_u32_value(&w, "tokenizer.ggml.eos_token_id", 13);
    snprintf(name, sizeof name, "bpe-%s", pre);
    finish(folder, name, &w, "Hello 1212's Hell\n<think> <|end|>\xFF");
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: make_corpus FOLDER\n");
        return 2;
    }
    for (int i = 0; i < N_HOSTILE_FILES; i++) {
        gguf_writer w = {0};
        hostile_files[i].build(&w);
        write_file(argv[1], hostile_files[i].name, &w);
    }
    write_spm(argv[1], "llama", "spm");
    write_spm(argv[1], "t5", "unigram");
    static const char *const names[] = {"default", "gpt-2",        "llama-bpe",   "qwen2",
                                        "smollm",  "deepseek-llm", "deepseek-v3", "tekken",
                                        "gpt-4o",  "kimi-k2",      "poro-chat",   "chameleon"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) write_bpe(argv[1], names[i]);
    return 0;
}
