// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "similar.h"

#include <stddef.h>
#include <string.h>

enum { LONGEST = 95 };

static unsigned least(unsigned a, unsigned b) { return a < b ? a : b; }

static unsigned char folded(const char *text, size_t i) {
    unsigned char c = (unsigned char)text[i];
    return c >= 'A' && c <= 'Z' ? (unsigned char)(c - 'A' + 'a') : c;
}

// How many mistakes lie between the two: the optimal string alignment distance.
static unsigned distance(const char *a, size_t la, const char *b, size_t lb) {
    unsigned char row[3][LONGEST + 1];
    for (size_t j = 0; j <= lb; j++)
        row[0][j] = (unsigned char)j;
    for (size_t i = 1; i <= la; i++) {
        unsigned char *now = row[i % 3], *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
        now[0] = (unsigned char)i;
        for (size_t j = 1; j <= lb; j++) {
            unsigned char x = folded(a, i - 1), y = folded(b, j - 1);
            unsigned cost = least(last[j - 1] + (x != y), least(last[j], now[j - 1]) + 1u);
            if (i > 1 && j > 1 && x == folded(b, j - 2) && folded(a, i - 2) == y)
                cost = least(cost, before[j - 2] + 1u);
            now[j] = (unsigned char)cost;
        }
    }
    return row[la % 3][lb];
}

bool pm_similar(const char *a, const char *b) {
    size_t la = strlen(a), lb = strlen(b);
    size_t shorter = la < lb ? la : lb, longer = la < lb ? lb : la;
    unsigned most = shorter < 3 ? 0 : shorter < 6 ? 1 : 2;
    return longer <= LONGEST && longer - shorter <= most && distance(a, la, b, lb) <= most;
}
