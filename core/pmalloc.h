// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMAlloc for programs that cooperate. Ordinary programs need none of this: run them under
// libpmalloc_preload.so with PMALLOC_ROOTS. Linking with -lpmalloc puts malloc and free on the heap as the
// preload does; these functions work the same under either.
#ifndef PMALLOC_H
#define PMALLOC_H

#ifdef __cplusplus
extern "C" {
#endif

#define PMALLOC_ROOT_SLOTS 512

// Stores `p` in root slot `slot`: what `p` reaches survives the process. Durable on return; one atomic 8-byte
// store, so a crash leaves the old or the new pointer. NULL empties the slot. Returns 0, or -1 with errno
// EINVAL (no such slot, or not an address of 48 bits) or ENOTSUP (the heap is volatile). Thread-safe.
int pmalloc_set_root(unsigned slot, void *p);
// The pointer in `slot`; NULL where it is empty, out of range, or the heap is volatile. Thread-safe.
void *pmalloc_get_root(unsigned slot);
// 1 when malloc'd memory survives this process, else 0.
int pmalloc_is_persistent(void);
// Directory of the heap, "" when it is volatile. Owned by the library, valid until exit.
const char *pmalloc_heap_path(void);
// "MAJOR.MINOR.PATCH"
const char *pmalloc_version(void);

#ifdef __cplusplus
}
#endif
#endif
