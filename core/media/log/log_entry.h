// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// An entry of the bookkeeping log, for code that appends and ends entries.
#ifndef PM_LOG_ENTRY_H
#define PM_LOG_ENTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "media/format.h"
#include "media/kind_format.h"

// A position: chunk * 128 + entry.
typedef uint32_t pm_log_pos;
#define PM_LOG_NOWHERE UINT32_MAX

// An entry without its check bits. Only the files log*.c add and remove these.
// `page` may count from pm_base: an entry keeps what counts from the shard's first byte.
static inline uint64_t pm_entry_make(enum pm_entry_type type, uint64_t page, uint64_t pages) {
    return pages << 38 | (page & ((1ull << 28) - 1)) << 2 | (uint64_t)type;
}
static inline enum pm_entry_type pm_entry_type(uint64_t e) { return (enum pm_entry_type)(e & 3); }
static inline uint64_t pm_entry_page(uint64_t e) { return e >> 2 & ((1ull << 28) - 1); }
static inline uint64_t pm_entry_pages(uint64_t e) { return e >> 38; }

// An extent of a kind other than the first is no slab (kind_format.h).
static inline enum pm_kind pm_entry_kind(uint64_t e) {
    return pm_entry_type(e) == PM_ENTRY_SLAB ? (enum pm_kind)(e >> (38 + PM_ENTRY_KIND_SHIFT))
                                             : PM_KIND_CONSERVATIVE;
}
static inline bool pm_entry_is_slab(uint64_t e) {
    return pm_entry_type(e) == PM_ENTRY_SLAB && pm_entry_kind(e) == PM_KIND_CONSERVATIVE;
}
static inline uint64_t pm_entry_length(uint64_t e) {
    return pm_entry_pages(e) - ((uint64_t)pm_entry_kind(e) << PM_ENTRY_KIND_SHIFT);
}
// `slab`: then the kind stands in the slab's header.
static inline uint64_t pm_entry_of(bool slab, enum pm_kind kind, uint64_t page, uint64_t pages) {
    bool plain = slab || kind == PM_KIND_CONSERVATIVE;
    return pm_entry_make(slab || !plain ? PM_ENTRY_SLAB : PM_ENTRY_EXTENT, page,
                         plain ? pages : pages | (uint64_t)kind << PM_ENTRY_KIND_SHIFT);
}

struct pm_shard;

// Making room for an entry may compact the log, which moves other entries. This function is called
// with each entry that moves and its new position.
typedef void pm_log_moved_fn(struct pm_shard *s, uint64_t entry, pm_log_pos to);

#endif
