// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "carried.h"

#include <string.h>
#include <sys/mman.h>

#include "media/backing/file.h"
#include "media/heap.h"
#include "root_media.h"
#include "root_table.h"

uint32_t pm_carried_count(const struct pm_root_table *t, pm_root_is *which) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < t->count; i++)
        count += which(&t->root[i]);
    return count;
}

// Where an image lies if the ones before it end at `at`. Its words keep their alignment.
static uint64_t place(uint64_t at, const struct pm_root *root) {
    return ((at + 15) & ~(uint64_t)15) + (root->image & 15);
}

uint64_t pm_carried_length(const struct pm_root_table *t, pm_root_is *which) {
    uint64_t end = 0;
    for (uint32_t i = 0; i < t->count; i++)
        if (which(&t->root[i]))
            end = place(end, &t->root[i]) + t->root[i].length;
    return (end + PM_PAGE_SIZE - 1) & ~(uint64_t)(PM_PAGE_SIZE - 1);
}

void pm_carried_copy(const struct pm_root_table *t, pm_root_is *which, const char *images,
                     char *to) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        const struct pm_root *root = &t->root[i];
        if (!which(root))
            continue;
        at = place(at, root);
        memcpy(to + at, images + (root->image - t->area_offset), root->length);
        at += root->length;
    }
}

void pm_carried_add(const struct pm_root_table *t, pm_root_is *which, struct pm_root_table *next,
                    uint64_t at) {
    uint64_t into = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        if (!which(&t->root[i]))
            continue;
        struct pm_root *root = &next->root[next->count++];
        *root = t->root[i];
        into = place(into, root);
        root->image = at + into;
        into += root->length;
    }
}

static const void *mapped;
static uint64_t mapped_length;

int pm_carried_map(pm_root_is *which, struct pm_error *err) {
    const struct pm_root_table *t = pm_roots_table(err);
    uint64_t from = UINT64_MAX, to = 0;
    if (mapped_length)
        pm_file_unmap(&pm_heap.roots, mapped, mapped_length);
    mapped_length = 0;
    for (uint32_t i = 0; t && i < t->count; i++) {
        const struct pm_root *root = &t->root[i];
        if (!which(root))
            continue;
        from = root->image < from ? root->image : from;
        to = root->image + root->length > to ? root->image + root->length : to;
    }
    from &= ~(uint64_t)(PM_PAGE_SIZE - 1);
    if (!t || to == 0)
        return t ? PM_OK : err->status;
    void *map = pm_file_map_shared(&pm_heap.roots, to - from, from);
    if (map == MAP_FAILED)
        return pm_roots_unmapped(err);
    mapped = map;
    mapped_length = to - from;
    return PM_OK;
}
