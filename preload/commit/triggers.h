// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMALLOC_COMMIT=idle and =output: calls of the program that are a reason for a commit. The names
// (preload/names/) tell of each such call before it is made.
//
//   output   Before a call that says something to a pipe, a socket or a device, or by the
//            descriptors 1 and 2 (PM_CALL_SAYS), or to another process in another way, or that
//            makes a file durable (PM_CALL_TELLS): a commit whose instant comes after the call was
//            asked for. Several threads that say something at once share one.
//   idle     The program is idle while each of its threads is in a call that waits. The thread
//            `pmalloc-commit` then makes a commit (idle.h).
//
// The name of a call alone may mislead, because its file decides: a read of a plain file is no
// wait, and nothing leaves the process by a write to one that nobody asks to be durable.
//
// The commit comes before a file is made durable, never after it: whatever the file says of the
// heap is there. In the other order a cut between the two would leave a durable file that speaks of
// what the heap lacks.
#ifndef PM_TRIGGERS_H
#define PM_TRIGGERS_H

#include <stdbool.h>

#include "threads/calls.h"

// Flags of pwritev2() and of sync_file_range() with which the call returns when what it is about is
// durable: RWF_DSYNC, RWF_SYNC, and SYNC_FILE_RANGE_WAIT_BEFORE, _AFTER. Not all headers have them.
#define PM_WRITE_IS_DURABLE 6
#define PM_RANGE_IS_AWAITED 5

// Whether calls are told of: for a commit, or for roots that wait (late.h). Set before main;
// unset once no root waits, where nothing else wants it.
extern bool pm_triggers_on;
void pm_triggers_start(void);

// Before and after a call. They keep errno. `call` is not entered yet, and left already. True: the
// call need not be made, because what it says was taken (outbox.h); its result is in `call`.
bool pm_trigger_enter(struct pm_call *call);
void pm_trigger_leave(const struct pm_call *call);

// After a call that has found, without waiting, that something has come.
void pm_trigger_found(const struct pm_call *call);

// The same, where calls are not told of: for replaced.h alone.
void pm_trigger_shows(const struct pm_call *call);

static inline bool pm_trigger_before(struct pm_call *call) {
    return __builtin_expect(pm_triggers_on, 0) && pm_trigger_enter(call);
}

static inline void pm_trigger_after(const struct pm_call *call) {
    if (__builtin_expect(pm_triggers_on, 0))
        pm_trigger_leave(call);
}

static inline void pm_trigger_came(const struct pm_call *call) {
    if (__builtin_expect(pm_triggers_on, 0))
        pm_trigger_found(call);
}

// Before something that tells others something, and is no call that may sleep.
static inline void pm_trigger_tells(void) {
    struct pm_call call = {.kind = PM_CALL_TELLS};
    pm_trigger_before(&call);
}

#endif
