// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The loaded objects on record: the program and its libraries, where they lay, and what a later
// build needs of them to find the same things. Words of the heap that lead into them are good only
// while they lie there.
//
// The record of a generation is one file: objects.a if the generation is even, objects.b if it is
// odd. pm_objects_state says which generation is in force. A record only grows, and what it says
// stays true of its generation: a word was stored while these objects lay there. A rewriting (see
// gc/moved/) writes the record of the next generation, makes it durable, and then puts it in force
// by the commit that changes the words.
//
//   head | entry, entry, ... | zeroes up to PM_OBJECTS_LIST | packed objects
//
// Zeroes end the list. The last entry may be unfinished: it has no crc, which is stored last. Any
// other entry that is not whole is damage.
//
// On fixed media a record is a part of the first medium, if there is room for it.
#ifndef PM_OBJECTS_FORMAT_H
#define PM_OBJECTS_FORMAT_H

#include <stdint.h>

#include "media/format.h"

#define PM_OBJECTS_MAGIC 0x315443454a424f4dull // "MOBJECT1"
#define PM_OBJECTS_LIST ((uint64_t)256 << 10)
#define PM_OBJECTS_MOST (PM_OBJECTS_LIST / 256 - 1)
#define PM_OBJECTS_PATH 160u

struct pm_objects_head {
    uint64_t magic;
    uint32_t generation;
    uint8_t reserved[240];
    uint32_t crc; // of all bytes before it
};
_Static_assert(sizeof(struct pm_objects_head) == 256, "as an entry");

// Bits of `flags`.
#define PM_OBJECT_IS_PROGRAM 1u
#define PM_OBJECT_AT_RANDOM 2u // nobody could know where it would lie
#define PM_OBJECT_MIXED 4u     // it was loaded while words may have led to what lay there before
#define PM_OBJECT_TWIN 16u     // one of its name in another directory was loaded before it
#define PM_OBJECT_SUMMED 8u    // it has no build id, and build_id is a checksum of what is loaded

struct pm_objects_entry {
    uint64_t base;         // what loading added to link-time addresses
    uint64_t start;        // of its segments, in memory
    uint64_t end;          // the same
    uint64_t at;           // the packed object in this file,
    uint64_t bytes;        // and its length; 0: there is none
    uint32_t packed_crc;   // of these bytes
    uint32_t flags;        // PM_OBJECT_*
    uint32_t build_id_len; // 0: none is known
    uint8_t build_id[PM_BUILD_ID_MAX];
    uint8_t reserved[8];
    char path[PM_OBJECTS_PATH]; // the end of it, where it is longer
    uint32_t crc;               // of all bytes before it; never 0
};
_Static_assert(sizeof(struct pm_objects_entry) == 256, "frozen");

// After pm_outside, in pm_state.reserved.
struct pm_objects_state {
    uint64_t generation; // sealed; 0: nothing is on record
    uint8_t reserved[56];
};
_Static_assert(sizeof(struct pm_objects_state) == 64, "one line");

#endif
