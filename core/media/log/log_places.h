// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Places of the log: erased entries that new ones overwrite. They serve where a flush waits for the
// disk (pm_persist_waits), so that many entries can become durable with one flush.
//
//   joins the log    [x x x x x x x x]    x: erased. Durable before the chunk's epoch
//   a group          [x A x x B C x x]    8-byte stores in any order, then one flush
//   ends             [x A x x x C x x]    erased in place: a place again
//
// Entries that are appended in the chunk's order cannot share a flush: a power failure amid it may
// leave the later one alone, and an empty place before an entry is a lost entry. Here no place is
// ever empty. A power failure leaves each of a group's places erased or with its entry, and an
// extent that nobody has yet used stands or is free.
//
// A chunk of places reads as a full one whose entries have ended, so any build can open the log.
// No tombstone names a place: it names an entry that stood, whose word stays until its chunk leaves
// the log. So the log needs no tombstones here and does not grow while as many extents end as
// begin.
//
// All functions are called with the extent lock held.
#ifndef PM_LOG_PLACES_H
#define PM_LOG_PLACES_H

#include <stdbool.h>

#include "log_entry.h"
#include "media/shard.h"

// Notes that the entry at `slot` is erased.
void pm_place_add(struct pm_shard *s, uint32_t id, unsigned slot);
// Takes a place; there must be one (pm_chunks.places).
pm_log_pos pm_place_take(struct pm_shard *s);
// Forgets the places of a chunk that leaves the log.
void pm_places_drop(struct pm_shard *s, uint32_t id);
// Fills the rest of a chunk that is not in the log yet with places; nothing is flushed.
void pm_places_fill(struct pm_shard *s, uint32_t id);
// Adds chunks of places to the log. False: the file cannot grow.
bool pm_places_more(struct pm_shard *s);

#endif
