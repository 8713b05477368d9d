// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A heap on a fixed medium: one file or device, which has its full size from the start. It is never
// made longer or shorter, nothing is punched, and there are no names: a famfs file, a device
// /dev/daxX.Y, or any file with all its space.
//
//   PATH   | layout | lengths | superblock | roots | slabs.0 | ... | heap.0                    |
//          |<-------------- the head, mapped once --------------->|<- at the heap's address -->|
//
// Each file of the heap is a part of the medium: a struct pm_file whose `length` is the word that
// stands for the length a file system would keep. So the code of the parts is that of files. What
// differs: space is always there, released space keeps its bytes, and heap.0 never becomes shorter.
//
// The lock is held by one descriptor, pm_heap.dir_fd, and by the mapping of the head. The parts
// have another one. So mappings of heap.0 that outlive the heap do not keep the lock.
#ifndef PM_FIXED_H
#define PM_FIXED_H

#include "base/crc.h"
#include "fixed_format.h"
#include "heap.h"

struct pm_fixed {
    int fd; // of the parts
    uint64_t dev, ino, gate_dev, gate_ino;
    bool readonly;
    bool device;
    bool zeroed;      // space beyond the end of heap.0 reads as zeroes
    uint64_t granule; // the smallest piece that can be mapped: a page, or more on a device
    int gate;         // a device's folder in /sys: its lock holds for all nodes of it; or -1
    char *head;       // the mapping of everything before heap.0
    size_t head_len;
    struct pm_lengths *lengths; // in it; NULL: no heap on a fixed medium is open
};
extern struct pm_fixed pm_fixed;

// Whether the open heap lies on a fixed medium.
static inline bool pm_fixed_is_open(void) { return pm_fixed.lengths != NULL; }
// The same, and stores to it reach the medium, or will with a commit.
static inline bool pm_heap_is_fixed(void) { return pm_heap_on_media() && pm_fixed_is_open(); }

// The descriptor of the parts, opened again if the program has closed it; -1: it cannot be.
int pm_fixed_fd(void);
void pm_fixed_close(void);
// Reads the lengths of all parts, which the journal may have changed.
int pm_fixed_measure(struct pm_error *err);
// How long a part is, also while another process changes that.
static inline uint64_t pm_fixed_length(const struct pm_file *part) {
    uint64_t word = __atomic_load_n(part->length, __ATOMIC_ACQUIRE);
    uint64_t bytes = (uint64_t)pm_unseal(word) << PM_PAGE_SHIFT;
    return bytes < part->room ? bytes : part->room;
}
// Makes the part so long, durably; whole pages. False, with errno ENOSPC: it has no room for that.
bool pm_fixed_set_length(struct pm_file *file, uint64_t bytes);

// ---- for a medium whose heap need not be open ---------------------------------------------------

// The bytes of a file or device; 0: not known.
uint64_t pm_fixed_bytes(int fd);
// The device's folder in /sys, which all of its nodes share; -1: there is none.
struct stat;
int pm_fixed_open_gate(const struct stat *st);
// The number in a file of that folder; 0: there is none.
uint64_t pm_fixed_device_number(int fd, const char *name);
uint32_t pm_layout_crc(const struct pm_layout *layout);
// Whether a layout can be used; `path` is for the message.
int pm_layout_check(const struct pm_layout *layout, const char *path, struct pm_error *err);
// Maps the first PM_FIXED_ALIGN bytes, to read only. NULL, with errno; ENODATA: it has fewer.
const struct pm_layout *pm_fixed_peek(int fd);
void pm_fixed_unpeek(const struct pm_layout *layout);
// Chooses how stores to it are flushed; pm_fixed.device says whether it is a device.
void pm_fixed_persist(int fd);
// Reads who has the heap.
bool pm_fixed_read_state(int fd, struct pm_state *state);

#endif
