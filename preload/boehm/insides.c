// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Variables of libgc's own insides, so that a program which has them linked starts.
#include "boehm.h"

EXPORT char GC_arrays[64];
static void *no_list;
EXPORT void **GC_objfreelist_ptr = &no_list, **GC_aobjfreelist_ptr = &no_list;
EXPORT void **GC_uobjfreelist_ptr = &no_list, **GC_auobjfreelist_ptr = &no_list;
