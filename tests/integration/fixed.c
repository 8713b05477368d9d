// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program for heaps on a fixed medium: `fixed CASE`. What it builds hangs on `kept`.
//
//   zeroes   Blocks of all sizes are filled and freed; calloc gives zeroes for the same space.
//            Again and again, so that freed space comes back in other sizes.
//   later    Zeroes of calloc are still there when commits have been made.
//   fill     Allocates until there is nothing left, then checks every byte that it got. Prints how
//            many MiB there were.
//   thin     Frees every second block of those.
//   check    Checks what `fill` has left.
//   more     The same, and then gets 300 MB that the medium does not have.
//   child    The same in a forked child. The parent, which has the heap, gets none.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct block {
    struct block *next;
    size_t size, seed;
};
struct block *kept;

static void fail(const char *what) {
    fprintf(stderr, "fixed: %s\n", what);
    exit(3);
}

static char byte_of(const struct block *b, size_t at) { return (char)(b->seed * 31 + at); }

static size_t random_size(unsigned *seed) {
    *seed = *seed * 1103515245 + 12345;
    size_t shift = *seed >> 16 & 15;
    *seed = *seed * 1103515245 + 12345;
    return ((size_t)64 << shift) + (*seed >> 16 & 63);
}

// ---- zeroes -------------------------------------------------------------------------------------

enum { BLOCKS = 64 };

static void check_zeroes(const char *p, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (p[i])
            fail("calloc has given a byte that is not zero");
}

static void zeroes(void) {
    char *held[BLOCKS] = {NULL};
    unsigned seed = 7;
    for (int round = 0; round < 1200; round++) {
        char **place = &held[seed >> 8 & (BLOCKS - 1)];
        size_t size = random_size(&seed);
        free(*place);
        *place = calloc(1, size);
        if (!*place)
            continue;
        check_zeroes(*place, size);
        memset(*place, 0xff, size);
    }
    for (int i = 0; i < BLOCKS; i++)
        free(held[i]);
}

int pmalloc_commit(void) __attribute__((weak));

// So large that the heap grows for it. The first commit after that has to keep zeroes that the
// medium does not have, the second one gives them back.
static void zeroes_later(void) {
    enum { SIZE = 24 << 20 };
    for (int i = 0; i < 3; i++) {
        char *p = calloc(1, SIZE);
        if (!p)
            fail("no memory");
        for (int commits = 0; commits < 2; commits++) {
            if (pmalloc_commit() != 0)
                fail("no commit");
            check_zeroes(p, SIZE);
        }
    }
}

// ---- fill and check -----------------------------------------------------------------------------

static size_t check(void) {
    size_t sum = 0;
    for (const struct block *b = kept; b; b = b->next) {
        for (size_t at = sizeof *b; at < b->size; at++)
            if (((const char *)b)[at] != byte_of(b, at))
                fail("a block has changed");
        sum += b->size;
    }
    return sum;
}

static void fill(void) {
    unsigned seed = 3;
    for (size_t size = 3 << 20; size >= 64;) {
        size_t wanted = size > 4096 ? size : random_size(&seed) % 4096 + sizeof(struct block);
        struct block *b = malloc(wanted);
        if (!b && errno != ENOMEM)
            fail("malloc has failed without ENOMEM");
        if (!b) {
            size /= 2;
            continue;
        }
        *b = (struct block){kept, wanted, (size_t)seed + wanted};
        for (size_t at = sizeof *b; at < wanted; at++)
            ((char *)b)[at] = byte_of(b, at);
        kept = b;
    }
}

static void thin(void) {
    for (struct block *b = kept; b && b->next; b = b->next) {
        struct block *gone = b->next;
        b->next = gone->next;
        free(gone);
    }
}

static void *get_more(void) {
    const size_t size = (size_t)300 << 20;
    char *p = malloc(size);
    for (size_t at = 0; p && at < size; at += 4096)
        p[at] = 1;
    return p;
}

static void child(void) {
    pid_t pid = fork();
    if (pid == 0) {
        check();
        _exit(get_more() ? 0 : 1);
    }
    int status = 1;
    if (waitpid(pid, &status, 0) != pid || status != 0)
        fail("the child has no memory of its own");
    if (get_more())
        fail("the parent has more than the medium");
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "zeroes") == 0)
        zeroes();
    else if (strcmp(what, "later") == 0)
        zeroes_later();
    else if (strcmp(what, "fill") == 0)
        fill();
    else if (strcmp(what, "thin") == 0)
        thin();
    else if (strcmp(what, "more") == 0 && !get_more())
        fail("no memory beside the medium");
    else if (strcmp(what, "child") == 0)
        child();
    else if (strcmp(what, "check") != 0 && strcmp(what, "more") != 0)
        return 2;
    printf("%zu MiB\n", check() >> 20);
    return 0;
}
