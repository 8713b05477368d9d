// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-info --out: the words of live blocks and of restored roots that lead out of the heap, by
// what they lead to and by what contains them.
#ifndef PM_TOOLS_OUT_WORDS_H
#define PM_TOOLS_OUT_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "program_types.h"

enum out_kind {
    OUT_STACK,
    OUT_TLS,
    OUT_FILE,
    OUT_ANONYMOUS,
    OUT_UNMAPPED,
    OUT_MODULE, // the program and its libraries, which lie where they lay
    OUT_KINDS
};
extern const char *const out_kind_name[OUT_KINDS];

#define OUT_NAME 256u
#define OUT_PATH 400u

struct out_place {
    uint64_t from, to;
    enum out_kind kind;
    char name[OUT_NAME]; // as a person would call it
    uint64_t words;
};

// Words at one place of the blocks of one size, or of one root, that lead to one place.
struct out_holder {
    uint32_t place;
    bool used, in_root;
    uint64_t block; // an example: the start of a block, from pm_base; or the root's number
    uint64_t size;  // of the block
    uint64_t at;    // in it
    uint64_t words;
    char path[OUT_PATH]; // to the example; "": not known
};

struct out_words {
    struct out_place *place; // of two that have an address the first is taken
    uint32_t places, room;
    uint64_t low, high; // of all of them; other addresses in between are unmapped
    struct out_holder *holder;
    uint32_t holders;
    uint64_t words, module_words;
    bool too_many; // holders; the rest is counted by place alone
};

// False: there is no memory.
bool out_add_place(struct out_words *o, uint64_t from, uint64_t to, enum out_kind kind,
                   const char *name);
// The places that an earlier process had, as far as that is on record.
bool out_places_on_record(struct out_words *o);
// Looks at the open heap, which was marked. `types` may be NULL.
bool out_words_find(struct out_words *o, struct program_types *types);
// Sorted, and what was found: as text, or as members of a JSON object.
struct json;
void out_words_text(struct out_words *o);
void out_words_json(struct out_words *o, struct json *j);

#endif
