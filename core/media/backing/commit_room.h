// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Room on the medium for the next commit. Under PMALLOC_COMMIT a page that has changed needs room
// twice: in its file, and in the journal. The heap's growth takes the first at once. If it took the
// second as well, no commit could be made any more. So the heap grows only as long as the journal
// has room for a commit of all its pages, or of somewhat more than PMALLOC_COMMIT_PAGES, or an
// eighth of the medium (64 MiB at least), if one of these is less. Then requests fail, and commits
// go on.
//
//   the medium   | the heap's files | other files | the journal |           free           |
//                                                  <-- at least what a commit may write -->
//
// Nothing is reserved: other programs may take the room. Then a commit fails (commit.h).
#ifndef PM_COMMIT_ROOM_H
#define PM_COMMIT_ROOM_H

#include <stdbool.h>
#include <stdint.h>

// Whether the journal keeps its room when `fresh` bytes of the heap get space that have none yet.
// `taken`: how much of that will come from the journal's medium, with what goes with it. The heap
// is as long already as it will be. True also if the system does not tell.
bool pm_commit_has_room(uint64_t fresh, uint64_t taken);
// After a commit: whether there was room for it, and how long the heap was before its instant.
// While there is none, a heap in directories does not grow.
void pm_commit_found_room(bool found, uint64_t length);

#endif
