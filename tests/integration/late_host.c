// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A program whose data are in a library that it loads in main: late_server.c, as such a one.
//
//   late_host LIBRARY
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    int (*run)(int, char **) = library ? (int (*)(int, char **))dlsym(library, "run_server") : NULL;
    if (!run) {
        fprintf(stderr, "late_host: %s\n", dlerror());
        return 1;
    }
    return run(argc - 1, argv + 1);
}
