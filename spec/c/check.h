/* check.h: counts checks of a C test. A test's last line is "N passed, N failed". */
#ifndef SPEC_CHECK_H
#define SPEC_CHECK_H

#include <stdio.h>
#include <stdlib.h>

static int n_passed, n_failed;

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (condition) {                                                                           \
            n_passed++;                                                                            \
        } else {                                                                                   \
            n_failed++;                                                                            \
            printf("%s:%d: ", __FILE__, __LINE__);                                                 \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
        }                                                                                          \
    } while (0)

/* LLMLUA_TEST_DEVICE of the environment, which takes the place of all devices of a test, or this. */
static inline const char *check_device(const char *otherwise) {
    const char *name = getenv("LLMLUA_TEST_DEVICE");
    return name && *name ? name : otherwise;
}

/* The exit code of main. */
static inline int check_end(void) {
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed != 0;
}

#endif
