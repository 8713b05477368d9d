// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A heap on fixed media: files or devices, which have their full size from the start. They are
// never made longer or shorter, nothing is punched, and there are no names: a famfs file, a device
// /dev/daxX.Y, or any file with all its space.
//
//   PATH   | layout | lengths | superblock | roots | slabs.0 | ... | heap.0                    |
//   PATH   | layout | lengths | slabs.1 | ...                      | heap.1                    |
//          |<-------------- the head, mapped once --------------->|<- at the heap's address -->|
//
// Mostly there is one medium. PMALLOC_HEAP=PATH:PATH names several: each has the parts of a shard,
// and its layout says which medium of which heap it is (fixed_layout.h).
//
// Each file of the heap is a part of a medium: a struct pm_file whose `length` is the word that
// stands for the length a file system would keep. So parts use the code of files. There are
// differences: space is always there, released space keeps its bytes, and heap.N never becomes
// shorter.
//
// The lock of a medium is held by one descriptor and by the mapping of its head. The parts have
// another descriptor. So mappings of heap.N that outlive the heap do not keep the lock.
#ifndef PM_FIXED_H
#define PM_FIXED_H

#include "base/crc.h"
#include "base/options.h"
#include "fixed_format.h"
#include "media/heap.h"

struct stat;

struct pm_medium {
    char path[sizeof pm_heap.dir]; // absolute
    int fd;                        // of the parts
    int lock;                      // has the lock; that of the first medium is pm_heap.dir_fd
    uint64_t dev, ino, gate_dev, gate_ino;
    bool device;
    uint64_t granule; // the smallest piece that can be mapped: a page, or more on a device
    int gate;         // a device's folder in /sys: its lock holds for all nodes of it; or -1
    char *head;       // the mapping of everything before heap.N
    size_t head_len;
    struct pm_lengths *lengths; // in it; NULL: not yet open
};

struct pm_fixed {
    struct pm_medium medium[PM_MEDIA]; // as they are named
    unsigned count;                    // that were found
    bool open;                         // a heap on fixed media is open
    bool readonly;
    bool zeroed; // space beyond the ends of all heap.N reads as zeroes
};
extern struct pm_fixed pm_fixed;

#define PM_EACH_MEDIUM(m)                                                                          \
    struct pm_medium *m = pm_fixed.medium;                                                         \
    m < pm_fixed.medium + pm_fixed.count;                                                          \
    m++

// Whether the open heap lies on fixed media.
static inline bool pm_fixed_is_open(void) { return pm_fixed.open; }
// The same, and stores to it reach the media, or will with a commit.
static inline bool pm_heap_is_fixed(void) { return pm_heap_on_media() && pm_fixed_is_open(); }
// Whether PMALLOC_RESERVE=lazy holds. All space of fixed media is there from the start, so there a
// promise of it costs nothing.
static inline bool pm_reserve_is_lazy(void) {
    return pm_options.reserve.number == PM_RESERVE_LAZY && !pm_fixed_is_open();
}
// Whether the heap lies on fixed media, and one of them is a device: that one cannot be mapped
// private. NULL: none is.
const struct pm_medium *pm_fixed_device(void);

// The medium that has a part.
struct pm_medium *pm_medium_of(const struct pm_file *part);
// The file that a part of the medium number `medium` is; NULL: there is no such part.
struct pm_file *pm_medium_part(unsigned medium, unsigned part);
// The descriptor of the parts, opened again if the program has closed it; -1: it cannot be.
int pm_medium_fd(struct pm_medium *m);
// The node of the medium that has a shard: the device's, or what the superblock says, or by turns.
unsigned pm_fixed_node(unsigned shard, int recorded);

void pm_fixed_close(void);
// A sync by another descriptor of the media has failed. Takes the report of that from the locks,
// too, by which the heads are mapped: an msync would have it much later, when the error is mended.
// Keeps errno.
void pm_fixed_take_reports(void);
// Reads the lengths of all parts, which the journal may have changed.
int pm_fixed_measure(struct pm_error *err);
// How long a part is, also while another process changes that.
static inline uint64_t pm_fixed_length(const struct pm_file *part) {
    uint64_t word = __atomic_load_n(part->length, __ATOMIC_ACQUIRE);
    uint64_t bytes = (uint64_t)pm_unseal(word) << PM_PAGE_SHIFT;
    return bytes < part->room ? bytes : part->room;
}
// Sets the length of the part, in whole pages, durably. False, with errno ENOSPC: it has no room
// for that.
bool pm_fixed_set_length(struct pm_file *file, uint64_t bytes);

// ---- for media whose heap need not be open ------------------------------------------------------

// Whether a user may have a heap there: the file or device is the user's, and no other's to write.
int pm_fixed_check_owner(const char *path, const struct stat *st, struct pm_error *err);
// Refuses the name of a device /dev/daxX.Y that is missing: a directory or file of that name would
// lie in memory.
int pm_fixed_check_name(const char *path, struct pm_error *err);
// The bytes of a file or device; 0: not known.
uint64_t pm_fixed_bytes(int fd);
// The device's folder in /sys, which all of its nodes share; -1: there is none.
int pm_fixed_open_gate(const struct stat *st);
// The number in a file of that folder; 0: there is none.
uint64_t pm_fixed_device_number(int fd, const char *name);
// Maps the first PM_FIXED_ALIGN bytes, to read only. NULL, with errno; ENODATA: it has fewer.
const struct pm_layout *pm_fixed_peek(int fd, const char *path);
void pm_fixed_unpeek(const struct pm_layout *layout);
// Chooses how stores to them are flushed: all must survive the same failures.
int pm_fixed_persist(const struct pm_medium *medium, unsigned count, struct pm_error *err);
// Reads who has the heap, from its first medium.
bool pm_fixed_read_state(int fd, struct pm_state *state);

#endif
