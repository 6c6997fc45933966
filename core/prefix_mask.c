/* prefix_mask.c: which tokens a text may begin with that must begin with given bytes. */
#include "error.h"
#include "model.h"
#include "tensor.h"

#include "../kernels/memory.h"
#include <math.h>
#include <string.h>

/* One begins with the other. What is not shown in a text, and what has no bytes, begins nothing. */
static bool token_fits(const tokenizer *t, int32_t id, const char *bytes, size_t n) {
    token_type type = tokenizer_token_type(t, id);
    gguf_string s = tokenizer_token_bytes(t, id);
    if (type == TOKEN_CONTROL || type == TOKEN_UNKNOWN || s.n == 0) return false;
    return memcmp(s.data, bytes, s.n < n ? s.n : n) == 0;
}

int llm_prefix_mask(llm_model *m, const char *bytes, size_t n, llm_tensor **out, llm_error *err) {
    *out = NULL;
    int64_t n_columns = m->info.vocab_size;
    float *row = kern_alloc_array((size_t)n_columns, sizeof *row); /* of zeros */
    if (!row) return llm_fail_memory(err, (size_t)n_columns * sizeof *row, "a mask of tokens");
    int32_t n_tokens = tokenizer_n_tokens(m->tokenizer);
    for (int32_t id = 0; n > 0 && id < n_columns; id++)
        if (id >= n_tokens || !token_fits(m->tokenizer, id, bytes, n)) row[id] = -INFINITY;
    *out = llm_tensor_new(m->device, LLM_F32, 1, n_columns, row, err);
    kern_free(row);
    if (!*out) return -1;
    llm_tensor_set_logits(*out, true);
    return 0;
}
