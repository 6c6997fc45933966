/* device.c: opening a backend by name, counting who holds it, its return codes as errors. */
#include "device.h"

#include "../kernels/host.h"
#include "../kernels/memory.h"
#include "plugin.h"
#include "queue.h"
#include "tensor_pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_THREADS 1024

static const kern_backend *find_backend(const char *name) {
    for (int i = 0; kern_backends[i]; i++)
        if (strcmp(kern_backends[i]->name, name) == 0) return kern_backends[i];
    return NULL;
}

static bool is_plugin(const char *name) {
    for (int i = 0; plugin_names[i]; i++)
        if (strcmp(plugin_names[i], name) == 0) return true;
    return false;
}

static int fail_unknown(const char *name, llm_error *err) {
    char known[128];
    int n = snprintf(known, sizeof known, "auto");
    for (int i = 0; kern_backends[i] && (size_t)n < sizeof known; i++)
        n += snprintf(known + n, sizeof known - (size_t)n, ", %s", kern_backends[i]->name);
    return llm_fail(err, LLM_MISUSE, "unknown device '%.100s': known are %s, cuda, cuda:N", name,
                    known);
}

/* LLMLUA_CPU forces an instruction tier of "cpu"; NULL is the best there is. */
static int read_tier(const char **tier, llm_error *err) {
    const char *name = getenv("LLMLUA_CPU");
    kern_tier parsed;
    *tier = NULL;
    if (!name || !*name) return 0;
    if (kern_tier_parse(name, &parsed)) {
        char known[128];
        int n = 0;
        for (int i = KERN_TIER_PLAIN; i <= KERN_TIER_AVX512 && (size_t)n < sizeof known; i++)
            n += snprintf(known + n, sizeof known - (size_t)n, "%s%s", i ? ", " : "",
                          kern_tier_name((kern_tier)i));
        return llm_fail(err, LLM_MISUSE, "unknown LLMLUA_CPU '%.100s': known are %s", name, known);
    }
    *tier = name;
    return 0;
}

/* A device without its kern. */
static llm_device *device_new(const kern_backend *backend, llm_error *err) {
    llm_device *device = kern_alloc(sizeof *device);
    if (device) {
        device->backend = backend;
        device->references = 1;
    } else {
        llm_fail_memory(err, sizeof *device, "a device");
    }
    return device;
}

llm_device *device_wrap(const kern_backend *backend, kern_device *kern, llm_error *err) {
    llm_device *device = device_new(backend, err);
    if (device)
        device->kern = kern;
    else
        backend->close(kern);
    return device;
}

static llm_device *open_backend(const kern_backend *backend, const char *name,
                                const kern_device_options *options, llm_error *err) {
    llm_device *device = device_new(backend, err);
    if (!device) return NULL;
    char message[256] = "";
    device->kern = backend->open(options, message, sizeof message);
    if (!device->kern) {
        if (*message)
            llm_fail(err, LLM_DEVICE, "cannot open device %s: %s", name, message);
        else
            llm_fail_memory(err, sizeof *device, "a device");
        llm_device_close(device);
        return NULL;
    }
    device->index = options->index;
    snprintf(device->note, sizeof device->note, "%s", backend->last_error(device->kern));
    device->pool = tensor_pool_open(err);
    if (device->pool && !backend->host_memory) device->queue = queue_open(err);
    if (!device->pool || (!backend->host_memory && !device->queue)) {
        llm_device_close(device);
        return NULL;
    }
    return device;
}

/* "cuda:1" is "cuda" and 1; false: no such name. */
static bool parse_name(const char *text, char *name, size_t name_bytes, int *index) {
    const size_t n = strcspn(text, ":");
    char *end;
    *index = 0;
    if (n >= name_bytes) return false;
    snprintf(name, name_bytes, "%.*s", (int)n, text);
    if (!text[n]) return is_plugin(name) || find_backend(name) != NULL;
    const long i = strtol(text + n + 1, &end, 10);
    if (text[n + 1] < '0' || text[n + 1] > '9' || *end || i > 999) return false;
    *index = (int)i;
    return is_plugin(name);
}

const char *llm_device_default(void) {
    const char *name = getenv("LLMLUA_DEVICE");
    return name && *name ? name : "auto";
}

/* is_absent (may be NULL): it needs a plug-in that is not there. */
static llm_device *open_named(const char *wanted, const llm_device_options *o, bool *is_absent,
                              llm_error *err) {
    char name[32];
    int index;
    if (!parse_name(wanted, name, sizeof name, &index)) {
        fail_unknown(wanted, err);
        return NULL;
    }
    const kern_backend *backend = find_backend(name);
    if (!backend)
        backend = plugin_load(name, strcmp(name, "cuda") == 0 ? o->cuda_lib : NULL, is_absent, err);
    if (!backend) return NULL;
    const int n_cores = kern_pool_cores(); /* more threads would only wait for each other */
    kern_device_options options = {
        .n_threads = o->n_threads && o->n_threads < n_cores ? o->n_threads : n_cores,
        .index = index,
        .invariant = o->invariant};
    if (strcmp(name, "cpu") == 0 && read_tier(&options.tier, err)) return NULL;
    return open_backend(backend, wanted, &options, err);
}

/* A GPU if one answers, else the CPU, with a note of why where there is a plug-in for GPUs. */
static llm_device *open_auto(const llm_device_options *o, llm_error *err) {
    llm_error why = {LLM_OK, ""};
    bool is_absent = false;
    llm_device *device = open_named("cuda", o, &is_absent, &why);
    if (device) return device;
    device = open_named("cpu", o, NULL, err);
    if (device && !is_absent)
        snprintf(device->note, sizeof device->note, "computing on the CPU: %s", why.message);
    return device;
}

llm_device *llm_device_open(const llm_device_options *o, llm_error *err) {
    if (o->n_threads < 0 || o->n_threads > MOST_THREADS) {
        llm_fail(err, LLM_MISUSE, "threads must be between 0 and %d, got %d", MOST_THREADS,
                 o->n_threads);
        return NULL;
    }
    const char *wanted = o->name && strcmp(o->name, "auto") != 0 ? o->name : llm_device_default();
    return strcmp(wanted, "auto") == 0 ? open_auto(o, err) : open_named(wanted, o, NULL, err);
}

llm_device *device_retain(llm_device *device) {
    device->references++;
    return device;
}

void llm_device_close(llm_device *device) {
    if (!device || --device->references > 0) return;
    queue_close(device);
    if (device->pool) tensor_pool_close(device->pool, device);
    if (device->kern) device->backend->close(device->kern);
    kern_free(device);
}

const char *llm_device_describe(llm_device *device) {
    return device->backend->describe(device->kern);
}

bool llm_device_is_gpu(const llm_device *device) { return !device->backend->host_memory; }

const char *llm_device_note(llm_device *device) { return *device->note ? device->note : NULL; }

bool llm_device_pressed(llm_device *device) {
    if (!tensor_pool_pressed(device->pool)) return false;
    tensor_pool_told(device->pool);
    return true;
}

void llm_device_stats(llm_device *device, llm_stats *out) {
    kern_stats stats = {0};
    device->backend->stats(device->kern, &stats);
    *out = (llm_stats){.launches = stats.launches,
                       .syncs = stats.syncs,
                       .bytes_up = stats.bytes_up,
                       .bytes_down = stats.bytes_down,
                       .forward_rows = device->forward_rows,
                       .passes = device->passes,
                       .step_s = device->step_s,
                       .lua_s = device->between_s,
                       .prefix_tokens = device->prefix_tokens,
                       .pages_used = device->pages_used,
                       .tensor_bytes = tensor_pool_bytes(device->pool)};
}

int llm_device_peak(llm_device *device, llm_peak what, int64_t size, double *out, llm_error *err) {
    const kern_peak peak = what == LLM_PEAK_READ ? KERN_PEAK_READ : KERN_PEAK_PRODUCTS;
    *out = 0;
    if (!device->backend->measure) return 0;
    const int code = device->backend->measure(device->kern, peak, (size_t)size, out);
    return device_check(device, code, "a peak", err);
}

int device_check(llm_device *device, int code, const char *what, llm_error *err) {
    const char *message = code == KERN_OK ? "" : device->backend->last_error(device->kern);
    switch (code) {
    case KERN_OK: return 0;
    case KERN_NO_MEMORY:
        if (*message) return llm_fail(err, LLM_OUT_OF_MEMORY, "%s: %s", what, message);
        return llm_fail(err, LLM_OUT_OF_MEMORY, "%s: out of memory", what);
    case KERN_INTERRUPTED: return llm_fail(err, LLM_INTERRUPTED, "interrupted");
    case KERN_UNSUPPORTED:
        return llm_fail(err, LLM_MISUSE, "%s: not supported by device %s: %s", what,
                        device->backend->name, message);
    default:
        return llm_fail(err, LLM_DEVICE, "%s: device %s failed: %s", what, device->backend->name,
                        *message ? message : "no message");
    }
}

double device_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
