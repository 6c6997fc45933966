/* plugin.h: backends that are libraries of their own. */
#ifndef LLM_CORE_PLUGIN_H
#define LLM_CORE_PLUGIN_H

#include "../kernels/kern.h"
#include "error.h"

/* Backends that lie in a library libllmlua-NAME.so; ends with NULL. */
extern const char *const plugin_names[];

/* Loads the backend of that name out of `file`, or, where that is NULL, of its library beside the
 * program (or this module) or in the lib folder beside that. It stays loaded. NULL with err;
 * is_absent (may be NULL): no file was named and there is no such library. */
const kern_backend *plugin_load(const char *name, const char *file, bool *is_absent,
                                llm_error *err);

#endif
