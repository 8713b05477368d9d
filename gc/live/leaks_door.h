// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How pmalloc-info --leaks asks a process that runs. The tool halts the process by ptrace(2), finds
// the door in the data of the library, maps a piece of memory in the process, and lets one thread
// run door.answer there while all others stand still. This file is all that the two sides share:
//
//   the piece   struct pm_leaks_asked, then what it points to, then room for the thread's stack
//
//   FIND     halted: the roots are taken. A process that shares the program's memory marks (the
//            marker, preload/process/leaks_marker.h), and the program goes on
//   FINISH   halted: what was stored to since is found. As long as that is much, the marker goes
//            on, beside the program. Else the roots are taken once more, and the report is made
//   END      halted: the marker is not there any more
//
// Where there is no record of stores, FIND does all of it. Nothing is left behind: the tool unmaps
// the piece and gives the thread its registers back.
#ifndef PM_LEAKS_DOOR_H
#define PM_LEAKS_DOOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "leaks.h"
#include "live_mark.h"
#include "start_seen.h"
#include "threads/sections_door.h"

#define PM_LEAK_SITES 20u  // those with the most bytes
#define PM_LEAK_FRAMES 14u // of each, the innermost calls

struct pm_leak_site {
    struct pm_leak_row row;
    const void *frame[PM_LEAK_FRAMES]; // up to the first that is NULL; none: not on record
};

enum pm_leaks_command {
    PM_LEAKS_FIND,   // marks beside the program, if that can be
    PM_LEAKS_FINISH, // after PM_LEAKS_BEGUN, with new stacks and registers
    PM_LEAKS_END,    // after a FINISH: the marker has ended
    PM_LEAKS_UNDO,   // after a FIND or FINISH that a fault has ended: frees its memory
};

enum pm_marker_stage {
    PM_MARKER_MARKS,  // it begins the record of stores, marks, and notes what is not reached
    PM_MARKER_MARKED, // it has done that, and waits
    PM_MARKER_FAILED, // the same, but it could not
};
struct pm_marker_seen {
    _Atomic uint32_t stage;
    _Atomic uint32_t alive; // 0: it has ended, or was not made
};

enum pm_leaks_answer {
    PM_LEAKS_NONE,    // not answered yet
    PM_LEAKS_FOUND,   // the report is there
    PM_LEAKS_BEGUN,   // a marker runs beside the program: `marker`. Then FINISH is due
    PM_LEAKS_BUSY,    // a thread is amid a change of the heap: ask again later
    PM_LEAKS_NO_HEAP, // it has asked for so little memory that it has no heap yet
    PM_LEAKS_AT_END,  // the program is over
    PM_LEAKS_FAILED,  // `err` says why
};

struct pm_leaks_asked {
    // The tool's.
    uint32_t command;
    uint32_t threads;
    uint64_t piece_bytes;
    uint64_t mine;             // whose piece it is: another program may run here meanwhile
    const uintptr_t *stacks;   // the stack pointer of each thread
    const void *registers;     // what they have in registers, one after the other
    uint64_t register_bytes;   // of all
    struct pm_leak_row *sites; // room for one of each stack that may be on record, all zero
    // The library's.
    struct pm_error err;
    struct pm_leaks leaks;
    struct pm_live_sum in_use;
    struct pm_marker_seen marker;
    uint64_t rounds;
    uint64_t beside;      // 1: it was marked beside the program
    uint64_t with_stacks; // 1: PMALLOC_LEAKS=stack
    struct pm_leak_site site[PM_LEAK_SITES];
    uint64_t other_bytes;    // allocated in other places
    _Atomic uint32_t answer; // stored last
};

#define PM_LEAKS_SITE_ROOM 65536u // rows of `sites`

// Found by its first words. Other builds have another `layout`.
#define PM_LEAKS_MAGIC_A 0x6b61656c63616d70u
#define PM_LEAKS_MAGIC_B 0x9d3c5b7f21e8a604u
#define PM_LEAKS_LAYOUT (9u << 20 | (uint64_t)sizeof(struct pm_leaks_asked))

struct pm_leaks_door {
    uint64_t magic_a, magic_b;
    const struct pm_leaks_door *self;
    uint64_t layout;
    void (*answer)(void);           // the piece in %rdi; does not return
    void (*call)(void);             // a system call instruction; waits behind it for ever
    const char *text, *text_end;    // the code of the library: a thread there is inside ..
    const char *inner, *inner_end;  // .. unless it is here
    const _Atomic uint32_t *own;    // the id of a thread that is always there
    const _Atomic uint32_t *looker; // of one that others may wait for, and that changes no heap
    const _Atomic uint32_t *phase;  // 0: this copy of the library serves nobody
    // Not 0: a thread makes a commit, and may wait for any other.
    const _Atomic uint32_t *commits;
    // From a thread's pointer to how many locks of ours it holds. 0: there is no heap yet.
    int64_t locks;
    // And to where its signal stack begins (base/signal_stack.h). A thread that is there is inside,
    // wherever its code lies: its handler has what it had in registers.
    int64_t signal_stack;
    const struct pm_sections_door *sections;
    const struct pm_start_seen *start;
    const bool *late; // roots wait for the moment at which they are restored
    // Tables of the allocator, for pmalloc-info --blocks: what each of these variables has.
    uint8_t *const *tags;
    struct pm_vslab *const *vslabs;
    struct pm_slab_bits *const *slab_bits;
};

#endif
