/* test_gguf.c: the GGUF loader on right and wrong files made here.
 *
 *   test_gguf [FILE.gguf…]    the files named are opened too, and all their tensors looked up
 */
#include "../../core/error.h"
#include "../../core/gguf.h"
#include "../../kernels/memory.h"
#include "hostile_files.h"

#include <sys/resource.h>
#include <unistd.h>

static int n_passed, n_failed;

static void check(bool ok, const char *what) {
    if (ok)
        n_passed++;
    else
        n_failed++;
    if (!ok) printf("FAILED: %s\n", what);
}

static bool one_line(const char *message) {
    for (; *message; message++)
        if ((unsigned char)*message < ' ') return false;
    return true;
}

static void test_hostile(const hostile_file *h) {
    gguf_writer w = {0};
    llm_error err = {0};
    h->build(&w);
    char *exact = malloc(w.n ? w.n : 1); /* so that a byte too far is found by the sanitizer */
    if (!exact) abort();
    if (w.n) memcpy(exact, w.data, w.n);
    gguf_file *file = gguf_open_memory(exact, w.n, "file.gguf", &err);
    bool ok = h->expected
                  ? !file && strstr(err.message, h->expected) &&
                        strncmp(err.message, "file.gguf: ", 11) == 0 && one_line(err.message)
                  : file != NULL;
    check(ok, h->name);
    if (!ok) printf("  expected \"%s\"\n  got      \"%s\"\n", h->expected, err.message);
    gguf_close(file);
    free(exact);
    writer_free(&w);
}

/* Cut anywhere and with any byte changed, a file opens or is refused in one line. */
static void test_damage(void) {
    gguf_writer w;
    build_right(&w);
    size_t n_opened = 0;
    bool lines = true;
    for (size_t n = 0; n <= w.n; n++) {
        llm_error err = {0};
        char *cut = malloc(n ? n : 1);
        if (!cut) abort();
        memcpy(cut, w.data, n);
        gguf_file *file = gguf_open_memory(cut, n, "cut", &err);
        if (file)
            n_opened++;
        else
            lines = lines && one_line(err.message) && *err.message;
        gguf_close(file);
        free(cut);
    }
    check(n_opened == 1, "a file cut anywhere is refused");
    for (size_t i = 0; i < w.n; i++)
        for (int bit = 0; bit < 8; bit++) {
            llm_error err = {0};
            w.data[i] ^= (char)(1 << bit);
            gguf_file *file = gguf_open_memory(w.data, w.n, "damaged", &err);
            if (!file) lines = lines && one_line(err.message) && *err.message;
            gguf_close(file);
            w.data[i] ^= (char)(1 << bit);
        }
    check(lines, "every refusal is one line");
    writer_free(&w);
}

static void test_values(const gguf_file *file) {
    llm_error err;
    gguf_string s = {0};
    bool yes = false;
    int64_t i = 42, three[3];
    double x = 0;
    const gguf_value *array;
    check(gguf_get_string(file, "general.architecture", &s, &err) == 1 && s.n == 5 &&
              memcmp(s.data, "llama", 5) == 0,
          "a string");
    check(gguf_get_bool(file, "a.bool", &yes, &err) == 1 && yes, "a bool");
    check(gguf_get_int(file, "no.such", 0, 9, &i, &err) == 0 && i == 42, "a default stays");
    check(gguf_get_int(file, "a.uint8", 0, 255, &i, &err) == 1 && i == 200, "a uint8");
    check(gguf_get_int(file, "a.int8", -9, 9, &i, &err) == 1 && i == -3, "an int8");
    check(gguf_get_int(file, "a.uint16", 0, 70000, &i, &err) == 1 && i == 60000, "a uint16");
    check(gguf_get_int(file, "a.int16", -400, 0, &i, &err) == 1 && i == -300, "an int16");
    check(gguf_get_int(file, "a.int32", INT32_MIN, 0, &i, &err) == 1 && i == -70000, "an int32");
    check(gguf_get_int(file, "a.int64", INT64_MIN, 0, &i, &err) == 1 && i == -5000000000,
          "an int64");
    check(gguf_get_int(file, "a.uint64", 0, 100, &i, &err) == -1 && i == -5000000000 &&
              strstr(err.message, "9223372036854775807, 0 to 100 expected"),
          "a value outside the range is refused with both");
    check(gguf_get_float(file, "a.float32", 0, 1, &x, &err) == 1 && x == 0.5, "a float32");
    check(gguf_get_float(file, "a.float64", 0, 1, &x, &err) == 1 && x == 0.25, "a float64");
    check(gguf_get_float(file, "a.int8", -10, 1, &x, &err) == 1 && x == -3, "an int as a float");
    check(gguf_get_int(file, "a.float32", 0, 1, &i, &err) == -1 &&
              strstr(err.message, "a.float32 is a value of type float32, an integer expected"),
          "a float is no int");
    check(gguf_get_ints(file, "a.ints", -9, 9, three, 3, &err) == 1 && three[1] == -2, "ints");
    check(gguf_get_ints(file, "a.int8", -9, 9, three, 3, &err) == 1 && three[2] == -3,
          "one int for all");
    check(gguf_get_ints(file, "a.ints", -9, 9, three, 4, &err) == -1, "too few ints");
    check(gguf_get_array(file, "a.floats", GGUF_FLOAT32, &array, &err) == 1 && array->n == 2 &&
              gguf_item_float(array, 1) == -2.5,
          "floats");
    check(gguf_get_array(file, "a.ints", GGUF_STRING, &array, &err) == -1 && !array,
          "an array of another type is refused");
    check(gguf_get_array(file, "a.none", GGUF_INT32, &array, &err) == 1 && array->n == 0,
          "an empty array");
    gguf_get_array(file, "a.strings", GGUF_STRING, &array, &err);
    const char *at = array->data;
    check(gguf_next_string(&at).n == 3 && gguf_next_string(&at).n == 0 &&
              memcmp(gguf_next_string(&at).data, "three", 5) == 0,
          "strings in order");
    check(gguf_missing(file, "a.b", &err) == -1 && strstr(err.message, "a.b is missing"),
          "missing");
}

static void test_right(void) {
    gguf_writer w;
    build_right(&w);
    gguf_file *file = gguf_open_memory(w.data, w.n, "right", NULL);
    check(file != NULL, "a right file opens");
    if (file) {
        test_values(file);
        const gguf_tensor *x = gguf_tensor_find(file, "x"), *q = gguf_tensor_find(file, "q");
        check(x && x->n_dims == 2 && x->dims[0] == 4 && x->dims[1] == 3 && x->dims[2] == 1 &&
                  x->bytes == 48 && x->format->id == KERN_F32,
              "a tensor's shape and size");
        check(q && q->bytes == 68 && (const char *)q->data == (const char *)x->data + 64,
              "a block tensor's size and place");
        check(gguf_tensor_find(file, "none") == NULL && gguf_n_tensors(file) == 2, "two tensors");
        uint64_t a[2], b[2];
        gguf_hash(file, NULL, a);
        w.data[w.n - 1] ^= 1;
        gguf_hash(file, NULL, b);
        check(a[0] != b[0] && a[1] != b[1], "the hash sees every byte");
    }
    gguf_close(file);
    check(!gguf_open_memory(w.data + 1, w.n - 1, "odd", NULL), "misaligned memory is refused");
    writer_free(&w);
}

static void test_paths(void) {
    llm_error err;
    check(!gguf_open("/", &err) && strstr(err.message, "is a directory"), "a directory");
    check(!gguf_open("/no/such/file", &err) && strstr(err.message, "cannot open"), "no file");
    check(!gguf_open("/dev/null", &err) && strstr(err.message, "not a regular file"), "a device");
    char path[] = "/tmp/test_gguf_XXXXXX";
    int fd = mkstemp(path);
    check(fd >= 0 && !gguf_open(path, &err) && strstr(err.message, "is empty"), "an empty file");
    gguf_writer w;
    build_right(&w);
    check(write(fd, w.data, w.n) == (ssize_t)w.n, "written");
    gguf_file *file = gguf_open(path, &err);
    check(file && gguf_n_values(file) == 16 && strcmp(gguf_name(file), path) == 0, "a mapped file");
    gguf_close(file);
    writer_free(&w);
    close(fd);
    unlink(path);
}

static void test_faults(void) {
#ifdef LLMLUA_FAULTS
    gguf_writer w;
    build_right(&w);
    for (int64_t n = 1;; n++) {
        llm_error err = {0};
        kern_alloc_fail_at(n);
        gguf_file *file = gguf_open_memory(w.data, w.n, "right", &err);
        kern_alloc_fail_at(0);
        gguf_close(file);
        if (file) {
            check(n > 5, "allocations were made to fail");
            break;
        }
        check(err.kind == LLM_OUT_OF_MEMORY, "a failed allocation is reported as such");
    }
    writer_free(&w);
#endif
}

static void test_file(const char *path) {
    llm_error err = {0};
    gguf_file *file = gguf_open(path, &err);
    check(file != NULL, path);
    if (!file) printf("  %s\n", err.message);
    for (size_t i = 0; file && i < gguf_n_tensors(file); i++) {
        const gguf_tensor *t = gguf_tensor_at(file, i);
        char name[65] = {0};
        memcpy(name, t->name.data, t->name.n);
        check(gguf_tensor_find(file, name) == t, name);
    }
    gguf_close(file);
}

int main(int argc, char **argv) {
    for (int i = 0; i < N_HOSTILE_FILES; i++) test_hostile(&hostile_files[i]);
    test_damage();
    test_right();
    test_paths();
    test_faults();
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    check(usage.ru_maxrss < 200 << 10, "no large allocation was made for a small file");
    for (int i = 1; i < argc; i++) test_file(argv[i]);
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed != 0;
}
