// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Where a module lies that is loaded by dlopen(), and memory that the program maps.
//
//   place MODULE FUNCTION MIB [kill]   allocates so much that stays, then loads the module
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

char *root; // a list: each block begins with a pointer to the one before

int main(int argc, char **argv) {
    size_t blocks = argc >= 4 ? strtoul(argv[3], NULL, 10) : 0;
    for (size_t i = 0; i < blocks; i++) {
        char *p = malloc(1 << 20);
        memcpy(p, &root, sizeof root);
        memset(p + sizeof root, 'p', (1 << 20) - sizeof root);
        root = p;
    }
    void *mapped = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *module = dlopen(argv[1], RTLD_NOW);
    void *at = module ? dlsym(module, argv[2]) : NULL;
    void *later = mmap(NULL, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("%p %p %p\n", mapped, at, later);
    fflush(stdout);
    if (argc == 5)
        raise(SIGKILL);
    return at == NULL;
}
