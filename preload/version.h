// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The version, in one place: pmalloc_version(), the tools' --version and manual pages, and, read by
// the Makefile, the library's file name and libpmalloc.pc.
#ifndef PM_VERSION_H
#define PM_VERSION_H

#define PM_VERSION "1.0.0"

#endif
