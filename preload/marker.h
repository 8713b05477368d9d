// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// An address of this library. malloc_usable_size() says PM_MARK of it, unless somebody has put other functions in the
// place of these, without the dynamic linker knowing: valgrind.
#ifndef PM_MARKER_H
#define PM_MARKER_H

#define PM_MARK ((size_t)0x706d)
extern char pm_marker[];

#endif
