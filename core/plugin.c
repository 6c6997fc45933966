/* plugin.c: finds and loads libraries that hold a backend, and refuses those of another version. A
 * library is never unloaded: what it started in the process may outlive its devices. */
#include "plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const plugin_names[] = {"cuda", "cuda-emulated", NULL};

typedef struct place {
    char path[PATH_MAX];
} place;

/* The folder of a file, with its '/'; empty where there is none. */
static void folder_of(const char *file, place *out) {
    const char *slash = strrchr(file, '/');
    snprintf(out->path, sizeof out->path, "%.*s", slash ? (int)(slash + 1 - file) : 0, file);
}

/* Folders of the program and of the library that this code is in (llm.so). */
static void find_folders(place *program, place *module) {
    char path[PATH_MAX];
    Dl_info info;
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    folder_of(path, program);
    *module->path = '\0';
    if (dladdr((const void *)plugin_names, &info) && info.dli_fname &&
        realpath(info.dli_fname, path))
        folder_of(path, module);
}

/* The library's path into out; false: it is nowhere. */
static bool find_library(const char *name, place *out, place *program) {
    static const char *const below[] = {"", "../lib/", "../../"};
    place folders[2];
    find_folders(&folders[0], &folders[1]);
    *program = folders[0];
    for (size_t i = 0; i < 2 * sizeof below / sizeof *below; i++) {
        const char *folder = folders[i % 2].path;
        const int n = snprintf(out->path, sizeof out->path, "%s%slibllmlua-%s.so", folder,
                               below[i / 2], name);
        if (*folder && n < (int)sizeof out->path && access(out->path, F_OK) == 0) return true;
    }
    return false;
}

static const kern_backend *check_version(const kern_backend *backend, const char *name,
                                         const char *path, llm_error *err) {
    if (backend->abi != KERN_ABI || backend->size != sizeof *backend) {
        llm_fail(err, LLM_DEVICE,
                 "%s is of another version: its interface is %u with %u bytes, this program's %u "
                 "with %zu",
                 path, backend->abi, backend->size, (unsigned)KERN_ABI, sizeof *backend);
        return NULL;
    }
    if (strcmp(backend->name, name) != 0) {
        llm_fail(err, LLM_DEVICE, "%s holds the device %s, not %s", path, backend->name, name);
        return NULL;
    }
    return backend;
}

const kern_backend *plugin_load(const char *name, const char *file, bool *is_absent,
                                llm_error *err) {
    place found, program;
    if (is_absent) *is_absent = false;
    if (!file) {
        if (!find_library(name, &found, &program)) {
            if (is_absent) *is_absent = true;
            llm_fail(err, LLM_DEVICE,
                     "device %s needs libllmlua-%s.so, which is not beside the program (%s)", name,
                     name, program.path);
            return NULL;
        }
        file = found.path;
    }
    if (!*file) {
        llm_fail(err, LLM_MISUSE, "cuda_lib names no file: it is empty");
        return NULL;
    }
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        const char *why = dlerror(); /* begins with the file or with a library that it needs */
        llm_fail(err, LLM_DEVICE, "cannot load %s%s%s", why && strstr(why, file) ? "" : file,
                 why && strstr(why, file) ? "" : ": ", why ? why : "no reason given");
        return NULL;
    }
    const kern_backend *(*get)(void) = NULL;
    *(void **)&get = dlsym(library, "llmlua_backend");
    const kern_backend *backend = get ? get() : NULL;
    if (backend)
        backend = check_version(backend, name, file, err);
    else
        llm_fail(err, LLM_DEVICE, "%s is no plug-in of llmlua: it has no llmlua_backend", file);
    dlclose(library);
    return backend;
}
