// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What pmalloc-run does about types before it starts a program: another build than the heap's must
// have the same ones.
#ifndef PM_TOOLS_TYPE_CHECK_H
#define PM_TOOLS_TYPE_CHECK_H

#include <stdbool.h>

#include "base/message.h"

// `program`: its path; the heap and the roots are those of pm_options. `ignore`: what differs is
// said, and the program may start. Writes the new build's table into the heap, or, for a heap that
// is not there yet, into its directory, which it makes. On failure nothing was changed. What it
// cannot find out is no failure.
int type_check(const char *program, bool ignore, struct pm_error *err);

#endif
