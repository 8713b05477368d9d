// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Whether this process is the one that the library's memory speaks of. A child that skips the
// handlers of a fork, made by a system call instruction of the program's own, has a copy of that
// memory. One word tells them apart: the kernel wipes it in every child that has memory of its own,
// and the handlers of a fork set it again, to another value than in each process that it descends
// from. A child of vfork() shares the memory, and so the word.
#ifndef PM_HERE_H
#define PM_HERE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// 0: a child that nobody has seen to. Until pm_here_watch() it is some word that is not 0.
extern _Atomic uint32_t *pm_here_word;
// Sees to such a child. False: a fork is under way, whose handlers do that.
extern bool (*pm_here_lost)(void);

static inline bool pm_is_here(void) {
    return __builtin_expect(atomic_load_explicit(pm_here_word, memory_order_relaxed) != 0, 1);
}

// This process by that word, for which the kernel is not asked. 0: it is not watched, or this is a
// child that nobody has seen to.
uint32_t pm_here_number(void);

// From here on it is this word, which the kernel wipes in children.
void pm_here_watch(_Atomic uint32_t *word, bool (*lost)(void));
// In a child that is seen to.
void pm_here_mark(void);

#endif
