/* test_cuda_memory.c: buffers and copies of the CUDA backend: bytes arrive as they were sent, what
 * is freed is given out again, what fails says why and leaves the rest usable. */
#include "cuda_device.h"

static const size_t MIB = (size_t)1 << 20;

static void test_round_trip(void) {
    static const size_t sizes[] = {1, 4, 4095, 4097, 65536, 65537, 9437185};
    kern_device *d = emulated_open(false);
    const kern_backend *b = d->backend;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t n = sizes[i], offset = 4 * i;
        kern_buffer from, to;
        unsigned char *sent = emulated_bytes(n, 7), *got = emulated_bytes(n, 8);
        CHECK(!b->alloc(d, n + offset, &from) && !b->alloc(d, n + 2 * offset, &to), "%zu", n);
        CHECK((uintptr_t)from.data % 256 == 0, "aligned");
        CHECK(!b->write(d, &from, offset, sent, n), "%s", b->last_error(d));
        CHECK(!b->copy(d, &to, 2 * offset, &from, offset, n), "%s", b->last_error(d));
        kern_stats before, after;
        b->stats(d, &before);
        CHECK(!b->read(d, &to, 2 * offset, got, n), "%s", b->last_error(d));
        CHECK(memcmp(sent, got, n) == 0, "%zu bytes there and back", n);
        b->stats(d, &after);
        CHECK(after.bytes_down - before.bytes_down == n && after.bytes_up == before.bytes_up,
              "bytes are counted");
        CHECK(after.syncs - before.syncs == (n + CUDA_PIECE - 1) / CUDA_PIECE, "waits are counted");
        CHECK(b->write(d, &from, offset + 1, sent, n) == KERN_DEVICE, "more than there is");
        CHECK(strstr(b->last_error(d), "lie outside a buffer of"), "%s", b->last_error(d));
        CHECK(b->read(d, &from, SIZE_MAX, got, 1) == KERN_DEVICE, "an offset that overflows");
        CHECK(b->copy(d, &to, 0, &from, 1, n + offset) == KERN_DEVICE, "a copy of too much");
        b->free(d, &from);
        b->free(d, &to);
        free(sent);
        free(got);
    }
    emulated_close(d);
}

static void test_upload(void) {
    enum { N = 64 };
    kern_device *d = emulated_open(false);
    const void *sent[N];
    for (int i = 0; i < 3 * N; i++) {
        const int value = i * 5 + 1;
        CHECK(!cuda_upload(d, &value, sizeof value, &sent[i % N]), "%s", d->message);
    }
    for (int i = 2 * N; i < 3 * N; i++) {
        int value = 0;
        CHECK(!cuda_fetch(d, sent[i % N], &value, sizeof value) && value == i * 5 + 1,
              "%d of the last 64 small things: %d", i, value);
    }
    for (size_t n = 1; n < 100000; n = 3 * n + 1) { /* slots grow */
        const void *gpu;
        unsigned char *bytes = emulated_bytes(n, (unsigned)n), *got = emulated_bytes(n, 0);
        CHECK(!cuda_upload(d, bytes, n, &gpu) && !cuda_fetch(d, gpu, got, n), "%s", d->message);
        CHECK(memcmp(bytes, got, n) == 0, "%zu bytes", n);
        free(bytes);
        free(got);
    }
    emulated_close(d);
}

static void test_scratch(void) {
    kern_device *d = emulated_open(false);
    void *first, *again, *larger;
    const int value = 11;
    int got = 0;
    kern_buffer seen;
    CHECK(!cuda_scratch(d, 1000, &first) && !cuda_scratch(d, 100, &again) && first == again,
          "scratch stays where it is while it is large enough");
    seen = (kern_buffer){first, sizeof value};
    CHECK(!cuda_write(d, &seen, 0, &value, sizeof value), "%s", d->message);
    CHECK(!cuda_scratch(d, 5 * MIB, &larger) && larger != first, "it grows");
    CHECK(!cuda_read(d, &seen, 0, &got, sizeof got) && got == value,
          "what a graph may refer to is still there");
    CHECK(!cuda_scratch(d, 5 * MIB, &again) && again == larger, "and stays again");
    emulated_close(d);
}

static void test_pool(void) {
    kern_device *d = emulated_open(false);
    const size_t sizes[] = {1, 300, 5000, MIB, 3 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        kern_buffer a, b;
        CHECK(!cuda_alloc(d, sizes[i], &a) && !cuda_alloc(d, sizes[i], &b), "%s", d->message);
        CHECK(a.data != b.data, "two buffers");
        void *freed = a.data;
        cuda_free(d, &a);
        CHECK(!a.data && !a.bytes, "a freed buffer is empty");
        CHECK(!cuda_alloc(d, sizes[i], &a) && a.data == freed, "%zu bytes are given out again",
              sizes[i]);
        cuda_free(d, &a);
        cuda_free(d, &b);
        cuda_free(d, &b);
    }
    emulated_close(d);
}

static void test_no_memory(void) {
    emulated_set("LLMLUA_EMULATION_MEMORY", "67108864");
    kern_device *d = emulated_open(false);
    kern_buffer a = {0}, b = {0};
    size_t asked = 0, n_free = 0, total = 0;
    CHECK(cuda_alloc(d, 100 * MIB, &a) == KERN_NO_MEMORY && !a.data, "more than there is");
    CHECK(sscanf(d->message, "out of memory: %zu bytes asked of the GPU, %zu of %zu are free",
                 &asked, &n_free, &total) == 3 &&
              asked == 100 * MIB && n_free < total && total == 64 * MIB,
          "%s", d->message);
    CHECK(cuda_alloc(d, SIZE_MAX - 5, &a) == KERN_NO_MEMORY, "more than can be counted");
    CHECK(!cuda_alloc(d, 30 * MIB, &a), "%s", d->message);
    cuda_free(d, &a);
    CHECK(!cuda_alloc(d, 40 * MIB, &b), "what is kept goes where another needs it: %s", d->message);
    CHECK(!cuda_alloc(d, 100, &a), "%s", d->message);
    cuda_free(d, &a);
    cuda_free(d, &b);
    void *scratch;
    CHECK(cuda_scratch(d, 100 * MIB, &scratch) == KERN_NO_MEMORY, "scratch too");
    CHECK(!cuda_scratch(d, 100, &scratch), "and then what fits: %s", d->message);
    emulated_close(d);
    emulated_set("LLMLUA_EMULATION_MEMORY", "4096");
    char message[256];
    CHECK(!emulated_try(&(kern_device_options){0}, message, sizeof message) &&
              strstr(message, "out of memory"),
          "a device with next to none: %s", message);
    emulated_set("LLMLUA_EMULATION_MEMORY", NULL);
}

static void test_lost(void) {
    emulated_set("LLMLUA_EMULATION_FAULT", "2");
    kern_device *d = emulated_open(false);
    kern_buffer x;
    float rows[256] = {1};
    CHECK(!cuda_alloc(d, sizeof rows, &x) && !cuda_write(d, &x, 0, rows, sizeof rows), "%s",
          d->message);
    const float *scales;
    CHECK(!cuda_upload(d, rows, sizeof(float), (const void **)&scales), "%s", d->message);
    int code = KERN_OK;
    for (int i = 0; i < 3 && !code; i++) {
        code = cuda_blas_unscale(d, x.data, 1, 256, scales);
        if (!code) code = cuda_read(d, &x, 0, rows, sizeof rows);
    }
    CHECK(code == KERN_DEVICE && strstr(d->message, "illegal"), "a fault: %s", d->message);
    char first[256];
    snprintf(first, sizeof first, "%s", d->message);
    kern_buffer y;
    CHECK(cuda_alloc(d, 64, &y) == KERN_DEVICE && !y.data, "no buffers from then on");
    CHECK(cuda_write(d, &x, 0, rows, 4) == KERN_DEVICE, "no writes");
    CHECK(cuda_read(d, &x, 0, rows, 4) == KERN_DEVICE, "no reads");
    CHECK(cuda_copy(d, &x, 0, &x, 4, 4) == KERN_DEVICE, "no copies");
    CHECK(cuda_launched(d, "another kernel") == KERN_DEVICE, "no launches");
    CHECK(strcmp(d->message, first) == 0, "all say the same: %s", d->message);
    cuda_free(d, &x);
    emulated_close(d);
    emulated_set("LLMLUA_EMULATION_FAULT", NULL);
}

/* Pages smaller and larger than a piece of pinned memory, out of order, there and back to others.
 */
static void test_pages(const char *mode) {
    emulated_set("LLMLUA_EMULATION", mode);
    kern_device *d = emulated_open(false);
    const kern_backend *b = d->backend;
    const kern_kv_shape shapes[] = {{2, 1, 32, 32, KERN_KV_F16}, {72, 8, 128, 128, KERN_KV_F32}};
    for (int i_shape = 0; i_shape < 2; i_shape++) {
        enum { N = 3 };
        const size_t n = b->page_bytes(d, &shapes[i_shape]);
        const int32_t saved[N] = {4, 0, 3}, loaded[N] = {1, 5, 4};
        kern_pages *pages;
        CHECK(!b->pages_open(d, &shapes[i_shape], 6, &pages), "%s", b->last_error(d));
        unsigned char *bytes[N], *got[N], *back = emulated_bytes(n, 0);
        for (int i = 0; i < N; i++) {
            bytes[i] = emulated_bytes(n, 5 + (unsigned)i), got[i] = emulated_bytes(n, 0);
            CHECK(!b->page_reserve(d, pages, saved[i]), "%s", b->last_error(d));
            kern_buffer page = {pages->pages[saved[i]], n};
            CHECK(!b->write(d, &page, 0, bytes[i], n), "%s", b->last_error(d));
        }
        kern_stats before, out, in;
        b->stats(d, &before);
        CHECK(!b->pages_save(d, pages, saved, N, (void *const *)got), "%s", b->last_error(d));
        b->stats(d, &out);
        for (int i = 0; i < N; i++)
            CHECK(memcmp(bytes[i], got[i], n) == 0, "page %d of %zu bytes, saved", i, n);
        CHECK(!b->pages_load(d, pages, loaded, N, (const void *const *)got), "%s",
              b->last_error(d));
        b->stats(d, &in);
        for (int i = 0; i < N; i++) memset(got[i], 0, n); /* they may go */
        CHECK(out.bytes_down - before.bytes_down == N * n && in.bytes_up - out.bytes_up == N * n,
              "bytes are counted");
        CHECK(out.syncs - before.syncs == (N * n - 1) / CUDA_PIECE + 1 && in.syncs == out.syncs,
              "%d waits for %d pages of %zu bytes", (int)(out.syncs - before.syncs), N, n);
        for (int i = 0; i < N; i++) {
            kern_buffer page = {pages->pages[loaded[i]], n};
            CHECK(!b->read(d, &page, 0, back, n) && memcmp(bytes[i], back, n) == 0,
                  "page %d of %zu bytes, loaded", i, n);
            free(bytes[i]), free(got[i]);
        }
        CHECK(!b->pages_save(d, pages, NULL, 0, NULL) && !b->pages_load(d, pages, NULL, 0, NULL),
              "none");
        free(back);
        b->pages_close(d, pages);
    }
    emulated_close(d);
    emulated_set("LLMLUA_EMULATION", NULL);
}

static void refused(const char *name, const char *value, int index, const char *words) {
    char message[256] = "";
    if (name) emulated_set(name, value);
    kern_device *d = emulated_try(&(kern_device_options){.index = index}, message, sizeof message);
    CHECK(!d && strstr(message, words), "%s", message);
    if (d) emulated_close(d);
    if (name) emulated_set(name, NULL);
}

static void test_probe(void) {
    kern_device_info info;
    char message[256] = "";
    int n = 0;
    CHECK(!llmlua_backend()->probe(0, &info, &n, message, sizeof message) && n >= 1, "%s", message);
    CHECK(*info.name && info.bytes >= info.bytes_free && info.bytes_free > 0, "its memory");
    CHECK(info.compute >= 75 && info.driver >= info.runtime && info.runtime > 0, "its versions");
}

/* Several, none, or one that the plug-in does not know. */
static void test_devices(void) {
    char message[256] = "";
    emulated_set("LLMLUA_EMULATION_DEVICES", "2");
    kern_device *d[2];
    for (int i = 0; i < 2; i++)
        d[i] = emulated_try(&(kern_device_options){.index = i}, message, sizeof message);
    CHECK(d[0] && d[1] && strncmp(d[1]->description, "cuda-emulated:1: ", 17) == 0, "%s", message);
    for (int i = 0; i < 4 && d[0] && d[1]; i++) { /* in turns: each on its own device */
        kern_buffer x;
        int got = 0;
        CHECK(!cuda_alloc(d[i % 2], 4, &x) && !cuda_write(d[i % 2], &x, 0, &i, 4) &&
                  !cuda_read(d[i % 2], &x, 0, &got, 4) && got == i,
              "device %d: %s", i % 2, d[i % 2]->message);
    }
    for (int i = 0; i < 2; i++)
        if (d[i]) emulated_close(d[i]);
    refused("LLMLUA_EMULATION_DEVICES", "2", 2, "device index 2: there are 2 devices, 0 … 1");
    refused(NULL, NULL, 1, "device index 1: there is one device, 0");
    refused("LLMLUA_EMULATION_DEVICES", "0", 0, "no GPU is visible");
    refused("LLMLUA_EMULATION_DRIVER", "0", 0, "no NVIDIA driver is installed");
    refused("LLMLUA_EMULATION_DRIVER", "11040", 0,
            "driver is too old: it knows CUDA 11.4, this plug-in needs 13.0");
    refused("LLMLUA_EMULATION_COMPUTE", "61", 0, "compute capability 6.1");
}

int main(void) {
    test_round_trip();
    test_upload();
    test_scratch();
    test_pool();
    test_pages(NULL);
    test_probe();
    if (EMULATED) {
        test_no_memory();
        test_lost();
        test_pages("check,late");
        test_devices();
    }
    return check_end();
}
