/* late.h: chosen ids that the host does not know yet. On a device with memory of its own a choice
 * may be fed to the next pass without leaving it; caches note where its ids belong and learn them
 * when somebody reads the choice, or asks for the cache's tokens. */
#ifndef LLM_CORE_LATE_H
#define LLM_CORE_LATE_H

#include "tensor.h"

/* llm.h has llm_late_of, _read and _close. */
llm_late *late_retain(llm_late *);
/* The ids if the host knows them, else NULL. */
const int32_t *late_known(const llm_late *);
/* Where they are on the device while the host does not know them. */
llm_tensor *late_tensor(const llm_late *);

/* Reads a whole choice of a device with memory of its own, once: what reads it later finds the ids
 * here. */
const int32_t *late_read_tensor(llm_tensor *, llm_error *err);
/* The tensor is about to change: what was read or fed of it keeps what it was. */
void late_forget(llm_tensor *);

#endif
