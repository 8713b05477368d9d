// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Kinds of blocks, on media: what the collector may assume of a block's words. A slab has blocks of
// one kind, in its header (pm_slab_header.kind). It keeps the kind when it morphs. A large block
// has its kind in its log entry: a slab has 16 pages, so an entry of type PM_ENTRY_SLAB whose pages
// have bits from PM_ENTRY_KIND_SHIFT on is no slab. It is a large block of the kind that these bits
// say, and the lower bits are its pages. All this is only in heaps with PM_INCOMPAT_KINDS.
#ifndef PM_KIND_FORMAT_H
#define PM_KIND_FORMAT_H

enum pm_kind {
    PM_KIND_CONSERVATIVE = 0, // any word may be a pointer
    PM_KIND_POINTER_FREE = 1, // no word is one
    PM_KIND_TYPED = 2,        // not used yet
};
#define PM_ENTRY_KIND_SHIFT 23
// The longest extent of a kind.
#define PM_KIND_PAGES_MAX ((1ull << PM_ENTRY_KIND_SHIFT) - 1)

#endif
