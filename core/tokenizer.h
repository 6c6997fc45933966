/* tokenizer.h: text to token ids and back, as the metadata of a GGUF file says: byte-level BPE
 * ("gpt2"), SentencePiece BPE ("llama") and SentencePiece unigram ("t5"). Borrows the file, which
 * must outlive it. Used by one thread at a time. */
#ifndef LLM_CORE_TOKENIZER_H
#define LLM_CORE_TOKENIZER_H

#include "gguf.h"
#include "llm.h"

typedef struct tokenizer tokenizer;

typedef enum token_type { /* the numbers are the format's */
                          TOKEN_NORMAL = 1,
                          TOKEN_UNKNOWN = 2,
                          TOKEN_CONTROL = 3,
                          TOKEN_USER_DEFINED = 4,
                          TOKEN_UNUSED = 5,
                          TOKEN_BYTE = 6
} token_type;

/* An unknown kind or pre-tokenizer is refused by name, with the list of the known ones. */
tokenizer *tokenizer_new(const gguf_file *file, llm_error *err);
void tokenizer_free(tokenizer *t);

/* Appends the ids of text[0, n) (any bytes) to *out; after a failure *out is as it was.
 *
 * User-defined tokens are matched first, leftmost and longest, and control tokens with them if
 * parse_special; else the text of a control token is ordinary text. add_special puts BOS in front
 * and EOS behind where the file says so, whatever the text holds.
 * SentencePiece with add_space_prefix: a space is put before text at the start and after a BOS or
 * EOS token, and nowhere else. Invalid UTF-8 becomes byte tokens. */
int tokenizer_encode(tokenizer *t, const char *text, size_t n, bool add_special, bool parse_special,
                     llm_ids *out, llm_error *err);

/* Appends the bytes that the ids stand for to *out. Control and unknown tokens appear as their
 * text if render_special, else they give nothing. The space that add_space_prefix puts in
 * is taken out in the same places (one leading space of the first token of the list, or of the
 * one after BOS or EOS). What ids[0, m) gives is always the beginning of what ids[0, n ≥ m) gives.
 */
int tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, bool render_special,
                     llm_bytes *out, llm_error *err);

int32_t tokenizer_n_tokens(const tokenizer *t);

/* What one token stands for: bytes of its own, spaces included; a control token's text.
 * 0 ≤ id < n_tokens. */
gguf_string tokenizer_token_bytes(const tokenizer *t, int32_t id);
token_type tokenizer_token_type(const tokenizer *t, int32_t id);

/* -1 where the file has no such key. */
int32_t tokenizer_bos(const tokenizer *t);
int32_t tokenizer_eos(const tokenizer *t);
int32_t tokenizer_eot(const tokenizer *t);
int32_t tokenizer_eom(const tokenizer *t);

/* The file's eos, eot and eom ids, each once; returns how many (0…3). */
int tokenizer_eog(const tokenizer *t, int32_t ids[3]);

bool tokenizer_adds_bos(const tokenizer *t);
bool tokenizer_adds_eos(const tokenizer *t);

/* The file's chat template; n is 0 where there is none. */
gguf_string tokenizer_chat_template(const tokenizer *t);

/* What the user should be told about the file's tokenizer, or NULL. */
const char *tokenizer_warning(const tokenizer *t);

/* "gpt2/smollm", "llama", "t5": the kind and the pre-tokenizer, for describe(). */
const char *tokenizer_describe(const tokenizer *t);

#endif
