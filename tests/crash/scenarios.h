// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#ifndef PMALLOC_TESTS_CRASH_SCENARIOS_H
#define PMALLOC_TESTS_CRASH_SCENARIOS_H

#include <stdbool.h>

// A scenario runs in up to `phases` processes, one after the other. The first `failures` of them
// end at a random point, by power failure or by a kill. With `late` the first one ends at a place
// that it visits late and seldom. The heap may lie anywhere, or only in a directory, or only on a
// fixed medium, or on two of them.
struct scenario {
    const char *name, *what;
    unsigned phases, failures;
    bool late;
    bool later; // every start runs under PMALLOC_COLLECT=later
    bool kill;  // ends only by kills, and only while stores wait to become durable
    enum place { ANYWHERE, DIRECTORY, MEDIUM, PAIR } place;
    void (*run)(unsigned phase);
};
extern const struct scenario scenarios[];
extern const unsigned scenario_count;

// In scenarios_openings.c.
void scenario_create(unsigned phase);
void scenario_removed(unsigned phase);
void scenario_reopen(unsigned phase);
void scenario_copied(unsigned phase);
// In scenarios_roots.c.
void scenario_slots(unsigned phase);
void scenario_capture(unsigned phase);
void scenario_late(unsigned phase);
void scenario_unrooted(unsigned phase);
void scenario_emptied(unsigned phase);
// In scenarios_publish.c.
void scenario_publish(unsigned phase);
void scenario_publishers(unsigned phase);
void scenario_heir(unsigned phase);
void scenario_far(unsigned phase);
void scenario_far_threads(unsigned phase);
// In scenarios_medium.c.
void scenario_remade(unsigned phase);
void scenario_from(unsigned phase);
void scenario_grown(unsigned phase);
void scenario_full(unsigned phase);
void scenario_pair(unsigned phase);

#endif
