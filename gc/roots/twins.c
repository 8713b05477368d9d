// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "twins.h"

#include <string.h>

#include "build_of.h"
#include "loaded_object.h"

bool pm_record_same_build(const struct pm_objects_entry *a, const struct pm_objects_entry *b) {
    const uint32_t summed = (a->flags | b->flags) & PM_OBJECT_SUMMED;
    bool unknown = pm_build_is_unknown(a) || pm_build_is_unknown(b);
    if ((a->build_id_len || b->build_id_len) && !(summed && unknown))
        return a->build_id_len == b->build_id_len &&
               ((a->flags ^ b->flags) & PM_OBJECT_SUMMED) == 0 &&
               memcmp(a->build_id, b->build_id, sizeof a->build_id) == 0;
    return a->end - a->start == b->end - b->start && strcmp(a->path, b->path) == 0;
}

bool pm_record_same_object(const struct pm_objects_entry *a, const struct pm_objects_entry *b) {
    if ((a->flags | b->flags) & PM_OBJECT_IS_PROGRAM)
        return a->flags & b->flags & PM_OBJECT_IS_PROGRAM;
    return strcmp(pm_base_name(a->path), pm_base_name(b->path)) == 0;
}

bool pm_record_is(const struct pm_objects_entry *a, const struct pm_objects_entry *b) {
    return a->base == b->base && a->start == b->start && a->end == b->end &&
           ((a->flags ^ b->flags) & PM_OBJECT_IS_PROGRAM) == 0 && pm_record_same_build(a, b);
}

// ---- twins --------------------------------------------------------------------------------------

static bool same_path(const struct pm_objects_entry *a, const struct pm_objects_entry *b) {
    return strcmp(a->path, b->path) == 0;
}

// Of those on record one alone may say so: it was loaded after the other one.
static bool are_twins(const struct pm_objects_entry *a, const struct pm_objects_entry *b) {
    return (a->flags | b->flags) & PM_OBJECT_TWIN && !same_path(a, b) &&
           pm_record_same_object(a, b);
}

enum pm_same pm_twins_same(const struct pm_objects_entry *all, unsigned count,
                           const struct pm_objects_entry *e,
                           const struct pm_objects_entry *loaded) {
    bool alone = true, only_build = pm_record_same_build(e, loaded);
    if (!pm_record_same_object(e, loaded))
        return PM_SAME_NOT;
    if (same_path(e, loaded))
        return PM_SAME_IS;
    for (unsigned i = 0; i < count; i++) {
        if (!are_twins(&all[i], e))
            continue;
        if (same_path(&all[i], loaded))
            return PM_SAME_NOT;
        alone = false;
        only_build = only_build && !pm_record_same_build(&all[i], loaded);
    }
    return alone || only_build ? PM_SAME_IS : PM_SAME_DOUBT;
}

// ---- what this process has loaded ---------------------------------------------------------------

static struct { uint32_t name, path; } seen[PM_OBJECTS_MOST];
static unsigned seen_count;

static uint32_t hash_of(const char *text) {
    uint32_t h = 2166136261u;
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 16777619u;
    return h;
}

static uint32_t name_of(const struct pm_objects_entry *e) { return hash_of(pm_base_name(e->path)); }

void pm_twins_see(const struct pm_objects_entry *loaded) {
    uint32_t name = name_of(loaded), path = hash_of(loaded->path);
    for (unsigned i = 0; i < seen_count; i++)
        if (seen[i].name == name && seen[i].path == path)
            return;
    if (seen_count == PM_OBJECTS_MOST || loaded->flags & PM_OBJECT_IS_PROGRAM)
        return;
    seen[seen_count].name = name;
    seen[seen_count++].path = path;
}

bool pm_twins_has(const struct pm_objects_entry *all, unsigned count,
                  const struct pm_objects_entry *loaded) {
    uint32_t name = name_of(loaded), path = hash_of(loaded->path);
    for (unsigned i = 0; i < seen_count; i++)
        if (seen[i].name == name && seen[i].path != path)
            return true;
    for (unsigned i = 0; i < count; i++)
        for (unsigned k = 0; k < count && same_path(&all[i], loaded); k++)
            if (are_twins(&all[i], &all[k]))
                return true;
    return false;
}
