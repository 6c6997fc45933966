/* tokenizer_parts.h: what the files of the tokenizer share among themselves. */
#ifndef LLM_CORE_TOKENIZER_PARTS_H
#define LLM_CORE_TOKENIZER_PARTS_H

#include "hash.h"
#include "tokenizer.h"
#include "trie.h"

typedef enum tokenizer_kind { TOKENIZER_BPE, TOKENIZER_SPM, TOKENIZER_UGM } tokenizer_kind;

/* ---- merging: repeatedly joins the best pair of neighbours (tokenizer_merge.c) ---- */

#define MERGE_NONE UINT32_MAX

/* A piece of the text, in an array with an entry for each byte: entry i is the piece that begins at
 * byte i. */
typedef struct merge_piece {
    int32_t id;       /* its token, or -1 */
    uint32_t n_bytes; /* 0: no piece begins here, or it was joined to its left neighbour */
    uint32_t prev;    /* where its left neighbour begins, or MERGE_NONE */
} merge_piece;

/* Two neighbours that may be joined: the left one begins at `at`. */
typedef struct merge_candidate {
    uint64_t order; /* priority << 32 | at: the smallest is joined first */
    uint32_t n_bytes;
    int32_t id;
} merge_candidate;

/* Memory that is kept from one text to the next. */
typedef struct merge_state {
    merge_piece *pieces;
    size_t n_pieces; /* allocated */
    merge_candidate *heap;
    size_t n_heap, heap_capacity;
} merge_state;

/* What joining two neighbours of text gives: true and *id, *priority if they may be joined. The
 * smallest priority is joined first, ties from the left. */
typedef bool merge_rule(const tokenizer *t, const char *text, const merge_piece *left,
                        const merge_piece *right, int32_t *id, uint32_t *priority);

/* Room for the pieces of a text of n bytes. */
int merge_reserve(merge_state *m, size_t n_bytes, llm_error *err);

/* Joins the pieces of text[0, n) until no rule applies; the next piece begins where one ends. */
int merge_run(merge_state *m, const tokenizer *t, const char *text, size_t n, merge_rule *rule,
              llm_error *err);
void merge_free(merge_state *m);

/* Gives back what a long text left behind. */
void merge_trim(merge_state *m);

/* ---- the pre-tokenizer of byte-level BPE (tokenizer_pre.c) ---- */

typedef struct pre_tokenizer pre_tokenizer;
typedef int pre_word(void *data, const char *word, size_t n_bytes, llm_error *err);

pre_tokenizer *pre_tokenizer_new(gguf_string name, llm_error *err);
void pre_tokenizer_free(pre_tokenizer *p);

/* Calls `word` for each word, in order; together they are the text. A result other than 0 ends it.
 */
int pre_tokenizer_split(pre_tokenizer *p, const char *text, size_t n, pre_word *word, void *data,
                        llm_error *err);

/* A word that is a token is taken whole; add_bos where the file does not say. */
bool pre_tokenizer_takes_whole_words(const pre_tokenizer *p);
bool pre_tokenizer_adds_bos(const pre_tokenizer *p);

/* ---- unigram (tokenizer_ugm.c) ---- */

typedef struct unigram {
    trie pieces;
    float unknown_score;
    const char *charsmap; /* the precompiled normaliser: units of a double array, then texts */
    size_t n_units, texts_bytes;
    const char *texts;
    bool remove_extra_spaces;
} unigram;

int unigram_init(tokenizer *t, const gguf_file *file, llm_error *err);
void unigram_free(unigram *u);
int unigram_encode(tokenizer *t, const char *text, size_t n, llm_ids *out, llm_error *err);

/* ---- the tokenizer ---- */

struct tokenizer {
    const gguf_file *file;
    tokenizer_kind kind;
    int32_t n_tokens;
    char *bytes;      /* what the tokens stand for, one after the other */
    size_t *starts;   /* [n_tokens + 1] where each begins */
    uint8_t *types;   /* [n_tokens] token_type */
    float *scores;    /* [n_tokens], NULL for BPE */
    text_map by_text; /* of bytes; control, unknown and byte tokens only where no other has them */
    int32_t byte_ids[256]; /* the token of a single byte, or -1 */
    trie specials;         /* user-defined, control and unknown tokens */
    bool special_starts[256];
    bool add_bos, add_eos, space_prefix;
    int32_t bos, eos, eot, eom, unknown;
    gguf_string chat_template;
    char warning[256], description[96];

    pre_tokenizer *pre;   /* BPE */
    number_map merges;    /* BPE: left << 32 | right → priority << 32 | joined */
    bool splits_words;    /* SPM: no token holds a space behind something else */
    int32_t *unused_left; /* SPM: [n_tokens] bytes of the left part an unused token was made of, or
                             NULL */
    unigram ugm;
    merge_state merge;
};

/* The token with these bytes, unless it is a control, unknown or byte token; or -1. */
int32_t tokenizer_find(const tokenizer *t, const char *bytes, size_t n);

/* Appends the byte tokens of text, or the unknown token (once in a row), or fails. */
int tokenizer_push_bytes(const tokenizer *t, const char *text, size_t n, llm_ids *out,
                         llm_error *err);

int bpe_init(tokenizer *t, const gguf_file *file, llm_error *err);
int bpe_encode(tokenizer *t, const char *text, size_t n, llm_ids *out, llm_error *err);

/* Turns the stand-in characters of a byte-level vocabulary into bytes, in out[n]; returns how many.
 */
size_t bpe_text_to_bytes(const char *text, size_t n, char *out);

int spm_init(tokenizer *t, const gguf_file *file, llm_error *err);
int spm_encode(tokenizer *t, const char *text, size_t n, llm_ids *out, llm_error *err);

#endif
