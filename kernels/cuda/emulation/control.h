/* control.h: what the emulation is told, by calls (tests) or by the environment. C and C++.
 *
 * LLMLUA_EMULATION=check: the costly checks too; check,late: work on streams is put off until
 * something waits for it.
 *
 * LLMLUA_EMULATION_ORDER=forward|reverse|shuffle:SEED: of blocks, warps and threads.
 *
 * LLMLUA_EMULATION_DEVICES=0|1|2, LLMLUA_EMULATION_MEMORY=bytes of each,
 * LLMLUA_EMULATION_COMPUTE=80 (10 · major + minor), LLMLUA_EMULATION_DRIVER=version as in 12040
 * (0: none).
 *
 * LLMLUA_EMULATION_FAULT=n: the n-th launch ends with an illegal address. */
#ifndef EMULATION_CONTROL_H
#define EMULATION_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Checks on or off from here on; of memory, for allocations from here on. */
void emulation_checking(bool on);
/* As LLMLUA_EMULATION_ORDER. */
void emulation_order(const char *order);
/* Findings go to `found` and are no errors of CUDA. NULL: a line on stderr, and every call of the
 * runtime from then on returns an error. */
void emulation_hook(void (*found)(void *data, const char *message), void *data);
/* Reads the environment again, forgets errors and the count of launches. */
void emulation_reset(void);

#ifdef __cplusplus
}
#endif

#endif
