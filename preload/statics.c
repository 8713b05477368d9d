// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A static of a C++ function is constructed in main, when the function is first called, so its destructor comes before
// the end of the program (core/runtime_exit.c) and would leave an empty object in the heap. Where such an object is a
// root, its destructor is held back until behind the end, where those of globals run, too.
#include "statics.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

#include "runtime.h"

#define EXPORT __attribute__((visibility("default")))

typedef void destructor(void *object);
typedef int register_fn(destructor *, void *object, void *dso);

static struct {
    destructor *run;
    void *object;
} held[256]; // no more roots than that
static _Atomic unsigned held_count;

EXPORT register_fn __cxa_atexit;
EXPORT int __cxa_atexit(destructor *run, void *object, void *dso) {
    static register_fn *_Atomic next;
    if (object && pm_runtime_is_root(object)) {
        unsigned at = atomic_fetch_add_explicit(&held_count, 1, memory_order_relaxed);
        if (at < sizeof held / sizeof held[0]) {
            held[at].object = object;
            held[at].run = run;
            return 0;
        }
    }
    register_fn *real = atomic_load_explicit(&next, memory_order_relaxed);
    if (!real) {
        *(void **)&real = dlsym(RTLD_NEXT, "__cxa_atexit");
        atomic_store_explicit(&next, real, memory_order_relaxed);
    }
    return real ? real(run, object, dso) : -1;
}

void pm_statics_destroy(void) {
    unsigned count = atomic_load_explicit(&held_count, memory_order_relaxed);
    if (count > sizeof held / sizeof held[0])
        count = sizeof held / sizeof held[0];
    while (count--)
        if (held[count].run)
            held[count].run(held[count].object);
}
