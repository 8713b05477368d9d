// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Allocates COUNT objects of SIZE bytes in a global table, then ends by SIGKILL. It leaves a heap
// that is in use.
//   objects COUNT SIZE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void **objects_table;

int main(int argc, char **argv) {
    size_t count = argc == 3 ? strtoul(argv[1], NULL, 10) : 0;
    size_t size = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
    if (count == 0 || size == 0) {
        fprintf(stderr, "usage: objects COUNT SIZE\n");
        return 2;
    }
    objects_table = malloc(count * sizeof *objects_table);
    for (size_t i = 0; i < count; i++) {
        objects_table[i] = malloc(size);
        if (!objects_table[i])
            return 1;
        memset(objects_table[i], 1, size);
    }
    return raise(SIGKILL);
}
