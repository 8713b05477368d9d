// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the kernel may refuse to a process that runs already: `exhaust CASE`. Status 0: the program
// saw what it would see with the C library's malloc.
//
//   nothing    No addresses are left, and no data segment. malloc, setenv and pthread_create must
//              say so, and free memory must be used again. Prints how many megabytes there were.
//   addresses  RLIMIT_AS is below what is reserved. Prints how many megabytes there are until
//              malloc returns NULL.
//   lock       Each mapping is locked and unlocked, then all at once. Prints the resident
//              megabytes.
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "exhaust.c:%d: %s does not hold (errno %d)\n", __LINE__, #condition,   \
                    errno);                                                                        \
            _exit(3);                                                                              \
        }                                                                                          \
    } while (0)
#define MIB ((size_t)1 << 20)

struct block {
    struct block *next;
    size_t size;
};

// Allocates as many blocks as there are, and writes the last byte of each.
static size_t take_all(struct block **list, size_t size) {
    struct block *b;
    size_t count = 0;
    errno = 0;
    for (; (b = malloc(size)) != NULL; count++) {
        *b = (struct block){*list, size};
        ((char *)b)[size - 1] |= 0;
        *list = b;
    }
    CHECK(errno == ENOMEM);
    return count;
}

static void drop_all(struct block **list) {
    for (struct block *b; (b = *list) != NULL; free(b)) {
        CHECK(b->size);
        *list = b->next;
    }
}

static void limit_to(int which, size_t bytes) {
    struct rlimit limit = {bytes, bytes};
    CHECK(setrlimit(which, &limit) == 0);
}

// ---- cases --------------------------------------------------------------------------------------

static void *run_thread(void *arg) { return arg; }

static void nothing(void) {
    static char text[10000];
    struct block *list = NULL;
    pthread_t thread;
    memset(text, 'x', sizeof text - 1);
    for (size_t size = (size_t)1 << 46; size >= 4096; size /= 2)
        while (mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) !=
               MAP_FAILED) {
        }
    limit_to(RLIMIT_DATA, 0);
    size_t count = take_all(&list, sizeof(struct block));
    CHECK(malloc(50000) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(setenv("PMTEST_LONG", text, 1) == -1 && errno == ENOMEM);
    CHECK(pthread_create(&thread, NULL, run_thread, NULL) == EAGAIN);
    drop_all(&list);
    size_t again = take_all(&list, sizeof(struct block));
    CHECK(again >= count / 10 * 9);
    drop_all(&list);
    printf("%zu\n", count * sizeof(struct block) / MIB);
}

static void addresses(void) {
    struct block *list = NULL;
    limit_to(RLIMIT_AS, 256 * MIB);
    size_t count = take_all(&list, 100000);
    drop_all(&list);
    CHECK(take_all(&list, 100000) >= count / 10 * 9);
    drop_all(&list);
    printf("%zu\n", count * 100000 / MIB);
}

static size_t resident(void) {
    size_t all = 0, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%zu %zu", &all, &pages) == 2);
    fclose(file);
    return pages * 4096 / MIB;
}

static void lock(void) {
    unsigned long from, to;
    char line[512];
    FILE *file = fopen("/proc/self/maps", "r");
    CHECK(file);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%lx-%lx", &from, &to) == 2) {
            (void)!mlock((void *)from, to - from); // some mappings cannot be locked
            (void)!munlock((void *)from, to - from);
        }
    fclose(file);
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) // locks no more than is in use
        CHECK(errno == ENOMEM || errno == EPERM);
    for (int i = 0; i < 3000; i++) {
        char *p = malloc(5000 + (size_t)i);
        CHECK(p);
        memset(p, 1, 5000);
    }
    printf("%zu\n", resident());
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    free(malloc(100));
    if (strcmp(name, "nothing") == 0)
        nothing();
    else if (strcmp(name, "addresses") == 0)
        addresses();
    else if (strcmp(name, "lock") == 0)
        lock();
    else
        return 2;
    return 0;
}
