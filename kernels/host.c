/* host.c: devices whose memory is the host's: opening, messages, counters, buffers. */
#include "host.h"
#include "memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

kern_device *host_open(const kern_backend *backend, const kern_device_options *options,
                       char *message, size_t message_bytes) {
    const int n_threads = options->n_threads > 0 ? options->n_threads : kern_pool_cores();
    kern_device *device = kern_alloc(sizeof *device);
    kern_pool *pool = device ? kern_pool_open(n_threads) : NULL;
    if (!pool) {
        kern_free(device);
        if (message_bytes) *message = '\0';
        return NULL;
    }
    device->backend = backend;
    device->pool = pool;
    device->tier = KERN_TIER_PLAIN;
    return device;
}

void host_close(kern_device *device) {
    if (!device) return;
    kern_pool_close(device->pool);
    kern_free(device);
}

const char *host_describe(kern_device *device) {
    const int n_threads = kern_pool_threads(device->pool);
    snprintf(device->description, sizeof device->description, "%s: %s, %d thread%s",
             device->backend->name, kern_tier_name(device->tier), n_threads,
             n_threads == 1 ? "" : "s");
    return device->description;
}

const char *host_last_error(kern_device *device) { return device->message; }

void host_stats(kern_device *device, kern_stats *out) { *out = device->stats; }

int host_fail(kern_device *device, int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(device->message, sizeof device->message, format, arguments);
    va_end(arguments);
    return code;
}

int host_alloc(kern_device *device, size_t bytes, kern_buffer *out) {
    out->data = kern_alloc_aligned(64, bytes);
    out->bytes = out->data ? bytes : 0;
    if (out->data) return KERN_OK;
    return host_fail(device, KERN_NO_MEMORY, "out of memory: %zu bytes asked for a buffer", bytes);
}

void host_free(kern_device *device, kern_buffer *buffer) {
    (void)device;
    kern_free_aligned(buffer->data);
    *buffer = (kern_buffer){0};
}

/* Whether bytes from offset on lie in the buffer. */
static int check_range(kern_device *device, const kern_buffer *buffer, size_t offset,
                       size_t bytes) {
    if (offset <= buffer->bytes && bytes <= buffer->bytes - offset) return KERN_OK;
    return host_fail(device, KERN_DEVICE, "bytes %zu + %zu lie outside a buffer of %zu", offset,
                     bytes, buffer->bytes);
}

int host_write(kern_device *device, kern_buffer *to, size_t offset, const void *from,
               size_t bytes) {
    if (check_range(device, to, offset, bytes)) return KERN_DEVICE;
    if (bytes) memcpy((char *)to->data + offset, from, bytes);
    device->stats.bytes_up += bytes;
    return KERN_OK;
}

int host_read(kern_device *device, const kern_buffer *from, size_t offset, void *to, size_t bytes) {
    if (check_range(device, from, offset, bytes)) return KERN_DEVICE;
    if (bytes) memcpy(to, (const char *)from->data + offset, bytes);
    device->stats.bytes_down += bytes;
    device->stats.syncs++;
    return KERN_OK;
}

int host_copy(kern_device *device, kern_buffer *to, size_t to_offset, const kern_buffer *from,
              size_t from_offset, size_t bytes) {
    if (check_range(device, to, to_offset, bytes) || check_range(device, from, from_offset, bytes))
        return KERN_DEVICE;
    if (bytes) memmove((char *)to->data + to_offset, (const char *)from->data + from_offset, bytes);
    return KERN_OK;
}
