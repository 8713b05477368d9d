// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The text form of roots, as users write it:
//
//     PMALLOC_ROOTS = spec[,spec...] | @FILE   (one spec a line, # comments, blank lines, CRLF)
//     spec = [object:]symbol | [object:]* | [object:]+OFFSET/LENGTH
//
// A symbol is what nm prints, or a C++ name as cxxname.h writes it.
//
// Nothing here allocates, prints or changes errno: it runs inside a stranger's process before main.
#ifndef PMALLOC_GC_ROOTSPEC_H
#define PMALLOC_GC_ROOTSPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ROOT_MAX = 256,              // specs in one PMALLOC_ROOTS
    ROOT_OBJECT_LEN = 96,        // with the final NUL
    ROOT_NAME_LEN = 160,         // with the final NUL
    ROOT_TEXT_LEN = 320,         // holds every formatted spec
    ROOT_FILE_MAX = 1024 * 1024, // bytes in @FILE
};

enum root_kind { ROOT_SYMBOL = 1, ROOT_OBJECT = 2, ROOT_RANGE = 3 };

// Unused fields and the tails of the strings are zero, so that specs compare by memcmp.
struct root_spec {
    enum root_kind kind;
    char object[ROOT_OBJECT_LEN]; // "" = the main program (and, for a symbol, what it loads)
    char name[ROOT_NAME_LEN];     // ROOT_SYMBOL only
    uint64_t offset;              // ROOT_RANGE only: link-time address, added to the load base
    uint64_t length;              // ROOT_RANGE only, never 0, offset + length does not wrap
};

// The whole value of PMALLOC_ROOTS. An empty value, or a file of comments, is no roots. Returns 0
// and sets *n, or -1 with one line in err and *n = 0.
int rootspec_parse(const char *text, struct root_spec *out, size_t cap, size_t *n, char *err,
                   size_t errlen);

// One spec of len bytes, without surrounding blanks.
int rootspec_parse_one(const char *text, size_t len, struct root_spec *out, char *err,
                       size_t errlen);

// The spec as text that parses to the same spec: its length, or -1 when it does not fit in len.
int rootspec_format(const struct root_spec *spec, char *buf, size_t len);

bool rootspec_equal(const struct root_spec *a, const struct root_spec *b);

#endif
