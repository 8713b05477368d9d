// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "patience.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tools/common/program_status.h"

uint64_t patience_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool wants_processor(pid_t pid, pid_t thread) {
    unsigned long flags;
    return program_state(pid, thread, &flags) == 'R';
}

// The kernel brings it up to date whenever the thread is switched, and at each tick. 0: it has not
// run yet, or the kernel does not say.
static uint64_t time_run(pid_t pid, pid_t thread) {
    char text[128];
    return program_text(pid, thread, "schedstat", text, sizeof text) ? strtoull(text, NULL, 10) : 0;
}

// This thread has run.
static bool kernel_says(void) { return time_run(getpid(), (pid_t)syscall(SYS_gettid)) != 0; }

uint64_t patience_chance(struct patience *p, pid_t pid, pid_t thread) {
    const struct patience before = *p;
    *p = (struct patience){.looked_ns = patience_now_ns(), .ran_ns = time_run(pid, thread)};
    if (!before.looked_ns)
        return 0;
    uint64_t passed = p->looked_ns - before.looked_ns;
    if (!wants_processor(pid, thread) || (!p->ran_ns && !kernel_says()))
        return passed;
    uint64_t ran = p->ran_ns - before.ran_ns;
    return ran < passed ? ran : passed;
}
