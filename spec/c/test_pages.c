/* test_pages.c: what backends with host memory share: buffers, pages, rows of keys and values. */
#include "check.h"
#include "formats.h"
#include "host.h"
#ifdef LLMLUA_FAULTS
#include "memory.h"
#include "tiny_plan.h"
#endif

#include <math.h>
#include <stdlib.h>
#include <string.h>

static kern_device *open_device(void) {
    char message[128] = "";
    kern_device *d = kern_ref.open(&(kern_device_options){.n_threads = 2}, message, sizeof message);
    if (!d) abort();
    return d;
}

static void test_device(void) {
    char message[128] = "";
    CHECK(!kern_ref.open(&(kern_device_options){.n_threads = 100000}, message, sizeof message),
          "a device of 100000 threads");
    kern_device *d = kern_ref.open(&(kern_device_options){0}, message, sizeof message);
    CHECK(d && kern_pool_threads(d->pool) == kern_pool_cores(), "default threads");
    CHECK(strncmp(kern_ref.describe(d), "ref: ", 5) == 0, "describe: %s", kern_ref.describe(d));
    kern_ref.close(d);
    kern_ref.close(NULL);
    CHECK(kern_ref.abi == KERN_ABI && kern_ref.size == sizeof(kern_backend), "abi and size");
    /* every entry of the table is there, but for the reads that need not wait, the list, the
     * measures and the copies of pages of devices of their own */
    const char *first = (const char *)&kern_ref.open, *end = (const char *)(&kern_ref + 1);
    int n_missing = 0;
    for (; first < end; first += sizeof(void *)) {
        void *entry;
        memcpy(&entry, first, sizeof entry);
        n_missing += entry == NULL;
    }
    const int n_optional = !kern_ref.fetch + !kern_ref.fetched + !kern_ref.probe +
                           !kern_ref.measure + !kern_ref.pages_save + !kern_ref.pages_load;
    CHECK(n_missing == n_optional, "%d entries missing, %d may", n_missing, n_optional);
}

static void check_buffers(void) {
    kern_device *d = open_device();
    kern_buffer a, b;
    char text[8] = "";
    CHECK(kern_ref.alloc(d, 8, &a) == KERN_OK && kern_ref.alloc(d, 0, &b) == KERN_OK, "alloc");
    CHECK((uintptr_t)a.data % 64 == 0 && a.bytes == 8, "aligned to 64");
    CHECK(kern_ref.write(d, &a, 2, "abcdef", 6) == KERN_OK, "write");
    CHECK(kern_ref.copy(d, &a, 0, &a, 1, 7) == KERN_OK, "copy that overlaps");
    CHECK(kern_ref.read(d, &a, 1, text, 6) == KERN_OK && memcmp(text, "abcdef", 6) == 0,
          "read: %.6s", text);
    CHECK(kern_ref.write(d, &a, 3, "abcdef", 6) == KERN_DEVICE, "write past the end");
    CHECK(kern_ref.read(d, &a, 9, text, 0) == KERN_DEVICE, "read from past the end");
    CHECK(kern_ref.read(d, &a, SIZE_MAX, text, 2) == KERN_DEVICE, "an offset that overflows");
    CHECK(kern_ref.copy(d, &b, 0, &a, 0, 1) == KERN_DEVICE, "copy into an empty buffer");
    CHECK(kern_ref.read(d, &b, 0, text, 0) == KERN_OK, "read nothing");
    kern_stats stats;
    kern_ref.stats(d, &stats);
    CHECK(stats.bytes_up == 6 && stats.bytes_down == 6 && stats.syncs == 2, "stats");
    kern_buffer c;
    CHECK(kern_ref.alloc(d, SIZE_MAX, &c) == KERN_NO_MEMORY && !c.data, "too large a buffer");
    kern_ref.free(d, &a);
    kern_ref.free(d, &a); /* and once more: nothing */
    kern_ref.free(d, &b);
    kern_ref.close(d);
}

static void check_rows(void) {
    float x[96], y[96];
    unsigned char row[96 * 4 + 1];
    for (int i = 0; i < 96; i++) x[i] = sinf((float)i) * powf(10, (float)(i / 32) - 2);
    static const double tolerance[] = {0, 0x1p-11, 1.0 / 250};
    for (int type = KERN_KV_F32; type <= KERN_KV_Q8_0; type++) {
        host_kv_store((kern_kv)type, x, 96, row + 1);
        host_kv_load((kern_kv)type, row + 1, 96, y);
        double worst = 0;
        for (int i = 0; i < 96; i++) {
            const double size = type == KERN_KV_Q8_0 ? pow(10, i / 32 - 2) : fabs((double)x[i]);
            const double off = fabs((double)(x[i] - y[i])) / size;
            if (off > worst) worst = off; /* fmax: gcc 12.2 for aarch64 breaks down over it */
        }
        CHECK(worst <= tolerance[type], "type %d: off by %.2e", type, worst);
    }
    CHECK(kern_kv_row_bytes(KERN_KV_F32, 64) == 256 && kern_kv_row_bytes(KERN_KV_F16, 64) == 128 &&
              kern_kv_row_bytes(KERN_KV_Q8_0, 64) == 68,
          "bytes a row");
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f};
    for (int i = 0; i < 4; i++) {
        x[40] = odd[i];
        host_kv_store(KERN_KV_Q8_0, x, 96, row);
        host_kv_load(KERN_KV_Q8_0, row, 96, y);
        CHECK(isnan(y[40]) && isfinite(y[31]) && isfinite(y[64]), "q8_0 of %g is %g",
              (double)odd[i], (double)y[40]);
    }
    memset(x, 0, sizeof x);
    x[1] = 1e-30f;
    host_kv_store(KERN_KV_Q8_0, x, 96, row);
    host_kv_load(KERN_KV_Q8_0, row, 96, y);
    CHECK(y[0] == 0 && y[1] == 0, "q8_0 of a tiny number");
}

/* Fills a page by positions, reads it back, copies part of it; every byte is where it should be. */
static void check_pages(kern_kv type) {
    const kern_kv_shape shape = {3, 2, 96, 64, type};
    kern_device *d = open_device();
    kern_pages *pages;
    CHECK(kern_ref.pages_open(d, &shape, 5, &pages) == KERN_OK, "pages");
    const size_t n = kern_ref.position_bytes(&shape);
    CHECK(n == 3 * 2 * (kern_kv_row_bytes(type, 96) + kern_kv_row_bytes(type, 64)),
          "position bytes %zu", n);
    CHECK(kern_ref.page_bytes(NULL, &shape) == n * KERN_PAGE_POSITIONS, "page bytes");
    unsigned char *in = malloc(n), *out = malloc(n);
    if (!in || !out) abort();
    int n_wrong = 0;
    for (int p = 0; p < KERN_PAGE_POSITIONS; p++) {
        for (size_t i = 0; i < n; i++) in[i] = (unsigned char)(i * 7 + (size_t)p * 31);
        n_wrong += kern_ref.page_write(d, pages, 2, p, in) != KERN_OK;
    }
    n_wrong += kern_ref.page_copy(d, pages, 4, 2, 5) != KERN_OK;
    for (int p = 0; p < KERN_PAGE_POSITIONS; p++) {
        for (size_t i = 0; i < n; i++) in[i] = (unsigned char)(i * 7 + (size_t)p * 31);
        n_wrong += kern_ref.page_read(d, pages, 2, p, out) != KERN_OK || memcmp(in, out, n) != 0;
        if (p >= 5) memset(in, 0, n);
        n_wrong += kern_ref.page_read(d, pages, 4, p, out) != KERN_OK || memcmp(in, out, n) != 0;
    }
    CHECK(n_wrong == 0, "kv %d: %d positions wrong", type, n_wrong);
    CHECK((uintptr_t)host_keys(pages, 2, 1, 1) % 64 == 0 &&
              (uintptr_t)host_values(pages, 2, 2, 1) % 64 == 0,
          "heads begin cache lines");
    CHECK(!pages->pages[0] && !pages->pages[3] && pages->pages[4], "memory is taken at first use");
    unsigned char *before = pages->pages[2];
    CHECK(kern_ref.page_reserve(d, pages, 2) == KERN_OK && pages->pages[2] == before,
          "reserved twice");
    kern_ref.pages_close(d, pages);
    kern_ref.pages_close(d, NULL);
    kern_ref.close(d);
    free(in);
    free(out);
}

static void check_shapes(void) {
    kern_device *d = open_device();
    kern_pages *pages;
    const kern_kv_shape odd = {1, 1, 32, 48, KERN_KV_Q8_0};
    CHECK(kern_ref.pages_open(d, &odd, 1, &pages) == KERN_UNSUPPORTED && !pages &&
              strstr(kern_ref.last_error(d), "48"),
          "q8_0 heads of 48: %s", kern_ref.last_error(d));
    const kern_kv_shape huge = {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, KERN_KV_F32};
    CHECK(kern_ref.pages_open(d, &huge, 1, &pages) == KERN_NO_MEMORY && !pages,
          "sizes that overflow");
    CHECK(kern_ref.page_bytes(NULL, &huge) == SIZE_MAX &&
              kern_ref.position_bytes(&huge) == SIZE_MAX,
          "their bytes");
    kern_ref.close(d);
}

#ifdef LLMLUA_FAULTS
/* Opens and closes all there is; 0, or -1 when something could not be had. */
static int open_everything(const tiny_plan *t) {
    const kern_kv_shape shape = {2, N_HEADS_KV, HEAD_DIM, HEAD_DIM_V, KERN_KV_F16};
    char message[128];
    kern_pages *pages = NULL;
    kern_work *work = NULL;
    kern_device *d = kern_ref.open(&(kern_device_options){.n_threads = 2}, message, sizeof message);
    if (!d) return -1;
    int code = kern_ref.pages_open(d, &shape, 4, &pages);
    if (!code) code = kern_ref.page_reserve(d, pages, 3);
    if (!code) code = kern_ref.work_open(d, &t->plan, pages, 8, &work);
    CHECK(code == KERN_OK ||
              (code == KERN_NO_MEMORY && strstr(kern_ref.last_error(d), "out of memory")),
          "code %d: %s", code, kern_ref.last_error(d));
    kern_ref.work_close(d, work);
    kern_ref.pages_close(d, pages);
    kern_ref.close(d);
    return code ? -1 : 0;
}

static void check_faults(void) {
    tiny_plan *t = tiny_open(KERN_F32, 1);
    const int64_t before = kern_alloc_count();
    CHECK(open_everything(t) == 0, "without faults");
    const int64_t n = kern_alloc_count() - before;
    for (int64_t i = 1; i <= n; i++) {
        kern_alloc_fail_at(i);
        CHECK(open_everything(t) == -1, "allocation %d of %d fails unseen", (int)i, (int)n);
    }
    kern_alloc_fail_at(0);
    tiny_close(t);
}
#endif

int main(void) {
#ifdef LLMLUA_FAULTS
    check_faults();
#endif
    test_device();
    check_buffers();
    check_rows();
    for (int type = KERN_KV_F32; type <= KERN_KV_Q8_0; type++) check_pages((kern_kv)type);
    check_shapes();
    return check_end();
}
