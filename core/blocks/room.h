// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Room behind a block that grows by realloc in steps, so that the next steps are in place:
//
//   extent    [ used by the block | room: no space, zeroes       ] next extent
//   realloc   [ used by the block .... | room                    ] next extent
//
// Room is of the block's own extent and entry. It takes addresses alone: its pages have no space,
// and are promised it as the pages of any huge block are. A request that would fail takes all room
// back.
#ifndef PM_ROOM_H
#define PM_ROOM_H

#include <stdbool.h>
#include <stddef.h>

// A block of `size` bytes for one of `old` bytes that has no room left where it is. NULL: it is to
// be allocated as any other, because it is small, or does not grow in steps, or there is no room.
void *pm_room_alloc(size_t old, size_t size);
// Gives up the room of all blocks. True: there was some.
bool pm_room_take_back(void);

#endif
