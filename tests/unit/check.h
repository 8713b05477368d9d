// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Checks for unit tests. A check that fails prints file and line, and the test goes on. CHECK_DONE
// gives main's exit status.
#ifndef PMALLOC_TESTS_UNIT_CHECK_H
#define PMALLOC_TESTS_UNIT_CHECK_H

#include <stdio.h>
#include <string.h>

// Whether the test is built with the address sanitizer.
#if defined(__SANITIZE_ADDRESS__)
#define ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ASAN 1
#endif
#endif
#ifndef ASAN
#define ASAN 0
#endif

#if ASAN
// Newer sanitizers keep variables elsewhere than on the stack. Tests look at stacks, and run there.
__attribute__((visibility("default"))) const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__asan_default_options(void) {
    return "detect_stack_use_after_return=0";
}
#endif

static int check_failures;

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            check_failures++;                                                                      \
            fprintf(stderr, "%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #cond);               \
        }                                                                                          \
    } while (0)

// For integers, and for pointers after a cast.
#define CHECK_EQ(a, b)                                                                             \
    do {                                                                                           \
        unsigned long long check_a = (unsigned long long)(a), check_b = (unsigned long long)(b);   \
        if (check_a != check_b) {                                                                  \
            check_failures++;                                                                      \
            fprintf(stderr, "%s:%d: CHECK_EQ(%s, %s) failed: %llu (0x%llx) != %llu (0x%llx)\n",    \
                    __FILE__, __LINE__, #a, #b, check_a, check_a, check_b, check_b);               \
        }                                                                                          \
    } while (0)

#define CHECK_STR(a, b)                                                                            \
    do {                                                                                           \
        const char *check_s = (a), *check_t = (b);                                                 \
        if (strcmp(check_s, check_t) != 0) {                                                       \
            check_failures++;                                                                      \
            fprintf(stderr, "%s:%d: CHECK_STR(%s, %s) failed: \"%s\" != \"%s\"\n", __FILE__,       \
                    __LINE__, #a, #b, check_s, check_t);                                           \
        }                                                                                          \
    } while (0)

// The text, for example an error message, contains the part.
#define CHECK_HAS(text, part)                                                                      \
    do {                                                                                           \
        const char *check_s = (text), *check_t = (part);                                           \
        if (strstr(check_s, check_t) == NULL) {                                                    \
            check_failures++;                                                                      \
            fprintf(stderr, "%s:%d: CHECK_HAS failed: no \"%s\" in \"%s\"\n", __FILE__, __LINE__,  \
                    check_t, check_s);                                                             \
        }                                                                                          \
    } while (0)

// Runs `static void test_NAME(void)` and prints its verdict.
#define RUN(name)                                                                                  \
    do {                                                                                           \
        int check_before = check_failures;                                                         \
        test_##name();                                                                             \
        printf("%s %s\n", check_failures == check_before ? "ok" : "FAILED", #name);                \
        fflush(stdout);                                                                            \
    } while (0)

#define CHECK_DONE() (check_failures != 0)

#endif
