// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The features that a heap may have, by the bits of `incompat` in its superblock. format.h has the
// rest of the format, and the rules.
#ifndef PM_FEATURE_FORMAT_H
#define PM_FEATURE_FORMAT_H

// Features: a reader must know every bit that is set in `incompat`. A new heap has none of them. It
// gets each with the first use of what the bit announces.
//
// A heap with PM_INCOMPAT_SHARDS may have more than one shard (pm_shard_state). A heap gets the bit
// just before its second shard. The bit and then `crc` are stored durably, so between the two
// stores `crc` is the checksum of the superblock without the bit, which is good, too.
#define PM_INCOMPAT_SHARDS 1ull
// A heap with PM_INCOMPAT_LANES has the lanes after pm_super_file. It gets the bit before its
// first publish of more than one store, in the same way.
#define PM_INCOMPAT_LANES 256ull // 2 stood for something once
// A heap with PM_INCOMPAT_JOURNAL may have a journal, which must be applied before all else. A heap
// gets the bit, in the same way, before its first commit.
#define PM_INCOMPAT_JOURNAL 4ull
// A heap with PM_INCOMPAT_KINDS may have blocks of several kinds (kind_format.h). It gets the bit,
// in the same way, before the first of them.
#define PM_INCOMPAT_KINDS 8ull
// A heap with PM_INCOMPAT_PINNED may have pinned blocks, which are alive without roots. It gets the
// bit, in the same way, before the first of them, and keeps it.
#define PM_INCOMPAT_PINNED 16ull
// A heap with PM_INCOMPAT_TYPES may have typed blocks (kind_format.h). It gets the bit, in the same
// way, before the first of them.
#define PM_INCOMPAT_TYPES 64ull // 32 stood for something once
// A heap with PM_INCOMPAT_DEALLOC may have entries in its deallocation logs (dealloc_format.h). It
// gets the bit, in the same way, before the first of them.
#define PM_INCOMPAT_DEALLOC 128ull
#define PM_INCOMPAT_KNOWN                                                                          \
    (PM_INCOMPAT_SHARDS | PM_INCOMPAT_LANES | PM_INCOMPAT_JOURNAL | PM_INCOMPAT_KINDS |            \
     PM_INCOMPAT_PINNED | PM_INCOMPAT_TYPES | PM_INCOMPAT_DEALLOC)

#endif
