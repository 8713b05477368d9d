// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// madvise, mprotect, mremap and mseal on the program's own blocks: the answer that anonymous memory
// has, whatever is mapped there. A program that has its blocks from another malloc gets that answer
// from the kernel. Here the kernel would speak of a file, and some of it would be wrong:
//
//   MADV_DONTNEED             the pages are zeroes           the kernel: the bytes stay
//   MADV_FREE                 the same                       EINVAL
//   MADV_WIPEONFORK           a forked child finds zeroes    EINVAL
//   MADV_REMOVE               EINVAL                         zeroes
//   MADV_DONTFORK, _DOFORK    the child's memory alone       it would share the heap
//   MADV_GUARD_INSTALL        zeroes when it is removed      the bytes stay
//   mremap                    zeroes behind the old end      the next block
//   mseal                     the program may not change it  nor might we
//
// Volatile memory is anonymous, and the kernel's to answer for. So is each part of a range that
// lies outside the heap.
#ifndef PM_ADVICE_H
#define PM_ADVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "media/heap.h"

// Whether [at, at + len) reaches into the heap, so that these functions are needed.
static inline bool pm_advice_ours(const void *at, size_t len) {
    uint64_t from = (uint64_t)(uintptr_t)at;
    return from < pm_base + pm_range && from + len > pm_base;
}

// As the system calls. They return a negative error, and store no errno.
long pm_advice_madvise(void *at, size_t len, int advice);
long pm_advice_mprotect(void *at, size_t len, int access, int key); // key -1: mprotect
long pm_advice_mremap(void *from, size_t old, size_t len, int flags, void *to);
long pm_advice_mmap(void *at, size_t len, int access, int flags, int fd, long offset);
long pm_advice_munmap(void *at, size_t len);
long pm_advice_mseal(void *at, size_t len, unsigned long flags);

// In a forked child, once its memory is its own.
void pm_advice_forked(void);

#endif
