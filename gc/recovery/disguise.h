// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Blocks that nothing reaches by an address in a form that is looked for (marking/forms.h), but
// that look as if they were reached by one in another form. A sweep would free them without a word,
// and they may be the program's data. So before a sweep a sample of what is reached is looked at.
// The forms of PM_FORMS_COSTLY are tried but base32, because any small number is one.
//
// Numbers that are no addresses look like some now and then. So words are judged together, by the
// size of the block that has them and by their place in it: at that place, most words that lead
// into the heap in this form must name the start of a block, and some of different values must name
// blocks that are not reached. A distance to a place near by and behind is ignored, because every
// length and every small number is one.
#ifndef PM_DISGUISE_H
#define PM_DISGUISE_H

#include <stdbool.h>
#include <stdint.h>

struct pm_disguise {
    unsigned form;                    // enum pm_form; 0: nothing was found
    uint64_t holder, holder_size, at; // an example: a block, its size, and the place in it
};

// Looks for them among what is marked. Marking is at rest; everything that is alive is marked.
// Returns whether there are some.
bool pm_disguise_look(struct pm_disguise *found);

// How many blocks are marked, and their bytes.
uint64_t pm_disguise_marked(uint64_t *bytes);

#endif
