// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program that keeps addresses of symbols of modules, which it loads in each run. Is killed.
//
//   moved_symbols BYTES [N=MODULE:SYMBOL]...   before, it maps so much memory
//
// -DOPEN=FUNCTION: another library loads them. -DSPACE: dlmopen does.
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void **kept;

#ifdef LEAF
int leaf(int x);
int leaf(int x) { return x * 3; }
#endif

#ifndef OPEN
#define OPEN open_module
static void *open_module(const char *name) {
#ifdef SPACE
    return dlmopen(LM_ID_BASE, name, RTLD_NOW);
#else
    return dlopen(name, RTLD_NOW);
#endif
}
#else
void *OPEN(const char *name);
#endif

static void *found(const char *module, const char *symbol) {
    void *handle = OPEN(module), *at = handle ? dlsym(handle, symbol) : NULL;
    if (!at) {
        puts(dlerror());
        exit(1);
    }
    return at;
}

int main(int argc, char **argv) {
    size_t size = (size_t)atol(argv[1]);
    if (size && mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
        return 1;
    if (!kept)
        kept = calloc(16, sizeof *kept);
    for (int i = 2; i < argc; i++) {
        int number = atoi(argv[i]);
        char *module = strchr(argv[i], '=') + 1, *symbol = strrchr(argv[i], ':');
        *symbol++ = 0;
        void *at = found(module, symbol);
        if (!kept[number])
            kept[number] = at;
        printf("%s %p\n", kept[number] == at ? "right" : "wrong", at);
    }
    fflush(stdout);
    return raise(SIGKILL);
}
