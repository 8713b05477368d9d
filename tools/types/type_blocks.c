// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "type_blocks.h"

#include <stdbool.h>
#include <stdio.h>

#include "base/sizeclass.h"
#include "recovery/offline.h"
#include "recovery/recover.h"
#include "tools/common/census.h"
#include "tools/common/figures.h"

#define MOST ((uint64_t)1 << 30) // bytes of data: marking these takes less than a second or two

// Opens the heap once, and counts what is live.
static const struct census *count(const char *heap) {
    static struct census census;
    static bool tried, counted;
    struct pm_recovery found;
    struct pm_error ignored;
    struct pm_recover_options how = {.write = false};
    if (tried)
        return counted ? &census : NULL;
    tried = true;
    counted = pm_offline_open(heap, PM_OPEN_READONLY, &ignored) == PM_OK &&
              pm_heap.length <= MOST && pm_recover(&how, &found, &ignored) == PM_OK &&
              census_take(&census, &ignored) == PM_OK;
    return counted ? &census : NULL;
}

const char *type_blocks_text(const char *heap, uint64_t size, char *out, size_t room) {
    const struct census *c = size && size <= PM_SMALL_MAX ? count(heap) : NULL;
    char text[32];
    *out = '\0';
    if (!c)
        return out;
    unsigned class = pm_size_to_class(size);
    uint64_t live = c->cls[class].live;
    if (live)
        snprintf(out, room, "; %s live block%s ha%s its size (%u bytes)", figure_count(live, text),
                 live == 1 ? "" : "s", live == 1 ? "s" : "ve", pm_classes[class].size);
    return out;
}
