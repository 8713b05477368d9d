// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Words of captured roots by names that outlast a start: the next start may have other roots beside
// them, other addresses and other places in the file `roots`. A root is named by a CRC of what it
// is in the root table; a word, by its offset in it. Roots that are not restored have none.
#ifndef PM_ROOT_WORDS_H
#define PM_ROOT_WORDS_H

#include <stdbool.h>
#include <stdint.h>

struct pm_root_word {
    uint32_t root;
    uint64_t at;
};

// The word at `p`, a variable of this process. False: it is in no such root.
bool pm_root_word_of(const void *p, struct pm_root_word *word);
// Where it is in this process, which has captured its roots; NULL: there is no such root now.
void *pm_root_word_address(struct pm_root_word word);
// Whether the table in force has the root.
bool pm_root_word_exists(struct pm_root_word word);
// Reads or stores it: in this process or, before the roots are captured and in tools, in the file
// `roots`. A store is flushed. False with errno: the file cannot be mapped.
bool pm_root_word_load(struct pm_root_word word, uint64_t *value);
bool pm_root_word_store(struct pm_root_word word, uint64_t value);

#endif
