// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// An address in this library for which our malloc_usable_size() says PM_MARK. If it says something
// else, another function stands in its place, and the dynamic linker does not know: valgrind does
// that.
#ifndef PM_MARKER_H
#define PM_MARKER_H

#define PM_MARK ((size_t)0x706d)
extern char pm_marker[];

#endif
