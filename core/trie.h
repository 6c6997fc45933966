/* trie.h: a byte trie, for the longest token that begins at a place of a text. */
#ifndef LLM_CORE_TRIE_H
#define LLM_CORE_TRIE_H

#include "hash.h"

/* Node 0 is the root; an edge is the key (node << 8 | byte) of the map. A zeroed trie is empty. */
typedef struct trie {
    number_map edges;
    int32_t *values; /* [n_nodes] the value of the text that ends here, or -1 */
    size_t n_nodes, capacity;
} trie;

#define TRIE_NONE UINT32_MAX

/* Stores the value (≥ 0) unless the text is there. The empty text is refused by assert. */
int trie_add(trie *t, const char *text, size_t n_bytes, int32_t value, llm_error *err);
void trie_free(trie *t);

/* The node one byte further on, or TRIE_NONE. Start at node 0. */
static inline uint32_t trie_step(const trie *t, uint32_t node, unsigned char byte) {
    const uint64_t *next = number_map_find(&t->edges, (uint64_t)node << 8 | byte);
    return next ? (uint32_t)*next : TRIE_NONE;
}

#endif
