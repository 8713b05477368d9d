// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The scenarios of opening and closing.
#include "media/open/heap_dir.h"
#include "preload/pmalloc.h"
#include "process/entry.h"
#include "program.h"
#include "scenarios.h"

void scenario_create(unsigned phase) {
    (void)phase;
    program_start("", false);
    struct table *t = program_table(0, 16);
    program_steps(t, 20, 12, 32, 30000);
    program_close();
}

// A heap is removed, and the next start makes a new one in the same directory. An interrupted
// removal leaves the whole heap or none.
void scenario_removed(unsigned phase) {
    (void)phase;
    program_start("", false);
    struct table *t = program_table(0, 8);
    program_steps(t, 20, 6, 32, 40000);
    world->expect.made = false;
    world->expect.slot[0][1] = 0;
    pm_heap_remove();
}

void scenario_reopen(unsigned phase) {
    program_start("", phase % 2);
    struct table *t = program_table(0, 32);
    program_steps(t, 60, 20, 32, 3000);
    program_steps(t, 20, 20, 16385, 100000);
    if (phase < 4)
        program_close();
}

// A clean heap is copied, by cp say, and the program goes on with the copy.
void scenario_copied(unsigned phase) {
    if (world->expect.closed)
        world->expect.file++;
    program_start("", phase % 2);
    struct table *t = program_table(0, 16);
    program_steps(t, 20, 10, 32, 3000);
    if (phase < 4)
        program_close();
}
