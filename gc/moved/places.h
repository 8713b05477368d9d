// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What lies at an address of an object, by its ELF file or its packed object. Addresses are those
// of the file: what loading adds is left out.
#ifndef PM_PLACES_H
#define PM_PLACES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "roots/class_tables.h"
#include "roots/elf_file.h"

enum pm_place_kind {
    PM_PLACE_NOTHING,  // a part of the file that no data of a program leads to
    PM_PLACE_FUNCTION, // the start of one
    PM_PLACE_CODE,     // inside of one
    PM_PLACE_VARIABLE, // in a variable or a constant, or at its end
    PM_PLACE_STRING,   // in a literal without a name
    PM_PLACE_DATA,     // other data without a name
};

struct pm_place_of {
    enum pm_place_kind kind;
    const char *name; // of the symbol; NULL: it has none
    const char *file; // the source file of a local symbol; NULL: the symbol is not local
    uint64_t size;    // of the symbol; of a literal: without its end, and as wide as it may be
    uint64_t into;    // how far into the symbol
    const char *text; // the literal
};

struct pm_place_symbol {
    uint64_t at, size;
    const char *name, *file;
    bool code;
    uint32_t next; // with the same hash of the name; 0: none
};

struct pm_places {
    struct pm_elf elf;
    struct pm_place_symbol *symbol; // by address, from 1 on
    uint32_t symbols;
    uint32_t *bucket; // by the hash of the name
    uint32_t buckets;
    uint64_t *function; // where functions begin as .eh_frame has it, in order
    uint32_t functions;
    bool has_names; // .symtab is there
    struct pm_class_tables classes;
};

// False: it cannot be read, or there is no memory. The file's contents stay in use. What is
// reserved is never given back: a process that rewrites a heap ends after it.
bool pm_places_make(struct pm_places *p, const struct pm_elf *elf);
void pm_place_at(const struct pm_places *p, uint64_t address, struct pm_place_of *out);
// The first symbol that begins there, by its place in `symbol`; 0: none.
uint32_t pm_place_first_at(const struct pm_places *p, uint64_t address);
// The first symbol of that name; the others follow by `next`. NULL: there is none.
const struct pm_place_symbol *pm_place_named(const struct pm_places *p, const char *name);
static inline const struct pm_place_symbol *pm_place_next(const struct pm_places *p,
                                                          const struct pm_place_symbol *s) {
    return s->next ? &p->symbol[s->next] : NULL;
}
// The bytes of constants; NULL: they are no constants, or not in the file.
const unsigned char *pm_place_bytes(const struct pm_places *p, uint64_t address, uint64_t size);
// Whether no program changes what lies there, once the linker has been at it.
bool pm_place_is_constant(const struct pm_places *p, uint64_t address);
// Where a literal with these bytes and their end lies; 0: nowhere.
uint64_t pm_place_of_literal(const struct pm_places *p, const char *text, uint64_t size);

#endif
