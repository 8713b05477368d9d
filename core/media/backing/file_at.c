// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "file_at.h"

#include <stdio.h>

#include "fixed.h"
#include "media/heap.h"
#include "snapshot.h"
#include "view.h"
#include "work_copy.h"

struct place {
    const char *dir, *name; // no directory: the name is a path
    uint64_t at;
};

// A part of a fixed medium lies within the medium's file.
static struct place in_file(const struct pm_file *file, uint64_t at) {
    if (file->length)
        return (struct place){NULL, pm_medium_of(file)->path, file->at + at};
    return (struct place){pm_heap.dir, file->name, at};
}

static bool in_view(const void *address, struct place *place) {
    bool path;
    if (!pm_view_find(address, &place->name, &path, &place->at))
        return false;
    place->dir = path ? NULL : pm_heap.dir;
    return true;
}

// A data file under PMALLOC_COMMIT_DIR is a copy in memory: what fails there is not the file. But a
// snapshot is of the file.
static bool in_data(uint64_t offset, bool snapshot, struct place *place) {
    if (offset >= (uint64_t)pm_heap.shards << PM_SHARD_SHIFT)
        return false;
    const struct pm_shard *s = pm_shard_at(offset);
    if ((pm_work_bytes(s) && !snapshot) || offset - s->offset >= s->data.size)
        return false;
    *place = in_file(&s->data, offset - s->offset);
    return true;
}

static bool find(uintptr_t address, struct place *place) {
    const char *beside = pm_snapshot;
    for (size_t i = 0; i < pm_heap_file_count(); i++) {
        const struct pm_file *file = pm_heap_file(&pm_heap_files[i]);
        uintptr_t from = (uintptr_t)file->map;
        if (!from || address - from >= file->reach)
            continue;
        if (pm_heap_files[i].holds == PM_FILE_DATA)
            return in_data(address - pm_base, false, place);
        *place = in_file(file, address - from);
        return true;
    }
    for (unsigned i = 0; i < pm_fixed.count; i++) {
        const struct pm_medium *m = &pm_fixed.medium[i];
        if (m->head && address - (uintptr_t)m->head < m->head_len) {
            *place = (struct place){NULL, m->path, address - (uintptr_t)m->head};
            return true;
        }
    }
    if (beside && in_data(address - (uintptr_t)beside, true, place))
        return true;
    return in_view((const void *)address, place);
}

bool pm_file_unreadable(const void *address, bool store, const char *again, struct pm_error *err) {
    struct place place;
    if (!find((uintptr_t)address, &place))
        return false;
    pm_fail(
        err, PM_OPERATIONAL,
        "%.240s%s%s cannot be %s at byte %lu: a bad block%s, or the file was cut; %s: mend the "
        "disk and %s again, or restore the heap from a backup; until then copy what can be "
        "read",
        place.dir ? place.dir : place.name, place.dir ? "/" : "", place.dir ? place.name : "",
        store ? "read or written" : "read", (unsigned long)place.at, store ? ", a full disk" : "",
        pm_heap.changed ? "recovery has begun, and can be repeated" : "nothing was changed", again);
    return true;
}
