// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "instant_copy.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/geometry.h"
#include "base/proc.h"

#define RUNS 512u // for one call

static struct {
    char *to;
    size_t room, done; // bytes
    bool over;
    struct iovec run[RUNS];
    size_t runs, bytes;
} copy;

void pm_instant_copy_begin(char *to, uint64_t pages) {
    copy.to = to;
    copy.room = pages * PM_PAGE_SIZE;
    copy.done = copy.runs = copy.bytes = 0;
    copy.over = atomic_load_explicit(&pm_proc_no_detour, memory_order_relaxed);
}

// The kernel stops at a page that the program may not read; a fault would end the program. It may
// also stop after some 2 GiB.
static void copy_gathered(void) {
    struct iovec to = {copy.to + copy.done, copy.bytes};
    long got = copy.runs && !copy.over
                   ? syscall(SYS_process_vm_readv, getpid(), &to, 1, copy.run, copy.runs, 0L)
                   : 0;
    copy.over |= got < (long)copy.bytes;
    copy.done += got > 0 ? (size_t)got / PM_PAGE_SIZE * PM_PAGE_SIZE : 0;
    copy.runs = copy.bytes = 0;
}

void pm_instant_copy(char *at, size_t len, void *unused) {
    size_t left = copy.room - copy.done - copy.bytes;
    (void)unused;
    len = len < left ? len : left;
    if (!len || copy.over)
        return;
    copy.run[copy.runs++] = (struct iovec){at, len};
    copy.bytes += len;
    if (copy.runs == RUNS)
        copy_gathered();
}

uint64_t pm_instant_copy_end(void) {
    copy_gathered();
    return copy.done / PM_PAGE_SIZE;
}
