// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "heap_leaks.h"

#include <stdio.h>

#include "base/bits.h"
#include "blocks/bitmaps.h"
#include "pages/extent.h"

static void add_small(const struct pm_population *p, const uint64_t *allocated, void *leaks) {
    uint64_t used[PM_BITMAP_WORDS], lost[PM_BITMAP_WORDS];
    unsigned words = pm_slab_words(p->cls);
    uint32_t slab = p->slab, size = pm_classes[p->cls].size;
    pm_population_used(&pm_vslabs[slab], p, used);
    for (unsigned w = 0; w < words; w++)
        lost[w] = allocated[w] & ~used[w];
    PM_EACH_BIT(i, lost, words)
    pm_leaks_add(leaks, p->old ? NULL : pm_slab_start(slab) + (size_t)i * size, size);
}

bool heap_leaks_find(const struct pm_recovery *found, struct pm_leaks *leaks) {
    *leaks = (struct pm_leaks){0};
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;) {
        const struct pm_extent *e = &pm_extents[i];
        char *at = pm_extent_address(e);
        if (!e->slab && *pm_tag_at(at) != pm_extent_tag(e)) // the sweep tags what is reached
            pm_leaks_add(leaks, at, pm_extent_bytes(e));
    }
    // A killed run leaves the bitmaps of the last clean close; they say nothing of it.
    return found->leaks_exact && pm_bitmaps_read(add_small, leaks);
}

void heap_leaks_sizes(struct json *j, const struct pm_leaks *leaks) {
    bool and_more;
    json_open(j, "sizes", '[');
    for (unsigned i = pm_leaks_after(0); i; i = pm_leaks_after(i)) {
        const struct pm_leak_row *row = &leaks->row[i];
        if (!row->blocks)
            continue;
        json_open(j, NULL, '{');
        json_number(j, "from", pm_leaks_size(i, &and_more));
        json_number(j, "blocks", row->blocks);
        json_number(j, "bytes", row->bytes);
        json_number(j, "example", (uintptr_t)row->example);
        json_close(j, '}');
    }
    json_close(j, ']');
}

static void print_json(const char *heap, const struct pm_leaks *leaks, bool exact,
                       const struct pm_recovery *found) {
    struct json j = {.out = stdout};
    json_open(&j, NULL, '{');
    json_text(&j, "heap", heap);
    json_bool(&j, "exact", exact);
    json_number(&j, "blocks", leaks->sum.blocks);
    json_number(&j, "bytes", leaks->sum.bytes);
    json_number(&j, "live_blocks", found->live_objects);
    json_number(&j, "live_bytes", found->live_bytes);
    heap_leaks_sizes(&j, leaks);
    json_close(&j, '}');
    json_end(&j);
}

void heap_leaks_line(const char *line) { puts(line); }

void heap_leaks_print(const char *heap, const struct pm_leaks *leaks, bool exact,
                      const struct pm_recovery *found, bool json) {
    if (json) {
        print_json(heap, leaks, exact, found);
        return;
    }
    printf("no root reaches %lu blocks, %lu bytes; %lu blocks, %lu bytes are live\n",
           (unsigned long)leaks->sum.blocks, (unsigned long)leaks->sum.bytes,
           (unsigned long)found->live_objects, (unsigned long)found->live_bytes);
    if (leaks->sum.blocks)
        pm_leaks_lines(leaks, heap_leaks_line);
    if (!exact)
        puts("only large blocks are counted: after a crash, small ones are not on record");
}
