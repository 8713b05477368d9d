// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "populate.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

#include "bare_thread.h"
#include "geometry.h"
#include "os.h"

PM_BARE static unsigned number(const char **text) {
    unsigned n = 0;
    for (; **text >= '0' && **text <= '9'; (*text)++)
        n = n * 10 + (unsigned)(**text - '0');
    return n;
}

// Whether MADV_POPULATE_* returns, whatever the disk does.
PM_BARE static bool returns(void) {
    static _Atomic signed char known; // 1: it does, -1: it does not
    if (known == 0) {
        struct utsname kernel;
        long result = pm_bare_call(SYS_uname, (long)&kernel, 0, 0, 0);
        const char *text = result == 0 ? kernel.release : "0";
        unsigned major = number(&text);
        text += *text == '.';
        unsigned minor = number(&text);
        known = major > 6 || (major == 6 && minor >= 9) ? 1 : -1;
    }
    return known > 0;
}

// rt_sigprocmask(2) copies the set before it looks at what is to be done with it, and this cannot
// be done.
PM_BARE static long read_by_call(const void *page) {
    const long nothing = -1;
    long result = pm_bare_call(SYS_rt_sigprocmask, nothing, (long)page, 0, sizeof(uint64_t));
    return result == -EINVAL ? 0 : result;
}

PM_BARE long pm_populate(const void *at, size_t len, int advice) {
    const char *page = at, *end = page + len;
    long result = 0;
    if (!returns()) {
        for (; page < end && result == 0; page += PM_PAGE_SIZE)
            result = read_by_call(page);
        if (result != 0 || advice == MADV_POPULATE_READ)
            return result;
    }
    do
        result = pm_bare_call(SYS_madvise, (long)at, (long)len, advice, 0);
    while (result == -EINTR || result == -EAGAIN);
    return result;
}

PM_BARE bool pm_populate_refused(long result) { return result == -EFAULT || result == -EHWPOISON; }
