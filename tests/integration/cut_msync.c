// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A library that is preloaded before all others: the process is killed when the library under test
// is about to make msync() for the cut_msync-th time.
#include <signal.h>
#include <stdlib.h>

#include "layer.h"
#include "raw_call.h"

long syscall(long number, ...) {
    static int calls;
    long a[6];
    RAW_ARGUMENTS(a, number);
    if (number == SYS_msync && ++calls == atoi(variable("cut_msync")))
        return raise(SIGKILL);
    return done(raw(number, a[0], a[1], a[2], a[3], a[4], a[5]));
}
