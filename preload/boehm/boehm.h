// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the files of this folder share: the types of gc.h, the lock, the settings, and allocation.
#ifndef PM_BOEHM_H
#define PM_BOEHM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "export.h"

typedef unsigned long gc_word;
typedef void *gc_fn(void *);

// Results of gc.h.
enum { GC_DONE = 0, GC_DUPLICATE = 1, GC_NO_MEMORY = 2, GC_UNIMPLEMENTED = 3, GC_NOT_FOUND = 4 };

// Kinds with fixed numbers (gc_inline.h), and ours.
enum {
    KIND_ATOMIC,
    KIND_NORMAL,
    KIND_UNCOLLECTABLE,
    KIND_ATOMIC_UNCOLLECTABLE,
    KIND_TYPED, // the descriptor is the block's last word
    KIND_GCJ,   // the descriptor is in the table that the first word points to
    KIND_FIRST_FREE,
};

// ---- start, lock --------------------------------------------------------------------------------

extern bool pm_gc_ready;
void pm_gc_start(void);
// Everything below works only after this. Cheap when it has been called before.
static inline void pm_gc_init(void) {
    if (__builtin_expect(!pm_gc_ready, 0))
        pm_gc_start();
}

// The lock of all tables here, GC_call_with_alloc_lock()'s. A thread may take it several times. Who
// waits for it can be held.
void pm_gc_lock(void);
void pm_gc_unlock(void);
bool pm_gc_trylock(void);
bool pm_gc_locked_once(void); // by this thread

// ---- allocation ---------------------------------------------------------------------------------

// NULL, after GC_oom_fn was asked: memory is out. `size` is as the caller has given it.
void *pm_gc_alloc(size_t size, unsigned kind);
void *pm_gc_alloc_aligned(size_t size, size_t align, unsigned kind);
void pm_gc_free(void *p);
// A new kind, whose blocks may die (collectable.h).
unsigned pm_gc_new_kind(gc_word descriptor, bool add_size, bool clear);
// While it is not 0, who frees a block waits for the lock: somebody has a list of blocks. Changes
// with the lock, before the list is made.
extern _Atomic unsigned pm_gc_listing;
// What GC_all_interior_pointers adds to a size.
size_t pm_gc_padded(size_t size);

// ---- collection ---------------------------------------------------------------------------------

#define PM_GC_TICK 32768l
// Bytes that this thread may allocate before pm_gc_tick() has its turn.
extern __thread long pm_gc_budget __attribute__((tls_model("initial-exec")));
// Sweeps, collects, runs finalizers, whatever is due.
void pm_gc_tick(void);
// Collects now. False: `stop` ended it, it is switched off, or threads could not be held.
bool pm_gc_collect(int (*stop)(void));
// Ends the sweep of the last collection.
void pm_gc_sweep_all(void);
// Whether a collection runs, in this thread.
extern bool pm_gc_marking;

struct pm_gc_figures {
    _Atomic uint64_t since;       // bytes allocated since the last collection, but for budgets
    _Atomic uint64_t before;      // and before it
    _Atomic uint64_t freed_since; // by GC_free()
    uint64_t live, dead;          // of the last collection
    uint64_t roots;               // bytes of roots
    uint64_t milliseconds;
    unsigned markers; // that took part in the last collection
};
extern struct pm_gc_figures pm_gc_figures;
uint64_t pm_gc_bytes_since(void);
uint64_t pm_gc_heap_size(void);

// With the world held.
void pm_gc_each_root(void);           // roots.c: what the program has added
void pm_gc_links_clear(bool of_long); // links.c
void pm_gc_links_drop_dead(bool of_long);
void pm_gc_finalizers_mark(void); // finalize.c: what the tables keep alive
void pm_gc_finalizers_find(void); // what is ready
void pm_gc_toggles_ask(void);     // toggle.c: the world runs
void pm_gc_toggles_mark(void);
void pm_gc_toggles_clear(void);
bool pm_gc_root_excluded(uintptr_t at, uintptr_t *end); // roots.c
// With the world running.
void pm_gc_finalizers_due(void);
void pm_gc_finalizer_forget(const void *block);

void pm_gc_warn(const char *format, gc_word arg);
__attribute__((noreturn)) void pm_gc_abort(const char *what);

#endif
