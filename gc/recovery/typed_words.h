// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The words of a type's blocks that the program has declared transient (pmalloc_transient()). They
// are known by type, and not by block: a slab keeps the type of its blocks as long as it stands,
// so a block that is freed and taken anew has the same words, and a free has nothing to note.
//
// Lock: the process lock, for a change.
#ifndef PM_TYPED_WORDS_H
#define PM_TYPED_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"
#include "media/typed_words_format.h"

// PM_DAMAGE: an entry is not whole.
int pm_typed_words_check(struct pm_error *err);
bool pm_typed_words_any(void);
// Calls `fn` with the place of each word of this type.
void pm_typed_words_each(uint16_t type, void (*fn)(uint64_t at, void *arg), void *arg);
// Whether the word at byte `at` of each block of this type is one. Type 0 has none.
bool pm_typed_word_is(uint16_t type, uint64_t at);
// Adds or drops one, durably. False: there is no room.
bool pm_typed_word_set(uint16_t type, uint64_t at, bool on);

#endif
