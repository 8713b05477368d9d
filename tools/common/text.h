// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Names that others have chosen, such as paths. They may have any bytes.
#ifndef PM_TOOLS_TEXT_H
#define PM_TOOLS_TEXT_H

#include <stddef.h>

// Returns the length of the UTF-8 sequence at `s`; 0: it is none. Surrogates, and forms longer than
// needed, are not valid.
size_t text_utf8_length(const unsigned char *s);

// Prints to standard output, for people: with '?' for each control character.
void text_print(const char *text);

#endif
