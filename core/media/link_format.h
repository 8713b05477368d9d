// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Disappearing links, on media: words of the program that recovery sets to 0 when the block that
// each is about has died. Which words these are stands in tables in morph.0, where no marker looks:
// so an entry keeps no block alive. All this is only in heaps with PM_INCOMPAT_LINKS.
//
//   pm_link_state.first --> table --> table --> 0        the newest is the first
//
// A table is PM_LINK_LINES lines in a row: a head in a line of its own, and entries. A head does
// not change, and a table stays for as long as its heap does.
#ifndef PM_LINK_FORMAT_H
#define PM_LINK_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "format.h"

// After pm_shard_state, in pm_state.reserved.
struct pm_link_state {
    uint64_t first; // sealed: the first line of the newest table; 0 stands for none, too
    uint8_t reserved[56];
};
_Static_assert(sizeof(struct pm_link_state) == 64, "frozen");
#define PM_SALT_LINKS 0xfffffffau

#define PM_LINK_MAGIC 0x4b4cu
#define PM_LINK_LINES 32u // half a page, so that they fit beside line 0
#define PM_LINK_ENTRIES 62u

struct pm_link_head {
    uint16_t magic;
    uint16_t entries; // PM_LINK_ENTRIES
    uint32_t line;    // its own
    uint32_t next;    // the table before this one; 0: there is none
    uint8_t reserved[48];
    uint32_t crc; // of all bytes before it
};
_Static_assert(sizeof(struct pm_link_head) == PM_MORPH_LINE, "a line of its own");

// Two entries share a line, and each lies in one. So the stores to an entry become durable in their
// order, and `link`, which is stored last, commits the entry.
//
//   link     20 bits check | 41 bits where | 3 bits: root, long, 1     all but the check 0: free
//   object   20 bits check | 40 bits where | 4 bits: 0
//
// `where` of an object counts units of 16 bytes from PM_HEAP_BASE, that of a link units of 8 bytes
// from there or, with `root`, bytes of the captured root that `root` names. The check is a CRC of
// the other bits and of the word's place. In a free entry the other words mean nothing. One that
// was never used is all zeroes.
struct pm_link_entry {
    uint64_t link;
    uint64_t object;
    uint64_t root; // sealed: a CRC of what names the root (gc/roots/root_words.h); else 0
    uint64_t reserved;
};
_Static_assert(sizeof(struct pm_link_entry) == 32, "half a line");
_Static_assert(sizeof(struct pm_link_head) + PM_LINK_ENTRIES * sizeof(struct pm_link_entry) ==
                   PM_LINK_LINES * PM_MORPH_LINE,
               "a table is whole lines");
#define PM_LINK_CHECK_SHIFT 44
#define PM_LINK_IN_USE 1ull
#define PM_LINK_LONG 2ull
#define PM_LINK_ROOT 4ull
#define PM_LINK_WHERE_SHIFT 3
// `word` is the number of the word in morph.0.
#define PM_SALT_LINK(word) (0x40000000u | (word))

#endif
