/* measure.c: what this GPU can do at best, to hold kernels against: reading its memory, and a large
 * product of bf16 matrices, by cuBLASLt, or where that is not there by tensor-core instructions
 * alone. Also random weights, which are sent once and repeated on the device. */
#include "../random.h"
#include "../rows.h"
#include "cuda.h"

enum { ROUNDS = 8, REPEATS = 5 }; /* calls between two looks at the clock; the best of so many */

int cuda_fill_random(kern_device *device, const kern_format *f, uint64_t seed, void *to,
                     size_t bytes) {
    const size_t block = (size_t)f->block_bytes, most = CUDA_PIECE / block * block;
    const size_t piece = bytes < most ? bytes / block * block : most;
    void *pinned;
    if (!piece) return KERN_OK;
    int code = cuda_piece_take(device, &pinned);
    if (code) return code;
    kern_random_blocks(f, seed, pinned, (int64_t)(piece / block) * f->block_size);
    code = cuda_piece_send(device, to, piece);
    for (size_t done = piece; done < bytes && !code;) {
        const size_t n = bytes - done < done ? bytes - done : done;
        code = cuda_check(
            device,
            cudaMemcpyAsync((char *)to + done, to, n, cudaMemcpyDeviceToDevice, device->stream),
            "repeating random weights");
        done += n;
    }
    return code;
}

/* ---- peaks ---- */

typedef struct experiment {
    kern_peak what;
    size_t size;
    kern_buffer buffers[3]; /* READ: what is read; PRODUCTS: two matrices, their product */
    kern_buffer out;        /* of kernels that leave nothing else */
    double amount;          /* of a call: bytes, or operations */
} experiment;

static int once(kern_device *device, experiment *e) {
    const double n = (double)e->size;
    size_t read;
    if (e->what == KERN_PEAK_READ) {
        const int code =
            cuda_peak_read(device, e->buffers[0].data, e->buffers[0].bytes, e->out.data, &read);
        e->amount = (double)read;
        return code;
    }
    if (!device->blas) return cuda_peak_multiply(device, 2 * n * n * n, e->out.data, &e->amount);
    e->amount = 2 * n * n * n;
    return cuda_blas_square(device, (int64_t)e->size, e->buffers[0].data, e->buffers[1].data,
                            e->buffers[2].data);
}

static int prepare(kern_device *device, experiment *e) {
    const size_t matrix = e->size * e->size;
    int code = cuda_alloc(device, 256, &e->out);
    if (e->what == KERN_PEAK_READ) {
        if (!code) code = cuda_alloc(device, e->size, &e->buffers[0]);
        if (code) return code;
        return cuda_check(device, cudaMemsetAsync(e->buffers[0].data, 0, e->size, device->stream),
                          "clearing memory");
    }
    for (int i = 0; i < 3 && !code && device->blas; i++) {
        code = cuda_alloc(device, matrix * (i == 2 ? sizeof(float) : 2), &e->buffers[i]);
        if (!code && i < 2)
            code = cuda_fill_random(device, kern_format_find(KERN_BF16), (uint64_t)i + 1,
                                    e->buffers[i].data, 2 * matrix);
    }
    return code;
}

static int run(kern_device *device, experiment *e, double *best) {
    int code = once(device, e); /* loads kernels, asks for an algorithm */
    if (!code) code = cuda_check(device, cudaStreamSynchronize(device->stream), "measuring a peak");
    *best = 0;
    for (int i = 0; i < REPEATS && !code; i++) {
        const double began = kern_clock();
        for (int j = 0; j < ROUNDS && !code; j++) code = once(device, e);
        if (!code)
            code = cuda_check(device, cudaStreamSynchronize(device->stream), "measuring a peak");
        const double rate = ROUNDS * e->amount / (kern_clock() - began);
        if (rate > *best) *best = rate;
    }
    return code;
}

int cuda_measure(kern_device *device, kern_peak what, size_t size, double *out) {
    experiment e = {.what = what, .size = size};
    *out = 0;
    int code = prepare(device, &e);
    if (!code) code = run(device, &e, out);
    for (int i = 0; i < 3; i++) cuda_free(device, &e.buffers[i]);
    cuda_free(device, &e.out);
    cuda_pieces_free(device);
    return code;
}
