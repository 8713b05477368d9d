// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What a debugger would read in a program: the types of its variables. DWARF 2 to 5, as gcc and
// clang write them without -gsplit-dwarf and type units. The file may be anything, so each read is
// checked, and what cannot be read is as if it were not there.
#ifndef PM_TOOLS_DWARF_H
#define PM_TOOLS_DWARF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "roots/elf_file.h"

struct dwarf; // of one program

// Places are offsets in .debug_info; 0: there is none. A place where no entry begins reads as none.
struct dwarf_entry {
    uint64_t at, next; // next: behind its attributes
    uint64_t sibling;  // 0: not said
    uint32_t tag;      // DW_TAG_..., as in the enum below
    bool children;
    const char *name;    // or ""
    const char *linkage; // the symbol of a C++ variable, or ""
    uint64_t type, origin;
    uint64_t size; // bytes
    bool has_size;
    uint64_t encoding;
    uint64_t member_at, bit_size, bit_offset;
    bool from_top; // bit_offset counts from the highest bit of its `size` bytes, as in DWARF 2 to 4
    uint64_t count; // of an array: elements; UINT64_MAX: not said
    int64_t value;  // of an enumerator
    uint64_t address;
    bool has_address, declaration, is_static;
};

enum dwarf_tag {
    DW_ARRAY = 0x01,
    DW_CLASS = 0x02,
    DW_ENUMERATION = 0x04,
    DW_MEMBER = 0x0d,
    DW_POINTER = 0x0f,
    DW_REFERENCE = 0x10,
    DW_COMPILE_UNIT = 0x11,
    DW_STRUCT = 0x13,
    DW_FUNCTION_TYPE = 0x15,
    DW_TYPEDEF = 0x16,
    DW_UNION = 0x17,
    DW_INHERITANCE = 0x1c,
    DW_SUBRANGE = 0x21,
    DW_BASE = 0x24,
    DW_CONST = 0x26,
    DW_ENUMERATOR = 0x28,
    DW_FUNCTION = 0x2e,
    DW_TEMPLATE_TYPE = 0x2f,
    DW_VARIABLE = 0x34,
    DW_VOLATILE = 0x35,
    DW_RESTRICT = 0x37,
    DW_NAMESPACE = 0x39,
    DW_RVALUE_REFERENCE = 0x42,
    DW_ATOMIC = 0x47,
};

// NULL: the program has no types that can be read. If it was stripped, its debug file is looked for
// where Debian's packages put it. It stays open until the process ends, and so does `f`.
struct dwarf *dwarf_open(const struct pm_elf *f);
// False: there is no entry.
bool dwarf_read(struct dwarf *d, uint64_t at, struct dwarf_entry *out);
// The first entry below `of`, and the one after `*entry` on the same level.
bool dwarf_child(struct dwarf *d, const struct dwarf_entry *of, struct dwarf_entry *out);
bool dwarf_sibling(struct dwarf *d, struct dwarf_entry *entry);
// Finds the variable at an address of the program. False: there is none with a type.
bool dwarf_variable(struct dwarf *d, uint64_t address, struct dwarf_entry *out);

// Takes typedefs and const off a type. False: it is void.
bool dwarf_strip(struct dwarf *d, uint64_t type, struct dwarf_entry *out);
// Its bytes; 0: not known.
uint64_t dwarf_size(struct dwarf *d, uint64_t type);
// As a declaration would write it.
void dwarf_name(struct dwarf *d, uint64_t type, char *out, size_t size);
// Whether data hangs from it: it is a pointer, or has one in it, at whatever depth.
bool dwarf_points(struct dwarf *d, uint64_t type);

#endif
