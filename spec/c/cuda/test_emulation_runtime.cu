/* test_emulation_runtime.cu: the emulation's runtime: streams and events, capture, the order of
 * threads, limits, devices that are missing or unlike, drivers, faults, work that is put off. */
#include "emulated.h"
#include <cublasLt.h>

GPU_KERNEL add_kernel(const float *from, float *to, float x) {
    to[threadIdx.x] = from[threadIdx.x] + x;
}
#define ADD(where, from, to, x)                                                                    \
    emu_launch_call(where, "add_kernel", add_kernel, 1, 16, 0, (const float *)(from), to, x)

static float *a, *b;
static cudaStream_t other;
static cudaEvent_t event;

/* ---- streams ---- */

static void finish(void) { (void)cudaDeviceSynchronize(); }
static void test_streams(void) {
    float host[16];
    FINDS("add_kernel: argument 1 is memory that another stream writes, with no event between",
          ADD(gpu.stream, a, b, 1.0f);
          ADD(other, b, a, 1.0f); finish());
    FINDS(SOUND, ADD(gpu.stream, a, b, 1.0f); (void)cudaEventRecord(event, gpu.stream);
          (void)cudaStreamWaitEvent(other, event, 0); ADD(other, b, a, 1.0f); finish());
    FINDS("cudaMemsetAsync: argument 1 is memory that another stream reads",
          ADD(gpu.stream, a, b, 1.0f);
          (void)cudaMemsetAsync(a, 0, 64, other); ADD(other, b, a, 1.0f); finish());
    FINDS("cudaMemcpyAsync: argument 2 is memory that another stream writes",
          ADD(gpu.stream, a, b, 1.0f);
          (void)cudaMemcpyAsync(host, b, 64, cudaMemcpyDeviceToHost, other); finish());
    FINDS(SOUND, ADD(gpu.stream, a, b, 1.0f); (void)cudaStreamSynchronize(gpu.stream);
          ADD(other, b, a, 1.0f); finish()); /* the host waited */
    FINDS("with no event between", ADD(gpu.stream, a, b, 1.0f);
          (void)cudaEventRecord(event, gpu.stream); ADD(gpu.stream, a, b, 2.0f); /* after it */
          (void)cudaStreamWaitEvent(other, event, 0); ADD(other, b, a, 1.0f); finish());
    FINDS(SOUND, (void)cudaMemcpyAsync(a, b, 64, cudaMemcpyDeviceToDevice, gpu.stream); finish());
}

/* ---- capture ---- */

static void test_graphs(void) {
    float host[16], ones[16];
    for (float &x : ones) x = 1;
    cudaGraph_t graph;
    cudaGraphExec_t run;
    enum cudaStreamCaptureStatus status;
    (void)cudaMemcpy(a, ones, 64, cudaMemcpyHostToDevice);
    CHECK(!cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal), "begins");
    ADD(gpu.stream, a, b, 1.0f);
    (void)cudaEventRecord(event, gpu.stream);
    (void)cudaStreamWaitEvent(other, event, 0);
    ADD(other, b, a, 10.0f); /* a stream that joins */
    (void)cudaEventRecord(event, other);
    (void)cudaStreamWaitEvent(gpu.stream, event, 0);
    CHECK(!cudaStreamIsCapturing(other, &status) && status == cudaStreamCaptureStatusActive,
          "joins");
    CHECK(!cudaStreamEndCapture(gpu.stream, &graph) && graph, "ends");
    CHECK(!cudaGraphInstantiate(&run, graph, 0) && !cudaGraphDestroy(graph), "is made");
    gpu_read(host, a, 64);
    CHECK(host[0] == 1, "capture runs nothing: %g", host[0]);
    for (int i = 0; i < 3; i++) CHECK(!cudaGraphLaunch(run, gpu.stream), "launches");
    gpu_read(host, a, 64);
    CHECK(host[15] == 34, "three runs of a graph give %g", host[15]);
    (void)cudaGraphExecDestroy(run);

    void *p;
    cudaError_t (*const illegal[])(void **) = {
        [](void **) { return cudaStreamSynchronize(gpu.stream); },
        [](void **) { return cudaDeviceSynchronize(); },
        [](void **x) { return cudaMalloc(x, 16); },
        [](void **x) { return cudaHostAlloc(x, 16, 0); },
        [](void **) { return cudaFree(a); },
        [](void **x) { return cudaMemcpy(x, a, 8, cudaMemcpyDeviceToHost); },
        [](void **) { return cudaStreamQuery(gpu.stream); },
    };
    for (auto call : illegal) {
        (void)cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal);
        const cudaError_t error = call(&p);
        CHECK(error == cudaErrorStreamCaptureUnsupported, "%s", cudaGetErrorName(error));
        CHECK(cudaStreamEndCapture(gpu.stream, &graph) == cudaErrorStreamCaptureInvalidated &&
                  !graph,
              "such a capture is lost");
        CHECK(cudaGetLastError() == cudaErrorStreamCaptureInvalidated, "the last error");
        CHECK(cudaStreamSynchronize(gpu.stream) == cudaSuccess, "the stream can be used again");
    }
    (void)cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal);
    (void)cudaEventRecord(event, gpu.stream);
    CHECK(cudaEventSynchronize(event) == cudaErrorCapturedEvent, "an event of a capture");
    (void)cudaStreamEndCapture(gpu.stream, &graph);
    (void)cudaGetLastError();
}

/* ---- order ---- */

/* What a thread finds there depends on who came before; sound: the last to come sums up. */
GPU_KERNEL order_kernel(int sound, int *counter, int *out) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (sound) {
        out[i] = i;
        atomicAdd(counter, 1);
    } else {
        out[i] = atomicAdd(counter, 1);
    }
}
static void test_order(void) {
    enum { n = 4 * 96 };
    int *counter = (int *)gpu_memory(4), *out = (int *)gpu_memory(n * 4), got[2][n];
    for (const char *order : {"reverse", "shuffle:5", "shuffle:6"}) {
        for (int sound = 0; sound < 2; sound++) {
            for (int i = 0; i < 2; i++) {
                emulation_order(i ? order : "forward");
                (void)cudaMemsetAsync(counter, 0, 4, gpu.stream);
                GPU_LAUNCH(&gpu, order_kernel, 4, 96, 0, sound, counter, out);
                (void)cudaStreamSynchronize(gpu.stream);
                gpu_read(got[i], out, sizeof got[i]);
            }
            const bool same = memcmp(got[0], got[1], sizeof got[0]) == 0;
            CHECK(same == sound, "%s: %s", order, same ? "the same" : "not the same");
            for (int i = 0; i < n && !sound; i++) /* they count in the order in which they run */
                CHECK(got[0][i] == i && (order[0] != 'r' || got[1][i] == n - 1 - i),
                      "%s: thread %d comes as number %d", order, i, got[1][i]);
            bool seen[n] = {};
            for (int x : got[1]) seen[x] = true;
            for (bool s : seen) CHECK(s, "%s: every thread runs once", order);
        }
    }
    emulation_order("forward");
    (void)cudaFree(counter);
    (void)cudaFree(out);
}

/* ---- limits ---- */

GPU_KERNEL big_kernel(int *out) {
    GPU_SHARED(int, s, 1000);
    GPU_DYNAMIC_SHARED(int, d);
    s[0] = d[0] = 3;
    out[0] = s[0] + d[0];
}
static void test_launches(void) {
    int *out = (int *)gpu_memory(4);
    GPU_LAUNCH(&gpu, big_kernel, 1, 1025, 0, out);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration, "at most 1024 threads a block");
    GPU_LAUNCH(&gpu, big_kernel, dim3(1, 65536), 1, 0, out);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration, "at most 65535 blocks in y");
    GPU_LAUNCH(&gpu, big_kernel, 0, 1, 0, out);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration, "at least one block");
    GPU_LAUNCH(&gpu, big_kernel, 1, 1, 50000, out);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue, "48 KB of shared memory unless allowed");
    GPU_ALLOW_SHARED(big_kernel, 50000);
    FINDS(SOUND, GPU_LAUNCH(&gpu, big_kernel, 1, 1, 50000, out));
    GPU_ALLOW_SHARED(big_kernel, 167000);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue, "a block has at most 163 KB");
    GPU_ALLOW_SHARED(big_kernel, 163 << 10);
    FINDS("more shared memory than a block can have",
          GPU_LAUNCH(&gpu, big_kernel, 1, 1, 163 << 10, out));
    (void)cudaFree(out);
}

static void settings(const char *name, const char *value) {
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
    emulation_reset();
    emulation_checking(true);
}
static void test_settings(void) {
    size_t left, all;
    int n = -1;
    void *p = nullptr, *q = nullptr;
    settings("LLMLUA_EMULATION_MEMORY", "100000000");
    CHECK(!cudaMemGetInfo(&left, &all) && all == 100000000 && left < all, "memory: %zu", all);
    CHECK(!cudaMalloc(&p, 90000000), "most of it");
    CHECK(cudaMalloc(&q, 20000000) == cudaErrorMemoryAllocation && !q, "not more");
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation && !cudaGetLastError(), "told once");
    CHECK(!cudaFree(p) && !cudaMalloc(&q, 20000000) && !cudaFree(q), "after it was freed");
    settings("LLMLUA_EMULATION_MEMORY", nullptr);

    struct cudaDeviceProp first, second;
    settings("LLMLUA_EMULATION_DEVICES", "2");
    CHECK(!cudaGetDeviceCount(&n) && n == 2, "two devices: %d", n);
    CHECK(!cudaGetDeviceProperties(&first, 0) && !cudaGetDeviceProperties(&second, 1), "both");
    CHECK(first.major != second.major, "are unlike");
    CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice && cudaGetLastError(), "no third");
    CHECK(!cudaSetDevice(1), "the second");
    float *theirs = (float *)gpu_memory(64);
    FINDS("argument 1 is memory of device 0, not 1", ADD(gpu.stream, a, theirs, 1.0f));
    (void)cudaSetDevice(0);
    FINDS("argument 2 is memory of device 1, not 0", ADD(gpu.stream, a, theirs, 1.0f));
    CHECK(!cudaFree(theirs), "frees");
    settings("LLMLUA_EMULATION_DEVICES", "0");
    CHECK(cudaGetDeviceCount(&n) == cudaErrorNoDevice && n == 0, "no device");
    settings("LLMLUA_EMULATION_DEVICES", nullptr);

    settings("LLMLUA_EMULATION_DRIVER", "11080");
    CHECK(cudaGetDeviceCount(&n) == cudaErrorInsufficientDriver && n == 0, "an old driver");
    CHECK(!cudaDriverGetVersion(&n) && n == 11080, "its version: %d", n);
    settings("LLMLUA_EMULATION_DRIVER", nullptr);

    settings("LLMLUA_EMULATION_FAULT", "2");
    ADD(gpu.stream, a, b, 1.0f);
    CHECK(!cudaStreamSynchronize(gpu.stream), "the first launch");
    ADD(gpu.stream, a, b, 1.0f);
    for (int i = 0; i < 2; i++)
        CHECK(cudaStreamSynchronize(gpu.stream) == cudaErrorIllegalAddress, "the second, for ever");
    CHECK(cudaMalloc(&p, 16) == cudaErrorIllegalAddress, "nothing works after it");
    settings("LLMLUA_EMULATION_FAULT", nullptr);
    CHECK(!cudaStreamSynchronize(gpu.stream), "but in a new life");
}

/* Without a hook a finding is an error that stays. */
static void test_sticky(void) {
    emulation_hook(nullptr, nullptr);
    fprintf(stderr, "one finding follows\n");
    ADD(gpu.stream, a, b + 1, 1.0f);
    (void)cudaStreamSynchronize(gpu.stream);
    CHECK(cudaGetLastError() == cudaErrorIllegalAddress, "%s",
          cudaGetErrorName(cudaGetLastError()));
    CHECK(cudaStreamSynchronize(gpu.stream) == cudaErrorIllegalAddress, "it stays");
    emulation_reset();
    emulation_hook(note_finding, nullptr);
    emulation_checking(true);
}

/* ---- work that is put off ---- */

static void test_late(void) {
    float *pinned;
    (void)cudaHostAlloc((void **)&pinned, 64, cudaHostAllocDefault);
    for (int late = 0; late < 2; late++) {
        settings("LLMLUA_EMULATION", late ? "check,late" : "check");
        for (int i = 0; i < 16; i++) pinned[i] = 1;
        (void)cudaMemcpyAsync(a, pinned, 64, cudaMemcpyHostToDevice, gpu.stream);
        pinned[0] = 5; /* too early: the copy may not have begun */
        (void)cudaMemcpyAsync(pinned + 1, a, 4, cudaMemcpyDeviceToHost, gpu.stream);
        CHECK(pinned[1] == 1, "not before it is waited for");
        (void)cudaStreamSynchronize(gpu.stream);
        CHECK(pinned[1] == (late ? 5 : 1), "%s: %g", late ? "late" : "at once", pinned[1]);
        float plain = 3;
        (void)cudaMemcpyAsync(a, &plain, 4, cudaMemcpyHostToDevice, gpu.stream);
        plain = 4; /* memory that is not pinned has been read */
        gpu_read(pinned, a, 4);
        CHECK(pinned[0] == 3, "%g", pinned[0]);
    }
    settings("LLMLUA_EMULATION", nullptr);
    (void)cudaFreeHost(pinned);
}

/* ---- cuBLASLt ---- */

/* d[m,n] (+)= x · y with x[m,k], y[n,k] row-major, as out^T = (x^T)^T · y^T of column-major ones */
static void test_blas(void) {
    enum { m = 21, n = 35, k = 70 };
    static uint16_t x[m * k], y[n * k];
    static float d[n * m], want[n * m];
    for (cudaDataType_t type : {CUDA_R_16F, CUDA_R_16BF}) {
        const bool half = type == CUDA_R_16F;
        for (int i = 0; i < m * k; i++) {
            const float v = (float)(i * 37 % 101) / 64 - 0.7f;
            x[i] = half ? emu_f32_to_f16(v) : emu_f32_to_bf16(v);
        }
        for (int i = 0; i < n * k; i++) {
            const float v = (float)(i * 53 % 89) / 32 - 1.1f;
            y[i] = half ? emu_f32_to_f16(v) : emu_f32_to_bf16(v);
        }
        for (int i = 0; i < n * m; i++) d[i] = (float)i;
        for (int j = 0; j < n; j++)
            for (int i = 0; i < m; i++) {
                double sum = 0;
                for (int l = 0; l < k; l++) {
                    const uint16_t p = x[i * k + l], q = y[j * k + l];
                    sum += half ? (double)emu_f16_to_f32(p) * (double)emu_f16_to_f32(q)
                                : (double)gpu_bf16_to_f32(p) * (double)gpu_bf16_to_f32(q);
                }
                want[j * m + i] = (float)(2 * sum + 0.5 * d[j * m + i]);
            }
        void *gx = gpu_memory(sizeof x, x), *gy = gpu_memory(sizeof y, y),
             *gd = gpu_memory(sizeof d, d);
        cublasLtHandle_t handle;
        cublasLtMatmulDesc_t operation;
        cublasLtMatrixLayout_t lx, ly, ld;
        cublasLtMatmulPreference_t preference;
        cublasLtMatmulHeuristicResult_t list[4];
        const cublasOperation_t turned = CUBLAS_OP_T;
        const float alpha = 2, beta = 0.5f;
        int n_found = 0;
        (void)cublasLtCreate(&handle);
        (void)cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
        (void)cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &turned,
                                             sizeof turned);
        (void)cublasLtMatrixLayoutCreate(&lx, type, k, m, k);
        (void)cublasLtMatrixLayoutCreate(&ly, type, k, n, k);
        (void)cublasLtMatrixLayoutCreate(&ld, CUDA_R_32F, m, n, m);
        (void)cublasLtMatmulPreferenceCreate(&preference);
        (void)cublasLtMatmulAlgoGetHeuristic(handle, operation, lx, ly, ld, ld, preference, 4, list,
                                             &n_found);
        CHECK(n_found == 2, "two algorithms: %d", n_found);
        const cublasStatus_t codes[] = {CUBLAS_STATUS_NOT_SUPPORTED, CUBLAS_STATUS_SUCCESS};
        for (int i = 0; i < 2; i++)
            CHECK(cublasLtMatmul(handle, operation, &alpha, gx, lx, gy, ly, &beta, gd, ld, gd, ld,
                                 &list[i].algo, nullptr, 0, gpu.stream) == codes[i],
                  "the first fails, the second works");
        CHECK(cublasLtMatmul(handle, operation, &alpha, gx, lx, gy, ld, &beta, gd, ld, gd, ld,
                             nullptr, nullptr, 0, gpu.stream) == CUBLAS_STATUS_INVALID_VALUE,
              "shapes");
        (void)cudaStreamSynchronize(gpu.stream);
        gpu_read(d, gd, sizeof d);
        for (int i = 0; i < n * m; i++)
            CHECK(fabsf(d[i] - want[i]) <= 1e-4f * (1 + fabsf(want[i])), "%g, not %g", d[i],
                  want[i]);
        (void)cublasLtMatrixLayoutDestroy(lx), (void)cublasLtMatrixLayoutDestroy(ly);
        (void)cublasLtMatrixLayoutDestroy(ld), (void)cublasLtMatmulDescDestroy(operation);
        (void)cublasLtMatmulPreferenceDestroy(preference), (void)cublasLtDestroy(handle);
        (void)cudaFree(gx), (void)cudaFree(gy), (void)cudaFree(gd);
    }
}

int main(void) {
    emulated_begin(true);
    a = (float *)gpu_memory(64);
    b = (float *)gpu_memory(64);
    (void)cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    (void)cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    test_streams();
    test_graphs();
    test_order();
    test_launches();
    test_settings();
    test_sticky();
    test_late();
    test_blas();
    (void)cudaStreamDestroy(other);
    (void)cudaEventDestroy(event);
    (void)cudaFree(a), (void)cudaFree(b);
    return check_end();
}
