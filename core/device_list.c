/* device_list.c: what there is to compute on: the GPUs that plug-ins see, or why there are none,
 * and the backends built in. */
#include "device.h"
#include "plugin.h"

#include <stdio.h>
#include <string.h>

/* Position in the list: entries still to be passed before the one asked for. */
typedef struct walk {
    int left;
    llm_device_info *out;
} walk;

static bool here(walk *w) { return w->left-- == 0; }

static void describe(const kern_device_info *info, llm_device_info *out) {
    snprintf(out->name, sizeof out->name, "%s", info->name);
    out->bytes = info->bytes;
    out->bytes_free = info->bytes_free;
    out->compute = info->compute;
    out->driver = info->driver;
    out->runtime = info->runtime;
}

/* The devices of a backend, or why it has none; true: the one asked for was among them. */
static bool list_backend(walk *w, const kern_backend *backend, bool numbered) {
    kern_device_info info;
    char message[256] = "";
    int n = 0;
    for (int i = 0; i == 0 || i < n; i++) {
        const int code = backend->probe(i, &info, &n, message, sizeof message);
        if (!here(w)) continue;
        describe(&info, w->out);
        if (code) snprintf(w->out->reason, sizeof w->out->reason, "%s", message);
        if (numbered && n)
            snprintf(w->out->device, sizeof w->out->device, "%s:%d", backend->name, i);
        else
            snprintf(w->out->device, sizeof w->out->device, "%s", backend->name);
        return true;
    }
    return false;
}

static bool list_plugin(walk *w, const char *name, const char *file) {
    llm_error err = {LLM_OK, ""};
    bool is_absent;
    const kern_backend *backend = plugin_load(name, file, &is_absent, &err);
    if (backend) return list_backend(w, backend, true);
    if (is_absent && strcmp(name, "cuda") != 0) return false; /* that of tests */
    if (!here(w)) return false;
    snprintf(w->out->device, sizeof w->out->device, "%s", name);
    snprintf(w->out->reason, sizeof w->out->reason, "%s", err.message);
    return true;
}

bool llm_device_list(int i, const char *cuda_lib, llm_device_info *out) {
    walk w = {i, out};
    memset(out, 0, sizeof *out);
    for (int j = 0; plugin_names[j]; j++)
        if (list_plugin(&w, plugin_names[j], strcmp(plugin_names[j], "cuda") ? NULL : cuda_lib))
            return true;
    for (int j = 0; kern_backends[j]; j++)
        if (list_backend(&w, kern_backends[j], false)) return true;
    return false;
}
