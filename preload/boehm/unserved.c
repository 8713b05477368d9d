// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Names of libgc that cannot be served, so that a program which only has them linked starts. Who
// calls one of these functions is told its name, and ends. The variables are libgc's own insides.
#include "boehm.h"

#include "base/message.h"

#define UNSERVED(name)                                                                             \
    EXPORT __attribute__((noreturn)) void name(void) {                                             \
        pm_abort("%s: PMAlloc does not serve this function of libgc; run the program with libgc",  \
                 #name);                                                                           \
    }
// Blocks that are finalized by the sweep.
UNSERVED(GC_init_finalized_malloc)
UNSERVED(GC_finalized_malloc)
UNSERVED(GC_register_disclaim_proc)
// One thread is held, or all, until the program says otherwise.
UNSERVED(GC_suspend_thread)
UNSERVED(GC_resume_thread)
UNSERVED(GC_is_thread_suspended)
UNSERVED(GC_stop_world_external)
UNSERVED(GC_start_world_external)
// Mark bits exist only during a collection.
UNSERVED(GC_clear_mark_bit)
UNSERVED(GC_enumerate_reachable_objects_inner)
UNSERVED(GC_print_free_list)

EXPORT char GC_arrays[64];
static void *no_list;
EXPORT void **GC_objfreelist_ptr = &no_list, **GC_aobjfreelist_ptr = &no_list;
EXPORT void **GC_uobjfreelist_ptr = &no_list, **GC_auobjfreelist_ptr = &no_list;
EXPORT void (*GC_on_abort)(const char *what);
