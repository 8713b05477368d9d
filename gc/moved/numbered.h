// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Names in which compilers put numbers, because the source has none: the lambdas of a function,
// types without a name, statics of one name in several blocks of a function, closures of Rust. The
// number says which one it is in the order of the source. One more before it, and all have others.
//
//   _ZZ4fillvENUliE0_4_FUNEi          the second lambda of fill() with an int (gcc)
//   _ZZ4fillvEN3$_18__invokeEi        clang
//   _ZZ5countiE1n_1                   the third n of count()
//   _ZN1a1b28_$u7b$$u7b$closure$u7d$$u7d$17h...E    a closure of a::b (Rust)
//   __fill_block_invoke_2             a block (clang's -fblocks)
#ifndef PM_NUMBERED_H
#define PM_NUMBERED_H

#include <stdbool.h>
#include <stddef.h>

// How much of the name stands before the first such number, or where one may stand; 0: nowhere.
size_t pm_numbered_head(const char *name);
// Whether two names differ in such numbers alone, or not at all.
bool pm_numbered_alike(const char *a, const char *b);

#endif
