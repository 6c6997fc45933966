/* memory.cpp: device memory, pinned memory, and copies between them. */
#include "inside.h"
#include <map>
#include <stdlib.h>

static std::map<uintptr_t, emu_memory> memories; /* by address */
static size_t used_bytes[2];

emu_memory *emu_find_memory(const void *p, bool before) {
    auto i = memories.upper_bound((uintptr_t)p);
    if (i == memories.begin()) return nullptr;
    emu_memory *m = &(--i)->second;
    return before || (uintptr_t)p - (uintptr_t)m->at < m->bytes ? m : nullptr;
}
static cudaError_t take(void **out, size_t bytes, emu_kind kind) {
    *out = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (bytes > emu_config().memory - (kind == EMU_DEVICE ? used_bytes[emu_device] : 0))
        return emu_error(cudaErrorMemoryAllocation);
    emu_memory m = {kind, nullptr, bytes, emu_device, false, {}};
    if (kind == EMU_PINNED || !emu_checking || !emu_guard_take(&m)) {
        m.at = (unsigned char *)aligned_alloc(256, (bytes + 255) & ~(size_t)255);
        if (!m.at) return emu_error(cudaErrorMemoryAllocation);
        memset(m.at, 0xFF, bytes); /* undefined: NaN */
    }
    if (kind == EMU_DEVICE) used_bytes[emu_device] += bytes;
    *out = m.at;
    memories[(uintptr_t)m.at] = m;
    return cudaSuccess;
}
static cudaError_t give(void *p, emu_kind kind) {
    if (!p) return emu_state();
    cudaError_t error = emu_not_in_capture();
    if (error != cudaSuccess) return error;
    emu_finish_all();
    auto i = memories.find((uintptr_t)p);
    if (i == memories.end() || i->second.kind != kind) return emu_error(cudaErrorInvalidValue);
    if (kind == EMU_DEVICE) used_bytes[i->second.device] -= i->second.bytes;
    if (i->second.arena)
        emu_guard_give(i->second);
    else
        free(p);
    memories.erase(i);
    return emu_state();
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
    EMU_CALL;
    const cudaError_t error = emu_not_in_capture();
    return error != cudaSuccess ? error : take(out, bytes, EMU_DEVICE);
}
cudaError_t cudaFree(void *p) {
    std::lock_guard<std::recursive_mutex> guard(emu_lock);
    return give(p, EMU_DEVICE);
}
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned) {
    EMU_CALL;
    const cudaError_t error = emu_not_in_capture();
    return error != cudaSuccess ? error : take(out, bytes, EMU_PINNED);
}
cudaError_t cudaMallocHost(void **out, size_t bytes) { return cudaHostAlloc(out, bytes, 0); }
cudaError_t cudaFreeHost(void *p) {
    std::lock_guard<std::recursive_mutex> guard(emu_lock);
    return give(p, EMU_PINNED);
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    EMU_CALL;
    *total_bytes = emu_config().memory;
    *free_bytes = *total_bytes - used_bytes[emu_device];
    return cudaSuccess;
}

/* ---- copies ---- */

/* Whether bytes at p lie in device memory, or outside it. */
static bool fits(const void *p, size_t bytes, bool device) {
    const emu_memory *m = emu_find_memory(p);
    if ((m && m->kind == EMU_DEVICE) != device) return false;
    return !m || (const unsigned char *)p + bytes <= m->at + m->bytes;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    EMU_CALL;
    if (bytes == 0) return cudaSuccess;
    const bool up = kind != cudaMemcpyDeviceToHost, down = kind != cudaMemcpyHostToDevice;
    if (!fits(to, bytes, up) || !fits(from, bytes, down)) return emu_error(cudaErrorInvalidValue);
    emu_work work = {"cudaMemcpyAsync", {}, {}};
    if (emu_checking)
        work.words = {{(uintptr_t)to, 1, true, true}, {(uintptr_t)from, 2, true, false}};
    work.run = [=] {
        emu_memory_open();
        memmove(to, from, bytes);
        emu_memory_close("cudaMemcpyAsync");
    };
    const cudaError_t error = emu_issue(stream, std::move(work));
    /* Memory that is not pinned has been read, or filled, when the call returns. */
    if ((!up && !emu_find_memory(to)) || (!down && !emu_find_memory(from)))
        if (!emu_capturing()) emu_finish_all();
    return emu_error(error);
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    EMU_CALL;
    cudaError_t error = emu_not_in_capture();
    if (error == cudaSuccess) error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
    if (error == cudaSuccess) error = cudaStreamSynchronize(nullptr);
    return error;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    EMU_CALL;
    if (bytes == 0) return cudaSuccess;
    if (!fits(to, bytes, true)) return emu_error(cudaErrorInvalidValue);
    emu_work work = {"cudaMemsetAsync", {}, {}};
    if (emu_checking) work.words = {{(uintptr_t)to, 1, true, true}};
    work.run = [=] {
        emu_memory_open();
        memset(to, value, bytes);
        emu_memory_close("cudaMemsetAsync");
    };
    return emu_error(emu_issue(stream, std::move(work)));
}
