// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMAlloc for programs that cooperate. Ordinary programs need none of this: run them under
// libpmalloc_preload.so with PMALLOC_ROOTS. Linking with -lpmalloc puts malloc and free on the heap
// as the preload does; these functions work the same under either.
#ifndef PM_PMALLOC_H
#define PM_PMALLOC_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PMALLOC_ROOT_SLOTS 512

// Stores `p` in root slot `slot`. What `p` reaches survives the process. The store is one atomic
// store of 8 bytes and durable on return, so a crash leaves the old pointer or the new one. NULL
// empties the slot. Returns 0, or -1 with errno EINVAL (no such slot, or not an address of 48 bits)
// or ENOTSUP (the heap is volatile). Under PMALLOC_OPEN=private it is for this process alone.
// Thread-safe.
int pmalloc_set_root(unsigned slot, void *p);
// The pointer in `slot`. NULL if the slot is empty or out of range, or if the heap is volatile.
// Thread-safe.
void *pmalloc_get_root(unsigned slot);
// 1 when malloc'd memory survives this process, else 0.
int pmalloc_is_persistent(void);
// Directory of the heap, "" when it is volatile. Owned by the library, valid until exit.
const char *pmalloc_heap_path(void);
// A number that grows with each opening of the heap for writing, so no earlier process had it. 0
// when the heap is volatile. A forked child keeps the number of its parent. Use it for locks of
// your own: store it in the lock when you take the lock, and treat a lock that holds another number
// as free.
uint64_t pmalloc_generation(void);
// Makes a commit: on return a kill or a power failure goes back to this instant, or to a later
// commit. Needs PMALLOC_COMMIT. Returns 0, or -1 with errno: ENOTSUP without PMALLOC_COMMIT, ENOSPC
// and others from the file system, EAGAIN if a thread could not be held. Then the last commit
// stands, and the call may be repeated. Thread-safe; waits for a commit that is being made.
int pmalloc_commit(void);
// "MAJOR.MINOR.PATCH"
const char *pmalloc_version(void);

#ifdef __cplusplus
}
#endif
#endif
