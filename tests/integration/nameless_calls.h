// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Calls of the library that fail, for nameless.c. They lie in a library of their own, because the
// library does not call a program's functions (own_name.c).
#ifndef NAMELESS_CALLS_H
#define NAMELESS_CALLS_H

extern int fail_at, die_at;       // the number of the call that fails, or at which the program dies
extern volatile int interrupt_at; // of the fallocate() that a signal comes before

#endif
