// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The part of the format that PMALLOC_COMMIT alone writes: HEAP/journal. format.h has the rest, and
// the rules.
#ifndef PM_JOURNAL_FORMAT_H
#define PM_JOURNAL_FORMAT_H

#include <stdbool.h>

#include "instants_format.h"
#include "media/format.h"
#include "pauses_format.h"

// A commit is a row of groups: a header page, then the contents of the pages that its entries name,
// in their order. All groups of a commit have one epoch and rising numbers. The commit is in force
// once all of them are whole, up to the one that says `last`.
//
// Commits follow one upon another from the start of the file: a lap. All of a lap have its id and
// rising epochs, and each group has the checksum of the one before it. So groups that a former lap,
// or a commit that failed, has left never continue a lap. Opening applies all of a lap, in order,
// up to the first group that is not whole or does not continue it. The next lap begins when the
// files have durably what this one says, and after the first sector of its first header is durably
// zeroes: else a part of this lap might be taken, after the start of it was partly overwritten. A
// single sector, because a disk writes that whole or not at all.
//
// Torn or damaged: a commit is written after the sync of the one before it. So where a later commit
// of the lap has a whole first group, this one was durable, and is damaged. The end of a lap may be
// cut off, too. So the superblock counts the commits that were brought into the files
// (pm_state.applied): if the journal has fewer, it has lost some. A lap belongs to the files as
// they were when it began. The superblock names them by a number (pm_state.lap), which each group
// of the lap has, too. It changes when commit mode begins, and when the files have a lap: then it
// is pm_journal_mark() of that one. So an opening notices files that were restored or copied
// without their journal, and a journal without its files.
#define PM_JOURNAL_MAGIC 0x314c4e52554f4a4dull // "MJOURNL1"
#define PM_JOURNAL_SECTOR 512u
#define PM_JOURNAL_ENTRIES 251u
#define PM_JOURNAL_PAGES 252u // in a group, at most
// As many are written now. Behind them the last group of a commit has struct pm_pauses, and struct
// pm_instants: builds that do not know them take them for entries that are not used. Pauses of an
// older build are zeroes.
#define PM_JOURNAL_ENTRIES_NOW PM_JOURNAL_AT_PAUSES
#define PM_JOURNAL_AT_PAUSES (PM_JOURNAL_AT_INSTANTS - 14u)
#define PM_JOURNAL_AT_INSTANTS (PM_JOURNAL_ENTRIES - 4u)

enum pm_journal_kind { PM_JOURNAL_PAGE = 1, PM_JOURNAL_ZERO = 2, PM_JOURNAL_LENGTH = 3 };
// Bits of `last`; 0: more groups follow. Forced: the commit was made because too many pages had
// changed. Amid: another thread was in the middle of an operation. Instants: the group has them.
enum pm_journal_last {
    PM_JOURNAL_LAST = 1,
    PM_JOURNAL_LAST_FORCED = 2,
    PM_JOURNAL_LAST_AMID = 4,
    PM_JOURNAL_LAST_INSTANTS = 8,
};
// Which file of a shard, or of the heap.
enum pm_journal_member {
    PM_JOURNAL_SUPER = 1,
    PM_JOURNAL_ROOTS = 2,
    PM_JOURNAL_DATA = 3,
    PM_JOURNAL_SLABS = 4,
    PM_JOURNAL_LOG = 5,
    PM_JOURNAL_MORPH = 6
};

struct pm_journal_entry {
    uint64_t first; // PM_JOURNAL_LENGTH: the file's bytes; else the number of the first page
    uint32_t pages;
    uint8_t kind;   // enum pm_journal_kind
    uint8_t member; // enum pm_journal_member
    uint8_t shard;
    uint8_t reserved;
};
_Static_assert(sizeof(struct pm_journal_entry) == 16, "frozen");
_Static_assert(sizeof(struct pm_instants) == 4 * sizeof(struct pm_journal_entry), "in their place");
_Static_assert(sizeof(struct pm_pauses) == 14 * sizeof(struct pm_journal_entry), "in their place");

struct pm_journal_group {
    uint64_t magic;
    uint8_t uuid[16]; // of the superblock
    uint64_t epoch;   // rises with each commit
    uint64_t time;    // of the commit: nanoseconds since 1970
    uint32_t number;
    uint32_t last; // bits of enum pm_journal_last
    uint32_t entries;
    uint32_t pages; // that follow
    uint32_t held;  // in the last group: microseconds that the threads stood still; 0: not known
    uint32_t crc;   // of the header, taken as 0 here, and of the pages
    struct pm_journal_entry entry[PM_JOURNAL_ENTRIES];
    uint64_t lap;     // differs from lap to lap
    uint32_t before;  // crc of the group before it in the lap; 0: it is the first one
    uint32_t follows; // pm_state.lap when the lap began; 0: not on record
};
_Static_assert(sizeof(struct pm_journal_group) == 4096, "one page");
_Static_assert(offsetof(struct pm_journal_group, entry) == 64, "frozen");
_Static_assert(offsetof(struct pm_journal_group, lap) == 4080, "frozen");

// A file as the journal names it. PM_JOURNAL_SELF is the journal.
#define PM_JOURNAL_SELF 0u
#define PM_JOURNAL_MEMBERS 7u
#define PM_JOURNAL_FILES (PM_SHARDS * PM_JOURNAL_MEMBERS)
static inline unsigned pm_journal_file(enum pm_journal_member member, unsigned shard) {
    return shard * PM_JOURNAL_MEMBERS + member;
}

// The superblock's words on the journal are the journal's own: no commit says them. They lie in a
// row, in its page of the state.
#define PM_JOURNAL_OWN_WORDS offsetof(struct pm_state, lap)
#define PM_JOURNAL_OWN_BYTES                                                                       \
    (offsetof(struct pm_state, applied) + sizeof(uint64_t) - PM_JOURNAL_OWN_WORDS)
static inline bool pm_journal_has_own_words(unsigned file, uint64_t page) {
    return file == pm_journal_file(PM_JOURNAL_SUPER, 0) &&
           page == offsetof(struct pm_super_file, state) / PM_PAGE_SIZE;
}

#endif
