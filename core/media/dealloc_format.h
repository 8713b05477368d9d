// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Deallocation logs: pinned blocks that were freed on another NUMA node than theirs. Each shard has
// PM_DEALLOC_LOGS of them, in the header page of its booklog.N, for threads of the shard's node. An
// entry says of a bit of a table of pinned blocks (kind_format.h), mostly in another shard's
// morph.N, that it means nothing any more: the block is free. All this is only in heaps with
// PM_INCOMPAT_DEALLOC.
//
// An entry is in force while it has the generation of its log: so one 8-byte store ends all entries
// of a log. An entry, from its highest bit down:
//
//   16 check   10 generation   4 shard   29 word of its morph.N   5 bit of the word
//
// The check is a CRC of the other bits and of the entry's own position. A zero word is no entry. An
// entry has the lowest bits of the generation. Before these come again, all entries are set to 0.
#ifndef PM_DEALLOC_FORMAT_H
#define PM_DEALLOC_FORMAT_H

#include <stdint.h>

#define PM_DEALLOC_LOGS 7u
#define PM_DEALLOC_LINES 9u // of 64 bytes
#define PM_DEALLOC_ENTRIES (PM_DEALLOC_LINES * 8 - 1)

#define PM_DEALLOC_WORD_SHIFT 5
#define PM_DEALLOC_SHARD_SHIFT 34
#define PM_DEALLOC_GENERATION_SHIFT 38
#define PM_DEALLOC_CHECK_SHIFT 48
#define PM_DEALLOC_GENERATIONS (1u << (PM_DEALLOC_CHECK_SHIFT - PM_DEALLOC_GENERATION_SHIFT))

#define PM_SALT_DEALLOC(log) (0xffffff40u + (log))

struct pm_dealloc_log {
    uint64_t generation; // sealed; 0 in a log that was never emptied
    uint64_t entry[PM_DEALLOC_ENTRIES];
};
_Static_assert(sizeof(struct pm_dealloc_log) == PM_DEALLOC_LINES * 64, "frozen");

#endif
