// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The variable of an ELF file that has a name.
#ifndef PM_ELF_FIND_H
#define PM_ELF_FIND_H

#include "elf_file.h"

enum pm_elf_verdict {
    PM_ELF_MISSING = 0,
    PM_ELF_FOUND,
    PM_ELF_AMBIGUOUS, // several variables of the same binding
    // A symbol has the name, but is no variable that can be a root:
    PM_ELF_FUNCTION,
    PM_ELF_TLS,
    PM_ELF_ABSOLUTE,
    PM_ELF_NO_SIZE,
};

enum { PM_ELF_NEAR_MAX = 3, PM_ELF_NEAR_LEN = 80 };

struct pm_elf_symbol {
    enum pm_elf_verdict verdict;
    uint64_t value, size;               // FOUND, AMBIGUOUS, NO_SIZE
    uint64_t second_value, second_size; // AMBIGUOUS: of another of the variables
    unsigned count;                     // AMBIGUOUS: how many variables
    unsigned rank;                      // of the binding: 1 local, 2 weak, 3 global
    bool preemptible;                   // the dynamic linker may have bound the name elsewhere
    char name[PM_ELF_NAME_LEN];         // FOUND: the symbol's, "" when too long
    bool have_table;                    // false: there was nothing to search
    unsigned near_count;                // variables of a similar name
    char near_name[PM_ELF_NEAR_MAX][PM_ELF_NEAR_LEN];
    // MISSING: what the compiler has made of it, as server.0; or "". AMBIGUOUS: what it has made of
    // another variable of that name, while the one found is whole; or "".
    char part[PM_ELF_NEAR_LEN];
};

// Searches .symtab and then .dynsym for a symbol of that name. A name in the file may have a
// version after it, name@V, or what LTO has put there (made_names.h). If no symbol has the name,
// searches both for a variable whose C++ name (cxxname.h) it is. PM_OK and the verdict, or an error
// if the file is damaged.
int pm_elf_find(const struct pm_elf *f, const char *name, unsigned tables,
                struct pm_elf_symbol *out, struct pm_error *err);

#endif
