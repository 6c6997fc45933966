/* trie.c: owns the nodes of a trie. */
#include "trie.h"

#include "../kernels/memory.h"
#include "error.h"

#include <assert.h>

static int trie_new_node(trie *t, llm_error *err) {
    if (t->n_nodes == t->capacity) {
        size_t capacity = t->capacity ? t->capacity * 2 : 64;
        if (capacity > TRIE_NONE) return llm_fail(err, LLM_MISUSE, "the vocabulary is too large");
        int32_t *values = kern_realloc(t->values, capacity * sizeof *values);
        if (!values) return llm_fail_memory(err, capacity * sizeof *values, "a trie");
        t->values = values;
        t->capacity = capacity;
    }
    t->values[t->n_nodes++] = -1;
    return 0;
}

int trie_add(trie *t, const char *text, size_t n_bytes, int32_t value, llm_error *err) {
    assert(n_bytes > 0 && value >= 0);
    if (t->n_nodes == 0 && trie_new_node(t, err)) return -1;
    uint32_t node = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        unsigned char byte = (unsigned char)text[i];
        uint32_t next = trie_step(t, node, byte);
        if (next == TRIE_NONE) {
            next = (uint32_t)t->n_nodes;
            if (trie_new_node(t, err)) return -1;
            if (number_map_add(&t->edges, (uint64_t)node << 8 | byte, next, err)) return -1;
        }
        node = next;
    }
    if (t->values[node] < 0) t->values[node] = value;
    return 0;
}

void trie_free(trie *t) {
    number_map_free(&t->edges);
    kern_free(t->values);
    *t = (trie){0};
}
