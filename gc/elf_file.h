// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// ELF files on disk: symbols and build id. The file may be foreign, truncated or malicious: every
// offset and count is checked against the mapping, structs are copied out, never pointed to.
// Nothing here allocates.
#ifndef PMALLOC_GC_ELF_FILE_H
#define PMALLOC_GC_ELF_FILE_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// <link.h> pulls in the system's <elf.h>; with gc/ itself on the include path it would be ours.
#ifndef ET_DYN
#error "gc/ must not be on the include path: it hides the system's elf.h"
#endif

struct elf_file {
    const unsigned char *map;
    size_t size;
    uint64_t ino;
    ElfW(Ehdr) ehdr; // a checked copy
};

// 0, or -1 with "PATH: what is wrong" in err.
int elf_file_open(struct elf_file *f, const char *path, char *err, size_t errlen);
void elf_file_close(struct elf_file *f);

// The i-th program header; false past the end or outside the file.
bool elf_file_phdr(const struct elf_file *f, size_t i, ElfW(Phdr) * out);

enum { ELF_BUILD_ID_MAX = 32 };

// The GNU build id: its length, cut to 32, or 0 when there is none.
size_t elf_file_build_id(const struct elf_file *f, uint8_t id[ELF_BUILD_ID_MAX]);

// The same in a block of notes, aligned as p_align of its segment says.
size_t elf_notes_build_id(const unsigned char *notes, size_t size, size_t p_align,
                          uint8_t id[ELF_BUILD_ID_MAX]);

enum elf_verdict {
    ELF_SYM_MISSING = 0,
    ELF_SYM_FOUND,
    ELF_SYM_AMBIGUOUS, // several variables, none of higher binding
    // It exists, but is no variable:
    ELF_SYM_FUNCTION,
    ELF_SYM_TLS,
    ELF_SYM_ABSOLUTE,
    ELF_SYM_NO_SIZE,
};

enum { ELF_NEAR_MAX = 3, ELF_NEAR_LEN = 80, ELF_NAME_LEN = 256 };

struct elf_symbol {
    enum elf_verdict verdict;
    uint64_t value, size;               // FOUND, AMBIGUOUS, NO_SIZE
    uint64_t second_value, second_size; // AMBIGUOUS: another one
    unsigned count;                     // AMBIGUOUS: how many different ones
    unsigned rank;                      // of the binding: 1 local, 2 weak, 3 global
    bool preemptible;                   // the dynamic linker may have bound the name elsewhere
    char name[ELF_NAME_LEN];            // FOUND: as it stands in the table, "" when too long
    bool have_table;                    // false: there was nothing to search
    unsigned near_count;                // variables of a similar name
    char near_name[ELF_NEAR_MAX][ELF_NEAR_LEN];
};

enum { ELF_IN_SYMTAB = 1, ELF_IN_DYNSYM = 2 };

// Searches .symtab first and, when the name is not there, .dynsym. A name in the file may carry a
// version, name@V. When no name is like that, the C++ names of cxxname.h are compared. 0 with the verdict, or -1 when the file is damaged.
int elf_file_find(const struct elf_file *f, const char *name, unsigned tables,
                  struct elf_symbol *out, char *err, size_t errlen);

#endif
