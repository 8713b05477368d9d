// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Disappearing links of the simulated program. Word k is one of crash_root_a's or, from PUBLISHED
// on, one after the entries of the table that this variable has. A word holds the complement of its
// object's address, so that no marker follows it.
#ifndef PMALLOC_TESTS_CRASH_LINKS_H
#define PMALLOC_TESTS_CRASH_LINKS_H

#include "blocks/link_table.h"
#include "media/heap.h"
#include "object.h"
#include "roots/root_words.h"

#define LINK_OBJECTS 23u // entries of the table before the words; no other table has so many

static inline uint64_t *linked_word(uint32_t k) {
    return k < PUBLISHED
               ? &crash_root_a.word[k]
               : (uint64_t *)(void *)&crash_root_a.table->entry[LINK_OBJECTS + k - PUBLISHED];
}

// The word that an entry is about; NULL: none of these.
static inline uint64_t *linked_at(const struct pm_link *link) {
    struct pm_root_word word = {link->root, link->at};
    return link->in_root ? pm_root_word_address(word) : (uint64_t *)pm_heap_at(link->at);
}

// What media say of each word: the object, 0: there is no link.
struct links_there {
    uint64_t object[LINKED];
    uint32_t number[LINKED];
    uint32_t others, twice;
};
static inline void link_is_there(uint32_t number, const struct pm_link *link, void *arg) {
    struct links_there *there = arg;
    for (uint32_t k = 0; k < LINKED; k++)
        if (linked_word(k) == linked_at(link)) {
            there->twice += there->object[k] != 0;
            there->object[k] = (uint64_t)(uintptr_t)pm_heap_at(link->object);
            there->number[k] = number;
            return;
        }
    there->others++;
}
static inline struct links_there links_there(void) {
    struct links_there there = {.others = 0};
    pm_links_each(link_is_there, &there);
    return there;
}

#endif
