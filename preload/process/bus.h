// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// SIGBUS at a store to a block over 2 MiB. Its pages get their space when they are stored to, and
// others may have taken that. One line says so, then the signal goes its way.
#ifndef PM_BUS_H
#define PM_BUS_H

#include <stdbool.h>

extern bool pm_bus_watched; // or there is nothing to watch for

// When the first such block is handed out. A handler of the program's stays.
void pm_bus_watch(void);
// The program has a seccomp filter, which need not allow this.
void pm_bus_forbid(void);

#endif
