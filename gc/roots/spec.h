// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Specs: the text that names roots.
//
//     PMALLOC_ROOTS = spec[,spec...] | @FILE
//     FILE = one spec in each line; # comments, blank lines and CRLF are allowed
//     spec = [object:]symbol[WHEN] | [object:]* | [object:][symbol]+OFFSET/LENGTH[WHEN]
//     WHEN = @idle | @call
//
// WHEN says when a start restores the root, and captures it: not before main, but when the program
// is ready for it.
//
// A symbol is what nm prints, or a C++ name as cxxname.h writes it.
//
// Nothing here calls malloc, prints, or changes errno. It runs in any program before main.
#ifndef PM_SPEC_H
#define PM_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/message.h"
#include "media/format.h"

enum {
    PM_SPEC_TEXT_LEN = PM_ROOT_OBJECT_LEN + PM_ROOT_NAME_LEN + 64, // room for every formatted spec
    PM_SPEC_FILE_MAX = 1024 * 1024,                                // bytes in @FILE
};

// Unused fields and the tails of the strings are zero, so specs compare by memcmp.
struct pm_spec {
    enum pm_root_kind kind;
    char object[PM_ROOT_OBJECT_LEN]; // "": the main program; for a symbol also its libraries
    char name[PM_ROOT_NAME_LEN];     // "" for objects, and for ranges that lie in no symbol
    uint64_t offset;                 // PM_ROOT_RANGE only: in the symbol, or the link-time address
    uint64_t length;                 // PM_ROOT_RANGE only, never 0; offset + length does not wrap
    enum pm_root_when when;
};

// Reads the whole value of PMALLOC_ROOTS into out[0 .. *n), at most `cap` specs. An empty value, or
// a file with comments only, gives no specs. On failure *n is 0.
int pm_spec_parse(const char *text, struct pm_spec *out, size_t cap, size_t *n,
                  struct pm_error *err);
// Calls `fn` for the text of each spec of such a value, in turn. The first that is not PM_OK ends
// it, and its message gets the place of the spec before it.
typedef int pm_spec_fn(const char *text, size_t len, void *arg, struct pm_error *err);
int pm_spec_each(const char *text, pm_spec_fn *fn, void *arg, struct pm_error *err);
// Reads one spec of `len` bytes, without blanks around it.
int pm_spec_parse_one(const char *text, size_t len, struct pm_spec *out, struct pm_error *err);
// Writes a spec as text that reads back as the same spec. Returns the text's length; -1: it does
// not fit in `len`.
int pm_spec_format(const struct pm_spec *spec, char *buf, size_t len);
bool pm_spec_equal(const struct pm_spec *a, const struct pm_spec *b);
// The same variable, whenever it is restored.
bool pm_spec_same(const struct pm_spec *a, const struct pm_spec *b);

#endif
