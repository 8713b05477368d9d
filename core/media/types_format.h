// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The table of types: what the roots of a heap are in one build of its program, and which types
// they reach. Tools alone write and read it, from the program's debug information (tools/types/).
// A heap without it is whole.
//
//   head | roots | types | members | text
//
// The file is written under another name, made durable, and renamed, so it is whole or damaged.
// Whoever reads it checks every number in it. Names are places in the text: where a string begins.
#ifndef PM_TYPES_FORMAT_H
#define PM_TYPES_FORMAT_H

#include <stdint.h>

#include "media/format.h"

#define PM_TYPES_MAGIC 0x31305345505954ull // "TYPES01"
#define PM_TYPES_VERSION 1u
#define PM_TYPES_MOST 16384u // types
#define PM_TYPES_MEMBERS_MOST 131072u
#define PM_TYPES_TEXT_MOST (8u << 20) // bytes

struct pm_types_head {
    uint64_t magic;
    uint64_t bytes; // of the file
    uint32_t version;
    uint32_t body_crc; // of all bytes after the head
    uint32_t roots;    // how many
    uint32_t types;
    uint32_t members;
    uint32_t text;         // bytes
    uint32_t missing;      // name of a file with debug information that was not there; "": none
    uint32_t limited;      // 1: there are more types
    uint32_t build_id_len; // 0: it has none, and build_id is a checksum of the program
    uint8_t build_id[PM_BUILD_ID_MAX];
    uint8_t reserved[40];
    uint32_t crc; // of all bytes before it
};
_Static_assert(sizeof(struct pm_types_head) == 128, "frozen");

enum pm_types_root_is {
    PM_TYPES_ROOT_TYPED,
    PM_TYPES_ROOT_WHOLE,   // `*`: no variable is restored by it
    PM_TYPES_ROOT_LIBRARY, // a library's
    PM_TYPES_ROOT_UNKNOWN, // the debug information has no variable there
};

struct pm_types_root {
    uint32_t text;     // as PMALLOC_ROOTS names it, but for when it is restored
    uint32_t variable; // the same by members, such as server.db; or ""
    uint32_t type;
    uint32_t is; // enum pm_types_root_is
    uint64_t length;
    uint8_t reserved[8];
};
_Static_assert(sizeof(struct pm_types_root) == 32, "frozen");

// The kinds from PM_TYPES_VOID on lead no further.
enum pm_types_kind {
    PM_TYPES_INTEGER = 1, // also enumerations, characters and bool
    PM_TYPES_FLOAT,
    PM_TYPES_POINTER, // also references
    PM_TYPES_ARRAY,
    PM_TYPES_STRUCT, // also classes
    PM_TYPES_VOID,
    PM_TYPES_UNION,
    PM_TYPES_FUNCTION,
    PM_TYPES_INCOMPLETE, // no definition of it is there
    PM_TYPES_SEVERAL,    // several types have the name, and it is not known which one is meant
    PM_TYPES_BEYOND,     // the table had no room for it
    PM_TYPES_OTHER,
    PM_TYPES_KINDS,
};

struct pm_types_type {
    uint64_t size;     // 0: not known
    uint64_t count;    // of an array: elements; UINT64_MAX: not known
    uint64_t hash;     // of a struct: of its name, its size and its members
    uint32_t name;     // with scopes; "": it has none
    uint32_t kind;     // enum pm_types_kind
    uint32_t to;       // of a pointer or array
    uint32_t first;    // member of a struct,
    uint32_t members;  // and how many it has
    uint32_t is_class; // 1: the program calls it a class
};
_Static_assert(sizeof(struct pm_types_type) == 48, "frozen");

enum pm_types_member_is {
    PM_TYPES_MEMBER,
    PM_TYPES_BASE,         // a base class
    PM_TYPES_VIRTUAL_BASE, // the same, and where it lies is not known
    PM_TYPES_VTABLE,       // the pointer to the table of virtual functions
    // No bytes of the struct, but where its data lead to:
    PM_TYPES_ARGUMENT, // of a template
    PM_TYPES_DERIVED,  // a class that has this one as its base
};

struct pm_types_member {
    uint64_t at;   // bits
    uint32_t bits; // of a bit field; 0: it is none
    uint32_t is;   // enum pm_types_member_is
    uint32_t name;
    uint32_t type;
};
_Static_assert(sizeof(struct pm_types_member) == 24, "frozen");

#endif
