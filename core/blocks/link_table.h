// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The disappearing links of a heap on media (media/link_format.h). Which entries are free is
// volatile. An entry is named by a number, which is right for as long as the heap is open.
//
// Lock: the caller's, one for all functions. The heap is on media, but for those that read.
#ifndef PM_LINK_TABLE_H
#define PM_LINK_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"

struct pm_link {
    uint64_t at;     // the word: an offset in the heap, or in the root
    uint64_t object; // the block that it is about: an offset in the heap
    uint32_t root;   // what names the root, if it is in one (gc/roots/root_words.h)
    bool in_root, is_long;
};

// Adds a link, durably. False: there is no room.
bool pm_links_add(const struct pm_link *link, uint32_t *number);
// The word moves, durably: an end of the process or the power leaves the old word registered or
// the new one; both, if they are not of one root. False: there is no room, and nothing has changed.
bool pm_links_move(uint32_t *number, const struct pm_link *to);
// The link is about another block from now on, durably.
void pm_links_set_object(uint32_t number, uint64_t object);
// Sets a link's word in the heap to 0, or forgets an entry; durable after pm_links_settle(). The
// word is durable before its entry is forgotten.
void pm_links_clear_word(uint64_t *word);
void pm_links_erase(uint32_t number);
void pm_links_settle(void);

// Calls `fn` for every link. It may erase the one at hand.
void pm_links_each(void (*fn)(uint32_t number, const struct pm_link *link, void *arg), void *arg);
uint64_t pm_links_count(void);
// The word at an offset of the heap; 0 also where nothing was ever written, or nothing lies any
// more: there may be no space behind it.
uint64_t pm_links_load_word(uint64_t at);

// Whether the word has an address of the block or in it, as it is or hidden as by bdwgc's
// GC_HIDE_POINTER. If not, it may be another one's by now: the program may have freed the block
// that the word was in. So recovery leaves such a word alone.
bool pm_links_names(uint64_t word, uint64_t block, uint64_t size);

// ---- recovery ----
// Reads and checks the tables, and marks their lines as in use. Writes nothing.
int pm_links_adopt(struct pm_error *err);
// How often links were erased by others than who has registered them.
extern uint64_t pm_links_weeded;

#endif
