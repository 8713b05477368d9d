// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "own_limit.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "mappings.h"

struct raised {
    int which;
    bool told; // the program has set a limit:
    struct rlimit programs, kernels;
};
static struct raised addresses = {.which = RLIMIT_AS}, tasks = {.which = RLIMIT_NPROC};

static int set(int which, const struct rlimit *limit, struct rlimit *old) {
    return (int)syscall(SYS_prlimit64, 0, which, limit, old);
}

static void add(uint64_t from, uint64_t to, int access, void *sum) {
    (void)access;
    *(uint64_t *)sum += to - from;
}

static rlim_t plus(rlim_t limit, uint64_t ours, rlim_t most) {
    rlim_t sum = limit + ours;
    return limit == RLIM_INFINITY || sum < limit ? limit : sum < most ? sum : most;
}

// Where the hard limit is too low for that, the program is above it at once.
static int raise_by(struct raised *r, uint64_t ours, const struct rlimit *limit,
                    struct rlimit *old) {
    struct rlimit now, before;
    int status = set(r->which, NULL, &now);
    if (status != 0)
        return status;
    before = r->told ? r->programs : now;
    if (limit) {
        rlim_t most = limit->rlim_max > now.rlim_max ? limit->rlim_max : now.rlim_max;
        r->kernels =
            (struct rlimit){plus(limit->rlim_cur, ours, most), plus(limit->rlim_max, ours, most)};
        status = set(r->which, &r->kernels, NULL);
        r->told |= status == 0;
        r->programs = status == 0 ? *limit : r->programs;
    }
    if (old && status == 0)
        *old = before;
    return status;
}

int pm_address_limit_set(uint64_t from, uint64_t to, const struct rlimit *limit,
                         struct rlimit *old) {
    uint64_t reserved = 0;
    if (limit && (limit->rlim_cur > limit->rlim_max || !pm_mappings_each(from, to, add, &reserved)))
        reserved = 0;
    return raise_by(&addresses, reserved, limit, old);
}

int pm_task_limit_set(unsigned own, const struct rlimit *limit, struct rlimit *old) {
    bool wrong = limit && limit->rlim_cur > limit->rlim_max;
    return raise_by(&tasks, wrong ? 0 : own, limit, old);
}

bool pm_address_limit_allows(uint64_t bytes) {
    struct rlimit now;
    int saved = errno;
    bool told = addresses.told, known = told || set(RLIMIT_AS, NULL, &now) == 0;
    rlim_t most = told ? addresses.programs.rlim_cur : now.rlim_cur;
    bool good = !known || most == RLIM_INFINITY || bytes <= most;
    errno = good ? saved : ENOMEM;
    return good;
}

bool pm_address_limit_told_allows(uint64_t bytes) {
    return !addresses.told || pm_address_limit_allows(bytes);
}

static bool give_up(const struct raised *r, bool on) {
    struct rlimit back = r->programs;
    if (!r->told)
        return false;
    if (!on) // the hard limit stays low, unless the process is privileged
        back = r->kernels;
    if (set(r->which, &back, NULL) != 0 && !on) {
        back.rlim_max = r->programs.rlim_max;
        back.rlim_cur = back.rlim_cur < back.rlim_max ? back.rlim_cur : back.rlim_max;
        set(r->which, &back, NULL);
    }
    return true;
}

bool pm_own_limits_give_up(bool on) {
    int saved = errno;
    bool one = give_up(&addresses, on), other = give_up(&tasks, on);
    errno = saved;
    return one || other;
}
