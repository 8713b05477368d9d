// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The values of a program's variables as the heap has them, as text or JSON: for tree.h.
#ifndef PM_TOOLS_TREE_VALUE_H
#define PM_TOOLS_TREE_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "debug_info.h"
#include "json.h"
#include "roots/elf_file.h"
#include "roots/root_table.h"

enum { TREE_TEXT_MAX = 4096, TREE_PLACES = 1 << 20 };

struct tree {
    unsigned width; // elements of an array, links of a list
    bool as_json;
    struct dwarf *types;
    struct pm_elf program;
    uint64_t base; // what loading added to the program's addresses
    const struct pm_root_table *table;
    const char *images;
    char object[PM_ROOT_OBJECT_LEN]; // of the root
    bool dropped;
    struct json json;
    unsigned indent, nesting;
    uint64_t values;
    uint64_t *seen; // places of the program whose values were begun; a table
    size_t seen_count;
};

// How many bytes there are from an address of the heap on: to the end of its block.
uint64_t tree_rest_of_block(uint64_t at);
// The bytes that the program had there, or NULL.
const void *tree_bytes(const struct tree *t, uint64_t at, uint64_t len);

void tree_open(struct tree *t, const char *key, char bracket);
void tree_close(struct tree *t, char bracket);
void tree_text(struct tree *t, const char *key, const char *text);
// A number, or a word that is none.
__attribute__((format(printf, 4, 5))) void tree_word(struct tree *t, const char *key, bool number,
                                                     const char *format, ...);

// Prints a value. `bytes` has all that the type says. `depth`: how many pointers are followed
// below.
void tree_value(struct tree *t, const char *key, uint64_t type, uint64_t at, const void *bytes,
                unsigned depth, unsigned links);
// Prints what a pointer of type `e` that has `to` leads to.
void tree_pointer(struct tree *t, const char *key, const struct dwarf_entry *e, uint64_t to,
                  unsigned depth, unsigned links);
// Prints a container or pointer of libstdc++ as what it has. False: it is none, or one whose
// bytes are not as they should be; nothing was printed.
bool tree_std(struct tree *t, const char *key, const struct dwarf_entry *e, uint64_t at,
              const char *bytes, unsigned depth);

#endif
