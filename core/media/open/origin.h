// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What tells a heap from a copy of it that was made by other means than pmalloc-backup (cp, rsync,
// tar). Such a copy takes the files one after the other, and the pages of each one after the other.
// Of a heap at rest it is a heap. Of a heap in use it is a mixture of many instants, and nothing in
// it says so: each file is whole, and recovery finds something. So the state page says which file
// the superblock is, and a heap that is not clean is refused if its superblock is another file.
//
//   is not noticed                            because
//   a copy of a clean heap                    the heap was at rest: the copy is good
//   a snapshot or image of a file system      the file is the same one: and it is one instant
//   a backup                                  it is one instant, so it has no origin until it is
//                                             opened; nor have copies of the backup
//   a copy whose bytes went into the heap's   the file is the same one
//   own superblock (cp over it)
//   a copy of a heap on FUSE, FAT, SMB, on    its origin is not recorded
//   a device, or on another file system whose inode numbers need not last
#ifndef PM_ORIGIN_H
#define PM_ORIGIN_H

#include <stdbool.h>

#include "base/message.h"
#include "media/format.h"

// Whether opening takes a copy, too (`--copy`, pmalloc-info). It is set before a heap is opened.
extern bool pm_copies_taken;

// The origin of a heap whose superblock is the file `fd`; all 0: it is not known.
struct pm_origin pm_origin_of(int fd);

// Records where the open heap lies, durably. It comes before "dirty": until then it says nothing.
void pm_origin_record(void);

// Compares the open heap with its record, before its journal is applied, and sets pm_heap.copy.
// `at_rest`: it is clean, so a copy of it is good. PM_OPERATIONAL: it is a copy, not to be taken.
int pm_origin_check(bool at_rest, struct pm_error *err);
// Whether the record is whole, or there is none.
bool pm_origin_is_whole(const struct pm_origin *origin);

#endif
