// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Roots of the open heap that are parts of variables: which members they are.
#ifndef PM_TOOLS_ROOT_MEMBER_H
#define PM_TOOLS_ROOT_MEMBER_H

#include "media/format.h"
#include "member_name.h"

// "server.db", or "server.db to server.orig_commands". `out` has MEMBER_NAME bytes. False: it is a
// root of another kind, or the types are not known.
bool root_member(const char *heap, const struct pm_root *root, char *out);

#endif
