/* tokenizer_merge.c: the merging of byte-pair encoding, with a binary heap of candidates over a
 * linked list of pieces: n log n for a text of n bytes, whatever the text. A candidate that a merge
 * has overtaken is recognised when it is taken out, by its length. Owns the memory of merge_state.
 */
#include "tokenizer_parts.h"

#include "../kernels/memory.h"
#include "error.h"

enum { KEPT_BYTES = 1 << 16 }; /* texts longer than this do not leave their memory behind */

int merge_reserve(merge_state *m, size_t n_bytes, llm_error *err) {
    if (n_bytes <= m->n_pieces) return 0;
    size_t n = n_bytes < KEPT_BYTES / 2 ? n_bytes * 2 : n_bytes;
    merge_piece *pieces = kern_alloc_array(n, sizeof *pieces);
    if (!pieces) return llm_fail_memory(err, n * sizeof *pieces, "tokenizing");
    kern_free(m->pieces);
    m->pieces = pieces;
    m->n_pieces = n;
    return 0;
}

void merge_free(merge_state *m) {
    kern_free(m->pieces);
    kern_free(m->heap);
    *m = (merge_state){0};
}

void merge_trim(merge_state *m) {
    if (m->n_pieces > KEPT_BYTES || m->heap_capacity > KEPT_BYTES) merge_free(m);
}

/* ---- the heap: a candidate comes before its four children, from 4i + 1 on ---- */

static int heap_push(merge_state *m, merge_candidate c, llm_error *err) {
    if (m->n_heap == m->heap_capacity) {
        size_t capacity = m->heap_capacity ? m->heap_capacity * 2 : 256;
        merge_candidate *heap = kern_realloc(m->heap, capacity * sizeof *heap);
        if (!heap) return llm_fail_memory(err, capacity * sizeof *heap, "tokenizing");
        m->heap = heap;
        m->heap_capacity = capacity;
    }
    size_t i = m->n_heap++;
    for (; i > 0 && c.order < m->heap[(i - 1) / 4].order; i = (i - 1) / 4)
        m->heap[i] = m->heap[(i - 1) / 4];
    m->heap[i] = c;
    return 0;
}

static merge_candidate heap_pop(merge_state *m) {
    merge_candidate *heap = m->heap, top = heap[0], last = heap[--m->n_heap];
    size_t i = 0, n = m->n_heap, child;
    while ((child = 4 * i + 1) < n) {
        size_t end = child + 4 < n ? child + 4 : n, best = child;
        while (++child < end)
            if (heap[child].order < heap[best].order) best = child;
        if (heap[best].order >= last.order) break;
        heap[i] = heap[best];
        i = best;
    }
    heap[i] = last;
    return top;
}

/* ---- merging ---- */

typedef struct merge_job {
    merge_state *m;
    const tokenizer *t;
    const char *text;
    size_t n;
    merge_rule *rule;
} merge_job;

/* Looks at the piece that begins at `at` and its right neighbour. */
static int propose(const merge_job *job, uint32_t at, llm_error *err) {
    const merge_piece *left = &job->m->pieces[at];
    size_t next = (size_t)at + left->n_bytes;
    if (next == job->n) return 0;
    const merge_piece *right = &job->m->pieces[next];
    merge_candidate c = {.n_bytes = left->n_bytes + right->n_bytes};
    uint32_t priority;
    if (!job->rule(job->t, job->text + at, left, right, &c.id, &priority)) return 0;
    c.order = (uint64_t)priority << 32 | at;
    return heap_push(job->m, c, err);
}

int merge_run(merge_state *m, const tokenizer *t, const char *text, size_t n, merge_rule *rule,
              llm_error *err) {
    const merge_job job = {m, t, text, n, rule};
    m->n_heap = 0;
    for (size_t at = 0; at < n; at += m->pieces[at].n_bytes)
        if (propose(&job, (uint32_t)at, err)) return -1;
    while (m->n_heap > 0) {
        merge_candidate c = heap_pop(m);
        uint32_t at = (uint32_t)c.order;
        merge_piece *left = &m->pieces[at];
        size_t next = (size_t)at + left->n_bytes;
        /* overtaken: the left piece is gone, has grown, or its neighbour has */
        if (left->n_bytes == 0 || left->n_bytes >= c.n_bytes ||
            left->n_bytes + m->pieces[next].n_bytes != c.n_bytes)
            continue;
        m->pieces[next].n_bytes = 0;
        left->id = c.id;
        left->n_bytes = c.n_bytes;
        next = (size_t)at + c.n_bytes;
        if (next < n) m->pieces[next].prev = at;
        if (propose(&job, at, err)) return -1;
        if (left->prev != MERGE_NONE && propose(&job, left->prev, err)) return -1;
    }
    return 0;
}
