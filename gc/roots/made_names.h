// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// What compilers and linkers make of the name of a variable: names of its parts, and other names
// for variables of one name where the whole program is compiled as one (LTO).
#ifndef PM_MADE_NAMES_H
#define PM_MADE_NAMES_H

#include "elf_file.h"

// Whether this stands behind a name that LTO has made another one of: NAME.lto_priv.3 (gcc),
// NAME.llvm.3 (clang's ThinLTO). `room` bytes of the string may be read.
bool pm_is_lto_suffix(const char *suffix, uint64_t room);

// pm_cxxname_plain() of a symbol without such an end.
bool pm_made_plain(const char *symbol, uint64_t room, char *out, size_t len);

// Whether clang has compiled some of it.
bool pm_made_by_clang(const struct pm_elf *f);

// Whether LTO has made this file of a symbol table of many sources, by its name; NULL: it has none.
bool pm_made_is_whole(const char *file);

// Writes what the compiler has made of a variable that it has taken apart, as server.0; or "".
void pm_made_find_part(const struct pm_elf *f, const char *name, char *part, size_t size);

// Calls `visit` for each variable that has the name of this local one in its source, and that
// clang's LTO has numbered: NAME.3.
void pm_made_each_twin(const struct pm_elf *f, const char *name, uint64_t value,
                       pm_elf_variable *visit, void *arg);

// Calls `visit` for each part of another variable of that name, which clang has taken apart in
// another source. A static of a function that gcc has compiled is taken for one, too.
void pm_made_each_part_elsewhere(const struct pm_elf *f, const char *name, uint64_t value,
                                 pm_elf_variable *visit, void *arg);

#endif
