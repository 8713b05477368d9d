// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "careful.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/os.h"
#include "base/populate.h"
#include "base/proc.h"
#include "marks.h"
#include "media/heap.h"

static char copy[PM_PAGE_SIZE];
static int memory; // a descriptor of /proc/thread-self/mem + 1; -1: there is none

bool pm_careful_may_load(const char *at, size_t len) {
    return pm_populate(at, len, MADV_POPULATE_READ) == 0;
}

// The kernel reads for a debugger what the process itself may not.
static bool read_as_debugger(const char *at) {
    if (!memory)
        memory = 1 + pm_proc_open("thread-self/mem", O_RDONLY);
    if (!memory)
        memory = -1;
    return memory > 0 && pm_proc_call(SYS_pread64, memory - 1, (long)copy, sizeof copy, (long)at) ==
                             (long)sizeof copy;
}

// What the marks say of the page of the heap.
static struct pm_mark mark_of(const char *at) {
    uint64_t offset = pm_heap_offset(at);
    struct pm_mark m;
    bool found = offset < pm_range && pm_marks_next_locked(offset, &m) && m.from <= offset;
    return found ? m : (struct pm_mark){0};
}

// Where there is no /proc, the page becomes readable for a moment.
static bool read_admitted(const char *at, const struct pm_mark *m) {
    char *page = (char *)(uintptr_t)at;
    if (!(m->kinds & PM_MARK_ACCESS) || m->access >> PM_KEY_SHIFT ||
        mprotect(page, PM_PAGE_SIZE, PROT_READ) != 0)
        return false;
    memcpy(copy, at, sizeof copy);
    mprotect(page, PM_PAGE_SIZE, m->access);
    return true;
}

const char *pm_careful_page(const char *at) {
    int saved = errno;
    const char *page = pm_careful_may_load(at, PM_PAGE_SIZE) ? at : NULL;
    struct pm_mark m = page ? (struct pm_mark){0} : mark_of(at);
    if (m.kinds & PM_MARK_GUARD) // it has no page, and leaves zeroes
        page = memset(copy, 0, sizeof copy);
    if (!page && (read_as_debugger(at) || read_admitted(at, &m)))
        page = copy;
    errno = saved;
    return page;
}

void pm_careful_end(void) {
    if (memory > 0)
        pm_proc_close(memory - 1);
    memory = 0;
}
