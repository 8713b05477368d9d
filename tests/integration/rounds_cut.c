// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// rounds_cut fork|end   stores to 128 MiB of pages, and waits until a commit has begun to write
//                       them. Then it forks, and says how long its journal is before fork() and
//                       after it; or it says how long its journal is, and ends. When it is
//                       started once more: how many pages are wrong
#include <stdint.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "holds.h"

enum { PAGE = 4096, PAGES = 128 << 8 };
char *pages; // the root

static long long journal(void) {
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/journal", getenv("PMALLOC_HEAP"));
    return stat(path, &st) == 0 ? (long long)st.st_size : 0;
}

static volatile uint64_t *word_of(uint64_t page) { return (void *)(pages + page * PAGE); }

static int check(void) {
    int wrong = 0;
    for (uint64_t page = 0; page < PAGES; page++)
        wrong += *word_of(page) != page + 1;
    printf("%d\n", wrong);
    return 0;
}

static void give_birth(void) {
    long long before = journal();
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    printf("%lld %lld\n", before, journal());
    REQUIRE(waitpid(child, NULL, 0) == child);
}

int main(int argc, char **argv) {
    if (pages)
        return check();
    REQUIRE(argc == 2 && (pages = calloc(PAGES, PAGE)) != NULL);
    for (uint64_t page = 0; page < PAGES; page++)
        *word_of(page) = page + 1;
    double end = now() + 20;
    while (journal() < 4 << 20)
        REQUIRE(now() < end);
    if (strcmp(argv[1], "fork") == 0)
        give_birth();
    else
        printf("%lld\n", journal());
    return 0;
}
