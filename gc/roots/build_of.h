// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which build of an object an entry of the record is: its build id, or a checksum where the linker
// was told to leave build ids out, or has none by itself (musl-gcc, lld). The checksum is of all
// that is loaded of the file, so neither a strip nor a breakpoint of a debugger changes it.
#ifndef PM_BUILD_OF_H
#define PM_BUILD_OF_H

#include <stdbool.h>

#include "loaded_object.h"
#include "media/objects_format.h"

// Sets the build of an entry.
void pm_build_of_file(const struct pm_elf *f, struct pm_objects_entry *e);
// The same for an object that is loaded. If it is to be a checksum, and the file cannot be read,
// the entry has none.
void pm_build_of_loaded(const struct pm_object *o, struct pm_objects_entry *e);

// Whether it is on record with neither of them. Older builds of PMAlloc made no checksums.
static inline bool pm_build_is_unknown(const struct pm_objects_entry *e) {
    return e->build_id_len == 0 && !(e->flags & PM_OBJECT_SUMMED);
}

#endif
