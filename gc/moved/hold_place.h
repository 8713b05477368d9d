// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A library that is loaded while the program runs comes to the place where it lay before, if it is
// the same build and the place is free, and the kernel would put it there. The kernel gives a
// library the highest gap that has room: so for the time of the loading the gaps above the place
// are filled. Words that lead to the library then stay right, and so do values that were computed
// from its addresses.
//
// A library of another build, or one whose place is not free, is kept away from all of it, so that
// words of the two can be told apart.
#ifndef PM_HOLD_PLACE_H
#define PM_HOLD_PLACE_H

#include <stdbool.h>

// For a file that is about to be loaded, by the name that dlopen() gets. False: nothing is known of
// it, or it is loaded already.
bool pm_place_hold(const char *file);
// After pm_place_hold() and the loading.
void pm_place_release(void);

#endif
