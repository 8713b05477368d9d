// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Slabs: extents of 64 KiB, aligned to 64 KiB, that have blocks of one size class (two while a slab
// morphs, population.h). A slab's header on media lies in slabs.0, apart from its blocks.
// Everything else is volatile; recovery rebuilds it.
#ifndef PM_SLAB_H
#define PM_SLAB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"
#include "base/sizeclass.h"
#include "media/heap.h"
#include "media/persist.h"
#include "pages/pagemap.h"

#define PM_BITMAP_WORDS (PM_SLAB_BLOCKS_MAX / 64)

// Where a slab stands in its bin.
enum pm_listed {
    PM_LISTED_NOT,    // nowhere: it has no free block
    PM_LISTED_FREE,   // in the list of slabs with free blocks
    PM_LISTED_SPARSE, // in the queue of sparse slabs, which may morph
    PM_LISTED_EMPTY,  // the list of those entirely free
};

// A vslab: the allocator's knowledge of a slab in volatile memory, beside its free bits. They lie
// in a flat table by slab number.
//
// Lock: the bin of the slab's arena and current class. Two fields are also read without it. `home`
// is read to find the bin, relaxed, and again under the lock. `queued` is read by other bins as a
// hint, relaxed.
//
// `home` names the bin in one word, so that it changes at once when a slab changes arena and class
// together. Who holds a bin's lock and reads that bin in `home` knows that the slab is in it.
struct pm_vslab {
    uint32_t next, prev; // the bin's list or queue: slab number + 1
    uint32_t extent;
    union {
        struct {
            uint16_t arena;
            uint8_t size_class; // 0: no slab here
            uint8_t zero;
        };
        uint32_t home;
    };
    uint16_t free_count;
    uint8_t listed;   // enum pm_listed
    uint8_t untagged; // recovered, and the tags of its blocks in use are not written yet
    // The next five are 0 unless the slab morphs (population.h).
    uint32_t media_line; // on media: the first line of its index table, or of its pinned blocks
    uint16_t old_live;   // old blocks in use
    uint16_t old_listed; // old blocks listed in the index table; all that are live, and maybe more
    uint16_t blocked;    // blocks of size_class that a listed old block blocks
    uint8_t old_class;
    uint8_t kind; // enum pm_kind; never changes
    // By the arena's clock: when the slab was last put into the queue, and when a block was last
    // taken from it or returned to it.
    uint32_t queued, used;
    // Bit p is page p. `holes`: pages that may have no space. `punched`: those of them that have
    // none for certain, and no block in use; the extent counts them (holes.h).
    uint16_t holes, punched;
    uint8_t quiet;  // looks in a row between which no block was taken or returned (age.h)
    uint8_t held;   // none of its blocks is handed out before pmalloc_collect() (kinds.h)
    uint8_t stripe; // of pinned blocks: of the next one (pinned.h)
    uint16_t type;  // of all blocks; 0: none. Never changes
    uint32_t typed_next, typed_prev; // slabs with a type alone (types.h): slab number + 1
} __attribute__((aligned(64)));      // slabs side by side may belong to different threads

extern struct pm_vslab *pm_vslabs;

// A bit for each block of 32 slabs. Blocks of 64 bytes and more need a quarter of the words at
// most, and nobody touches the others: the narrow bits of 32 slabs are a page of their own.
#define PM_NARROW_WORDS (PM_BITMAP_WORDS / 4)
#define PM_BITS_SHIFT 5
struct pm_slab_bits {
    uint64_t narrow[1u << PM_BITS_SHIFT][PM_NARROW_WORDS];
    uint64_t wide[1u << PM_BITS_SHIFT][PM_BITMAP_WORDS];
};
static inline unsigned pm_slab_words(unsigned cls) { return (pm_classes[cls].blocks + 63) / 64; }
static inline bool pm_slab_is_narrow(unsigned cls) { return pm_classes[cls].size >= 64; }

// The words of a slab of class `cls` in a table of bits.
static inline uint64_t *pm_bits_of(struct pm_slab_bits *table, uint32_t slab, unsigned cls) {
    struct pm_slab_bits *some = &table[slab >> PM_BITS_SHIFT];
    uint32_t i = slab & ((1u << PM_BITS_SHIFT) - 1);
    return pm_slab_is_narrow(cls) ? some->narrow[i] : some->wide[i];
}

// The free bits lie in a table of their own: bit i says that block i is not handed out, cached or
// blocked. They are longer than the vslab. A start that collects nothing makes a vslab for each
// slab of the heap, all blocks in use, and touches no bits: this table begins as zeroes.
extern struct pm_slab_bits *pm_slab_bits;

static inline uint64_t *pm_free_bits(const struct pm_vslab *v) {
    return pm_bits_of(pm_slab_bits, (uint32_t)(v - pm_vslabs), v->size_class);
}

static inline uint32_t pm_slab_home(const struct pm_vslab *v) {
    return __atomic_load_n(&v->home, __ATOMIC_RELAXED);
}
static inline void pm_slab_set_home(struct pm_vslab *v, uint16_t arena, unsigned cls) {
    __atomic_store_n(&v->home, arena | (uint32_t)cls << 16, __ATOMIC_RELAXED);
}
static inline uint16_t pm_home_arena(uint32_t home) { return (uint16_t)home; }
static inline unsigned pm_home_class(uint32_t home) { return home >> 16; }

bool pm_slab_init(void);

// For loops over all slabs. These lie mostly in a row, and the processor does not foresee steps as
// long as a vslab.
static inline void pm_slab_prefetch(uint32_t slab) { __builtin_prefetch(&pm_vslabs[slab + 8]); }

static inline uint32_t pm_slab_of(const void *p) {
    return (uint32_t)(pm_heap_offset(p) >> PM_SLAB_SHIFT);
}
// A slab's number on media, in its header's place and its checks: it counts from the shard's first.
static inline uint32_t pm_slab_on_media(uint32_t slab) {
    return slab & (uint32_t)(PM_SHARD_SLABS - 1);
}
static inline char *pm_slab_start(uint32_t slab) {
    return pm_heap_at((uint64_t)slab << PM_SLAB_SHIFT);
}
// The NUMA node that the slab's memory belongs to, and so its arena.
static inline unsigned pm_slab_node(uint32_t slab) { return pm_shard_of_slab(slab)->node; }

// Makes a slab with all blocks free, for an arena of a node. It takes an extent, makes the slab's
// header durable, then appends the log entry, which is the commit: a header that no entry stands
// for means nothing. Returns slab number + 1; 0: memory is out.
uint32_t pm_slab_create(unsigned cls, uint16_t arena, unsigned node);
// The same for blocks of a type (types.h).
uint32_t pm_slab_create_typed(unsigned cls, uint16_t type, uint16_t arena, unsigned node);
// The same for a slab of which perhaps few blocks will be used: its pages get their space when
// blocks on them are handed out (holes.h). Pinned blocks have all of it at once, and so has every
// slab under PMALLOC_COMMIT.
uint32_t pm_slab_create_bare(unsigned cls, uint16_t arena, unsigned node);
// Makes slabs of the classes cls[i] for an arena. All headers become durable with one flush, then
// all entries with another one. slab[i] becomes the number of each. Returns how many there are,
// from the first on.
unsigned pm_slab_create_group(const uint8_t *cls, unsigned count, uint16_t arena, unsigned node,
                              uint32_t *slab);
// Makes an entirely free slab a free extent.
void pm_slab_destroy(uint32_t slab);
// The same for slabs without pinned blocks: puts each extent into a chain, whose first is *chain,
// for pm_extent_release_all().
void pm_slab_leave(uint32_t slab, uint32_t *chain);
// The same for a slab that recovery found empty; see pm_extent_forget().
void pm_slab_forget(uint32_t slab);
// Takes up to `want` free blocks, by rising address. Bin lock held.
unsigned pm_slab_pop(uint32_t slab, void **blocks, unsigned want);
// Returns the blocks at the start of `blocks` that lie in this slab, and says how many those are.
// They are all of its size class. Bin lock held.
unsigned pm_slab_push_run(uint32_t slab, void *const *blocks, unsigned count);
// Takes back a block of the current class. Bin lock held.
static inline void pm_slab_push(uint32_t slab, void *block) { pm_slab_push_run(slab, &block, 1); }

// Sets the free bits of all blocks, and their count.
void pm_slab_all_free(struct pm_vslab *v);

// Stores what pm_slab_commit_class() does; it is in force as soon as it is durable.
void pm_slab_store_class(uint32_t slab, unsigned cls, uint32_t line, struct pm_gather *stored);
// Commits a slab's class `cls` and the first line of its index table (0: none) to media. Durable on
// return. Off media it does nothing.
void pm_slab_commit_class(uint32_t slab, unsigned cls, uint32_t line);

// The checksum of a slab's header. It covers the slab's number too, so that one slab's header does
// not pass for another's. It leaves out `current`, which checks itself.
uint32_t pm_slab_header_crc(uint32_t slab, const struct pm_slab_header *header);
// Returns the current class by a slab's header on media; 0: a checksum is wrong. If `line` is not
// NULL, *line becomes the first line of the index table, 0 if there is none.
unsigned pm_slab_media_class(uint32_t slab, uint32_t *line);
// For recovery: checks the header of a slab that the log names, and fills its vslab, which is all
// zeroes, with every block of the current class in use. PM_DAMAGE: the header is wrong. Where the
// header names an index table, pm_morph_adopt() adds the old blocks.
int pm_slab_adopt(uint32_t slab, uint32_t extent, struct pm_error *err);
// For recovery after a kill: the last stores of the killed process may be in the processor's caches
// only. Flushes the slab headers and index tables that recovery has believed. The drain in
// pm_heap_dirty() makes them durable.
void pm_slab_flush_inherited(void);

#endif
