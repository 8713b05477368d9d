// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#ifndef PMALLOC_TESTS_CRASH_SCENARIOS_H
#define PMALLOC_TESTS_CRASH_SCENARIOS_H

#include <stdbool.h>

// A scenario runs in up to `phases` processes, one after the other. Before the last ones, `failures` of them end
// at a random point, by power failure or by a kill; the first one, where `late`, at a place that it came to late.
struct scenario {
    const char *name, *what;
    unsigned phases, failures;
    bool late;
    bool kill; // never by power failure, and while stores wait to become durable
    void (*run)(unsigned phase);
};
extern const struct scenario scenarios[];
extern const unsigned scenario_count;

#endif
