// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Where the address of a lock lies: in the heap, or in a variable of the program or a library.
#ifndef PM_TOOLS_LOCK_PLACE_H
#define PM_TOOLS_LOCK_PLACE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct lock_place {
    char object[160];  // the name of its file; "": it lies in none
    uint64_t offset;   // from where the object begins
    char variable[96]; // the symbol of the variable; "": none is known
    uint64_t into;     // how far into it
};

// In the process; 0: in the last one that used the heap that is open.
void lock_place_find(uint64_t at, pid_t process, struct lock_place *out);

#endif
