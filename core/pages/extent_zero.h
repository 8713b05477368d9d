// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A huge extent that is handed out again becomes zeroes, because the program has asked for that
// (calloc): its pages go back, and new ones come when they are touched. So a big table of which
// little is used takes little memory, and no time to clear.
#ifndef PM_EXTENT_ZERO_H
#define PM_EXTENT_ZERO_H

#include "extent.h"

// Makes an extent read as zeroes that was just allocated, if that is faster than to store them.
// Its entry in the log is durable, and so is the end of any entry that named these pages before. So
// a crash finds an extent that nothing points to, whatever it has of the pages. False: the caller
// has to clear it; nothing but zeroes has been stored.
bool pm_extent_zero(uint32_t index);

#endif
