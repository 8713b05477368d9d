// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The first run allocates blocks, writes to none of them, and is killed. The second keeps blocks in
// them that nothing else points to.
#include <signal.h>
#include <stdlib.h>

#define BLOCKS 64
#define EACH 10
#define SIZE 4096

struct {
    void **block[BLOCKS];
} * unwritten;

int main(void) {
    if (!unwritten) {
        unwritten = malloc(sizeof *unwritten);
        for (unsigned i = 0; i < BLOCKS; i++)
            unwritten->block[i] = malloc(SIZE);
        raise(SIGKILL);
    }
    for (unsigned i = 0; i < BLOCKS; i++)
        for (unsigned k = 0; k < EACH; k++)
            unwritten->block[i][k * 40] = malloc(2000);
    return 0;
}
