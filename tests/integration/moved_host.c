// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program that keeps pointers into a module, which it loads in each run. Is killed.
//
//   moved_host MODULE [BYTES]      before, it maps so much memory, and keeps where it is
//   moved_host MODULE BYTES PLACE  it maps it at that place
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef int call_fn(int);
struct kept {
    call_fn *call;
    int *state;
    const char *name;
    call_fn *own; // of the program
    void *mapped; // NULL at the end of a run
};
struct kept *kept;

static int own(int x) { return x + 7; }

static void *symbol(void *module, const char *name) {
    void *found = dlsym(module, name);
    if (!found) {
        puts(dlerror());
        exit(1);
    }
    return found;
}

static void *map(int argc, char **argv) {
    void *at = argc > 3 ? (void *)strtoul(argv[3], NULL, 16) : NULL;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
    size_t size = argc > 2 ? (size_t)atol(argv[2]) : 0;
    return size ? mmap(at, size, PROT_READ, flags, -1, 0) : NULL;
}

int main(int argc, char **argv) {
    void *mapped = map(argc, argv);
    if (argc > 3)
        mapped = NULL;
    if (kept)
        kept->mapped = mapped;
    void *module = dlopen(argv[1], RTLD_NOW);
    if (!module) {
        puts(dlerror());
        return 1;
    }
    call_fn *(*get)(void);
    int *(*state)(void);
    const char *(*name)(void);
    *(void **)&get = symbol(module, "module_get");
    *(void **)&state = symbol(module, "module_state");
    *(void **)&name = symbol(module, "module_name");
    if (!kept) {
        struct kept *k = malloc(sizeof *k);
        *k = (struct kept){get(), state(), name(), own, mapped};
        kept = k;
    }
    int right = kept->call == get() && kept->state == state() && kept->own == own &&
                kept->mapped == mapped && strcmp(kept->name, name()) == 0;
    kept->mapped = NULL;
    printf("%s %d at %p\n", right ? "right" : "wrong", kept->call(1) + kept->own(1),
           (void *)kept->state);
    fflush(stdout);
    return raise(SIGKILL);
}
