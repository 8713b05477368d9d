// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program that the owner of a heap starts has inherited its settings, and runs on volatile
// memory. /proc does not always show whether a process descends from the owner: the program may
// run as another user, or in a PID namespace with a /proc of its own. So the owner says it in its
// environment, which the program inherits with the settings:
//
//   PMALLOC_OWNER=NAMESPACE,PID,START,HEAP
#ifndef PM_DESCENT_H
#define PM_DESCENT_H

#include <stdbool.h>

#include "base/message.h"

// Before main: this process has a heap, and says so to those that it will start. `before` is the
// environment as it was before roots were restored.
void pm_descent_tell(char **before);
// Whether this process descends from the owner of some heap.
bool pm_descent_was_told(void);
// Whether the process that has set the environment owned the heap. Not where it is this process,
// which has executed another program since then.
bool pm_descends_from_owner(const char *dir);
// The same, and /proc does not show that process.
bool pm_descends_from_hidden_owner(const char *dir, const struct pm_holder *owner);

#endif
