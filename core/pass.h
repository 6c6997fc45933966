/* pass.h: one pass over the weights for the rows of several requests. */
#ifndef LLM_CORE_PASS_H
#define LLM_CORE_PASS_H

#include "request.h"

/* n rows of a pass: the next n ids of a part. */
typedef struct pass_chunk {
    llm_request *request;
    request_part *part;
    int32_t n_rows, first_row;
} pass_chunk;

/* What a serve feeds of one part. */
typedef struct pass_share {
    llm_request *request;
    request_part *part;
    int64_t n; /* ids, not yet fed */
} pass_share;

/* A page that a share of the serve is computing: the entry before it, and its ids. */
typedef struct pass_page {
    uint64_t parent;
    int32_t ids[KERN_PAGE_POSITIONS];
} pass_page;

/* A row whose logits are wanted: which of the request's. */
typedef struct pass_row {
    llm_request *request;
    int64_t i_row;
} pass_row;

/* What the passes of a model work with, kept from one to the next. */
typedef struct passes {
    llm_model *model; /* not held: it holds these */
    /* the pass in hand: at most model->piece rows */
    int32_t n_chunks, n_rows, n_wanted;
    bool has_parents;
    pass_chunk *chunks;
    kern_sequence *sequences;
    int32_t *ids, *parents;
    pass_row *wanted;
    llm_tensor *device_ids;
    llm_tensor *rows;          /* logits of several requests, grows up to HEAD_ROWS rows */
    llm_tensor *picked, *sums; /* of a score: HEAD_ROWS each */
    /* the serve in hand (serve.c) */
    pass_share *shares;
    pass_page *pages;
    size_t n_shares, shares_capacity, n_pages, pages_capacity;
} passes;

/* The model's, made at the first call; NULL with err. */
passes *passes_of(llm_model *, llm_error *err);
void passes_close(passes *); /* accepts NULL */

/* The next n ids of a part, which then are rows of the pass. */
void pass_add(passes *, llm_request *, request_part *, int32_t n);

/* Runs the pass: keys and values, hidden states and logits of its rows. Nothing is committed. */
int pass_run(passes *, llm_error *err);

/* Final norm and output matrix on rows 0 … n-1 of the residual buffer, into rows of `out` from
 * i_row on. */
int pass_head(llm_model *, int64_t n, llm_tensor *out, int64_t i_row, llm_error *err);

#endif
