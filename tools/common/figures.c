// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "figures.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *figure_bytes(uint64_t bytes, char out[32]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    unsigned unit = 0;
    double value = (double)bytes;
    // The next unit from 1023.95 on, which would print as 1024.0.
    for (; value >= 1023.95 && unit < 5; unit++)
        value /= 1024;
    snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return out;
}

const char *figure_count(uint64_t count, char out[32]) {
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRIu64, count), at = 0;
    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}
