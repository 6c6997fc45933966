/* request.h: a feed that is served a piece at a time, inside core. */
#ifndef LLM_CORE_REQUEST_H
#define LLM_CORE_REQUEST_H

#include "cache.h"
#include "tensor.h"

#define HEAD_ROWS 64 /* rows of logits of several requests that are made at a time */

/* What is fed into one cache. Logits are wanted of its ids first_wanted … end_wanted - 1; they go
 * to the rows of the request's tensor from first_row on. */
typedef struct request_part {
    llm_cache *cache;     /* NULL once it is let go */
    llm_cache *fed;       /* the same; of a score, a fork while there is one */
    int64_t first, count; /* ids of the feed */
    int64_t first_wanted, end_wanted, first_row;
    int64_t n_fed;    /* ids whose keys and values are there */
    int64_t n_before; /* length of the cache that is fed, before */
    int32_t *tree;    /* parents for the cache to keep; NULL: a chain */
} request_part;

typedef enum request_kind { REQUEST_FORWARD, REQUEST_SCORE, REQUEST_REFILL } request_kind;

struct llm_request {
    llm_request_info info;
    request_kind kind;
    bool is_listed; /* in the list that is being served */
    bool is_swap;   /* a refill by copies from host memory */
    int32_t depth;  /* layers */
    int64_t n_parts;
    request_part *parts;
    int32_t *ids;     /* of all parts, one after the other */
    llm_late *late;   /* or these, one a part, which the host may not know yet; then ids are 0 */
    int32_t *parents; /* of all; NULL unless one part is a tree */
    int32_t *layers;  /* hidden states wanted */
    int64_t n_layers;
    llm_tensor **hidden; /* [n_ids, width] each */
    llm_tensor *logits;  /* rows wanted; of a score, the column of log-probabilities; or NULL. Few
                          * rows have no memory yet (tensor_alloc_later) */
    llm_tensor *targets; /* of a score: the ids that follow the rows, i32 */
};

/* Ids still to feed. */
static inline int64_t request_left(const llm_request *r) { return r->info.n_ids - r->info.n_fed; }

/* A score's fork, if it has none yet. */
int request_begin(llm_request *, llm_error *err);

/* Takes what the store has of the ids next to feed. */
int request_reuse(llm_request *, llm_error *err);

/* Of a refill by copies: makes them, and then all is fed. Without pages for them it waits; where
 * they fail it is over with nothing fed, and the next refill computes. */
int request_swap_in(llm_request *, llm_error *err);

/* Whether the next ids of a part may come from the store: full pages of the beginning of a cache,
 * none of them a row that is wanted. They are then at *ids. */
bool request_may_reuse(const llm_request *, const request_part *, const int32_t **ids);

/* n ids of the part are fed: a pass or the store brought their keys and values. */
void request_commit(llm_request *, request_part *, int64_t n);

/* Once all is fed: hands the caches over. */
void request_finish(llm_request *);

/* It can never be done: the caches are as they were. */
void request_fail(llm_request *, const llm_error *why);

/* The cache is about to be closed: the request fails. */
void request_lose_cache(llm_request *, llm_cache *);

/* A tensor of rows that a call asked for: at most the model's max_rows. */
llm_tensor *request_rows(llm_model *, int64_t n_rows, int64_t n_columns, llm_error *err);

/* Without caches; of all layers. Only parts and ids are to be filled in. */
llm_request *request_new(llm_model *, request_kind, int64_t n_parts, int64_t n_ids, llm_error *err);

#endif
