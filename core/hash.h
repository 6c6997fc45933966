/* hash.h: two hash tables with open addressing, made at their final size and never shrunk:
 * texts → numbers (the texts are borrowed) and 64-bit numbers → 64-bit numbers. */
#ifndef LLM_CORE_HASH_H
#define LLM_CORE_HASH_H

#include "llm.h"

typedef struct text_slot {
    const char *text; /* NULL: free */
    uint32_t n_bytes, hash;
    int32_t value;
} text_slot;

typedef struct text_map {
    text_slot *slots;
    size_t mask; /* slots − 1; a power of two less one */
} text_map;

/* Room for n texts (at most 2^30). */
int text_map_init(text_map *map, size_t n, llm_error *err);
void text_map_free(text_map *map);

/* The value stored for the text, or `missing`. */
int32_t text_map_find(const text_map *map, const char *text, size_t n_bytes, int32_t missing);

/* Stores the value unless the text is there; returns the value that is there afterwards. */
int32_t text_map_add(text_map *map, const char *text, size_t n_bytes, int32_t value);

typedef struct number_slot {
    uint64_t key, value; /* key NUMBER_MAP_FREE: free */
} number_slot;

#define NUMBER_MAP_FREE UINT64_MAX

/* Grows on demand. A zeroed one is empty and valid. */
typedef struct number_map {
    number_slot *slots;
    size_t mask, n;
} number_map;

int number_map_init(number_map *map, size_t n, llm_error *err);
void number_map_free(number_map *map);

/* A pointer to the value of the key, or NULL. */
const uint64_t *number_map_find(const number_map *map, uint64_t key);

/* Stores the value unless the key is there. */
int number_map_add(number_map *map, uint64_t key, uint64_t value, llm_error *err);

#endif
