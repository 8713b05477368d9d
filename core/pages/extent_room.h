// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Room behind a block, in its own extent: `used` pages are the block's, the others read as zeroes
// and have no space, or space that nobody needs (blocks/room.h).
#ifndef PM_EXTENT_ROOM_H
#define PM_EXTENT_ROOM_H

#include "extent.h"

// Makes the pages of an active extent from `used` on its room. False: they cannot become zeroes.
bool pm_extent_make_room(uint32_t index, uint64_t used);
// The block becomes `pages` long, into its room. False: it has no room, or too little.
bool pm_extent_use_room(uint32_t index, uint64_t pages);
// Gives the room of an extent back, if it has some. True: it did.
bool pm_extent_drop_room(uint32_t index);

#endif
