/* binding.h: what the files of the binding and the host program share. */
#ifndef LLMLUA_BINDING_H
#define LLMLUA_BINDING_H

#include "../core/llm.h"
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

/* The module: pushes the table `llm`. */
int luaopen_llm(lua_State *L);

/* The module `llm.requests`, the scheduler's side of the engine. */
int luaopen_llm_requests(lua_State *L);

/* The host program sets these before a script runs (both must outlive L): the watch that models
 * loaded from L use, and the built-in model that llm.load() without a path loads. */
void binding_set_watch(lua_State *L, const llm_watch *watch);
/* over(data, hook): LLM_OK, or why coroutines that have this hook (or none) must end at their next
 * call. */
void binding_set_over(lua_State *L, llm_kind (*over)(void *data, lua_Hook hook), void *data);
void binding_set_builtin(lua_State *L, const void *data, size_t bytes);

#endif
