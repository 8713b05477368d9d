// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The table of a slab's pinned blocks, in lines of morph.N (media/kind_format.h). The slab is named
// by its number, its class and the first line of its table.
#ifndef PM_PINNED_TABLE_H
#define PM_PINNED_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"

// Takes lines, makes a table without a set bit, and flushes it: it is durable when the header of
// the slab is. False: there is no room. Off media it does nothing, and the line is 0.
bool pm_pinned_make(uint32_t slab, unsigned cls, uint32_t *line);
// Makes the lines free. The slab's log entry has been ended durably. Line 0: does nothing.
void pm_pinned_drop(uint32_t slab, unsigned cls, uint32_t line);
// Where a block's bit is (media/pinned.h), and its mask.
uint64_t pm_pinned_place(uint32_t slab, unsigned cls, uint32_t line, unsigned block);
uint32_t pm_pinned_mask(unsigned block);
// Sets or clears the bit of block stripe + PM_PINNED_STRIPES * index, durably. Off media both do
// nothing.
void pm_pinned_set(uint32_t slab, unsigned cls, uint32_t line, unsigned stripe, unsigned index);
void pm_pinned_clear(uint32_t slab, unsigned cls, uint32_t line, unsigned stripe, unsigned index);

// For recovery: checks the table and marks its lines as in use.
int pm_pinned_check(uint32_t slab, unsigned cls, uint32_t line, struct pm_error *err);
// Reads which blocks are allocated, with publishes and frees that recovery would finish.
void pm_pinned_bits(uint32_t slab, unsigned cls, uint32_t line, uint64_t *used);

#endif
