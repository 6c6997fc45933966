/* test_emulation_warp.cu: what threads compute together or by CUDA's own operations, in the
 * emulation, against plain loops: shuffles, votes, mma and its layouts, conversions, bits. */
#include "emulated.h"

static int *out;
static int host_out[1024];
static void fetch(size_t n) {
    (void)cudaStreamSynchronize(gpu.stream);
    gpu_read(host_out, out, n * sizeof(int));
}

/* ---- shuffles and votes ---- */

GPU_KERNEL shuffle_kernel(int kind, int by, int width, int *to) {
    const int lane = (int)threadIdx.x;
    int x = 0;
    if (kind == 0) x = __shfl_sync(~0u, lane, by, width);
    if (kind == 1) x = __shfl_up_sync(~0u, lane, (unsigned)by, width);
    if (kind == 2) x = __shfl_down_sync(~0u, lane, (unsigned)by, width);
    if (kind == 3) x = __shfl_xor_sync(~0u, lane, by, width);
    to[lane] = x;
}
static int shuffled_from(int kind, int lane, int by, int width) {
    const int at = lane % width, first = lane - at;
    switch (kind) {
    case 0: return first + by % width;
    case 1: return at - by < 0 ? lane : lane - by;
    case 2: return at + by >= width ? lane : lane + by;
    default: return (lane ^ by) >= first + width ? lane : lane ^ by;
    }
}
static void test_shuffles(void) {
    for (int kind = 0; kind < 4; kind++)
        for (int width = 2; width <= 32; width *= 2)
            for (int by = 0; by < 32; by += 3) {
                GPU_LAUNCH(&gpu, shuffle_kernel, 1, 32, 0, kind, by, width, out);
                fetch(32);
                for (int lane = 0; lane < 32; lane++)
                    CHECK(host_out[lane] == shuffled_from(kind, lane, by, width),
                          "kind %d by %d of %d: lane %d has %d", kind, by, width, lane,
                          host_out[lane]);
            }
}

GPU_KERNEL vote_kernel(int *to) {
    const unsigned lane = threadIdx.x;
    const double wide = __shfl_sync(~0u, lane * 1.5, 7);
    const unsigned long long words = __shfl_down_sync(~0u, (1ull << 40) + lane, 3);
    int *mine = to + lane * 8;
    mine[0] = (int)__ballot_sync(~0u, lane % 3 == 0);
    mine[1] = __any_sync(~0u, lane == 31) + 2 * __any_sync(~0u, 0);
    mine[2] = __all_sync(~0u, lane < 32) + 2 * __all_sync(~0u, lane < 31);
    mine[3] = (int)gpu_warp_sum((float)lane);
    mine[4] = (int)gpu_warp_max((float)(lane ^ 11));
    mine[5] = wide == 10.5;
    mine[6] = words == (1ull << 40) + (lane < 29 ? lane + 3 : lane);
    mine[7] = (int)(lane < 16 ? __ballot_sync(0xFFFFu, 1) : __ballot_sync(0xFFFF0000u, lane & 1));
}
static void test_votes(void) {
    GPU_LAUNCH(&gpu, vote_kernel, 1, 32, 0, out);
    fetch(32 * 8);
    for (int lane = 0; lane < 32; lane++) {
        const int half = lane < 16 ? 0xFFFF : (int)0xAAAA0000u;
        const int want[8] = {0x49249249, 1, 1, 496, 31, 1, 1, half};
        for (int i = 0; i < 8; i++)
            CHECK(host_out[lane * 8 + i] == want[i], "lane %d: vote %d is %d, not %d", lane, i,
                  host_out[lane * 8 + i], want[i]);
    }
}

/* ---- mma ---- */

/* The fragments of gpu.h's comment, from a[16,16] and b[16,8] row-major (f16 or bf16 bits). */
GPU_KERNEL mma_kernel(int bf16, int by_rows, const uint16_t *a, const uint16_t *b, float *d) {
    GPU_SHARED(uint16_t, rows, 16 * 16);
    const int lane = (int)threadIdx.x, g = lane / 4, c = 2 * (lane % 4);
    uint32_t fa[4], fb[2];
    float fd[4];
    for (int i = lane; i < 256; i += 32) rows[i] = a[i];
    __syncwarp();
    for (int i = 0; i < 4; i++) {
        const int at = (g + i % 2 * 8) * 16 + c + i / 2 * 8;
        fa[i] = a[at] | (uint32_t)a[at + 1] << 16;
        fd[i] = d[(g + i / 2 * 8) * 8 + c + i % 2];
    }
    for (int i = 0; i < 2; i++)
        fb[i] = b[(c + 8 * i) * 8 + g] | (uint32_t)b[(c + 8 * i + 1) * 8 + g] << 16;
    if (by_rows) gpu_ldmatrix_x4(fa, rows + lane % 16 * 16 + lane / 16 * 8);
    if (bf16)
        gpu_mma_bf16(fd, fa, fb);
    else
        gpu_mma_f16(fd, fa, fb);
    for (int i = 0; i < 4; i++) d[(g + i / 2 * 8) * 8 + c + i % 2] = fd[i];
}
static void test_mma(void) {
    uint16_t a[256], b[128];
    float d[128], got[128];
    for (int way = 0; way < 4; way++) {
        const bool bf16 = way & 1;
        for (int i = 0; i < 256; i++) {
            const float x = (float)(i * 29 % 61) / 16 - 1.7f;
            a[i] = bf16 ? emu_f32_to_bf16(x) : emu_f32_to_f16(x);
        }
        for (int i = 0; i < 128; i++) {
            const float x = (float)(i * 31 % 53) / 8 - 3.3f;
            b[i] = bf16 ? emu_f32_to_bf16(x) : emu_f32_to_f16(x);
            d[i] = (float)i;
        }
        a[3] = bf16 ? 0x0001 : 0x0003; /* denormal */
        auto *ga = (uint16_t *)gpu_memory(sizeof a, a), *gb = (uint16_t *)gpu_memory(sizeof b, b);
        auto *gd = (float *)gpu_memory(sizeof d, d);
        FINDS(SOUND, GPU_LAUNCH(&gpu, mma_kernel, 1, 32, 0, bf16, way / 2, ga, gb, gd));
        gpu_read(got, gd, sizeof d);
        for (int row = 0; row < 16; row++)
            for (int column = 0; column < 8; column++) {
                float sum = d[row * 8 + column];
                for (int k = 0; k < 16; k++) {
                    const uint16_t x = a[row * 16 + k], y = b[k * 8 + column];
                    sum += bf16 ? gpu_bf16_to_f32(x) * gpu_bf16_to_f32(y)
                                : gpu_f16_to_f32(x) * gpu_f16_to_f32(y);
                }
                CHECK(fabsf(got[row * 8 + column] - sum) <= 1e-5f * (1 + fabsf(sum)),
                      "mma %d: row %d, column %d is %g, not %g", way, row, column,
                      got[row * 8 + column], sum);
            }
        (void)cudaFree(ga), (void)cudaFree(gb), (void)cudaFree(gd);
    }
}

/* ---- numbers ---- */

static double half_value(uint16_t h) {
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    const double x = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return h >> 15 ? -x : x;
}
static void test_halves(void) {
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float x = gpu_f16_to_f32((uint16_t)h);
        if ((h & 0x7FFF) > 0x7C00) {
            CHECK(isnan(x) && (gpu_f32_to_f16(x) & 0x7FFF) > 0x7C00, "%04x stays NaN", h);
            continue;
        }
        CHECK((h & 0x7FFF) == 0x7C00 ? isinf(x) : (double)x == half_value((uint16_t)h), "%04x", h);
        CHECK(gpu_f32_to_f16(x) == h, "%04x goes there and back", h);
        if ((h & 0x7FFF) >= 0x7BFF) continue;
        const float next = gpu_f16_to_f32((uint16_t)(h + 1)), middle = (x + next) / 2;
        const uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
        CHECK(gpu_f32_to_f16(middle) == even, "%04x: half way goes to the even", h);
        CHECK(gpu_f32_to_f16(nextafterf(middle, next)) == h + 1, "%04x: above half", h);
        CHECK(gpu_f32_to_f16(nextafterf(middle, x)) == h, "%04x: below half", h);
    }
    CHECK(gpu_f32_to_f16(65519.99f) == 0x7BFF && gpu_f32_to_f16(65520.0f) == 0x7C00, "too large");
    CHECK(gpu_f32_to_bf16(1.00390625f) == 0x3F80 && gpu_f32_to_bf16(1.01171875f) == 0x3F82, "even");
    /* low: the product rounded first would leave a tie. high: a little below a tie, as f32 one */
    const uint32_t x = 0x3C013C01u, y = 0x0FFE3C01u, z = 0x3C011000u;
    CHECK(gpu_fma_f16x2(x, y, z) == 0x3C013C03u, "fma rounds once: %08x", gpu_fma_f16x2(x, y, z));
}

static void test_bits(void) {
    CHECK(__byte_perm(0x33221100u, 0x77665544u, 0x7531) == 0x77553311u, "byte_perm");
    CHECK(__byte_perm(0x80u, 0, 0x0008) == 0x808080FFu, "byte_perm repeats a sign");
    CHECK(__dp4a((int)0x80FF017Fu, (int)0x02030405u, 7) == -256 - 3 + 4 + 635 + 7, "dp4a");
    CHECK(__dp4a(0x80FF017Fu, 0x02030405u, 7u) == 256u + 765 + 4 + 635 + 7, "dp4a of unsigned");
    CHECK(__clz(1) == 31 && __clz(0) == 32 && __ffs(8) == 4 && !__ffs(0), "clz, ffs");
    CHECK(__popc(0xF0F0u) == 8 && __umulhi(0x80000000u, 6) == 3, "popc, umulhi");
    CHECK(__float2int_rn(2.5f) == 2 && __float2int_rn(-3.5f) == -4, "to the even");
    CHECK(__float2int_rn(3e9f) == INT_MAX && __float2int_rn(-INFINITY) == INT_MIN &&
              __float2int_rn(NAN) == 0,
          "out of range");
}

int main(void) {
    emulated_begin(true);
    out = (int *)gpu_memory(sizeof host_out);
    for (const char *order : {"forward", "reverse", "shuffle:3"}) {
        emulation_order(order);
        FINDS(SOUND, test_shuffles(); test_votes());
        test_mma();
    }
    test_halves();
    test_bits();
    (void)cudaFree(out);
    return check_end();
}
