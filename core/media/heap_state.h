// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the heap is to this process. One word has the state. pm_heap_become() alone changes it. An
// edge that is not drawn here ends the process.
//
//   CLOSED -- pm_heap_open() -------> SHARED
//   SHARED -- pm_heap_release() ----> CLOSED     also if opening fails half way
//   SHARED -- pm_private_enter() ---> PARTED     one side of a fork
//   SHARED -- end.c: part() --------> PARTED     the end of the program, or pmalloc_close()
//   PARTED -- end.c: part() --------> SHARED     it could not part
//   PARTED -- pm_heap_release() ----> PRIVATE
//   CLOSED -- pm_heap_volatile() ---> VOLATILE
//   SHARED -- pm_heap_borrow() -----> BORROWED   it was opened with PM_OPEN_READONLY
//   SHARED -- pm_heap_journal() ----> JOURNALED  PMALLOC_COMMIT, once the heap is recovered
//   JOURNALED -- pm_private_enter() -> PARTED    one side of a fork
//   JOURNALED -- end.c: part() -----> PARTED     the end of the program
//
//   CLOSED    There is no heap.
//   SHARED    The heap is open and this process owns it, or looks at it (PM_OPEN_READONLY).
//   PARTED    What the process stores to its data stays in the process. Lock and metadata are still
//             held: at the end of the program, the thread that parted alone writes the clean close.
//   PRIVATE   The same without lock and metadata: another process may own the heap.
//   VOLATILE  The process never had a heap. Anonymous memory serves it.
//   JOURNALED The heap is open and this process owns it. Its stores stay in the process until
//             a commit brings all of it into the files at once (commit.h).
//   BORROWED  The heap is clean, and other processes may have borrowed it, too. The process's
//             stores stay in it and end with it. New extents lie beyond the end of heap.0.
//
//              lock, descriptors,    the range, from pm_base           a store    allocation
//              superblock, log                                         reaches    stands in
//              and slab headers                                        media      the log
//   CLOSED     no                    nothing, or the last mapping      -          -
//   SHARED     yes                   heap.0, shared                    yes        yes
//   JOURNALED  yes; superblock, log  heap.0, private; what was         at the     yes
//              and headers private   released: anonymous memory        commit
//   PARTED     yes                   heap.0, private; or copied        no         no
//   PRIVATE    no                    heap.0, private; or copied        no         no
//   VOLATILE   no                    anonymous memory                  no         no
//   BORROWED   a shared lock, and    heap.0, private; beyond its       no         no
//              a private superblock  end anonymous memory
//
//   who stores to data        Every thread. In SHARED no thread, if the heap was opened with
//                             PM_OPEN_READONLY.
//   who stores to metadata    SHARED, JOURNALED: the holder of its lock. PARTED: the thread that
//                             parted alone, for the clean close. In other states no thread.
//
// In SHARED the superblock is mapped at once, the other files after pm_heap_map(). A fork that
// gives the child a heap copy (state/heap_copy.h) leaves the child SHARED: with other files, at
// the same addresses. A page of a private mapping of heap.0 shows the file until it is stored to.
// Therefore, in JOURNALED, PARTED, PRIVATE and BORROWED, space is released by mapping fresh memory,
// never by dropping pages. A forked child of a process that has borrowed the heap has borrowed it,
// too: it shares the lock, which lasts for as long as either has the superblock mapped.
//
// The thread that changes the state holds all locks, or no other thread runs, or none can store
// (end.c). Reading the state takes no lock. A thread that holds the extent lock or a bin's lock
// sees one state throughout, unless an end of the program could not wait for the locks.
#ifndef PM_HEAP_STATE_H
#define PM_HEAP_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/machine.h"

enum pm_heap_state {
    PM_HEAP_CLOSED,
    PM_HEAP_SHARED,
    PM_HEAP_JOURNALED,
    PM_HEAP_PARTED,
    PM_HEAP_PRIVATE,
    PM_HEAP_VOLATILE,
    PM_HEAP_BORROWED,
};
#define PM_HEAP_STATES 7

// enum pm_heap_state; written by pm_heap_become() alone.
extern _Atomic uint32_t pm_heap_state_word;

static inline enum pm_heap_state pm_heap_state(void) {
    return (enum pm_heap_state)atomic_load_explicit(&pm_heap_state_word, memory_order_relaxed);
}
// Stores reach the heap's files, at once or with a commit; what is allocated stands in the log.
static inline bool pm_heap_on_media(void) {
    return pm_heap_state() == PM_HEAP_SHARED || pm_heap_state() == PM_HEAP_JOURNALED;
}
// They reach the files with a commit.
static inline bool pm_heap_is_journaled(void) { return pm_heap_state() == PM_HEAP_JOURNALED; }
// The lock is held, by this process alone; descriptors, superblock and metadata are there.
static inline bool pm_heap_is_held(void) {
    return pm_heap_on_media() || pm_heap_state() == PM_HEAP_PARTED;
}

extern const struct pm_machine pm_heap_machine;
// Takes an edge of the drawing. An edge that is not drawn ends the process.
void pm_heap_become(enum pm_heap_state next);

#endif
