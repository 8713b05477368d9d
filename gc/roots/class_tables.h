// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Tables of virtual functions and type_infos of C++ classes (Itanium ABI), found without symbols: a
// table leads to its class's type_info, which leads to the name of the type. An ELF file has these
// words as relocations. A packed object has none, and keeps the list.
#ifndef PM_CLASS_TABLES_H
#define PM_CLASS_TABLES_H

#include <stddef.h>

#include "elf_file.h"

struct pm_class_table {
    uint64_t at;       // two words before the first function; or the type_info
    uint64_t name;     // where the type's name begins, as in the type_info
    int64_t top;       // from where the table's objects begin to the whole object: 0 or less
    uint32_t count;    // of functions, in a table; it may be too high
    uint32_t has_type; // bytes of the type_info, if it is that; 0: it is a table
};

// Of a packed object the first section header, which says nothing in other ELF files, is that of
// the list.
#define PM_SHT_CLASS_TABLES 0x80504d43u

struct pm_class_tables {
    const struct pm_class_table *list;
    size_t count;
    void *own; // NULL: the list is the file's
    size_t own_bytes;
};

// Those of an ELF file or of a packed object. Of a type's tables for one `top` there is one alone:
// others are left out, and so are types that several source files have.
struct pm_class_tables pm_class_tables(const struct pm_elf *f);
void pm_class_tables_drop(struct pm_class_tables *t);
// The one to which a pointer of an object or of a program leads; NULL: none.
const struct pm_class_table *pm_class_table_at(const struct pm_class_tables *t, uint64_t address);
// Where pointers to it lead.
static inline uint64_t pm_class_table_address(const struct pm_class_table *c) {
    return c->has_type ? c->at : c->at + 16;
}
// The name of its type, as symbols have it; NULL: it is not in the file.
const char *pm_class_table_name(const struct pm_elf *f, const struct pm_class_table *c);

#endif
