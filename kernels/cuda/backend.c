/* backend.c: the table of the CUDA backend and the one symbol that a plug-in shows; finding and
 * opening a GPU, and what its errors become. A kernel that failed for good takes the context with
 * it: the device is lost then, and every later call says the same without touching it. */
#include "../memory.h"
#include "cuda.h"
#include "tensor.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#ifdef LLMLUA_EMULATION
#define BACKEND_NAME "cuda-emulated"
#else
#define BACKEND_NAME "cuda"
#endif
#ifndef LLMLUA_CUDA_LEAST
#define LLMLUA_CUDA_LEAST 75 /* the oldest compute capability this was compiled for */
#endif

/* ---- errors ---- */

int cuda_fail(kern_device *device, int code, const char *format, ...) {
    if (device->lost) return code;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(device->message, sizeof device->message, format, arguments);
    va_end(arguments);
    return code;
}

int cuda_check(kern_device *device, cudaError_t error, const char *what) {
    if (error == cudaSuccess) return KERN_OK;
    (void)cudaGetLastError(); /* that of a call which is no kernel's goes with this */
    if (error == cudaErrorMemoryAllocation) {
        size_t n_free = 0, total = 0;
        (void)cudaMemGetInfo(&n_free, &total);
        return cuda_fail(device, KERN_NO_MEMORY, "%s: out of memory, %zu of %zu bytes are free",
                         what, n_free, total);
    }
    cuda_fail(device, KERN_DEVICE, "%s failed: %s (%s)", what, cudaGetErrorString(error),
              cudaGetErrorName(error));
    const cudaError_t after = cudaStreamQuery(device->stream);
    if (after != cudaSuccess && after != cudaErrorNotReady) device->lost = true;
    return KERN_DEVICE;
}

int cuda_launched(kern_device *device, const char *what) {
    if (device->lost) return KERN_DEVICE;
    return cuda_check(device, cudaPeekAtLastError(), what);
}

static const char *last_error(kern_device *device) { return device->message; }

/* ---- what is there ---- */

/* Whether the driver answers at all. */
static int count_devices(int *n_devices, int *driver, int *runtime, char *message,
                         size_t message_bytes) {
    *n_devices = *driver = *runtime = 0;
    (void)cudaDriverGetVersion(driver);
    (void)cudaRuntimeGetVersion(runtime);
    const cudaError_t error = cudaGetDeviceCount(n_devices);
    if (error == cudaSuccess && *n_devices > 0) return KERN_OK;
    (void)cudaGetLastError();
    *n_devices = 0;
    if (*driver == 0)
        snprintf(message, message_bytes, "no NVIDIA driver is installed");
    else if (error == cudaErrorInsufficientDriver)
        snprintf(message, message_bytes,
                 "the NVIDIA driver is too old: it knows CUDA %d.%d, this plug-in needs %d.%d",
                 *driver / 1000, *driver % 1000 / 10, *runtime / 1000, *runtime % 1000 / 10);
    else if (error == cudaErrorNoDevice || error == cudaSuccess)
        snprintf(message, message_bytes, "no GPU is visible (CUDA_VISIBLE_DEVICES may hide them)");
    else
        snprintf(message, message_bytes, "%s (%s)", cudaGetErrorString(error),
                 cudaGetErrorName(error));
    return KERN_DEVICE;
}

static int check_index(int index, int n_devices, char *message, size_t message_bytes) {
    if (index >= 0 && index < n_devices) return KERN_OK;
    if (n_devices == 1)
        snprintf(message, message_bytes, "device index %d: there is one device, 0", index);
    else
        snprintf(message, message_bytes, "device index %d: there are %d devices, 0 … %d", index,
                 n_devices, n_devices - 1);
    return KERN_DEVICE;
}

static int probe(int index, kern_device_info *out, int *n_devices, char *message,
                 size_t message_bytes) {
    struct cudaDeviceProp properties;
    *out = (kern_device_info){0};
    int code = count_devices(n_devices, &out->driver, &out->runtime, message, message_bytes);
    if (!code) code = check_index(index, *n_devices, message, message_bytes);
    if (code) return code;
    const cudaError_t error = cudaGetDeviceProperties(&properties, index);
    if (error != cudaSuccess) {
        snprintf(message, message_bytes, "device %d: %s", index, cudaGetErrorString(error));
        return KERN_DEVICE;
    }
    snprintf(out->name, sizeof out->name, "%.127s", properties.name);
    out->bytes = properties.totalGlobalMem;
    out->compute = 10 * properties.major + properties.minor;
    size_t n_free = 0, total = 0;
    int current = 0;
    (void)cudaGetDevice(&current);
    if (cudaSetDevice(index) == cudaSuccess && cudaMemGetInfo(&n_free, &total) == cudaSuccess)
        out->bytes_free = n_free;
    (void)cudaSetDevice(current);
    (void)cudaGetLastError();
    return KERN_OK;
}

/* ---- open and close ---- */

static int attribute(const kern_device *device, enum cudaDeviceAttr which) {
    int value = 0;
    return cudaDeviceGetAttribute(&value, which, device->index) == cudaSuccess ? value : 0;
}

/* Zeroed, of the pool's memory. */
static int open_counters(kern_device *device) {
    const size_t bytes = CUDA_COUNTERS * sizeof *device->counters;
    kern_buffer counters;
    const int code = cuda_alloc(device, bytes, &counters);
    if (code) return code;
    device->counters = counters.data;
    return cuda_check(device, cudaMemsetAsync(device->counters, 0, bytes, device->stream),
                      "clearing counters");
}

static void close_counters(kern_device *device) {
    kern_buffer counters = {device->counters, CUDA_COUNTERS * sizeof *device->counters};
    if (device->memory) cuda_free(device, &counters);
}

static void close_device(kern_device *device) {
    if (!device) return;
    cuda_select(device);
    cuda_blas_close(device);
    cuda_fetches_close(device);
    close_counters(device);
    cuda_memory_close(device);
    if (device->stream) (void)cudaStreamDestroy(device->stream);
    kern_free(device);
}

static int start(kern_device *device) {
    const cudaError_t error = cudaSetDevice(device->index);
    int code = cuda_check(device, error, "choosing the device");
    if (!code)
        code = cuda_check(device, cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking),
                          "making a stream");
    if (code) return code;
    device->n_multiprocessors = attribute(device, cudaDevAttrMultiProcessorCount);
    device->shared_most = (size_t)attribute(device, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    code = cuda_memory_open(device);
    if (!code) code = open_counters(device);
    if (!code) code = cuda_fetches_open(device);
    if (!code && !device->invariant) cuda_blas_open(device);
    return code;
}

static kern_device *open_device(const kern_device_options *options, char *message,
                                size_t message_bytes) {
    kern_device_info info;
    int n_devices;
    if (message_bytes) *message = '\0';
    if (probe(options->index, &info, &n_devices, message, message_bytes)) return NULL;
    if (info.compute < LLMLUA_CUDA_LEAST) {
        snprintf(message, message_bytes,
                 "%s has compute capability %d.%d, this plug-in is compiled for %d.%d and newer",
                 info.name, info.compute / 10, info.compute % 10, LLMLUA_CUDA_LEAST / 10,
                 LLMLUA_CUDA_LEAST % 10);
        return NULL;
    }
    kern_device *device = kern_alloc(sizeof *device);
    if (!device) return NULL;
    device->backend = llmlua_backend();
    device->index = options->index;
    device->invariant = options->invariant;
    device->compute = info.compute;
    if (start(device)) {
        snprintf(message, message_bytes, "%s", device->message);
        close_device(device);
        return NULL;
    }
    char blas[64];
    cuda_blas_describe(device, blas, sizeof blas);
    snprintf(device->description, sizeof device->description,
             BACKEND_NAME ":%d: %s, %.1f GiB, compute %d.%d%s, %s", device->index, info.name,
             (double)info.bytes / (double)(1 << 30), info.compute / 10, info.compute % 10,
             device->invariant ? ", invariant" : "", blas);
    return device;
}

static const char *describe(kern_device *device) { return device->description; }

static void stats(kern_device *device, kern_stats *out) { *out = device->stats; }

/* ---- the table ---- */

static const kern_backend kern_cuda = {
    .abi = KERN_ABI,
    .size = sizeof(kern_backend),
    .name = BACKEND_NAME,
    .kv_default = KERN_KV_F16,
    .host_memory = 0,
    .probe = probe,
    .open = open_device,
    .close = close_device,
    .describe = describe,
    .last_error = last_error,
    .stats = stats,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .write = cuda_write,
    .read = cuda_read,
    .copy = cuda_copy,
    .fetch = cuda_fetch_begin,
    .fetched = cuda_fetch_end,
    .bind = cuda_store_open,
    .unbind = cuda_store_close,
    .pages_open = cuda_pages_open,
    .pages_close = cuda_pages_close,
    .page_bytes = cuda_page_bytes,
    .page_reserve = cuda_page_reserve,
    .page_copy = cuda_page_copy,
    .position_bytes = cuda_position_bytes,
    .page_read = cuda_page_read,
    .page_write = cuda_page_write,
    .pages_save = cuda_pages_save,
    .pages_load = cuda_pages_load,
    .work_open = cuda_work_open,
    .work_close = cuda_work_close,
    .work_bytes = cuda_work_bytes,
    .work_buffer = cuda_work_buffer,
    .run = cuda_run,
    CUDA_TENSOR_OPS,
    .measure = cuda_measure,
};

const kern_backend *llmlua_backend(void) { return &kern_cuda; }
