/* device.cpp: the devices that there seem to be, errors, and findings. */
#include "inside.h"
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <unordered_map>

std::recursive_mutex emu_lock;
bool emu_checking;
int emu_device;
static cudaError_t last_error, sticky_error;
static void (*hook)(void *data, const char *message);
static void *hook_data;
static uint64_t launches_before;                                /* the last reset */
static std::unordered_map<const void *, size_t> shared_allowed; /* by function */

/* ---- settings ---- */

static uint64_t number_of(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, nullptr, 10) : otherwise;
}

static emu_settings settings;
static bool settings_read;
const emu_settings &emu_config(void) {
    if (!settings_read) {
        settings_read = true;
        settings.n_devices = (int)number_of("LLMLUA_EMULATION_DEVICES", 1);
        settings.compute = (int)number_of("LLMLUA_EMULATION_COMPUTE", 80);
        settings.driver = (int)number_of("LLMLUA_EMULATION_DRIVER", CUDART_VERSION);
        settings.memory = number_of("LLMLUA_EMULATION_MEMORY", (uint64_t)8 << 30);
        settings.fault = number_of("LLMLUA_EMULATION_FAULT", 0);
        const char *mode = getenv("LLMLUA_EMULATION");
        emu_checking = mode && strstr(mode, "check");
        settings.late = mode && strstr(mode, "late");
        emulation_order(getenv("LLMLUA_EMULATION_ORDER"));
    }
    return settings;
}

void emulation_checking(bool on) {
    (void)emu_config();
    emu_checking = on;
}
void emulation_order(const char *order) {
    emu_order_kind = EMU_FORWARD;
    if (!order) return;
    if (strcmp(order, "reverse") == 0) emu_order_kind = EMU_REVERSE;
    if (strncmp(order, "shuffle", 7) == 0) {
        emu_order_kind = EMU_SHUFFLED;
        emu_order_seed = order[7] ? strtoull(order + 8, nullptr, 10) : 0;
    }
}
void emulation_hook(void (*found)(void *, const char *), void *data) {
    hook = found;
    hook_data = data;
}
void emulation_reset(void) {
    std::lock_guard<std::recursive_mutex> guard(emu_lock);
    settings_read = false;
    (void)emu_config();
    last_error = sticky_error = cudaSuccess;
    launches_before = emu_launches;
}

uint64_t emu_random(uint64_t *state) { /* splitmix64 */
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* ---- errors ---- */

cudaError_t emu_error(cudaError_t error) {
    if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
    return error;
}
cudaError_t emu_sticky(cudaError_t error) {
    if (sticky_error == cudaSuccess) sticky_error = error;
    return sticky_error;
}
cudaError_t emu_state(void) {
    if (emu_config().driver < CUDART_VERSION / 1000 * 1000) return cudaErrorInsufficientDriver;
    return emu_config().n_devices > 0 ? sticky_error : cudaErrorNoDevice;
}
cudaError_t cudaGetLastError(void) {
    const cudaError_t error = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError(void) {
    std::lock_guard<std::recursive_mutex> guard(emu_lock);
    return emu_state() != cudaSuccess ? emu_state() : last_error;
}
const char *cudaGetErrorName(cudaError_t error) {
    switch (error) {
#define EMULATION_ENTRY(name, number, text)                                                        \
    case name: return #name;
        EMULATION_ERRORS(EMULATION_ENTRY)
#undef EMULATION_ENTRY
    }
    return "unrecognized error code";
}
const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
#define EMULATION_ENTRY(name, number, text)                                                        \
    case name: return text;
        EMULATION_ERRORS(EMULATION_ENTRY)
#undef EMULATION_ENTRY
    }
    return "unrecognized error code";
}

/* ---- findings ---- */

/* No memory is taken: this may run in a signal's handler. A launch tells a few. */
static const uint64_t most_told = 6;
void emu_found(cudaError_t error, const char *format, ...) {
    static uint64_t launch, n_told;
    char what[256], line[512];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    if (launch != emu_launches) n_told = 0;
    launch = emu_launches;
    if (emu_now.kernel && n_told++ >= most_told) return;
    if (emu_now.kernel)
        snprintf(line, sizeof line, "%s, block (%u, %u, %u), thread (%u, %u, %u): %s",
                 emu_now.kernel, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y,
                 threadIdx.z, what);
    else
        snprintf(line, sizeof line, "%s", what);
    if (hook) {
        hook(hook_data, line);
        return;
    }
    (void)emu_sticky(error);
    dprintf(STDERR_FILENO, "cuda emulation: %s\n", line);
}
void emu_trap(const char *why, const void *address) {
    if (address)
        emu_found(cudaErrorMisalignedAddress, "%s: %p", why, address);
    else
        emu_found(cudaErrorLaunchFailure, "%s", why);
    emu_abandon();
}

/* ---- devices ---- */

cudaError_t cudaDriverGetVersion(int *version) {
    *version = emu_config().driver;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *count) {
    *count = 0;
    EMU_CALL;
    *count = emu_config().n_devices;
    return cudaSuccess;
}
static bool no_such_device(int device) { return device < 0 || device >= emu_config().n_devices; }

/* The second device is of another kind than the first. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
    EMU_CALL;
    if (no_such_device(device)) return emu_error(cudaErrorInvalidDevice);
    memset(out, 0, sizeof *out);
    const int compute = device == 0 ? emu_config().compute : 75;
    snprintf(out->name, sizeof out->name, device == 0 ? "Emulated GPU" : "Emulated GPU (old)");
    memset(out->uuid, 0xE0 + device, sizeof out->uuid);
    out->totalGlobalMem = emu_config().memory;
    out->sharedMemPerBlock = 48 << 10;
    out->sharedMemPerBlockOptin = (size_t)(compute == 75                    ? 64
                                           : compute == 80 || compute == 87 ? 163
                                           : compute >= 90 && compute < 120 ? 227
                                                                            : 99)
                                  << 10;
    out->sharedMemPerMultiprocessor = out->sharedMemPerBlockOptin + (compute == 75 ? 0 : 1024);
    out->regsPerBlock = 65536;
    out->warpSize = 32;
    out->maxThreadsPerBlock = 1024;
    out->maxThreadsPerMultiProcessor = compute == 75 ? 1024 : 1536;
    out->major = compute / 10;
    out->minor = compute % 10;
    out->multiProcessorCount = 4;
    out->memoryBusWidth = 256;
    out->l2CacheSize = 4 << 20;
    out->pciBusID = device;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    struct cudaDeviceProp p;
    const cudaError_t error = cudaGetDeviceProperties(&p, device);
    if (error != cudaSuccess) return error;
    *value = attribute == cudaDevAttrMultiProcessorCount ? p.multiProcessorCount
                                                         : (int)p.sharedMemPerBlockOptin;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    EMU_CALL;
    if (no_such_device(device)) return emu_error(cudaErrorInvalidDevice);
    emu_device = device;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    EMU_CALL;
    *device = emu_device;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
    EMU_CALL;
    const cudaError_t error = emu_not_in_capture();
    if (error != cudaSuccess) return error;
    return emu_finish_host();
}

static size_t shared_most(void) {
    struct cudaDeviceProp p;
    return cudaGetDeviceProperties(&p, emu_device) == cudaSuccess ? p.sharedMemPerBlockOptin : 0;
}
cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute, int value) {
    EMU_CALL;
    if (value < 0 || (size_t)value > shared_most()) return emu_error(cudaErrorInvalidValue);
    shared_allowed[function] = (size_t)value;
    return cudaSuccess;
}
/* What a launch may not be. */
static cudaError_t launch_fault(const emu_kernel &k) {
    const uint64_t threads = (uint64_t)k.block.x * k.block.y * k.block.z;
    if (threads == 0 || threads > 1024 || k.block.z > 64 || k.grid.x == 0 || k.grid.y == 0 ||
        k.grid.z == 0 || k.grid.x > 0x7FFFFFFFu || k.grid.y > 65535 || k.grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    const auto allowed = shared_allowed.find(k.function);
    const size_t most = allowed == shared_allowed.end() ? 48 << 10 : allowed->second;
    return k.shared_bytes > most && k.shared_bytes > 48 << 10 ? cudaErrorInvalidValue : cudaSuccess;
}

static void launch_now(const emu_kernel &kernel) {
    if (emu_state() != cudaSuccess) return;
    if (++emu_launches - launches_before == emu_config().fault) {
        (void)emu_sticky(cudaErrorIllegalAddress);
        return;
    }
    emu_memory_open();
    emu_run(kernel, shared_most());
    emu_memory_close(kernel.name);
}

/* Its failure is seen in cudaGetLastError. */
void emu_launch(cudaStream_t stream, emu_kernel &&kernel) {
    std::lock_guard<std::recursive_mutex> guard(emu_lock);
    if (emu_state() != cudaSuccess) return;
    const cudaError_t error = launch_fault(kernel);
    if (error != cudaSuccess) {
        (void)emu_error(error);
        return;
    }
    emu_check_words(kernel);
    emu_work work = {kernel.name, {}, std::move(kernel.words)};
    work.run = [kernel = std::move(kernel)] { launch_now(kernel); };
    (void)emu_error(emu_issue(stream, std::move(work)));
}
