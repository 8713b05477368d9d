// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The root table on media, and the capture of a process's variables into it.
//
// Each start writes a new table and new images of the captured pages, beside the old ones. When
// they are durable, it switches to them with one 8-byte store of pm_state.root_epoch. A crash
// before that store leaves the old roots, a crash after it the new ones. Both have the same bytes
// in their restored roots.
#ifndef PM_ROOT_TABLE_H
#define PM_ROOT_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"
#include "media/format.h"

// Returns the table in force, after a check of its checksum, its epoch, and its fit to the roots
// file. NULL: it is damaged, and `err` says so. A table without roots is not damaged.
const struct pm_root_table *pm_roots_table(struct pm_error *err);
// The bytes of a root.
struct pm_root_bytes {
    const void *bytes;
    uint64_t len;
    uint64_t address; // where the program has them; 0: a slot
    bool restored;    // the program will find these bytes in its variables
};
// Calls `fn` for every root in its image, and once for all root slots.
typedef void pm_root_fn(const struct pm_root_bytes *root, void *arg);
int pm_roots_each(pm_root_fn *fn, void *arg, struct pm_error *err);
// Calls `fn` for every root of the table in force. A root of several parts (an object's segments, a
// static and its guard) is one call, with the sum of their lengths. Returns the number of calls; 0
// for a damaged table.
unsigned pm_roots_list(void (*fn)(const struct pm_root *root, const char *text, void *arg),
                       void *arg);
// Returns how many root slots are not empty.
unsigned pm_roots_slots_used(void);
// Writes the text with which PMALLOC_ROOTS would name a root.
void pm_root_text(const struct pm_root *root, char *out, size_t outlen);
// The CRC of all roots' bytes in their images, in the order of the table. False: they cannot be
// read, and `err` says why.
bool pm_roots_images_crc(uint32_t *crc, struct pm_error *err);
// Removes every root whose text is `name`. PM_USAGE: there is none. The heap must be open for
// writing.
int pm_roots_drop(const char *name, struct pm_error *err);
// Lets every root whose text is `name` be the one that the text `to` names, in whatever build.
// PM_USAGE: there is none of that name, `to` is there already, or it cannot be the same memory.
int pm_roots_rename(const char *name, const char *to, struct pm_error *err);

// ---- for preload/process/: capture.c ----
// Finds in this process the roots that PMALLOC_ROOTS names and those that the heap has. Writes
// nothing.
int pm_roots_prepare(struct pm_error *err);
// Captures the pages of these roots and restores the bytes that the last run left in them.
int pm_roots_capture(struct pm_error *err);
// When the time of the late roots has come (parts.h), and all threads are held: captures these,
// too, and restores them. Of a borrowed heap it only restores them. Where it fails the process can
// only end: nothing of the heap has changed.
int pm_roots_capture_late(struct pm_error *err);
// For a borrowed heap: restores the bytes in the process's own pages. Nothing is captured.
int pm_roots_restore(struct pm_error *err);
// Calls `fn` for each part of a captured root that was restored or may be: not for whole objects.
void pm_roots_each_captured(void (*fn)(const void *at, uint64_t len, const char *name, void *arg),
                            void *arg);
// Whether `p` lies in a captured root.
bool pm_roots_captured(const void *p);
// The same, and where the byte lies in the file `roots`.
bool pm_roots_image_of(const void *p, uint64_t *offset);
// The process parts from its heap: private memory with the same contents takes the place of the
// captured pages. For forks. False: memory is out; the pages may be private in part.
bool pm_roots_privatise(void);
// The same for the end of a program: private mappings of the file need no memory until the pages
// are copied.
bool pm_roots_part(void);
// Undoes a pm_roots_part() that failed: maps the file in the place of all captured pages again.
bool pm_roots_rejoin(void);
// Makes the captured pages read-only, or writable again.
bool pm_roots_hold(bool on);
// For a child that goes on with the heap: maps the file in the place of all captured pages.
int pm_roots_remap(struct pm_error *err);
// `on`: children that skip the fork handlers find nothing at the captured pages. Else they find
// them again.
bool pm_roots_fork_exclude(bool on);

#endif
