// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The running process as its ELF files describe it: where a root is, which program this is, which
// object holds an address. Include as "gc/elf.h"; gc/ itself must not be on the include path.
//
// Nothing here allocates, prints or changes errno: it runs inside a stranger's process before main,
// perhaps from inside the dynamic linker's or the program's first malloc.
#ifndef PMALLOC_GC_ELF_H
#define PMALLOC_GC_ELF_H

#include "gc/rootspec.h"
#include "layout.h"

#include <stddef.h>
#include <stdint.h>

struct root_range {
    uintptr_t addr;
    size_t length;
    char object[ROOT_OBJECT_LEN]; // base name of the program or library, for messages
};

// Finds what the spec names in this process: a range gives one range, a symbol one and another one for
// its guard variable where it has one (a static of a C++ function), an object one for each writable piece. Each lies inside a writable segment and outside RELRO. Writes out[0..*n) and
// returns 0; or returns -1 with *n = 0 and one line, which names the spec, in err.
//
// A symbol without an object is looked for in the main program, then in every other object but libc,
// the dynamic linker, the vdso and this library. A link-time address (what nm and readelf print)
// is a range's OFFSET.
int elf_resolve(const struct root_spec *spec, struct root_range *out, size_t cap, size_t *n,
                char *err, size_t errlen);

// Which program this is and where it is loaded; a path too long for the struct keeps its end. 0, or
// -1 when the executable's path cannot be read (out is filled as far as possible).
int elf_identity(struct pm_program *out);

// The loaded object whose segments hold the address: its base name and load bias. False when it is
// in none (heap, stack, mappings).
bool elf_object_at(uintptr_t addr, char *name, size_t len, uintptr_t *base);

#endif
