// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Words of live blocks and of restored roots that lead out of the heap, into what the process had
// mapped beside it (media/outside.h): stacks, files, anonymous memory. In the next run something
// else lies there, or nothing. Words that lead into the program and its libraries are not included:
// these lie where they lay.
//
// Two looks are taken, neither of which the hot loop of the marker knows of. A recovery looks at
// about 16 MiB of what it has marked, which takes some milliseconds. The end of the program looks
// at all blocks in use if they are no more than that, and marks only if it has found something.
// `pmalloc-info --out` looks at all.
#ifndef PM_OUT_H
#define PM_OUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"
#include "marking/words.h"
#include "media/outside_format.h"

#define PM_OUT_BYTES ((uint64_t)16 << 20)

struct pm_out_row {
    uint64_t words;
    bool in_root;         // the example: a root, or a block
    uint64_t holder, at;  // number of the root or start of the block; the place of the word in it
    uint64_t holder_size; // of a block
};

struct pm_out {
    unsigned count;
    struct pm_outside_range range[PM_OUTSIDE_RANGES];
    struct pm_out_row row[PM_OUTSIDE_RANGES]; // of each range
    struct pm_high_halves high;               // of all ranges
};

// Reads which ranges there are. False: none is on record.
bool pm_out_begin(struct pm_out *o);
// Counts the words of these bytes, which lie at byte `from` of a block or root.
struct pm_out_holder {
    bool in_root;
    uint64_t number, size; // of the root, or the block's start and its size
    uint64_t from;
    uint16_t type; // of the block, where its declared words (typed_words.h) hold something yet
};
void pm_out_count(struct pm_out *o, const void *bytes, uint64_t len,
                  const struct pm_out_holder *holder);

// What a line says.
struct pm_out_found {
    uint64_t words, others;       // into the one range that has most of them; into all others
    struct pm_outside_range into; // that range
    bool all;                     // false: a sample was looked at
    char way[400];                // to one of them
};
// Finds out the way, too; nothing changes the heap meanwhile. False: there are none.
bool pm_out_find(const struct pm_out *o, bool all, struct pm_out_found *found);
// `next`: at the end of the run, else the start of the next one.
void pm_out_say(const struct pm_out_found *found, bool next);
// "a stack of the first thread", "a mapping of /var/lib/x".
void pm_out_range_text(const struct pm_outside_range *r, char *out, size_t len);

// The look of a recovery. Marking is at rest. NULL: there are none.
const struct pm_out_found *pm_out_look(struct pm_error *err);

#endif
