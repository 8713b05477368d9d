// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The features that a heap may have, by the bits of `incompat` in its superblock. format.h has the
// rest of the format, and the rules.
#ifndef PM_FEATURE_FORMAT_H
#define PM_FEATURE_FORMAT_H

// Features: a reader must know every bit that is set in `incompat`. A heap without
// PM_INCOMPAT_MORPH was made before PMAlloc had morphing. It has no morph.0, and
// pm_slab_header.current is zero in all of its headers. It is used as it is, and its slabs never
// morph.
#define PM_INCOMPAT_MORPH 1ull
// A heap with PM_INCOMPAT_SHARDS may have more than one shard (pm_shard_state). A heap gets the bit
// just before its second shard. The bit and then `crc` are stored durably, so between the two
// stores `crc` is that of the superblock without the bit, which is good, too.
#define PM_INCOMPAT_SHARDS 2ull
// A heap with PM_INCOMPAT_LANES has the lanes after pm_super_file. It gets the bit before its
// first publish of more than one store, in the same way.
#define PM_INCOMPAT_LANES 4ull
// A heap with PM_INCOMPAT_JOURNAL may have a journal, which must be applied before all else. A heap
// gets the bit, in the same way, before its first commit.
#define PM_INCOMPAT_JOURNAL 8ull
// A heap with PM_INCOMPAT_KINDS may have blocks of several kinds (kind_format.h). It gets the bit,
// in the same way, before the first of them.
#define PM_INCOMPAT_KINDS 16ull
// A heap with PM_INCOMPAT_PINNED may have pinned blocks, which are alive without roots. It gets the
// bit, in the same way, before the first of them, and keeps it.
#define PM_INCOMPAT_PINNED 32ull
// The journal of a heap with PM_INCOMPAT_LAPS may hold several commits, and its files need not be
// durable between them (journal_format.h). A heap gets the bit with PM_INCOMPAT_JOURNAL.
#define PM_INCOMPAT_LAPS 64ull
// A heap with PM_INCOMPAT_LINKS may have disappearing links (link_format.h), which who opens it has
// to clear. It gets the bit, in the same way, before the first table of them, and keeps it.
#define PM_INCOMPAT_LINKS 128ull
// A heap with PM_INCOMPAT_CLASSES may have slabs of classes after PM_CLASSES_FIRST (sizeclass.h). A
// new heap has the bit. Another gets it, in the same way, before the first of these slabs.
#define PM_INCOMPAT_CLASSES 256ull
// What a heap gets in use.
#define PM_INCOMPAT_LATER_1 (PM_INCOMPAT_SHARDS | PM_INCOMPAT_LANES | PM_INCOMPAT_JOURNAL)
#define PM_INCOMPAT_LATER                                                                          \
    (PM_INCOMPAT_LATER_1 | PM_INCOMPAT_KINDS | PM_INCOMPAT_PINNED | PM_INCOMPAT_LAPS |             \
     PM_INCOMPAT_LINKS | PM_INCOMPAT_CLASSES)
#define PM_INCOMPAT_KNOWN (PM_INCOMPAT_MORPH | PM_INCOMPAT_LATER)

#endif
