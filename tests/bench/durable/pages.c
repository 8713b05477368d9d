// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What commitcost.c measures, as a transaction of libpmemobj: so many words, each in a page of its
// own, evenly spread over a pool, change at once.
//
//   pages run POOL MIB ROUNDS PAGES...     mean microseconds for each number of pages
//   pages check POOL MIB ROUNDS PAGES...   a later run: the last words are there
//
// Unlike commitcost's, the time has the stores in it: the transaction copies each old word first.
#include <libpmemobj.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAGE = 4096 };

static PMEMobjpool *pool;
static char *memory;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static uint64_t *word_at(uint64_t bytes, uint64_t pages, uint64_t i) {
    return (uint64_t *)(void *)(memory + bytes / PAGE * i / pages * PAGE);
}

static uint64_t word_of(uint64_t pages, uint64_t round) { return pages << 16 | round; }

static void change(uint64_t bytes, uint64_t pages, uint64_t round) {
    TX_BEGIN(pool) {
        for (uint64_t i = 0; i < pages; i++) {
            uint64_t *word = word_at(bytes, pages, i);
            pmemobj_tx_add_range_direct(word, sizeof *word);
            *word = word_of(pages, round);
        }
    }
    TX_ONABORT {
        fprintf(stderr, "pages: %s\n", pmemobj_errormsg());
        exit(1);
    }
    TX_END
}

static int open_pool(const char *path, uint64_t bytes, int fresh) {
    pool = fresh ? pmemobj_create(path, "pages", bytes + bytes / 4 + (64u << 20), 0600)
                 : pmemobj_open(path, "pages");
    if (!pool) {
        fprintf(stderr, "pages: %s: %s\n", path, pmemobj_errormsg());
        return -1;
    }
    PMEMoid root = pmemobj_root(pool, sizeof(PMEMoid));
    PMEMoid *block = pmemobj_direct(root);
    if (fresh && pmemobj_alloc(pool, block, bytes, 1, NULL, NULL) != 0)
        return -1;
    memory = pmemobj_direct(*block);
    if (fresh)
        pmemobj_memset_persist(pool, memory, 1, bytes);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 6)
        return 2;
    int fresh = strcmp(argv[1], "run") == 0;
    uint64_t bytes = strtoull(argv[3], NULL, 10) << 20, rounds = strtoull(argv[4], NULL, 10);
    if (open_pool(argv[2], bytes, fresh) != 0)
        return 1;
    for (int i = 5; i < argc; i++) {
        uint64_t pages = strtoull(argv[i], NULL, 10), took = 0;
        for (uint64_t at = 0; !fresh && i == argc - 1 && at < pages; at++)
            if (*word_at(bytes, pages, at) != word_of(pages, rounds))
                return 1;
        for (uint64_t round = 0; fresh && round <= rounds; round++) {
            uint64_t begun = now();
            change(bytes, pages, round);
            took += round ? now() - begun : 0; // the first round warms up
        }
        if (fresh)
            printf("%lu\n", (unsigned long)(took / rounds));
    }
    pmemobj_close(pool);
    return 0;
}
