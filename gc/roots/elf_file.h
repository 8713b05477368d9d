// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// ELF files on disk: symbols and build id. The file may be of another architecture, truncated or
// malicious. So every offset and count is checked against the mapping, and structs are copied out
// of it, never pointed to. Nothing here calls malloc.
#ifndef PM_ELF_FILE_H
#define PM_ELF_FILE_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/message.h"
#include "media/format.h"

struct pm_elf {
    const unsigned char *map;
    size_t size;
    uint64_t ino;
    ElfW(Ehdr) ehdr; // a checked copy
};

// On failure nothing is open and the message begins with the path.
int pm_elf_open(struct pm_elf *f, const char *path, struct pm_error *err);
void pm_elf_close(struct pm_elf *f);
// The same of a file's contents in memory, which stay the caller's. NULL, or what is wrong with it.
const char *pm_elf_take(struct pm_elf *f, const void *bytes, size_t size);

// The i-th program header; false past the end or outside the file.
bool pm_elf_phdr(const struct pm_elf *f, size_t i, ElfW(Phdr) * out);

// The GNU build id. Returns its length, cut to PM_BUILD_ID_MAX, or 0 when there is none.
size_t pm_elf_build_id(const struct pm_elf *f, uint8_t id[PM_BUILD_ID_MAX]);

// The same for a block of notes. `p_align` is its segment's.
size_t pm_elf_notes_build_id(const unsigned char *notes, size_t size, size_t p_align,
                             uint8_t id[PM_BUILD_ID_MAX]);

// Writes bytes, such as a build id, as hexadecimal digits, and NUL. Returns where the NUL is.
char *pm_elf_hex(char *out, const uint8_t *bytes, size_t count);

// The i-th section header; false past the end or outside the file.
bool pm_elf_shdr(const struct pm_elf *f, size_t i, ElfW(Shdr) * out);
// The `len` bytes at an offset in the file, or NULL if they are not all in it.
const unsigned char *pm_elf_bytes(const struct pm_elf *f, uint64_t offset, uint64_t len);
// The name of a section, or "".
const char *pm_elf_section_name(const struct pm_elf *f, const ElfW(Shdr) * section);

// A symbol table.
struct pm_elf_table {
    const unsigned char *syms;
    uint64_t count;
    const char *strings;
    uint64_t strings_size;
};
// Finds the first section of that type, SHT_SYMTAB or SHT_DYNSYM. 1: *t describes it. 0: there is
// none. -1: it is damaged.
int pm_elf_table(const struct pm_elf *f, uint32_t type, struct pm_elf_table *t);
// Copies out symbol i. Returns its name; NULL: it has none, or that is not in the file.
const char *pm_elf_symbol_at(const struct pm_elf_table *t, uint64_t i, ElfW(Sym) * out);

enum { PM_ELF_NAME_LEN = 256 };
enum { PM_ELF_IN_SYMTAB = 1, PM_ELF_IN_DYNSYM = 2 };

// Calls `visit` for each variable with a size of the tables, which have names as in the file.
typedef void pm_elf_variable(const char *symbol, uint64_t value, uint64_t size, void *arg);
int pm_elf_each_variable(const struct pm_elf *f, unsigned tables, pm_elf_variable *visit, void *arg,
                         struct pm_error *err);
// Calls `visit` for each section that takes up memory.
typedef void pm_elf_section(const char *name, uint64_t at, uint64_t size, void *arg);
void pm_elf_each_section(const struct pm_elf *f, pm_elf_section *visit, void *arg);
bool pm_elf_has_symtab(const struct pm_elf *f);
// Whether it uses a symbol of another object whose name begins like this.
bool pm_elf_imports(const struct pm_elf *f, const char *prefix);

#endif
