// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which file of the heap lies at an address. Most files are read through mappings, where a block
// that the disk cannot read is a SIGBUS at an address; so is a file that was cut meanwhile. Who
// handles that signal asks here what to say of it. Nothing here takes a lock or allocates, so that
// it may be called in a signal handler, on any thread.
#ifndef PM_FILE_AT_H
#define PM_FILE_AT_H

#include <stdbool.h>

#include "base/message.h"

// Fills `err` if a file of the heap lies at `address`: which file, at which byte, and what to do.
// `store`: the address was to be written. `again`: how to repeat what the process does, such as
// "start the program". False: the address is not in the heap.
bool pm_file_unreadable(const void *address, bool store, const char *again, struct pm_error *err);

#endif
