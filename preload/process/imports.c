// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A use of another object's name has a relocation, which names its symbol. The library's own
// definition has none.
#include "imports.h"

#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct tables {
    const ElfW(Sym) * symbol;
    const char *text;
    const ElfW(Rela) * of[2]; // of data, and of calls
    size_t bytes[2];
};

// glibc has added the object's base to these addresses, musl has not.
static const void *address(const struct dl_phdr_info *object, ElfW(Addr) value) {
    return (const void *)(value < object->dlpi_addr ? value + object->dlpi_addr : value);
}

static void read_tables(const struct dl_phdr_info *object, const ElfW(Dyn) * entry,
                        struct tables *found) {
    for (; entry->d_tag != DT_NULL; entry++)
        switch (entry->d_tag) {
        case DT_SYMTAB:
            found->symbol = address(object, entry->d_un.d_ptr);
            break;
        case DT_STRTAB:
            found->text = address(object, entry->d_un.d_ptr);
            break;
        case DT_RELA:
            found->of[0] = address(object, entry->d_un.d_ptr);
            break;
        case DT_RELASZ:
            found->bytes[0] = entry->d_un.d_val;
            break;
        case DT_JMPREL:
            found->of[1] = address(object, entry->d_un.d_ptr);
            break;
        case DT_PLTRELSZ:
            found->bytes[1] = entry->d_un.d_val;
            break;
        }
}

static int has(struct dl_phdr_info *object, size_t size, void *name) {
    struct tables tables = {0};
    (void)size;
    for (unsigned i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            read_tables(object, (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr),
                        &tables);
    for (unsigned kind = 0; tables.symbol && tables.text && kind < 2; kind++)
        for (size_t i = 0; tables.of[kind] && i < tables.bytes[kind] / sizeof *tables.of[0]; i++) {
            const ElfW(Sym) *symbol = &tables.symbol[ELF64_R_SYM(tables.of[kind][i].r_info)];
            if (symbol->st_shndx == SHN_UNDEF && strcmp(tables.text + symbol->st_name, name) == 0)
                return 1;
        }
    return 0;
}

bool pm_imports(const char *name) { return dl_iterate_phdr(has, (void *)(uintptr_t)name) != 0; }
