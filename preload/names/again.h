// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The end of a program interrupts its threads once (process/end.c). A call that sleeps would return
// EINTR because of that, and what the thread does next would come before the end of the process. So
// such a call begins again, unless a handler of the program's has run, too.
#ifndef PM_AGAIN_H
#define PM_AGAIN_H

#include <stdbool.h>

#include "threads/postpone.h"

// `before`: pm_heard before the call, which has returned EINTR.
static inline bool pm_again(struct pm_heard before) {
    return pm_heard.ours != before.ours && pm_heard.others == before.others;
}

// Makes `call` until it is not `interrupted` by a signal of PMAlloc's alone.
#define PM_AGAIN(call, interrupted)                                                                \
    do {                                                                                           \
        struct pm_heard before = pm_heard;                                                         \
        call;                                                                                      \
        if (!__builtin_expect(interrupted, 0) || !pm_again(before))                                \
            break;                                                                                 \
    } while (true)

#endif
