// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Kinds of blocks, on media: what the collector may assume of a block's words. A slab has blocks of
// one kind, in its header (pm_slab_header.kind). It keeps the kind when it morphs. A large block
// has its kind in its log entry: a slab has 16 pages, so an entry of type PM_ENTRY_SLAB whose pages
// have bits from PM_ENTRY_KIND_SHIFT on is no slab. It is a large block of the kind that these bits
// say, and the lower bits are its pages. All this is only in heaps with PM_INCOMPAT_KINDS.
//
// ---- pinned blocks ------------------------------------------------------------------------------
//
// A pinned block is alive until it is freed, whatever reaches it. Media say so, so recovery needs
// no marking for it. All this is only in heaps with PM_INCOMPAT_PINNED.
//
// Small: `current` of the slab's header names the first line of a table in morph.N. The table has a
// head, in a line of its own, and then sealed words of 32 bits: a set bit is an allocated block.
// The bits lie in stripes, and neighbouring blocks in different ones, so that allocations in a row
// do not flush one cache line again and again:
//
//   block             0  1  2  3  4  5  6  7 ...
//   stripe            0  1  2  3  4  5  0  1 ...     each of whole cache lines
//   bit of the stripe 0  0  0  0  0  0  1  1 ...
//
// Large: the block starts at a multiple of 64 KiB. The header in slabs.N that a slab there would
// have is the block's, with the magic PM_PINNED_MAGIC. Its `current` is sealed: 1 is allocated.
//
// In both, one word is the commit of an allocation or a free, or part of a publish.
//
// ---- typed blocks -------------------------------------------------------------------------------
//
// A typed block has a number of 16 bits that says what it is, and never changes. All blocks of a
// slab have the same one, which stands in the slab's header, so a block costs nothing on media. A
// typed slab never morphs. A large typed block has a header as a pinned one has; its `current` is
// sealed, and 0 unless the block is pinned, too. Type 0 is no type. All this is only in heaps with
// PM_INCOMPAT_TYPES.
#ifndef PM_KIND_FORMAT_H
#define PM_KIND_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pm_kind {
    PM_KIND_CONSERVATIVE = 0, // any word may be a pointer
    PM_KIND_POINTER_FREE = 1, // no word is one
    PM_KIND_TYPED = 2,        // a bit: the blocks have a type number, beside the others
    PM_KIND_PINNED = 4,       // a bit: pinned; the others say what its words are
    PM_KIND_PINNED_POINTER_FREE = PM_KIND_PINNED | PM_KIND_POINTER_FREE,
    PM_KIND_ALL = PM_KIND_PINNED | PM_KIND_TYPED | PM_KIND_POINTER_FREE,
};
static inline bool pm_kind_is_pinned(unsigned kind) { return kind & PM_KIND_PINNED; }
static inline bool pm_kind_is_typed(unsigned kind) { return kind & PM_KIND_TYPED; }
static inline bool pm_kind_has_pointers(unsigned kind) { return !(kind & PM_KIND_POINTER_FREE); }
// Whether slabs of this kind may take up blocks of another class.
static inline bool pm_kind_may_morph(unsigned kind) {
    return !(kind & (PM_KIND_PINNED | PM_KIND_TYPED));
}
// Whether a large block of this kind has a header of its own.
static inline bool pm_kind_has_header(unsigned kind) {
    return kind & (PM_KIND_PINNED | PM_KIND_TYPED);
}
// What is the same of all blocks of a slab, beside their class.
struct pm_sort {
    uint8_t kind;  // enum pm_kind
    uint16_t type; // 0: none; then the kind is not typed
};

#define PM_ENTRY_KIND_SHIFT 23
// The longest extent of a kind.
#define PM_KIND_PAGES_MAX ((1ull << PM_ENTRY_KIND_SHIFT) - 1)

#define PM_PINNED_MAGIC 0x4e50u
#ifndef PM_PINNED_STRIPES // others in study builds alone (scripts/study.mk)
#define PM_PINNED_STRIPES 6u
#endif
#define PM_PINNED_LINE 64u       // bytes
#define PM_PINNED_LINE_BITS 256u // sealed words have 32 bits of 64

struct pm_pinned_table {
    uint16_t magic;
    uint16_t blocks;  // of the slab
    uint32_t stripes; // PM_PINNED_STRIPES
    uint32_t slab;
    uint8_t reserved[48];
    uint32_t crc; // of all bytes before it
};
_Static_assert(sizeof(struct pm_pinned_table) == PM_PINNED_LINE, "a line of its own");
_Static_assert(offsetof(struct pm_pinned_table, crc) == 60, "frozen");

// The salt of a word: where in morph.N it is, in words.
#define PM_SALT_PINNED(word) (0x60000000u | (word))

#endif
