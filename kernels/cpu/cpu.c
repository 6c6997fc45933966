/* cpu.c: the cpu backend's table and its choice of an instruction tier. */
#include "cpu.h"
#include "../tensor_ops.h"
#include "store.h"
#include <stdio.h>

/* In rising order. A tier that the processor has but that has no row here is served by the one
 * below. */
static const cpu_tier *const tiers[] = {
    &cpu_tier_plain,
#if defined(__aarch64__)
    &cpu_tier_neon,
#elif defined(__x86_64__)
    &cpu_tier_avx2,
    &cpu_tier_avxvnni,
    &cpu_tier_avx512,
#endif
};

const cpu_tier *cpu_tier_of(const kern_device *device) {
    const cpu_tier *best = tiers[0];
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++)
        if (tiers[i]->tier <= device->tier) best = tiers[i];
    return best;
}

static kern_device *device_open(const kern_device_options *options, char *message,
                                size_t message_bytes) {
    kern_tier asked = KERN_TIER_AVX512;
    if (options->tier != NULL && kern_tier_parse(options->tier, &asked) != 0) {
        snprintf(message, message_bytes,
                 "unknown tier \"%s\": known are plain, neon, avx2, avxvnni, avx512",
                 options->tier);
        return NULL;
    }
    kern_device *device = host_open(&kern_cpu, options, message, message_bytes);
    if (device == NULL) return NULL;
    device->tier = kern_tier_within(asked);
    device->tier = cpu_tier_of(device)->tier;
    device->rounds_bf16 = cpu_tier_of(device)->products->has_pair_dots;
    return device;
}

const float *cpu_vector(const kern_weight *w) { return w != NULL ? (const float *)w->bound : NULL; }

const kern_backend kern_cpu = {
    .abi = KERN_ABI,
    .size = sizeof(kern_backend),
    .name = "cpu",
    .kv_default = KERN_KV_F16,
    .host_memory = 1,
    .open = device_open,
    .bind = cpu_store_open,
    .unbind = cpu_store_close,
    .work_open = cpu_work_open,
    .run = cpu_run_plan,
    HOST_OPS,
    TENSOR_OPS,
};
