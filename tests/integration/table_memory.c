// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Fills memory with blocks of one size, and prints by how many bytes the process' own memory has
// grown: its private pages of no file, which the heap's are not.
//
//     table_memory SIZE BYTES
#include <stdio.h>
#include <stdlib.h>

static long own_memory(void) {
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long inode = 1;
    long sum = 0, kilobytes;
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long at;
        if (sscanf(line, "%*x-%*x %*s %*x %*x:%*x %lu", &at) == 1)
            inode = at;
        else if (inode == 0 && sscanf(line, "Private_Dirty: %ld kB", &kilobytes) == 1)
            sum += kilobytes * 1024;
    }
    if (maps)
        fclose(maps);
    return sum;
}

int main(int argc, char **argv) {
    size_t size = argc == 3 ? strtoul(argv[1], NULL, 10) : 0;
    if (!size)
        return 2;
    void *volatile first = malloc(size); // the heap, a slab and a thread cache are made
    long before = own_memory();
    for (size_t left = strtoul(argv[2], NULL, 10) / size; left; left--)
        if (!(first = malloc(size)))
            return 1;
    printf("%ld\n", own_memory() - before);
    return 0;
}
