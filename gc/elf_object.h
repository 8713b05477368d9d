// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The objects loaded in this process, through dl_iterate_phdr. Nothing here allocates.
#ifndef PMALLOC_GC_ELF_OBJECT_H
#define PMALLOC_GC_ELF_OBJECT_H

#include "gc/elf_file.h"
#include "gc/rootspec.h"

struct elf_object {
    uintptr_t base; // load bias: what is added to link-time addresses
    const ElfW(Phdr) * phdr;
    size_t phnum;
    const char *dl_name; // as the dynamic linker knows it; "" for the main program
    bool is_main;
    char name[ROOT_OBJECT_LEN]; // base name
};

// Calls visit for every object, the main program first, until it returns non-zero; that value is
// returned, or 0. The dynamic linker's lock is held meanwhile. An object stays valid afterwards
// until it is unloaded.
typedef int elf_visit(const struct elf_object *o, void *arg);
int elf_each_object(elf_visit *visit, void *arg);

void elf_main_object(struct elf_object *out);

// The n bytes at an address in the object's readable segments, or NULL when they are not all there.
const void *elf_object_bytes(const struct elf_object *o, uintptr_t addr, size_t n);

bool elf_object_holds(const struct elf_object *o, uintptr_t addr);

// DT_SONAME, or "".
const char *elf_object_soname(const struct elf_object *o);

// Of the object as loaded: its length, or 0.
size_t elf_object_build_id(const struct elf_object *o, uint8_t id[ELF_BUILD_ID_MAX]);

bool elf_object_is_libc(const struct elf_object *o);
bool elf_object_is_linker(const struct elf_object *o);
bool elf_object_is_vdso(const struct elf_object *o);
bool elf_object_is_self(const struct elf_object *o); // PMAlloc, loaded as a library

// Absolute path of the main program; false when it cannot be read or does not fit.
bool elf_program_path(char *path, size_t len);

// Opens the file the object was loaded from; an error when it is no longer that file.
int elf_object_open(const struct elf_object *o, struct elf_file *f, char *err, size_t errlen);

#endif
