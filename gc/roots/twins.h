// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which loaded objects are the same as those on record. An object is the same as in an earlier run
// if its name is, whatever its directory is now: an upgrade may bring another one.
//
// But one process may have loaded several of one name, from several directories: twins. These are
// told apart by their directories, else by their builds.
#ifndef PM_TWINS_H
#define PM_TWINS_H

#include <stdbool.h>

#include "media/objects_format.h"

bool pm_record_same_build(const struct pm_objects_entry *a, const struct pm_objects_entry *b);
// Whether they are the same object, in whatever build.
bool pm_record_same_object(const struct pm_objects_entry *a, const struct pm_objects_entry *b);
// Whether they are the same build in the same place.
bool pm_record_is(const struct pm_objects_entry *a, const struct pm_objects_entry *b);

// ---- twins --------------------------------------------------------------------------------------

enum pm_same {
    PM_SAME_NOT,
    PM_SAME_IS,
    PM_SAME_DOUBT // it is one of several of its name, and nothing tells which
};

// Whether an object that is loaded now is that of an entry. `all`: what is on record.
enum pm_same pm_twins_same(const struct pm_objects_entry *all, unsigned count,
                           const struct pm_objects_entry *e, const struct pm_objects_entry *loaded);

// An object is loaded in this process.
void pm_twins_see(const struct pm_objects_entry *loaded);
// Whether it is a twin of one that this process has loaded, or one on record that was a twin.
bool pm_twins_has(const struct pm_objects_entry *all, unsigned count,
                  const struct pm_objects_entry *loaded);

#endif
