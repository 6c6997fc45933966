/* hash.c: owns the slots of the hash tables, not the texts in them. */
#include "hash.h"

#include "../kernels/memory.h"
#include "error.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* The slot count for n entries: a power of two, at most half full. */
static size_t slots_for(size_t n) {
    size_t slots = 16;
    while (slots < n * 2) slots *= 2;
    return slots;
}

int text_map_init(text_map *map, size_t n, llm_error *err) {
    *map = (text_map){0};
    if (n > (size_t)1 << 30)
        return llm_fail(err, LLM_MISUSE, "%zu names, at most %zu are supported", n,
                        (size_t)1 << 30);
    size_t slots = slots_for(n);
    map->slots = kern_alloc_array(slots, sizeof *map->slots);
    if (!map->slots) return llm_fail_memory(err, slots * sizeof *map->slots, "a table of names");
    map->mask = slots - 1;
    return 0;
}

void text_map_free(text_map *map) {
    kern_free(map->slots);
    *map = (text_map){0};
}

/* The slot that holds the text, or the free one where it belongs. */
static text_slot *text_slot_of(const text_map *map, const char *text, size_t n_bytes,
                               uint32_t hash) {
    size_t i = hash & map->mask;
    for (;; i = (i + 1) & map->mask) {
        text_slot *slot = &map->slots[i];
        if (!slot->text) return slot;
        if (slot->hash == hash && slot->n_bytes == n_bytes &&
            memcmp(slot->text, text, n_bytes) == 0)
            return slot;
    }
}

int32_t text_map_find(const text_map *map, const char *text, size_t n_bytes, int32_t missing) {
    if (!map->slots) return missing;
    const text_slot *slot = text_slot_of(map, text, n_bytes, (uint32_t)XXH3_64bits(text, n_bytes));
    return slot->text ? slot->value : missing;
}

int32_t text_map_add(text_map *map, const char *text, size_t n_bytes, int32_t value) {
    uint32_t hash = (uint32_t)XXH3_64bits(text, n_bytes);
    text_slot *slot = text_slot_of(map, text, n_bytes, hash);
    if (!slot->text) *slot = (text_slot){text, (uint32_t)n_bytes, hash, value};
    return slot->value;
}

int number_map_init(number_map *map, size_t n, llm_error *err) {
    *map = (number_map){0};
    if (n > (size_t)1 << 30)
        return llm_fail(err, LLM_MISUSE, "%zu numbers, at most %zu are supported", n,
                        (size_t)1 << 30);
    size_t slots = slots_for(n);
    map->slots = kern_alloc_array(slots, sizeof *map->slots);
    if (!map->slots) return llm_fail_memory(err, slots * sizeof *map->slots, "a hash table");
    for (size_t i = 0; i < slots; i++) map->slots[i].key = NUMBER_MAP_FREE;
    map->mask = slots - 1;
    return 0;
}

void number_map_free(number_map *map) {
    kern_free(map->slots);
    *map = (number_map){0};
}

/* splitmix64's finaliser: every bit of the key reaches the low bits. */
static inline uint64_t number_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static number_slot *number_slot_of(const number_map *map, uint64_t key) {
    size_t i = number_mix(key) & map->mask;
    while (map->slots[i].key != key && map->slots[i].key != NUMBER_MAP_FREE)
        i = (i + 1) & map->mask;
    return &map->slots[i];
}

const uint64_t *number_map_find(const number_map *map, uint64_t key) {
    if (!map->slots) return NULL;
    const number_slot *slot = number_slot_of(map, key);
    return slot->key == key ? &slot->value : NULL;
}

int number_map_add(number_map *map, uint64_t key, uint64_t value, llm_error *err) {
    if (!map->slots || map->n * 2 > map->mask) {
        number_map grown;
        if (number_map_init(&grown, map->n * 2 + 8, err)) return -1;
        for (size_t i = 0; map->slots && i <= map->mask; i++)
            if (map->slots[i].key != NUMBER_MAP_FREE)
                *number_slot_of(&grown, map->slots[i].key) = map->slots[i];
        grown.n = map->n;
        number_map_free(map);
        *map = grown;
    }
    number_slot *slot = number_slot_of(map, key);
    if (slot->key != key) {
        *slot = (number_slot){key, value};
        map->n++;
    }
    return 0;
}
