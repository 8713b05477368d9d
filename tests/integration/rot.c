// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// rot ROUNDS: stores to one page after the other, for a while each, and looks whether all pages
// hold what was stored there last. What was stored is noted outside the heap. "right", or "wrong"
// with the page. Each round takes a millisecond or so.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGES = 64, WORDS = 512, TIMES = 40 };

uint64_t (*pages)[WORDS]; // the root

static uint64_t noted[PAGES];

static void fill(unsigned page, uint64_t value) {
    for (unsigned i = 0; i < WORDS; i++)
        ((volatile uint64_t *)pages[page])[i] = value;
    noted[page] = value;
}

static void look(unsigned page) {
    for (unsigned i = 0; i < WORDS; i++) {
        uint64_t is = ((volatile uint64_t *)pages[page])[i];
        if (is == noted[page])
            continue;
        printf("wrong: page %u, word %u is %lu, not %lu\n", page, i, (unsigned long)is,
               (unsigned long)noted[page]);
        exit(1);
    }
}

int main(int argc, char **argv) {
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
    if (!pages) {
        pages = aligned_alloc(4096, PAGES * sizeof pages[0]);
        memset(pages, 0, PAGES * sizeof pages[0]);
    }
    for (unsigned page = 0; page < PAGES; page++)
        noted[page] = pages[page][0];
    for (uint64_t round = 0; round < rounds; round++) {
        for (unsigned n = 0; n < TIMES; n++)
            fill(round / 16 % PAGES, round * TIMES + n + 1);
        for (unsigned page = 0; page < PAGES; page++)
            look(page);
    }
    puts("right");
    return 0;
}
