/* kernel_tests.c: all tests of kernels in one program, for machines with a GPU; without a name it
 * lists them. KERNEL_TESTS: X(name) of each; its main is kernels_NAME. */
#include <stdio.h>
#include <string.h>

#define X(name) int kernels_##name(void);
KERNEL_TESTS
#undef X

static const struct {
    const char *name;
    int (*run)(void);
} tests[] = {
#define X(name) {#name, kernels_##name},
    KERNEL_TESTS
#undef X
};

int main(int argc, char **argv) {
    const int n = (int)(sizeof tests / sizeof *tests);
    for (int i = 0; i < n; i++) {
        if (argc < 2)
            puts(tests[i].name);
        else if (strcmp(argv[1], tests[i].name) == 0)
            return tests[i].run();
    }
    if (argc < 2) return 0;
    fprintf(stderr, "there is no test %s\n", argv[1]);
    return 2;
}
