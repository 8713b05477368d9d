// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#ifndef PM_TOOLS_PMEM_H
#define PM_TOOLS_PMEM_H

// Where the open heap needs cache lines flushed, from here on libpmem does it: it knows more machines than
// the built-in backend, and a tool can afford the libraries that it brings.
void pmem_use(void);

#endif
