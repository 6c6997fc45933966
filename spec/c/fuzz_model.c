/* fuzz_model.c: a libFuzzer target over the GGUF loader and the tokenizers. The input is a file;
 * what lies behind a right file's data is also the text to encode and the ids to decode. Encoding
 * must give ids of the vocabulary, and with byte-level BPE decoding must give the text back. */
#include "../../core/gguf.h"
#include "../../core/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void fail_unless(bool ok) {
    if (!ok) abort();
}

static void try_text(tokenizer *t, const char *text, size_t n, bool special, bool exact) {
    llm_ids ids = {0};
    llm_bytes back = {0};
    llm_error err;
    if (tokenizer_encode(t, text, n, special, special, &ids, &err) == 0) {
        for (size_t i = 0; i < ids.n; i++)
            fail_unless(ids.data[i] >= 0 && ids.data[i] < tokenizer_n_tokens(t));
        fail_unless(tokenizer_decode(t, ids.data, ids.n, true, &back, &err) == 0);
        if (exact && !special)
            fail_unless(back.n == n && (n == 0 || memcmp(back.data, text, n) == 0));
    } else {
        fail_unless(ids.n == 0 && *err.message);
    }
    llm_ids_free(&ids);
    llm_bytes_free(&back);
}

static void try_ids(tokenizer *t, const char *data, size_t n) {
    int32_t ids[64];
    size_t n_ids = n / sizeof *ids < 64 ? n / sizeof *ids : 64;
    llm_bytes whole = {0}, part = {0};
    if (n_ids) memcpy(ids, data, n_ids * sizeof *ids);
    for (size_t i = 0; i < n_ids; i++)
        ids[i] = (int32_t)((uint32_t)ids[i] % (uint32_t)tokenizer_n_tokens(t));
    fail_unless(tokenizer_decode(t, ids, n_ids, false, &whole, NULL) == 0);
    fail_unless(tokenizer_decode(t, ids, n_ids / 2, false, &part, NULL) == 0);
    fail_unless(part.n <= whole.n && (part.n == 0 || memcmp(part.data, whole.data, part.n) == 0));
    llm_bytes_free(&whole);
    llm_bytes_free(&part);
}

static void try_metadata(const gguf_file *file) {
    llm_error err;
    int64_t i;
    double x;
    for (size_t k = 0; k < gguf_n_values(file); k++) {
        const gguf_value *value = gguf_value_at(file, k);
        const char *at = value->data;
        for (size_t j = 0; j < value->n && value->item_type == GGUF_STRING; j++)
            gguf_next_string(&at);
        for (size_t j = 0; j < value->n && value->item_type != GGUF_STRING; j++)
            gguf_item_float(value, j);
    }
    gguf_get_int(file, "general.alignment", 0, 1, &i, &err);
    gguf_get_float(file, "general.alignment", 0, 1, &x, &err);
    for (size_t k = 0; k < gguf_n_tensors(file); k++) {
        const gguf_tensor *tensor = gguf_tensor_at(file, k);
        volatile char last = ((const char *)tensor->data)[tensor->bytes - 1];
        (void)last;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const char fixed[] = "<s>Hello  world, it's 12345\n\n\xEA\xB9\xB0 \xFF<|end|>\t";
    llm_error err;
    gguf_file *file = gguf_open_memory(data, n, "input", &err);
    if (!file) {
        fail_unless(*err.message && !strchr(err.message, '\n'));
        return 0;
    }
    try_metadata(file);
    tokenizer *t = tokenizer_new(file, &err);
    if (t) {
        bool exact = strncmp(tokenizer_describe(t), "gpt2", 4) == 0;
        size_t tail = n < 256 ? n : 256;
        const char *text = (const char *)data + (n - tail);
        for (int special = 0; special < 2; special++) {
            try_text(t, fixed, sizeof fixed - 1, special, exact);
            try_text(t, text, tail, special, exact);
        }
        try_ids(t, text, tail);
        for (int32_t id = 0; id < tokenizer_n_tokens(t); id++) tokenizer_token_bytes(t, id);
    }
    tokenizer_free(t);
    gguf_close(file);
    return 0;
}
