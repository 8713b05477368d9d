// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The heap directory and the memory over it: files, their lock and state, the mapping at its address, and
// the growing and shrinking of it. There is one heap in a process. What lies in the range is extent.h's
// business.
//
// Opening is split so that nothing is changed before everything is known to be good:
//   pm_heap_open    finds, locks and validates; makes the files of a new heap; maps metadata
//   pm_heap_map     maps the data at its address
//   pm_heap_dirty   durably takes back "clean"; from here on the heap may change
#ifndef PM_HEAP_H
#define PM_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "layout.h"
#include "message.h"

struct pm_file {
    const char *name; // in the heap directory
    int fd; // high, close-on-exec; may have been closed by the program (see pm_file_ready)
    uint64_t dev, ino;
    size_t size;  // of the file
    char *map;    // NULL until mapped
    size_t reach; // bytes mapped, beyond the end of the file
};

enum pm_open_mode {
    PM_OPEN_CREATE,   // make it where it is missing
    PM_OPEN_EXISTING, // fail where it is missing
    PM_OPEN_DEAD,     // the same, and what an interrupted making or removal left is removed
    PM_OPEN_READONLY, // the same, and nothing is ever written
};

struct pm_heap {
    char dir[4096];
    int dir_fd; // holds the lock
    bool persistent;
    bool readonly;
    bool created;                // by this process
    bool file_beneath;           // volatile, over private mappings of the data file (private.h)
    bool busy;                   // why pm_heap_open failed
    pid_t busy_pid;              // who has it, by its own account
    uint64_t busy_start;         // and when that process started
    struct pm_super_file *super; // NULL in volatile mode
    struct pm_file super_file, data, slabs, log, roots;
    struct pm_file morph; // not there in a heap whose slabs never morph
    uint64_t frontier;    // bytes of the range below which extents lie; the data file's length
    uint64_t limit;       // the frontier's bound
};
extern struct pm_heap pm_heap;

// Where the heap lies in this process and how far it can reach; fixed once the allocator has started. A persistent
// heap always lies at PM_HEAP_BASE. The range is PM_HEAP_RANGE, or less where address space is limited
// (`ulimit -v`, valgrind): volatile memory then lies wherever there is room.
extern uint64_t pm_base, pm_range;
// Finds out how large a range, with its tables, this process has room for; false: none worth having.
bool pm_heap_choose_range(void);

// PM_OK, or an error with its exit status. `wait` blocks while another process has it. On failure nothing
// is held and nothing has been changed on disk.
int pm_heap_open(const char *dir, enum pm_open_mode mode, bool wait, struct pm_error *err);
// Maps data at PM_HEAP_BASE and the slab headers, bookkeeping log beside it.
int pm_heap_map(struct pm_error *err);
// The same range over anonymous memory.
int pm_heap_volatile(struct pm_error *err);
// It has become anonymous memory, of which the first `writable` bytes can be written.
void pm_heap_is_anonymous(uint64_t writable);
// "Clean" is the first thing durably removed ...
void pm_heap_dirty(void);
// ... and the last thing written: every file is made durable first. False (and dirty) when that failed.
bool pm_heap_clean(void);
// Lets go of lock and mappings of metadata; data stays mapped so that late accesses do not fault.
void pm_heap_release(void);
// Unlinks the heap's files and directory, while the lock is held.
void pm_heap_remove(void);
// Puts an empty data file in place of the present one, whose space goes when this process ends: until then its
// last readers (stdio's exit, other libraries' destructors) find everything as it was. The log must be empty.
bool pm_heap_discard_data(void);
// Whether slabs may morph in this heap; see PM_INCOMPAT_MORPH.
static inline bool pm_heap_morphs(void) {
    return !pm_heap.super || (pm_heap.super->super.incompat & PM_INCOMPAT_MORPH) != 0;
}
// Roots in force: table entries (a whole object counts once) and slots that are not empty.
unsigned pm_heap_root_count(void);
static inline bool pm_heap_has_roots(void) { return pm_heap_root_count() != 0; }
// The epoch of the root table in force.
static inline uint32_t pm_heap_root_epoch(void) {
    return (uint32_t)pm_heap.super->state.root_epoch;
}

// A root slot's word on media: 48 bits of pointer and their check, which also tells an empty slot from zeroes that
// do not belong there. Its top bit is set, so it is no address itself.
#define PM_SLOT_MAX ((1ull << 48) - 1)
uint64_t pm_slot_word(unsigned slot, uint64_t pointer);
static inline uint64_t pm_heap_slot(unsigned slot) {
    return __atomic_load_n(&pm_heap.super->slots.slot[slot], __ATOMIC_ACQUIRE) & PM_SLOT_MAX;
}

// All of these are called with the extent lock held. Offsets are from pm_base, page aligned.
// Makes room for the header of every slab that the range may hold. slabs.0 may be shorter than that after a power
// failure; what is stored behind its end would be lost, or the end of the process.
bool pm_heap_complete(void);
// Moves the frontier; false at the limit, when the file system refuses, or when it would go back and the file is
// pinned.
bool pm_heap_set_frontier(uint64_t bytes);
// Makes [offset, offset + len) really there, so that touching it cannot fail for lack of space.
bool pm_heap_commit(uint64_t offset, uint64_t len);
// Whether the file system has room for `len` more bytes beside what it already promised: `promised` bytes
// are in extents. *known is false where the system will not tell.
bool pm_heap_has_room(uint64_t len, uint64_t promised, bool *known);
// Gives the space back; the range reads as zeroes afterwards. False when the file system cannot.
bool pm_heap_uncommit(uint64_t offset, uint64_t len);

// A piece of the data file that is known to be written throughout; all zero at first. The file system looks for the end of
// a piece page by page, which for every part of a long one anew would take time by its square.
struct pm_written {
    uint64_t from, to;
};
// Moves *offset to the next byte below `end` that was ever written and returns how many such bytes follow; 0
// when there are none. Where the file system cannot tell, everything counts as written. No lock needed; `known` is
// the caller's, and good for as long as nothing is given back to the file system.
uint64_t pm_heap_next_data(struct pm_written *known, uint64_t *offset, uint64_t end);

// mmap() of a file of the heap, shared; with MAP_SYNC on DAX, so that blocks and length are durable with the lines
// written to them. `flags` may add MAP_FIXED or MAP_NORESERVE. MAP_FAILED with errno.
void *pm_file_map(const struct pm_file *file, void *at, size_t len, int prot, int flags,
                  uint64_t offset);
// Makes `file` at least `size` bytes long, allocated on the file system.
bool pm_file_grow(struct pm_file *file, size_t size);
// Allocates a range of `file` on the file system, so that a store to its mapping cannot fail.
bool pm_file_back(struct pm_file *file, uint64_t offset, uint64_t len);
// A new read-only descriptor of the data file for private mappings of it; -1 where there is none to be had. As long as
// it or such a mapping, in whatever process, lasts, the file is not cut shorter.
int pm_heap_pin(void);
// Makes sure that file->fd is still this file, reopening it where the program closed our descriptor.
bool pm_file_ready(struct pm_file *file);

typedef bool pm_range_fn(uint64_t offset, uint64_t len, void *arg);

static inline uint64_t pm_heap_offset(const void *p) { return (uint64_t)(uintptr_t)p - pm_base; }
static inline void *pm_heap_at(uint64_t offset) { return (void *)(uintptr_t)(pm_base + offset); }

extern bool pm_length_known; // heap_space.c, for heap.c

// heap_dir.c, for heap.c
int pm_dir_open(const char *dir, enum pm_open_mode mode, bool wait, struct pm_error *err);
void pm_dir_close(void);
// Makes sure that pm_heap.dir_fd is still the heap's directory, as pm_file_ready() does of files. Needed before
// anything is named in it: the number may be that of a directory of the program.
bool pm_dir_ready(void);
// The heap's directory is this one, from now on.
void pm_dir_adopt(int fd);
// Unlinks the files of a heap.
bool pm_dir_empty(int fd);
int pm_dir_lock(int fd, enum pm_open_mode mode, bool wait, struct pm_error *err);
int pm_file_open(struct pm_file *file, int flags, struct pm_error *err);

#endif
