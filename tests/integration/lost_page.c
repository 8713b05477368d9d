// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Fills a page with each letter that it is told, and says what the page had before.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096

char *page;

int main(void) {
    char word[16];
    if (!page && (page = aligned_alloc(PAGE, (size_t)64 * PAGE)) != NULL)
        memset(page, '-', PAGE);
    while (page && scanf("%15s", word) == 1) {
        for (int i = 1; i < PAGE; i++)
            if (page[i] != page[0])
                return 3;
        printf("%c\n", page[0]);
        fflush(stdout);
        memset(page, word[0], PAGE);
    }
    return page == NULL;
}
