// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Index tables in morph.0: struct pm_morph_table and its words, in whole lines. Which lines are in use is volatile and
// follows from the slab headers. Functions that take or give lines take the extent lock themselves.
#ifndef PM_MORPH_TABLE_H
#define PM_MORPH_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "message.h"
#include "slab.h"

bool pm_index_init(void);
// Room for a table over the blocks of `old_class`: its first line, 0 when there is none.
uint32_t pm_index_take(unsigned old_class);
void pm_index_give(uint32_t line, unsigned old_class);
// Writes it, durably. `bits` are the blocks that are listed.
void pm_index_write(uint32_t line, uint32_t slab, unsigned old_class, unsigned new_class,
                    const uint64_t *bits);
// Changes the bits from `from` to `to`, durably.
void pm_index_change(uint32_t line, uint32_t slab, unsigned old_class, const uint64_t *from,
                     const uint64_t *to);
// Reads the table that a slab of `new_class` names. PM_DAMAGE, with the reason, when it is not such a table.
int pm_index_read(uint32_t line, uint32_t slab, unsigned new_class, unsigned *old_class,
                  uint64_t bits[PM_BITMAP_WORDS], struct pm_error *err);
// Takes its lines out of the free ones; false: another slab has named one of them, or memory is out.
bool pm_index_claim(uint32_t line, unsigned old_class);

#endif
