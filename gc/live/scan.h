// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Code that the two live markers (live_mark, trace) share while the program is held: from a word to
// the block around it, and over long ranges in steps. They differ in what a mark is, and in which
// words of a block count.
//
// Long ranges are pushed onto the marker's stack with their length marked, because a length is a
// multiple of 4:
//
//   0            a block
//   PM_WORDS     words, of which some may never have been stored to: they are not read
//   PM_WRITTEN   words that were stored to
#ifndef PM_SCAN_H
#define PM_SCAN_H

#include "base/message.h"
#include "blocks/population.h"
#include "large_index.h"
#include "marking/crew.h"
#include "marking/forms.h"
#include "marking/words.h"
#include "pages/extent.h"

#define PM_WORDS 1u
#define PM_WRITTEN 3u
#define PM_STEP ((uint64_t)64 << 10) // ranges are scanned so far at a time

struct pm_scan {
    uint64_t base, frontier; // copies of pm_base and of the end of the last shard
    struct pm_high_halves high;
};
extern struct pm_scan pm_scan;

// Indexes the large blocks, and lets the tags of all blocks be there.
int pm_scan_begin(struct pm_error *err);
void pm_scan_end(void);

// ---- marks --------------------------------------------------------------------------------------

// A block that was found. Its mark, the byte at `mark`, is mostly not in the cache, so it is
// fetched while others are looked at: `marks` is called for the one that was found a while ago.
typedef void pm_found_fn(struct pm_marker *m, uint64_t offset, uint64_t size);
__attribute__((always_inline)) static inline void pm_scan_found(struct pm_marker *m,
                                                                const uint8_t *mark,
                                                                uint64_t offset, uint64_t size,
                                                                pm_found_fn *marks) {
    struct pm_range *next = &m->fresh[m->oldest], old = *next;
    __builtin_prefetch(mark, 1);
    *next = (struct pm_range){offset, size};
    m->oldest = (m->oldest + 1) % PM_CREW_FRESH;
    if (old.len)
        marks(m, old.offset, old.len);
}
// Calls `marks` for all that wait. False: none did.
bool pm_scan_rest(struct pm_marker *m, pm_found_fn *marks);

// ---- words --------------------------------------------------------------------------------------

// The block around an address: its start and size. False: there is none.
__attribute__((always_inline)) static inline bool
pm_scan_in_slab(const struct pm_vslab *v, uint64_t offset, struct pm_range *block) {
    uint32_t in_slab = (uint32_t)(offset & (PM_SLAB_SIZE - 1));
    uint64_t slab = offset - in_slab;
    unsigned cls = v->size_class;
    if (__builtin_expect(!v->old_class, 1)) {
        unsigned i = pm_block_index(cls, in_slab);
        *block = (struct pm_range){slab + (uint64_t)i * pm_classes[cls].size, pm_classes[cls].size};
        return i < pm_classes[cls].blocks;
    }
    struct pm_slab_block b;
    if (!pm_slab_find(v, in_slab, &b))
        return false;
    *block = (struct pm_range){slab + (uint64_t)b.index * pm_classes[b.cls].size,
                               pm_classes[b.cls].size};
    return true;
}

__attribute__((always_inline)) static inline bool pm_scan_around(uint64_t offset,
                                                                 struct pm_range *block) {
    const struct pm_vslab *v = &pm_vslabs[offset >> PM_SLAB_SHIFT];
    if (v->size_class)
        return pm_scan_in_slab(v, offset, block);
    const struct pm_large *large = pm_large_index_find(offset);
    if (large)
        *block = (struct pm_range){large->page << PM_PAGE_SHIFT,
                                   (uint64_t)large->pages << PM_PAGE_SHIFT};
    return large;
}

// The block that ends at an offset where none begins: the address is one past its end. False: there
// is none.
bool pm_scan_ends(uint64_t offset, struct pm_range *block);

// The block that a tagged word names (marking/forms.h). False: it names none.
bool pm_scan_tagged(uint64_t word, struct pm_range *block);

// `found` is called if there may be a block around the word's address. It begins there.
__attribute__((always_inline)) static inline void pm_scan_word(struct pm_marker *m, uint64_t word,
                                                               pm_found_fn *found) {
    uint64_t offset = word - pm_scan.base;
    struct pm_range block;
    bool there = __builtin_expect(offset < pm_scan.frontier, 0)
                     ? pm_scan_around(offset, &block) || pm_scan_ends(offset, &block)
                     : word >> PM_TAG_SHIFT && pm_scan_tagged(word, &block);
    if (there)
        found(m, block.offset, block.len);
}

// The same for all addresses that these bytes have in other forms than as words.
void pm_scan_forms(struct pm_marker *m, const void *bytes, uint64_t len, pm_found_fn *found);

__attribute__((always_inline)) static inline void
pm_scan_words(struct pm_marker *m, const void *bytes, uint64_t len, pm_found_fn *found) {
    const uint64_t *word = bytes, *end = word + len / sizeof *word;
    for (; end - word >= 4; word += 4)
        for (unsigned near = pm_words_near(word, pm_scan.high); near; near &= near - 1)
            pm_scan_word(m, word[__builtin_ctz(near)], found);
    for (; word < end; word++)
        pm_scan_word(m, *word, found);
    if (__builtin_expect(pm_forms & PM_FORMS_COSTLY, 0))
        pm_scan_forms(m, bytes, len, found);
    m->scanned += len;
}

// ---- long ranges --------------------------------------------------------------------------------

// Scans a step of a range that is longer than that, and pushes the rest of it, for others to take.
// `len` is marked as above. Blocks that were found in a step are scanned before the next step, so a
// long array of pointers fills no stack. There is room for the rest (crew.h).
typedef void pm_words_fn(struct pm_marker *m, const void *bytes, uint64_t len);
void pm_scan_long(struct pm_marker *m, uint64_t offset, uint64_t len, pm_words_fn *words);
// The same, of which no piece is left for later.
void pm_scan_whole(struct pm_marker *m, uint64_t offset, uint64_t len, pm_words_fn *words);

// ---- the crew -----------------------------------------------------------------------------------

// Scans all that is pushed, with helpers (helpers.h) if it is more than `alone` bytes.
void pm_scan_run(struct pm_crew *c, uint64_t alone);
#define PM_SCAN_ALONE ((uint64_t)4 << 20)

#endif
