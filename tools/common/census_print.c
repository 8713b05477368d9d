// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "census_print.h"

#include <stdint.h>
#include <stdio.h>

#include "base/sizeclass.h"
#include "figures.h"

// The blocks of a size that nothing reaches: garbage, or free already; a crash does not tell which.
static uint64_t unreached(const struct census *found, unsigned cls) {
    return found->cls[cls].blocks - found->cls[cls].live;
}

void census_classes_json(struct json *j, const struct census *found) {
    json_open(j, "classes", '[');
    PM_EACH_CLASS(i) {
        if (!found->cls[i].blocks)
            continue;
        json_open(j, NULL, '{');
        json_number(j, "size", pm_classes[i].size);
        json_number(j, "slabs", found->cls[i].slabs);
        json_number(j, "live", found->cls[i].live);
        json_number(j, "free", unreached(found, i));
        json_number(j, "free_bytes", unreached(found, i) * pm_classes[i].size);
        json_close(j, '}');
    }
    json_close(j, ']');
}

void census_classes_text(const struct census *found) {
    char live[32], left[32], size[32];
    PM_EACH_CLASS(i)
        if (unreached(found, i))
            printf("           of %u bytes: %s blocks live, %s free or to reclaim, %s\n",
                   pm_classes[i].size, figure_count(found->cls[i].live, live),
                   figure_count(unreached(found, i), left),
                   figure_bytes(unreached(found, i) * pm_classes[i].size, size));
}
