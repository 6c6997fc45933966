/* late.h: chosen ids that the host does not know yet. On a device with memory of its own a choice
 * may be fed to the next pass without leaving it; caches note where its ids belong and learn them
 * when somebody reads the choice, or asks for the cache's tokens. */
#ifndef LLM_CORE_LATE_H
#define LLM_CORE_LATE_H

#include "tensor.h"

/* llm.h has llm_late_of, _read and _close. */
llm_late *late_retain(llm_late *);
/* The ids if the host knows them and each of them could be chosen, else NULL. */
const int32_t *late_known(const llm_late *);
/* Where they are on the device: ready unless that failed. */
llm_tensor *late_tensor(const llm_late *);

#endif
