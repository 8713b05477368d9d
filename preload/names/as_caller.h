// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Calls of functions of libc that look at their return address to see who has called. They are to
// see our caller, and yet come back to us.
#ifndef PM_AS_CALLER_H
#define PM_AS_CALLER_H

#include <stdbool.h>

// Whether the dynamic linker would find another file for this caller than for us: by the search
// path of the object that calls, or of one that has loaded it.
bool pm_caller_matters(const char *file, const void *caller);

// A `ret` in the object that has this address, to which such a function can return; NULL: there is
// none that will do.
const void *pm_return_in(const void *caller);

// Calls function(a, b, c), whose return address is that `ret`.
void *pm_call_by_way_of(const void *ret, void *function, long a, long b, long c);

#endif
