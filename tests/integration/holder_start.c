// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Preloaded beside the test library of holder.c: starts its thread when libc is ready.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern void holder_start(void);
extern _Atomic unsigned holder_held, holder_failed;

static const char *report;

__attribute__((constructor)) static void start(void) {
    report = getenv("HOLD_REPORT");
    if (!getenv("HOLD_PROGRAM") || strstr(program_invocation_name, getenv("HOLD_PROGRAM")))
        holder_start();
    else
        report = NULL;
}

__attribute__((destructor)) static void end(void) {
    FILE *out = report ? fopen(report, "w") : NULL;
    if (!out)
        return;
    fprintf(out, "%u %u\n", holder_held, holder_failed);
    fclose(out);
}
