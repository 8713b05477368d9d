// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "address_limit.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "mappings.h"

static bool told; // the program has set a limit:
static struct rlimit programs, kernels;

static int set(const struct rlimit *limit, struct rlimit *old) {
    return (int)syscall(SYS_prlimit64, 0, RLIMIT_AS, limit, old);
}

static void add(uint64_t from, uint64_t to, int access, void *sum) {
    (void)access;
    *(uint64_t *)sum += to - from;
}

static rlim_t plus(rlim_t limit, uint64_t reserved, rlim_t most) {
    rlim_t sum = limit + reserved;
    return limit == RLIM_INFINITY || sum < limit ? limit : sum < most ? sum : most;
}

// Where the hard limit is too low for that, the program is above it at once.
int pm_address_limit_set(uint64_t from, uint64_t to, const struct rlimit *limit,
                         struct rlimit *old) {
    struct rlimit now, before;
    uint64_t reserved = 0;
    int status = set(NULL, &now);
    if (status != 0)
        return status;
    before = told ? programs : now;
    if (limit && (limit->rlim_cur > limit->rlim_max || !pm_mappings_each(from, to, add, &reserved)))
        reserved = 0;
    if (limit) {
        rlim_t most = limit->rlim_max > now.rlim_max ? limit->rlim_max : now.rlim_max;
        kernels = (struct rlimit){plus(limit->rlim_cur, reserved, most),
                                  plus(limit->rlim_max, reserved, most)};
        status = set(&kernels, NULL);
        told |= status == 0;
        programs = status == 0 ? *limit : programs;
    }
    if (old && status == 0)
        *old = before;
    return status;
}

bool pm_address_limit_allows(uint64_t bytes) {
    struct rlimit now;
    int saved = errno;
    bool known = told || set(NULL, &now) == 0;
    rlim_t most = told ? programs.rlim_cur : now.rlim_cur;
    bool good = !known || most == RLIM_INFINITY || bytes <= most;
    errno = good ? saved : ENOMEM;
    return good;
}

bool pm_address_limit_told_allows(uint64_t bytes) {
    return !told || pm_address_limit_allows(bytes);
}

bool pm_address_limit_give_up(bool on) {
    struct rlimit back = programs;
    int saved = errno;
    if (!told)
        return false;
    if (!on) // the hard limit stays low, unless the process is privileged
        back = (struct rlimit){kernels.rlim_cur, kernels.rlim_max};
    if (set(&back, NULL) != 0 && !on) {
        back.rlim_max = programs.rlim_max;
        back.rlim_cur = back.rlim_cur < back.rlim_max ? back.rlim_cur : back.rlim_max;
        set(&back, NULL);
    }
    errno = saved;
    return true;
}
