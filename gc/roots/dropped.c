// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "dropped.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "media/backing/file.h"
#include "media/heap.h"
#include "root_media.h"
#include "root_table.h"
#include "spec.h"

static const struct pm_root *find(const struct pm_root_table *t, const char *name) {
    char text[PM_SPEC_TEXT_LEN];
    for (uint32_t i = 0; i < t->count; i++) {
        pm_root_text(&t->root[i], text, sizeof text);
        if (strcmp(text, name) == 0)
            return &t->root[i];
    }
    return NULL;
}

// A root that was dropped before may have the same name.
static void new_name(const struct pm_root_table *t, const struct pm_root *root, char *kept,
                     size_t size) {
    struct pm_root named = *root;
    char digits[12] = "";
    for (unsigned number = 2;; number++) {
        snprintf(named.object, sizeof named.object, "%s%s%s%.70s", PM_ROOT_DROPPED, digits,
                 *root->object ? "-" : "", root->object);
        pm_root_text(&named, kept, size);
        if (!find(t, kept))
            return;
        snprintf(digits, sizeof digits, "%u", number);
    }
}

int pm_dropped_set_aside(const char *name, char *kept, size_t size, struct pm_error *err) {
    const struct pm_root_table *t = pm_roots_table(err);
    const struct pm_root *root = t ? find(t, name) : NULL;
    if (!t)
        return err->status;
    snprintf(kept, size, "%s", name); // if there is none, pm_roots_rename() says so
    if (root)
        new_name(t, root, kept, size);
    return pm_roots_rename(name, kept, err);
}

// ---- the next table -----------------------------------------------------------------------------

uint32_t pm_dropped_count(const struct pm_root_table *t) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < t->count; i++)
        count += pm_root_is_dropped(&t->root[i]);
    return count;
}

// Where an image lies if the ones before it end at `at`. Its words keep their alignment.
static uint64_t place(uint64_t at, const struct pm_root *root) {
    return ((at + 15) & ~(uint64_t)15) + (root->image & 15);
}

uint64_t pm_dropped_length(const struct pm_root_table *t) {
    uint64_t end = 0;
    for (uint32_t i = 0; i < t->count; i++)
        if (pm_root_is_dropped(&t->root[i]))
            end = place(end, &t->root[i]) + t->root[i].length;
    return (end + PM_PAGE_SIZE - 1) & ~(uint64_t)(PM_PAGE_SIZE - 1);
}

void pm_dropped_copy(const struct pm_root_table *t, const char *images, char *to) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        const struct pm_root *root = &t->root[i];
        if (!pm_root_is_dropped(root))
            continue;
        at = place(at, root);
        memcpy(to + at, images + (root->image - t->area_offset), root->length);
        at += root->length;
    }
}

void pm_dropped_add(const struct pm_root_table *t, struct pm_root_table *next, uint64_t at) {
    uint64_t into = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        if (!pm_root_is_dropped(&t->root[i]))
            continue;
        struct pm_root *root = &next->root[next->count++];
        *root = t->root[i];
        into = place(into, root);
        root->image = at + into;
        into += root->length;
    }
}

int pm_dropped_map(struct pm_error *err) {
    const struct pm_root_table *t = pm_roots_table(err);
    uint64_t from = UINT64_MAX, to = 0;
    for (uint32_t i = 0; t && i < t->count; i++) {
        const struct pm_root *root = &t->root[i];
        if (!pm_root_is_dropped(root))
            continue;
        from = root->image < from ? root->image : from;
        to = root->image + root->length > to ? root->image + root->length : to;
    }
    from &= ~(uint64_t)(PM_PAGE_SIZE - 1);
    if (!t || to == 0)
        return t ? PM_OK : err->status;
    bool good = pm_file_map_shared(&pm_heap.roots, to - from, from) != MAP_FAILED;
    return good ? PM_OK : pm_roots_unmapped(err);
}
