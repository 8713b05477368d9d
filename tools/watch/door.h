// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The door of the library in another process: what tools look for in its data, and do there.
#ifndef PM_TOOLS_DOOR_H
#define PM_TOOLS_DOOR_H

#include <sys/types.h>

#include "base/message.h"
#include "live/leaks_door.h"

// Where several copies of the library are loaded, that of the one which serves the program. Else
// the status, and why: the process cannot be looked at, or runs under another build or none.
int door_find(pid_t pid, struct pm_leaks_door *door, struct pm_error *err);

#endif
