// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The heap of this process. There is one: its files, its lengths, and its address range.
//
//   heap_open.h    opening, mapping, "clean" and "dirty"        file.h     one file of it
//   heap_dir.h     its directory: owner, lock, making           log.h      the bookkeeping log
//   shard.h        what belongs to one data file
//   backing.h      space and length of the data, by what it lies in
//
// For what lies in the range see pages/extent.h.
#ifndef PM_HEAP_H
#define PM_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "base/message.h"
#include "base/sizeclass.h"
#include "format.h"
#include "heap_files.h"
#include "heap_state.h"
#include "kind_format.h"
#include "shard.h"

enum pm_open_mode {
    PM_OPEN_CREATE,   // makes the heap if it is missing
    PM_OPEN_EXISTING, // fails if it is missing
    PM_OPEN_DEAD,     // fails if it is missing; removes a remnant
    PM_OPEN_READONLY, // fails if it is missing; nothing is ever written
    PM_OPEN_LOOK,     // the same without a lock: its owner goes on; never to be mapped
    PM_OPEN_HALTED,   // the same without a lock: its owner is stopped all the while
};
static inline bool pm_open_reads(enum pm_open_mode mode) { return mode >= PM_OPEN_READONLY; }

struct pm_heap {
    char dir[4096];
    int dir_fd;                  // holds the lock
    bool readonly;               // opened in a mode that only reads
    bool created;                // this process has made the heap
    bool nameless;               // its files have no names (heap_make.h); pm_heap.dir says so
    bool careful;                // a bad block in the superblock is an error of pm_heap_open()
    bool changed;                // this process may have written to it: set before the first store
    bool settled;                // it was closed clean, or pm_doubt_settle() has succeeded
    bool copy;                   // it is a copy of a heap that was not clean (origin.h)
    uint64_t recorded;           // inode number of the superblock whose origin is recorded; or 0
    struct pm_super_file *super; // while pm_heap_is_held(), and while borrowed
#define MEMBER(member, ...) struct pm_file member;
#define NO_MEMBER(...)
    PM_HEAP_FILE_TABLE(MEMBER, NO_MEMBER)
#undef MEMBER
#undef NO_MEMBER
    struct pm_shard shard[PM_SHARDS];
    // How many there are: the first ones. Rises under the extent lock of shard 0. Who reads it
    // without that lock may miss a new shard, which has no extents yet.
    _Atomic unsigned shards;
    // Its directories (volume.h). Rises under the same lock.
    _Atomic unsigned volumes;
    _Atomic uint64_t limit;  // of all shards together; may rise
    _Atomic uint64_t length; // the sum of their frontiers
};
extern struct pm_heap pm_heap;

// Where the heap lies in this process and how far it can reach. Both are fixed once the allocator
// has started. A persistent heap always lies at PM_HEAP_BASE. Volatile memory may lie wherever
// there is room. The range is that of two shards or more, so that another directory can come, or
// less where address space is limited (`ulimit -v`, valgrind).
extern uint64_t pm_base, pm_range;

// The addresses that each shard has in this process: less than on media where address space is
// limited.
static inline uint64_t pm_shard_reach(void) {
    return pm_range < PM_SHARD_RANGE ? pm_range : PM_SHARD_RANGE;
}
static inline struct pm_shard *pm_shard_at(uint64_t offset) {
    return &pm_heap.shard[offset >> PM_SHARD_SHIFT];
}
static inline struct pm_shard *pm_shard_of_page(uint64_t page) {
    return &pm_heap.shard[page >> (PM_SHARD_SHIFT - PM_PAGE_SHIFT)];
}
static inline struct pm_shard *pm_shard_of_slab(uint32_t slab) {
    return &pm_heap.shard[slab >> (PM_SHARD_SHIFT - PM_SLAB_SHIFT)];
}

// The first rows of pm_heap_files: the rows of the shards that there are.
static inline size_t pm_heap_file_count(void) {
    return PM_FIRST_FILES + PM_SHARD_FILES * (pm_heap.shards - 1u);
}
// The file of a row, of pm_heap or its shard.
static inline struct pm_file *pm_heap_file(const struct pm_heap_file *row) {
    return (struct pm_file *)(uintptr_t)((char *)&pm_heap + row->at);
}
// Whether the open heap has this file, and keeps it open.
bool pm_heap_holds(const struct pm_heap_file *file);

// Whether the state on media is "clean". Until pm_heap_dirty() this says whether the last close was
// clean.
static inline bool pm_heap_is_clean(void) { return pm_heap.super->state.state == PM_STATE_CLEAN; }
// Whether the heap may have blocks of a kind; see PM_INCOMPAT_KINDS, which the others imply.
static inline bool pm_kind_is_known(unsigned kind) {
    uint64_t need = (kind ? PM_INCOMPAT_KINDS : 0) |
                    (pm_kind_is_pinned(kind) ? PM_INCOMPAT_PINNED : 0) |
                    (pm_kind_is_typed(kind) ? PM_INCOMPAT_TYPES : 0);
    return kind <= PM_KIND_ALL &&
           (!pm_heap_is_held() || (pm_heap.super->super.incompat & need) == need);
}
// The number of roots in force: entries of the table (a whole object counts once), and slots that
// are not empty.
unsigned pm_heap_root_count(void);
bool pm_root_is_dropped(const struct pm_root *root); // see PM_ROOT_DROPPED
// Whether there are roots, and all of them were dropped: a program reaches nothing.
bool pm_heap_roots_are_dropped(void);
// Whether anything may be alive when no program runs: through a root, or because it is pinned.
static inline bool pm_heap_has_roots(void) {
    return (pm_heap.super->super.incompat & PM_INCOMPAT_PINNED) || pm_heap_root_count() != 0;
}
// The epoch of the root table in force.
static inline uint32_t pm_heap_root_epoch(void) {
    return (uint32_t)pm_heap.super->state.root_epoch;
}

// The word on media for a root slot: 48 bits of pointer and a check. The check tells an empty slot
// from zeroes that do not belong there. The top bit is set, so the word itself is no address.
#define PM_SLOT_MAX ((1ull << 48) - 1)
uint64_t pm_slot_word(unsigned slot, uint64_t pointer);
static inline uint64_t pm_heap_slot(unsigned slot) {
    return __atomic_load_n(&pm_heap.super->slots.slot[slot], __ATOMIC_ACQUIRE) & PM_SLOT_MAX;
}

// Zeroes bytes that belong to no block, because the collector would take what is left there for
// pointers. Does nothing off media, where no collector runs.
static inline void pm_heap_scrub(void *at, size_t len) {
    if (pm_heap_on_media())
        memset(at, 0, len);
}

typedef bool pm_range_fn(uint64_t offset, uint64_t len, void *arg);

static inline uint64_t pm_heap_offset(const void *p) { return (uint64_t)(uintptr_t)p - pm_base; }
static inline void *pm_heap_at(uint64_t offset) { return (void *)(uintptr_t)(pm_base + offset); }

// ---- a heap that this process has not opened ---------------------------------------------------

// As pm_heap_root_count().
unsigned pm_super_root_count(const struct pm_super_file *file);
#endif
