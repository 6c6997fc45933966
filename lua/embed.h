/* embed.h: the files carried inside the program (CMakeLists.txt makes the table): Lua modules
 * ("lua/llm/host.lua", "lua/dkjson.lua"), "samplers/x.lua", "scripts/x.lua", "models/builtin.gguf".
 */
#ifndef LLMLUA_EMBED_H
#define LLMLUA_EMBED_H

#include <stddef.h>

typedef struct embed_file {
    const char *name;
    const unsigned char *data;
    size_t size;
} embed_file;

extern const embed_file embed_files[]; /* ends with a NULL name */

#endif
