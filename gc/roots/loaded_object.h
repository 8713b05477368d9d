// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The objects loaded in this process: the program and its libraries, as dl_iterate_phdr() reports
// them. Nothing here calls malloc.
#ifndef PM_LOADED_OBJECT_H
#define PM_LOADED_OBJECT_H

#include "elf_file.h"
#include "spec.h"

struct pm_object {
    uintptr_t base; // what loading adds to link-time addresses
    const ElfW(Phdr) * phdr;
    size_t phnum;
    const char *dl_name; // the dynamic linker's name of it; "" for the main program
    bool is_main;
    uint64_t unloads;              // how many objects were unloaded by now
    char name[PM_ROOT_OBJECT_LEN]; // base name
};

// Calls `visit` for every object, the main program first, until `visit` returns non-zero. Returns
// that value, or 0. `visit` is called under the dynamic linker's lock. The pm_object stays valid
// until the object is unloaded.
typedef int pm_object_visit(const struct pm_object *o, void *arg);
int pm_object_each(pm_object_visit *visit, void *arg);

void pm_object_main(struct pm_object *out);

// Returns the n bytes at an address, or NULL if they are not all in one readable segment of the
// object.
const void *pm_object_bytes(const struct pm_object *o, uintptr_t addr, size_t n);

// Whether an address lies in one of the object's segments.
bool pm_object_holds(const struct pm_object *o, uintptr_t addr);

// Whether its dynamic section has such an entry.
bool pm_object_has_entry(const struct pm_object *o, ElfW(Sxword) tag);

// DT_SONAME, or "".
const char *pm_object_soname(const struct pm_object *o);

// The build id of the object in memory. Returns its length; 0: there is none.
size_t pm_object_build_id(const struct pm_object *o, uint8_t id[PM_BUILD_ID_MAX]);

bool pm_object_is_libc(const struct pm_object *o);
bool pm_object_is_linker(const struct pm_object *o);
bool pm_object_is_vdso(const struct pm_object *o);
bool pm_object_is_self(const struct pm_object *o); // PMAlloc, loaded as a library

// The absolute path of the main program. False: it cannot be read, or does not fit.
bool pm_object_program_path(char *path, size_t len);

// The last part of a path.
const char *pm_base_name(const char *path);

// Opens the file that the object was loaded from. If the name stands for another file now, that is
// an error.
int pm_object_open(const struct pm_object *o, struct pm_elf *f, struct pm_error *err);
// The same for the object that is loaded there. False: it cannot be opened.
bool pm_object_open_at(uintptr_t base, struct pm_elf *f);

#endif
