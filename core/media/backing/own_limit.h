// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A limit that a tool has given a heap, so that it can rise while its program runs. It is a
// symbolic link in the heap's directory, whose target is the number of bytes:
//
//   limit -> 68719476736
//
// So it is there as a whole or not at all. The larger of it and PMALLOC_LIMIT counts.
#ifndef PM_OWN_LIMIT_H
#define PM_OWN_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"

// Of the heap whose directory is open; 0: it has none.
uint64_t pm_own_limit(void);
// Whether the limit of the heap, which this process has open, is higher now than the one that the
// caller saw. Of several threads that see it at once each is told. Takes no lock.
bool pm_own_limit_look(uint64_t seen);
// For a tool: sets it. The program may run.
int pm_own_limit_set(uint64_t bytes, struct pm_error *err);

#endif
