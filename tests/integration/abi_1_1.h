// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What programs that were linked with libpmalloc.so.0 and PMALLOC_1.1 rely on, beside abi_1_0.h.
// Nothing here changes (test_libc_contract.py).
int pmalloc_open(const char *path, unsigned flags);
int pmalloc_close(void);
