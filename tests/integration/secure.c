// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Prints what a set-user-ID program gets: AT_SECURE, whether PMAlloc is in it, and whether its heap
// is persistent.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

__attribute__((weak)) int pmalloc_is_persistent(void);
int *kept;

int main(void) {
    char *p = malloc(5000);
    if (!p)
        return 1;
    memset(p, 1, 5000);
    printf("secure=%d pmalloc=%d persistent=%d\n", getauxval(AT_SECURE) != 0,
           pmalloc_is_persistent != NULL, pmalloc_is_persistent && pmalloc_is_persistent());
    free(p);
    return 0;
}
