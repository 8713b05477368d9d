// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What C calls the bytes at an offset of a variable: ".orders[3].who". Each function appends to
// `out`, of MEMBER_NAME bytes; if it returns false, it has appended nothing.
#ifndef PM_TOOLS_MEMBER_NAME_H
#define PM_TOOLS_MEMBER_NAME_H

#include "member_find.h"

enum { MEMBER_NAME = 200 };

// The innermost member that has the byte.
bool member_at(struct dwarf *d, uint64_t type, uint64_t offset, char *out, struct member *member);
// The outermost member that begins there and has at most `length` bytes; best one that has as many.
bool member_begins(struct dwarf *d, uint64_t type, uint64_t offset, uint64_t length, char *out,
                   struct member *member);
// Bytes of a variable of that name, which is appended too: "server", "server.db", "server.db to
// server.orig_commands". False: no members begin or end there.
bool member_range(struct dwarf *d, uint64_t type, const char *variable, uint64_t offset,
                  uint64_t length, char *out);

#endif
