/* test_emulation.cu: what the emulation of CUDA finds. Each faulty kernel or call is told of, its
 * sound twin is not. */
#include "emulated.h"

/* ---- barriers ---- */

GPU_KERNEL barrier_kernel(int faulty) {
    if (faulty == 1 && threadIdx.x == 40) return;
    if (faulty == 2 && threadIdx.x < 32) {
        __syncthreads();
        return;
    }
    if (faulty == 3 && threadIdx.x == 5) {
        __syncwarp(3u << 5); /* lane 6 never comes */
        return;
    }
    __syncthreads();
}
static void test_barriers(void) {
    FINDS("63 of 64 threads wait at the barrier", GPU_LAUNCH(&gpu, barrier_kernel, 1, 64, 0, 1));
    CHECK(strstr(found, "barrier_kernel, block (0, 0, 0), thread ("), "%s", found);
    FINDS("waits at the barrier of line", GPU_LAUNCH(&gpu, barrier_kernel, 1, 64, 0, 2));
    FINDS("for lanes 00000040, which wait elsewhere",
          GPU_LAUNCH(&gpu, barrier_kernel, 1, 64, 0, 3));
    FINDS(SOUND, GPU_LAUNCH(&gpu, barrier_kernel, 3, 64, 0, 0));
    FINDS(SOUND, GPU_LAUNCH(&gpu, barrier_kernel, 3, 47, 0, 0));
}

/* ---- warps ---- */

GPU_KERNEL lanes_kernel(int faulty, int *out) {
    const unsigned lane = threadIdx.x;
    int x = (int)lane;
    if (faulty == 1 && lane == 3) return;                          /* named, but gone */
    if (faulty == 7 && (lane == 2 || lane == 3)) __syncwarp(0xCu); /* lane 2 goes on first */
    if (faulty == 7 && lane == 3) return;
    if (faulty == 2)
        x = __shfl_sync(lane < 16 ? 0xFFFFu : ~0u, x, 0); /* masks disagree */
    else if (faulty == 3)
        x = __shfl_sync(~0u & ~(1u << lane), x, 0); /* not itself */
    else if (faulty == 4 && lane < 8)
        x = __shfl_sync(0xFFu, x, 9); /* from one left out */
    else if (faulty == 5 && lane < 8)
        x = __shfl_sync(0xFFu, x, 7);
    else if (faulty == 6)
        x = lane < 8 ? __shfl_sync(0xFFu, x, 7) : __shfl_sync(~0xFFu, x, 9);
    else if (faulty == 7 && lane > 1)
        x = __shfl_sync(~3u, x, 2);
    else if (faulty < 2)
        x = __shfl_sync(~0u, x, 0);
    out[lane] = x;
}
static void test_lanes(void) {
    int *out = (int *)gpu_memory(32 * sizeof(int));
    FINDS("names lanes that have ended", GPU_LAUNCH(&gpu, lanes_kernel, 1, 32, 0, 1, out));
    emulation_order("reverse"); /* it waits, and then lane 3 ends */
    FINDS("for lanes 00000008, which have ended", GPU_LAUNCH(&gpu, lanes_kernel, 1, 32, 0, 7, out));
    FINDS("with mask ffffffff for lanes 0000ffff",
          GPU_LAUNCH(&gpu, lanes_kernel, 1, 32, 0, 2, out));
    emulation_order("forward"); /* the lower half is gone when the upper comes */
    FINDS("mask ffffffff at line", GPU_LAUNCH(&gpu, lanes_kernel, 1, 32, 0, 2, out));
    FINDS("does not name the lane itself", GPU_LAUNCH(&gpu, lanes_kernel, 1, 32, 0, 3, out));
    FINDS("from lane 9, which mask 000000ff leaves out",
          GPU_LAUNCH(&gpu, lanes_kernel, 1, 32, 0, 4, out));
    for (int sound = 0; sound <= 6; sound += sound ? 1 : 5)
        FINDS(SOUND, GPU_LAUNCH(&gpu, lanes_kernel, 1, 32, 0, sound, out));
    (void)cudaFree(out);
}

/* ---- memory of the device ---- */

GPU_KERNEL load_kernel(const char *from, uint32_t *to) {
    const uint4 x = gpu_load(from);
    to[0] = x.x;
}
GPU_KERNEL copy_kernel(const char *from, uint32_t *to, int shift) {
    GPU_SHARED(uint8_t, s, 64);
    gpu_copy_async(s + shift, from);
    gpu_copy_commit();
    gpu_copy_wait<0>();
    to[0] = s[shift];
}
GPU_KERNEL rows_kernel(uint32_t *to, int shift) {
    GPU_SHARED(uint16_t, s, 32 * 8 + 8);
    for (int i = 0; i < 8; i++) s[threadIdx.x * 8 + i + shift] = (uint16_t)i;
    __syncwarp();
    uint32_t r[4];
    gpu_ldmatrix_x4(r, s + threadIdx.x * 8 + shift);
    to[threadIdx.x] = r[0];
}
static void test_alignment(void) {
    char *from = (char *)gpu_memory(256);
    uint32_t *to = (uint32_t *)gpu_memory(256);
    FINDS("gpu_load of a misaligned address", GPU_LAUNCH(&gpu, load_kernel, 1, 1, 0, from + 8, to));
    FINDS(SOUND, GPU_LAUNCH(&gpu, load_kernel, 1, 1, 0, from + 16, to));
    FINDS("gpu_copy_async from a misaligned",
          GPU_LAUNCH(&gpu, copy_kernel, 1, 1, 0, from + 4, to, 0));
    FINDS("gpu_copy_async to a misaligned", GPU_LAUNCH(&gpu, copy_kernel, 1, 1, 0, from, to, 8));
    FINDS(SOUND, GPU_LAUNCH(&gpu, copy_kernel, 1, 1, 0, from, to, 48));
    FINDS("ldmatrix of a misaligned address", GPU_LAUNCH(&gpu, rows_kernel, 1, 32, 0, to, 4));
    FINDS(SOUND, GPU_LAUNCH(&gpu, rows_kernel, 1, 32, 0, to, 8));
    (void)cudaFree(from);
    (void)cudaFree(to);
}

GPU_KERNEL sum_kernel(const float *from, int n, float *to) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += from[i];
    to[threadIdx.x] = sum;
}
GPU_KERNEL table_kernel(const float *const *table, float *to) { to[0] = *table[0]; }
static void test_bounds(void) {
    float *from = (float *)gpu_memory(256 * sizeof(float)), *to = (float *)gpu_memory(100);
    FINDS("byte 1024 of an allocation of 1024",
          GPU_LAUNCH(&gpu, sum_kernel, 1, 1, 0, from, 257, to));
    FINDS(SOUND, GPU_LAUNCH(&gpu, sum_kernel, 1, 25, 0, from, 256, to));
    FINDS("written beside an allocation of 100 bytes",
          GPU_LAUNCH(&gpu, sum_kernel, 1, 26, 0, from, 256, to));
    const float **table = (const float **)gpu_memory(sizeof from, &from);
    FINDS(SOUND, GPU_LAUNCH(&gpu, table_kernel, 1, 1, 0, table, to));
    (void)cudaFree(from);
    FINDS("where no memory is or it has been freed",
          GPU_LAUNCH(&gpu, table_kernel, 1, 1, 0, table, to));
    FINDS("argument 1 is device memory that was freed",
          GPU_LAUNCH(&gpu, sum_kernel, 1, 1, 0, from, 0, to));
    (void)cudaFree(to);
    (void)cudaFree(table);
}

struct pair {
    const float *from;
    float *to;
};
GPU_KERNEL pair_kernel(pair p, int n) {
    for (int i = 0; i < n; i++) p.to[i] = p.from[i];
}
struct padded {
    float *to;
    float x; /* four bytes that nobody set follow */
};
/* What was left in an argument's padding is not taken for half an address. */
static void test_padding(void) {
    padded p;
    memset(&p, 0x7F, sizeof p);
    p.to = nullptr;
    p.x = 1.0f;
    std::vector<emu_word> words;
    emu_words(words, 1, p);
    CHECK(words.size() == 2 && words[1].value == 0x3F800000u, "%zx", (size_t)words[1].value);
}
static void test_host_memory(void) {
    float *device = (float *)gpu_memory(64), *pinned, plain[16] = {1, 2, 3};
    (void)cudaHostAlloc((void **)&pinned, 64, cudaHostAllocDefault);
    pinned[0] = 7;
    FINDS("argument 1 is an address of the host",
          GPU_LAUNCH(&gpu, sum_kernel, 1, 1, 0, plain, 0, device));
    FINDS("argument 1 is an address of the host",
          GPU_LAUNCH(&gpu, pair_kernel, 1, 1, 0, (pair{plain, device}), 0));
    FINDS(SOUND, GPU_LAUNCH(&gpu, pair_kernel, 1, 1, 0, (pair{pinned, device}), 16));
    FINDS(SOUND, GPU_LAUNCH(&gpu, sum_kernel, 1, 1, 0, nullptr, 0, device + 15));
    test_padding();
    volatile float *touched = device;
    FINDS("the host touches device memory", plain[0] = touched[0]);
    FINDS("the host touches device memory", gpu_read(plain, device, 64); touched[1] = 1);
    FINDS(SOUND, gpu_read(plain, device, 64));
    CHECK(plain[0] == 7, "a copy gives %g", plain[0]);
    CHECK(cudaMemcpyAsync(device, plain, 65, cudaMemcpyHostToDevice, gpu.stream) ==
              cudaErrorInvalidValue,
          "a copy past an allocation is an error");
    CHECK(cudaMemcpyAsync(plain, plain, 4, cudaMemcpyHostToDevice, gpu.stream) ==
              cudaErrorInvalidValue,
          "a copy in the wrong direction is an error");
    (void)cudaGetLastError();
    (void)cudaFree(device);
    (void)cudaFreeHost(pinned);
}

/* ---- shared memory ---- */

enum {
    UNWRITTEN = 1,
    RACE_WRITE,
    RACE_READ,
    RACE_WARP,
    BYTES,
    ATOMIC,
    PLAIN_ATOMIC,
    BROADCAST,
    PAST,
    EARLY,
    SHUFFLED
};
GPU_KERNEL shared_kernel(int way, int sound, const char *from, int *out) {
    GPU_SHARED(int, s, 128);
    GPU_SHARED(int, other, 128);
    const int i = (int)threadIdx.x, n = (int)blockDim.x, before = (i + n - 1) % n;
    gpu_shared<uint8_t> bytes = gpu_shared_as<uint8_t>(s);
    other[i] = 0;
    switch (way) {
    case UNWRITTEN:
        if (sound || i < 63) s[i] = i;
        __syncthreads();
        out[i] = s[i];
        break;
    case RACE_WRITE: s[sound ? i : 0] = i; break;
    case RACE_READ:
        s[i] = i;
        if (sound) __syncthreads();
        out[i] = s[before];
        if (sound) __syncthreads();
        s[i] = 0;
        break;
    case RACE_WARP:
        s[i] = i;
        if (sound) __syncwarp();
        out[i] = s[i ^ 1];
        break;
    case SHUFFLED: /* orders nothing */
        s[i] = i;
        (void)__shfl_xor_sync(~0u, i, 1);
        if (sound) __syncwarp();
        out[i] = s[i ^ 1];
        break;
    case BYTES:
        bytes[i] = (uint8_t)i;
        if (sound) __syncthreads();
        out[i] = s[i / 4];
        break;
    case ATOMIC:
        s[i] = 0;
        __syncthreads();
        if (sound || i % 2)
            atomicAdd(&s[0], 1);
        else
            s[0] += 1;
        break;
    case PLAIN_ATOMIC:
        s[i] = 0;
        if (sound) __syncthreads();
        atomicMax(&s[i ^ 1], 1);
        break;
    case BROADCAST:
        if (i == 0) s[0] = 1;
        __syncthreads();
        out[i] = s[0];
        if (sound) __syncthreads();
        if (i == 40) s[0] = 2;
        break;
    case PAST: s[sound ? 127 - i : 128 + i] = 1; break;
    case EARLY:
        gpu_copy_async(s + 4 * i % 128, from + 16 * (i % 32));
        gpu_copy_commit();
        if (sound)
            gpu_copy_wait<0>();
        else
            gpu_copy_wait<1>();
        __syncthreads();
        out[i] = s[before];
        break;
    }
}
static void test_shared(void) {
    static const struct {
        int way;
        const char *words;
    } faults[] = {
        {UNWRITTEN, "reads byte 252 of an array in shared memory, which nobody has written"},
        {RACE_WRITE, "writes byte"},
        {RACE_READ, "with no barrier between"},
        {RACE_WARP, "race in shared memory: reads byte"},
        {SHUFFLED, "race in shared memory: reads byte"},
        {BYTES, "shared memory"},
        {ATOMIC, "race in shared memory: "},
        {PLAIN_ATOMIC, "shared memory"},
        {BROADCAST, "race in shared memory: writes byte"},
        {PAST, "outside of its array"},
        {EARLY, "while gpu_copy_async writes it"},
    };
    char *from = (char *)gpu_memory(512);
    int *out = (int *)gpu_memory(64 * sizeof(int));
    for (const auto &f : faults) {
        for (const char *order : {"forward", "reverse", "shuffle:1", "shuffle:2"}) {
            emulation_order(order);
            const int threads = f.way == EARLY ? 32 : 64;
            const char *words = order[0] == 'f' ? f.words : "shared memory"; /* in other words */
            FINDS(words, GPU_LAUNCH(&gpu, shared_kernel, 2, threads, 0, f.way, 0, from, out));
            FINDS(SOUND, GPU_LAUNCH(&gpu, shared_kernel, 2, threads, 0, f.way, 1, from, out));
        }
    }
    emulation_order("forward");
    (void)cudaFree(from);
    (void)cudaFree(out);
}

int main(void) {
    emulated_begin(true);
    test_barriers();
    test_lanes();
    test_alignment();
    test_bounds();
    test_host_memory();
    test_shared();
    return check_end();
}
