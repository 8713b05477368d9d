// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Reads memory of the program's as it is, although the program may have made it unreadable: by
// mprotect(PROT_NONE), a protection key that the reading thread lacks, or a guard. A load there
// would end the process. These calls can fail instead.
#ifndef PM_CAREFUL_H
#define PM_CAREFUL_H

#include <stdbool.h>
#include <stddef.h>

// Whether each of these pages can be read by loads. Brings them into memory, as loads would.
bool pm_careful_may_load(const char *at, size_t len);
// What a page has: it, or a copy that stands until the next call. NULL: that cannot be known. The
// caller holds all locks, or no other thread runs. It calls pm_careful_end() after the last page.
const char *pm_careful_page(const char *at);
void pm_careful_end(void);

#endif
