// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What of the disappearing links is on media (blocks/link_table.h): those whose word lies in a
// block of the heap, or in a root that is captured and restored. Each has its number in its note:
//
//   how = LINK_VOLATILE   it is not on media
//   how = LINK_OURS       it is on media under the number `next_number - 1`
//   how = LINK_OLD        the same, and an earlier process has registered it
//
// Off media, as in a forked child, nothing here does anything. Lock: pm_gc_lock.
#ifndef PM_BOEHM_LINKS_MEDIA_H
#define PM_BOEHM_LINKS_MEDIA_H

#include <stdbool.h>

#include "notes.h"

// Reads the short and the long links that media have, unless the notes have them all: at the first
// call, when roots were captured since, or when pmalloc_collect() has cleared some.
void pm_gc_links_read(struct notes links[2]);

// The note is new, or about another block. False: there is no room.
bool pm_gc_link_write(struct note *n, bool of_long);
// Before the note gets another key. False: there is no room, and nothing has changed.
bool pm_gc_link_move(struct note *n, bool of_long, uintptr_t to);
// The word becomes 0; the note goes. Both are durable after pm_gc_links_forgotten().
void pm_gc_link_clear(const struct note *n);
void pm_gc_link_forget(const struct note *n);
void pm_gc_links_forgotten(void);

#endif
