// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The figures of a heap, in one table: what prints them goes through it, so that a new one is in
// all outputs.
#ifndef PM_TOOLS_HEAP_FIGURES_H
#define PM_TOOLS_HEAP_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

#include "info_print.h"

struct heap_figure {
    const char *key;   // in JSON
    const char *label; // for people; NULL: not compared
    bool bytes;        // false: a number of things
};

extern const struct heap_figure heap_figures[];
extern const unsigned heap_figures_count;

uint64_t heap_figure(const struct info *info, unsigned index);

#endif
