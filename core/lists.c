/* lists.c: owns the memory of llm_ids and llm_bytes. */
#include "lists.h"

#include "../kernels/memory.h"
#include "error.h"

#include <string.h>

/* Grows a block of `*capacity` items by doubling until `n + extra` fit. */
static int list_grow(void **data, size_t *capacity, size_t n, size_t extra, size_t item_bytes,
                     llm_error *err) {
    size_t needed, bytes;
    if (__builtin_add_overflow(n, extra, &needed)) return llm_fail_memory(err, SIZE_MAX, "a list");
    if (needed <= *capacity) return 0;
    size_t wanted = *capacity < SIZE_MAX / 2 ? *capacity * 2 : SIZE_MAX;
    if (wanted < needed) wanted = needed;
    if (wanted < 16) wanted = 16;
    if (__builtin_mul_overflow(wanted, item_bytes, &bytes))
        return llm_fail_memory(err, SIZE_MAX, "a list");
    void *grown = kern_realloc(*data, bytes);
    if (!grown) return llm_fail_memory(err, bytes, "a list");
    *data = grown;
    *capacity = wanted;
    return 0;
}

int llm_ids_reserve(llm_ids *list, size_t extra, llm_error *err) {
    void *data = list->data;
    if (list_grow(&data, &list->capacity, list->n, extra, sizeof *list->data, err)) return -1;
    list->data = data;
    return 0;
}

int llm_ids_push(llm_ids *list, int32_t id, llm_error *err) {
    if (list->n == list->capacity && llm_ids_reserve(list, 1, err)) return -1;
    list->data[list->n++] = id;
    return 0;
}

void llm_ids_free(llm_ids *list) {
    if (!list) return;
    kern_free(list->data);
    *list = (llm_ids){0};
}

int llm_bytes_reserve(llm_bytes *list, size_t extra, llm_error *err) {
    void *data = list->data;
    if (list_grow(&data, &list->capacity, list->n, extra, 1, err)) return -1;
    list->data = data;
    return 0;
}

int llm_bytes_append(llm_bytes *list, const void *data, size_t n, llm_error *err) {
    if (n == 0) return 0;
    if (llm_bytes_reserve(list, n, err)) return -1;
    memcpy(list->data + list->n, data, n);
    list->n += n;
    return 0;
}

void llm_bytes_free(llm_bytes *list) {
    if (!list) return;
    kern_free(list->data);
    *list = (llm_bytes){0};
}
