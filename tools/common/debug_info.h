// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What a debugger would read in a program: the types of its variables, by elfutils' libdw. So they
// may be compressed, split off, shared by dwz, or in units of types.
#ifndef PM_TOOLS_DEBUG_INFO_H
#define PM_TOOLS_DEBUG_INFO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "roots/elf_file.h"

enum { DWARF_PATH = 128, DWARF_NAME = 256 };

struct dwarf; // of one program

// A place is where an entry is in memory; 0: there is none.
struct dwarf_entry {
    uint64_t at;
    uint32_t tag;        // DW_TAG_..., as in the enum below
    const char *name;    // or ""
    const char *linkage; // the symbol of a C++ variable, or ""
    uint64_t type, origin;
    uint64_t elsewhere; // of a type that is only named here; 0: it is not
    uint64_t declared;  // of a variable: where it was declared before; 0: nowhere
    uint64_t size;      // bytes
    bool has_size;
    uint64_t encoding;
    uint64_t member_at, bit_size, bit_offset;
    bool moves;    // a base class lies elsewhere in each object
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
    DW_POINTER_TO_MEMBER = 0x1f,
    DW_SUBRANGE = 0x21,
    DW_BASE = 0x24,
    DW_CONST = 0x26,
    DW_ENUMERATOR = 0x28,
    DW_FUNCTION = 0x2e,
    DW_TEMPLATE_TYPE = 0x2f,
    DW_VARIABLE = 0x34,
    DW_VOLATILE = 0x35,
    DW_RESTRICT = 0x37,
    DW_VARIANT_PART = 0x33,
    DW_NAMESPACE = 0x39,
    DW_UNSPECIFIED = 0x3b,
    DW_RVALUE_REFERENCE = 0x42,
    DW_TEMPLATE_ALIAS = 0x43,
    DW_ATOMIC = 0x47,
    DW_TEMPLATE_PACK = 0x4107,
};

// NULL: the program has no types that can be read. If it was stripped, its debug file is looked for
// where Debian's packages put it. It stays open until the process ends.
struct dwarf *dw_open(const char *path, const struct pm_elf *f);
// Where the debug file of a program would lie. False: its build id does not say. `size`: at least
// DWARF_PATH.
bool dw_debug_file(const struct pm_elf *f, char *path, size_t size);
// A file that the types lie in, in part, and that was not found; NULL: none.
const char *dw_missing(const struct dwarf *d);
// libdw's handle of the program, for files whose names begin as this one's.
void *dw_handle(struct dwarf *d);
// False: there is no entry.
bool dw_read(struct dwarf *d, uint64_t at, struct dwarf_entry *out);
// The first entry below `of`, and the one after `*entry` on the same level.
bool dw_child(struct dwarf *d, const struct dwarf_entry *of, struct dwarf_entry *out);
bool dw_sibling(struct dwarf *d, struct dwarf_entry *entry);
// Finds the variable at an address of the program, or the one that has it in it. False: there is
// none with a type.
bool dw_variable(struct dwarf *d, uint64_t address, struct dwarf_entry *out);
bool dw_variable_around(struct dwarf *d, uint64_t address, struct dwarf_entry *out);
// Finds variables by their symbol, or by their name with all scopes: but those of functions only by
// their symbol. Returns how many there are; `second` is one of the others.
unsigned dw_find(struct dwarf *d, const char *name, struct dwarf_entry *out,
                 struct dwarf_entry *second);
// Writes the name of a variable with all scopes. False: it is a static of a function.
bool dw_full_name(struct dwarf *d, const struct dwarf_entry *variable, char *out, size_t size);

// Takes typedefs and const off a type. False: it is void.
bool dw_strip(struct dwarf *d, uint64_t type, struct dwarf_entry *out);
// Its bytes; 0: not known.
uint64_t dw_size(struct dwarf *d, uint64_t type);
// A dimension of an array, from 0: its elements, UINT64_MAX if that is not said, and the bytes of
// one of them. False: there is none, or its bytes are not known.
bool dw_dimension(struct dwarf *d, const struct dwarf_entry *array, unsigned dimension,
                  uint64_t *count, uint64_t *stride);
// As a declaration would write it.
void dw_name(struct dwarf *d, uint64_t type, char *out, size_t size);
// Whether data hangs from it: it is a pointer, or has one in it, at whatever depth.
bool dw_points(struct dwarf *d, uint64_t type);

#endif
