// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// "Did you mean ...?"
#ifndef PM_SIMILAR_H
#define PM_SIMILAR_H

#include <stdbool.h>

// Whether one text may be the other one misspelt: a letter too much, too few, wrong, in the wrong
// case, or two in the wrong order; in longer texts two such mistakes.
bool pm_similar(const char *a, const char *b);

#endif
