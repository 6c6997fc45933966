/* faults.c: the switch of the fault-injection build (memory.h), for specs; inert in other builds.
 */
#include "faults.h"
#include "../kernels/memory.h"

#ifdef LLMLUA_FAULTS
bool llm_faults_built(void) { return true; }
void llm_fail_allocation(int64_t n) { kern_alloc_fail_at(n); }
int64_t llm_allocations(void) { return kern_alloc_count(); }

static bool shares_writes;
void llm_fault_sharing(bool on) { shares_writes = on; }
bool faults_share_writes(void) { return shares_writes; }
#else
bool llm_faults_built(void) { return false; }
void llm_fail_allocation(int64_t n) { (void)n; }
int64_t llm_allocations(void) { return 0; }
void llm_fault_sharing(bool on) { (void)on; }
#endif
