// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Functions of libraries other than libc, for which this library has names. libc is there for all
// objects of the process. Such a library may be there for some of them alone: a plugin or a Python
// module is loaded with RTLD_LOCAL, and brings what it needs. Several such objects may have
// libraries of their own with the same names (libgomp and LLVM's libomp, whose locks differ). So
// each object gets the function that it would have got without this library, for good.
#ifndef PM_OTHER_LIBRARY_H
#define PM_OTHER_LIBRARY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

// One caller's answer: an object of the process, and what it gets. Stored once, then only read.
struct pm_other_use {
    uintptr_t from, bytes; // where the object lies
    void *function;
    const struct pm_other_use *next;
};

// Of one name. It begins as zeroes, so that a start need not touch it.
struct pm_other {
    _Atomic(void *) global; // for all objects that are not listed
    _Atomic(const struct pm_other_use *) uses;
};

// NULL: no library that is loaded has it.
void *pm_other_find(struct pm_other *o, const char *name, const void *caller);
// The program ends with a line.
_Noreturn void pm_other_missing(const char *name);

// The function for the object that has the code at `caller`. Allocates the first time. Any thread.
// Acquire: what is listed was stored before.
static inline void *pm_other(struct pm_other *o, const char *name, const void *caller) {
    const struct pm_other_use *use = atomic_load_explicit(&o->uses, memory_order_acquire);
    while (use && (uintptr_t)caller - use->from >= use->bytes)
        use = use->next;
    void *function = use ? use->function : atomic_load_explicit(&o->global, memory_order_relaxed);
    return __builtin_expect(function != NULL, 1) ? function : pm_other_find(o, name, caller);
}

#endif
