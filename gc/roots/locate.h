// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The running process as its ELF files describe it: where a root lies, and which program this is.
//
// Nothing here calls malloc, prints, or changes errno. It runs in any program before main, perhaps
// inside the first malloc of the dynamic linker or of the program.
#ifndef PM_LOCATE_H
#define PM_LOCATE_H

#include <stddef.h>
#include <stdint.h>

#include "media/format.h"
#include "spec.h"

struct pm_location {
    uintptr_t addr;
    size_t length;
    char object[PM_ROOT_OBJECT_LEN]; // base name of the program or library, for messages
    uint8_t build[PM_ROOT_BUILD];    // of a range: the object's build id, cut; 0: it has none. Of
                                     // a part of a variable: the variable's size
};

// Finds what the spec names in this process. A range has one location. A symbol has one; a static
// of a C++ function has a second one for its guard. An object has one for each writable piece. Each
// location lies inside a writable segment and outside RELRO. On success out[0 .. *n) is filled. On
// failure *n is 0 and the message begins with the spec.
//
// A symbol without an object is searched in the main program, then in every other object except
// libc, the dynamic linker, the vdso and PMAlloc itself. A range's OFFSET is a link-time address,
// as nm and readelf print it.
int pm_locate(const struct pm_spec *spec, struct pm_location *out, size_t cap, size_t *n,
              struct pm_error *err);

// Says which program this is and where it is loaded. Of a path that is too long the end is kept.
// False: the executable's path cannot be read; the other fields are filled.
bool pm_locate_program(struct pm_program *out);

#endif
