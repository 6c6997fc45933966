/* faults.h: what the fault-injection build breaks on purpose, as core asks it. */
#ifndef LLM_CORE_FAULTS_H
#define LLM_CORE_FAULTS_H

#include "llm.h"

#ifdef LLMLUA_FAULTS
/* Writes go into pages that other caches hold too. */
bool faults_share_writes(void);
#else
static inline bool faults_share_writes(void) { return false; }
#endif

#endif
