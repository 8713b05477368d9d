// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#ifndef PM_TOOLS_PMEM_H
#define PM_TOOLS_PMEM_H

// If the open heap needs cache lines flushed, libpmem does that from now on. It knows more machines
// than the built-in backend. A tool can afford to load the libraries that it needs.
void pmem_use(void);

#endif
