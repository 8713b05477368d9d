// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// libgccpp: C++'s operators give blocks that are roots and are never collected, which is what
// malloc() gives in this library. delete must also take a block that is the collector's.
#include <stdlib.h>

#include "boehm.h"
#include "process/entry.h"

// libstdc++ has it, in every program that calls `new`.
extern __attribute__((noreturn, weak)) void _ZSt17__throw_bad_allocv(void);

// GC_throw_bad_alloc()
EXPORT void _Z18GC_throw_bad_allocv(void) {
    if (_ZSt17__throw_bad_allocv)
        _ZSt17__throw_bad_allocv();
    pm_gc_abort("out of memory");
}

static void *make(size_t size) {
    void *p = pm_malloc(size);
    if (!p)
        _Z18GC_throw_bad_allocv();
    return p;
}

EXPORT void *_Znwm(size_t size) { return make(size); }
EXPORT void *_Znam(size_t size) { return make(size); }
EXPORT void _ZdlPv(void *p) { pm_gc_free(p); }
EXPORT void _ZdaPv(void *p) { pm_gc_free(p); }
EXPORT void _ZdlPvm(void *p, size_t size) {
    (void)size;
    pm_gc_free(p);
}
EXPORT void _ZdaPvm(void *p, size_t size) {
    (void)size;
    pm_gc_free(p);
}
