// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The forms in which programs keep addresses (PMALLOC_POINTERS). A plain address is always looked
// for.
//
//   tagged     the upper 16 bits have something else: a counter, a type, a NaN. The rest names the
//              start of a block, or one of the next 15 bytes, for tags in the low bits. Other words
//              of random bits would keep blocks, too: in a heap of 1 TiB one in 256 names a block,
//              but few name its start
//   unaligned  an address at any byte, as packed structs have it
//   relative   the distance from the word's own place, as in boost::interprocess::offset_ptr
//   base32     32 bits: the eighth part of the distance from the beginning of the heap
//   end        one past the end of a block, where another one begins: the address keeps both. Where
//              none begins, an address one past the end is always looked for
//   before     an address before the block, by no more than the block is long (behind.h)
//   masked     what GC_set_pointer_mask() and GC_set_pointer_shift() have said
//
// The forms that the program used last are on record in the heap, so that a recovery without the
// program sees the same pointers.
#ifndef PM_FORMS_H
#define PM_FORMS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/message.h"

enum pm_form {
    PM_FORM_TAGGED = 1,
    PM_FORM_UNALIGNED = 2,
    PM_FORM_RELATIVE = 4,
    PM_FORM_BASE32 = 8,
    PM_FORM_END = 16,
    PM_FORM_BEFORE = 32,
    PM_FORM_MASKED = 64,
};
#define PM_FORMS_DEFAULT PM_FORM_TAGGED
#define PM_FORMS_COSTLY                                                                            \
    (PM_FORM_UNALIGNED | PM_FORM_RELATIVE | PM_FORM_BASE32 | PM_FORM_END | PM_FORM_BEFORE |        \
     PM_FORM_MASKED)
#define PM_FORMS_ALL (PM_FORM_TAGGED | PM_FORMS_COSTLY)

#define PM_TAG_SHIFT 48 // no address of a process has one of the upper bits
#define PM_LOW_TAGS 16u // so far from the start of a block a tagged word may lead
static inline uint64_t pm_untagged(uint64_t word) { return word & ((1ull << PM_TAG_SHIFT) - 1); }

// Whether an address may be one past the end of a block: all sizes are multiples of 16. The byte
// before it then lies in the block, and is no such address itself.
static inline bool pm_may_be_end(uint64_t address) { return address % 16 == 0; }

// Those that are looked for now. They change while nothing is marked.
extern unsigned pm_forms;
// What is taken of a word in the form PM_FORM_MASKED: these bits, shifted to the left.
extern uint64_t pm_forms_mask;
extern unsigned pm_forms_shift;

// Whether the text is a value of PMALLOC_POINTERS: `plain`, or forms in addition to it, with commas
// between them.
bool pm_forms_parse(const char *text, unsigned *forms);
// The forms of a heap, as such a text.
const char *pm_forms_text(unsigned forms);

// Looks for those that PMALLOC_POINTERS names, or else for those that the heap has on record, if
// one is open. One line says what that changes for a heap that was used with others. PM_USAGE: the
// setting is wrong.
int pm_forms_choose(struct pm_error *err);
// Whether somebody has settled it: PMALLOC_POINTERS is set, or the heap has a record.
bool pm_forms_settled(void);
// Says that blocks which only words of `form` name are kept for now, and what to do. The example is
// byte `at` of the block at `holder`, and `way` says how that is reached; "": not known.
void pm_forms_say_disguised(unsigned form, unsigned without, uint64_t blocks, uint64_t bytes,
                            uint64_t holder, uint64_t size, uint64_t at, const char *way);
// Puts them on record, durably.
void pm_forms_record(void);
// From now on masked words are looked for, and that is on record. False: the bits of the mask are
// not one row, which is what a record has room for.
bool pm_forms_set_mask(uint64_t mask, unsigned shift);

// ---- the forms that cost time -------------------------------------------------------------------

static inline uint64_t pm_word_at(const char *byte) {
    uint64_t word;
    memcpy(&word, byte, sizeof word);
    return word;
}

// Where an object is scanned in pieces, each overlaps the next one by a word, because an unaligned
// address may lie across.
#define PM_FORMS_OVERLAP 8u

typedef void pm_consider_fn(void *marker, uint64_t address);
__attribute__((always_inline)) static inline void pm_forms_found(void *marker, uint64_t address,
                                                                 pm_consider_fn *consider) {
    consider(marker, address);
    if (pm_forms & PM_FORM_END && pm_may_be_end(address))
        consider(marker, address - 1);
}

// Calls `consider` for each address that these bytes have in such a form, and `before` for each
// that may lie before a block. The program has them at the address `at`; 0: nobody knows.
__attribute__((always_inline)) static inline void
pm_forms_each(const char *bytes, uint64_t len, uint64_t at, uint64_t base, void *marker,
              pm_consider_fn *consider, pm_consider_fn *before) {
    const unsigned forms = pm_forms;
    if (forms & PM_FORM_UNALIGNED)
        for (uint64_t i = 0; i + 8 <= len; i++)
            pm_forms_found(marker, pm_word_at(bytes + i), consider);
    else if (forms & PM_FORM_END)
        for (uint64_t i = -(uint64_t)(uintptr_t)bytes & 7; i + 8 <= len; i += 8)
            pm_forms_found(marker, pm_word_at(bytes + i), consider);
    if (forms & PM_FORM_RELATIVE && at)
        for (uint64_t i = -at & 7; i + 8 <= len; i += 8) {
            uint64_t distance = pm_word_at(bytes + i);
            if (distance) // else it is its own address, and no end of the block before
                pm_forms_found(marker, at + i + distance, consider);
        }
    for (uint64_t i = -(uint64_t)(uintptr_t)bytes & 7;
         forms & (PM_FORM_BEFORE | PM_FORM_MASKED) && i + 8 <= len; i += 8) {
        uint64_t word = pm_word_at(bytes + i);
        if (forms & PM_FORM_BEFORE)
            before(marker, word);
        if (forms & PM_FORM_MASKED)
            pm_forms_found(marker, (word & pm_forms_mask) << pm_forms_shift, consider);
    }
    if (forms & PM_FORM_BASE32)
        for (uint64_t i = -at & 3; i + 4 <= len; i += 4) {
            uint32_t half;
            memcpy(&half, bytes + i, sizeof half);
            if (half)
                pm_forms_found(marker, base + ((uint64_t)half << 3), consider);
        }
}

#endif
