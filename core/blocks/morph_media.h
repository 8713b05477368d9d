// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Index tables in morph.0. Each is a struct pm_morph_table and its words, in whole lines. Which
// lines are in use is known in volatile memory only; it follows from the slab headers.
//
// Lock: the extent lock covers which lines are in use; take and give take it themselves. Claim is
// for recovery, which is single-threaded. The content of a table belongs to the slab that it
// describes, under that slab's bin lock.
#ifndef PM_MORPH_MEDIA_H
#define PM_MORPH_MEDIA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"
#include "slab.h"

// A line is one of morph.N of the slab's shard.
// Off media the four that follow do nothing.
// Takes lines for a table over the slab's blocks of `old_class`. *line is the first of them, off
// media 0. False: there is no room.
bool pm_morph_media_take(uint32_t slab, unsigned old_class, uint32_t *line);
// Makes a table's lines free. No header on media names them any more.
void pm_morph_media_give(uint32_t line, uint32_t slab, unsigned old_class);
// Writes a table; it is durable on return. A set bit in `bits`: the block is listed.
void pm_morph_media_write(uint32_t line, uint32_t slab, unsigned old_class, unsigned new_class,
                          const uint64_t *bits);
// Changes a table's bits from `from` to `to`, which only clears some. The caller makes *stored
// durable.
void pm_morph_media_change(uint32_t line, uint32_t slab, unsigned old_class, const uint64_t *from,
                           const uint64_t *to, struct pm_gather *stored);
// Reads the table that a slab of `new_class` names. PM_DAMAGE and the reason if `line` does not
// have that slab's table.
int pm_morph_media_read(uint32_t line, uint32_t slab, unsigned new_class, unsigned *old_class,
                        uint64_t bits[PM_BITMAP_WORDS], struct pm_error *err);
// For recovery: marks the lines of a table that a header names as in use. False: another slab names
// one of them too, or memory is out.
bool pm_morph_media_claim(uint32_t line, uint32_t slab, unsigned old_class);

#endif
