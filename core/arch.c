/* arch.c: the table of architectures. A new one is its file core/arch_x.c and a row here. */
#include "arch.h"

#include <string.h>

const arch architectures[] = {
    {"llama", arch_llama_build},   {"qwen2", arch_qwen2_build}, {"qwen3", arch_qwen3_build},
    {"gemma3", arch_gemma3_build}, {"gpt2", arch_gpt2_build},   {NULL, NULL},
};

const arch *arch_find(const char *name, size_t n) {
    for (const arch *a = architectures; a->name; a++)
        if (strlen(a->name) == n && memcmp(a->name, name, n) == 0) return a;
    return NULL;
}
