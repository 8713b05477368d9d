// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Disappearing links (media/link_format.h) after a kill. Once all is marked, and before anything is
// freed:
//
//   the word's block is not marked   the link goes
//   the object is not marked         the word becomes 0, durably; then the link goes
//   both are                         the link stays
//
// Short links and long ones fare alike: finalizers, which would have kept an object, died with the
// process. A cut on the way leaves words that the next recovery finds unmarked again.
#ifndef PM_RECOVERY_LINKS_H
#define PM_RECOVERY_LINKS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"

struct pm_links_found {
    uint64_t registered; // links that the heap has, or had before those below went
    uint64_t cleared;    // of dead objects
    uint64_t lost;       // in dead blocks, or in what is no root any more
    uint64_t foreign;    // of dead objects, but the word has another value: it is left as it is
};

// Between pm_mark_run() and pm_mark_end(); or before the sweep that believes the bitmaps of a clean
// close: then the links of what the program had freed itself go. Without `write` it counts only.
// `held`: only what lies in held slabs and extents may be dead. PM_OPERATIONAL: the images of roots
// cannot be mapped.
int pm_links_weed(bool write, bool held, struct pm_links_found *found, struct pm_error *err);

#endif
