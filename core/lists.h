/* lists.h: growing lists of token ids and of bytes. A failed call leaves the list as it was. */
#ifndef LLM_CORE_LISTS_H
#define LLM_CORE_LISTS_H

#include "llm.h"

/* Makes room for `extra` more entries. */
int llm_ids_reserve(llm_ids *list, size_t extra, llm_error *err);
int llm_ids_push(llm_ids *list, int32_t id, llm_error *err);

int llm_bytes_reserve(llm_bytes *list, size_t extra, llm_error *err);
int llm_bytes_append(llm_bytes *list, const void *data, size_t n, llm_error *err);

#endif
