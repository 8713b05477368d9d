// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The populations of a slab: the blocks of its current class and, while it morphs, the old blocks
// that are left of the class before (morph.h draws both). Code that asks what lies in a slab loops
// over its one or two populations.
//
// Old blocks have two sets of bits. Every live block is also listed:
//
//   live      not freed yet; volatile, so that a free costs no flush
//   listed    what the index table on media says
//
// Invariant: a block of the current class that shares a byte with a listed old block is blocked. It
// is never handed out. So each byte of a slab belongs to at most one block that can be in use.
// Lock: the slab's bin, as for struct pm_vslab.
#ifndef PM_POPULATION_H
#define PM_POPULATION_H

#include "media/kind_format.h"
#include "slab.h"

struct pm_population {
    uint32_t slab;
    unsigned cls;
    unsigned blocks; // blocks that can be in use: all but the blocked ones
    unsigned used;   // of these, handed out or in a thread cache
    bool old;        // the old blocks; else the current class's
    // One bit for each block of the class. It says that a block of the current class is free, or
    // that an old block is live. While the collector marks, a set bit means "marked" in both
    // populations, and `used` means nothing.
    uint64_t *bits;
};

bool pm_population_init(void);

// Gives the population of the current class, then the old one. Returns how many there are; 0: there
// is no slab.
unsigned pm_slab_populations(const struct pm_vslab *v, struct pm_population out[2]);
// Sets bit i of `used` if block i of the population is in use; clears the others.
void pm_population_used(const struct pm_vslab *v, const struct pm_population *p,
                        uint64_t used[PM_BITMAP_WORDS]);
// Sets bit i of `blocked` if block i of the current class is blocked; clears the others. Returns
// how many are set.
unsigned pm_population_blocked(const struct pm_vslab *v, uint64_t blocked[PM_BITMAP_WORDS]);

// The block that byte `offset` of the slab belongs to. By the invariant above there is at most one
// that can be in use; false: there is none.
struct pm_slab_block {
    unsigned cls, index;
    bool old;
    uint64_t *bits; // of its population
};
bool pm_slab_find(const struct pm_vslab *v, uint32_t offset, struct pm_slab_block *block);

// The largest power of two up to 256 on whose multiples all blocks start. A search for tags takes
// such steps: it skips rows (pages/pagemap.h) that no block touches, and takes no memory.
unsigned pm_slab_stride(const struct pm_vslab *v);

// The tag of the slab's blocks of a class, while they are handed out.
static inline unsigned pm_slab_tag(const struct pm_vslab *v, unsigned cls) {
    if (!v->kind && !v->held)
        return cls;
    return v->kind == PM_KIND_POINTER_FREE && !v->held ? PM_TAG_POINTER_FREE + cls : PM_TAG_KIND;
}
// Clears all tags of a slab.
void pm_slab_clear_tags(uint32_t slab);

// Writes the tags of all blocks in use of a recovered slab. The bin's lock is held. This happens
// before any block of the slab is handed out or returned.
void pm_slab_write_tags(uint32_t slab);
// After marking: turns the marks in each population's bits into their ordinary meaning, where a
// block that is not marked is free.
void pm_slab_swept(struct pm_vslab *v);
// Without marking: every block of an adopted slab is in use.
void pm_slab_kept(struct pm_vslab *v);

// ---- for morph.c and verify.c ----
// The two sets of the old blocks; valid only while the slab has old blocks. They lie in
// pm_slab_bits, after the words that the current class needs. If there is no room, they lie in
// tables of their own.
uint64_t *pm_old_live(const struct pm_vslab *v);
uint64_t *pm_old_listed(const struct pm_vslab *v);

// The blocks [first, end) of class `of` that share a byte with block i of class `cls`.
struct pm_span {
    unsigned first, end;
};
struct pm_span pm_span_of(unsigned cls, unsigned i, unsigned of);
bool pm_span_any(const uint64_t *bits, struct pm_span s);
// Sets in `blocked` the blocks of class `cls` that share a byte with a listed block of class `old`.
// Returns how many there are.
unsigned pm_blocked_by(const uint64_t *listed, unsigned old, unsigned cls, uint64_t *blocked);

#endif
