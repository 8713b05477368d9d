// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A static of a C++ function is constructed after main has begun, when the function is first
// called. So its destructor runs before the end of the program (preload/process/end.c) and would
// leave an empty object in the heap. If the object is a root, its destructor is postponed until
// after the end, where the destructors of globals run, too.
//
// Destructors of globals are registered before main, so libc runs them after the end. But when
// exit() is called again during the end, libc goes on with the next of them at once. So each has a
// gate: it first waits for the end. A library that is unloaded runs its destructors while the
// program goes on. These pass without the gate.
#include "statics.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "export.h"
#include "media/format.h"
#include "process/open.h"
#include "state/phase.h"

typedef void destructor(void *object);
typedef int register_fn(destructor *, void *object, void *dso);
typedef void finalize_fn(void *dso);

struct registered {
    destructor *run;
    void *object;
};

static struct registered held[PM_ROOT_MAX];
static _Atomic unsigned held_count;

// Pages of this array that nobody uses take no memory. A destructor that finds the array full has
// no gate.
static struct registered gated[1 << 16];
static _Atomic unsigned gated_count;
static void (*end_gate)(void); // set at load, before anything can be registered
static __thread uint8_t unloading;

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static struct registered *add(struct registered *list, size_t size, _Atomic unsigned *count,
                              destructor *run, void *object) {
    unsigned at = atomic_load_explicit(count, memory_order_relaxed);
    do
        if (at >= size)
            return NULL;
    while (!atomic_compare_exchange_weak_explicit(count, &at, at + 1, memory_order_relaxed,
                                                  memory_order_relaxed));
    list[at].object = object;
    list[at].run = run;
    return &list[at];
}

static void run_gated(void *arg) {
    const struct registered *r = arg;
    if (!unloading)
        end_gate();
    r->run(r->object);
}

EXPORT register_fn __cxa_atexit;
EXPORT int __cxa_atexit(destructor *run, void *object, void *dso) {
    static register_fn *_Atomic next;
    if (object && pm_process_is_root(object) && add(held, COUNT(held), &held_count, run, object))
        return 0;
    register_fn *real = atomic_load_explicit(&next, memory_order_relaxed);
    if (!real) {
        *(void **)&real = dlsym(RTLD_NEXT, "__cxa_atexit");
        atomic_store_explicit(&next, real, memory_order_relaxed);
    }
    struct registered *gate = NULL;
    if (!pm_phase_main_runs())
        gate = add(gated, COUNT(gated), &gated_count, run, object);
    if (!real)
        return -1;
    return gate ? real(run_gated, gate, dso) : real(run, object, dso);
}

// Each library calls this when it is unloaded, and at the end of the process.
EXPORT finalize_fn __cxa_finalize;
EXPORT void __cxa_finalize(void *dso) {
    finalize_fn *real;
    *(void **)&real = dlsym(RTLD_NEXT, "__cxa_finalize");
    unloading++;
    if (real)
        real(dso);
    unloading--;
}

void pm_statics_init(void (*gate)(void)) { end_gate = gate; }

void pm_statics_destroy(void) {
    unsigned count = atomic_load_explicit(&held_count, memory_order_relaxed);
    while (count--)
        if (held[count].run)
            held[count].run(held[count].object);
}
