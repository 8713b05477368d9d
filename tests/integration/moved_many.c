// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program that loads several modules, and keeps a pointer into each of the first half. Is killed.
//
//   moved_many MODULE...
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

typedef int call_fn(int);
call_fn **kept;

int main(int argc, char **argv) {
    int right = 0, old = kept != NULL;
    if (!old)
        kept = calloc((size_t)argc, sizeof *kept);
    for (int i = 1; i < argc; i++) {
        void *module = dlopen(argv[i], RTLD_NOW);
        if (!module) {
            puts(dlerror());
            return 1;
        }
        call_fn *call;
        *(void **)&call = dlsym(module, "module_call");
        if (!old && i <= argc / 2)
            kept[i] = call;
        right += kept[i] == call;
    }
    printf("%d right\n", right);
    fflush(stdout);
    return raise(SIGKILL);
}
