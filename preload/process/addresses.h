// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The addresses of the program and its libraries are kept from run to run: words of the heap lead
// into these, and values are computed from them. With address randomisation on, a start executes
// the program once more with it off, before anything of the program has run. Arguments,
// environment and descriptors stay as they are. The process gets its personality(2) back then, so
// the programs that it executes are randomised as before.
#ifndef PM_ADDRESSES_H
#define PM_ADDRESSES_H

#include <stdbool.h>

// Finds out how this process was started, and ends what an earlier pm_addresses_keep() has left.
// `again`: whether it is early enough to execute the program again.
void pm_addresses_begin(bool again);
// Whether the addresses are random, and pm_addresses_keep() was not tried.
bool pm_addresses_may_be_kept(void);
// Executes the program again. Returns only if that is not possible. Nothing may be open that the
// program must not see, or is not close-on-exec.
void pm_addresses_keep(void);
// What became of them, for the line at the start.
const char *pm_addresses_text(void);

#endif
