/* tier.c: which instruction tier this processor and its system can run, and the tiers' names. */
#include "host.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* XCR0: which register states the system saves. */
static uint64_t saved_states(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool has(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

/* Bit t: the machine has tier t. Those with dot products of bytes are no order: there are
 * processors with the one and not the other. */
static uint32_t machine_tiers(void) {
    const uint32_t plain = 1u << KERN_TIER_PLAIN;
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return plain;
    if (!has(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C)) return plain;
    const uint64_t states = saved_states();
    if ((states & 0x6) != 0x6) return plain; /* xmm, ymm */
    uint32_t a7, b7, c7, d7;
    if (!__get_cpuid_count(7, 0, &a7, &b7, &c7, &d7)) return plain;
    if (!has(b7, bit_AVX2 | bit_BMI2)) return plain;
    uint32_t tiers = plain | 1u << KERN_TIER_AVX2, a71 = 0, b71, c71, d71;
    if (a7 >= 1) __get_cpuid_count(7, 1, &a71, &b71, &c71, &d71);
    const uint32_t vnni = 1u << 4, bf16 = 1u << 5; /* leaf 7.1, eax */
    if (has(a71, vnni)) tiers |= 1u << KERN_TIER_AVXVNNI;
    if ((states & 0xe0) == 0xe0 && has(a71, bf16) && has(c7, bit_AVX512VNNI) &&
        has(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ))
        tiers |= 1u << KERN_TIER_AVX512;
    return tiers;
}
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>

static uint32_t machine_tiers(void) {
    const uint32_t neon = getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? 1u << KERN_TIER_NEON : 0;
    return neon | 1u << KERN_TIER_PLAIN;
}
#else
static uint32_t machine_tiers(void) { return 1u << KERN_TIER_PLAIN; }
#endif

kern_tier kern_tier_within(kern_tier most) {
    const uint32_t tiers = machine_tiers();
    while (!(tiers >> most & 1)) most--;
    return most;
}

static const char *const names[] = {"plain", "neon", "avx2", "avxvnni", "avx512"};

int kern_tier_parse(const char *name, kern_tier *out) {
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (kern_tier)i;
        return 0;
    }
    return -1;
}

const char *kern_tier_name(kern_tier tier) { return names[tier]; }
