// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Calls by which a process takes addresses or memory from itself. Without a heap so far (phase.h:
// WAITING), it gets its heap before, while there is room for one.
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file_limit.h"
#include "base/os.h"
#include "base/own_limit.h"
#include "commit/background.h"
#include "export.h"
#include "media/heap.h"
#include "process/entry.h"

// Beside glibc's header, which gives the parameters of some of these a type of their own.
int pm_names_setrlimit(int which, const struct rlimit *new) __asm__("setrlimit");
int pm_names_setrlimit64(int which, const struct rlimit *new) __asm__("setrlimit64");
int pm_names_getrlimit(int which, struct rlimit *old) __asm__("getrlimit");
int pm_names_getrlimit64(int which, struct rlimit *old) __asm__("getrlimit64");
int pm_names_prlimit(pid_t pid, int which, const struct rlimit *new,
                     struct rlimit *old) __asm__("prlimit");
int pm_names_prlimit64(pid_t pid, int which, const struct rlimit *new,
                       struct rlimit *old) __asm__("prlimit64");

EXPORT int pm_names_prlimit(pid_t pid, int which, const struct rlimit *new, struct rlimit *old) {
    if (new)
        pm_settle();
    if (which == RLIMIT_FSIZE)
        return pm_file_limit_set(pid, new, old);
    if (which == RLIMIT_AS && (pid == 0 || pid == getpid()) && pm_range)
        return pm_address_limit_set(PM_OS_PLACES, pm_base + pm_range, new, old);
    if (which == RLIMIT_NPROC && (pid == 0 || pid == getpid()))
        return pm_task_limit_set(pm_os_own_count(), new, old);
    return (int)syscall(SYS_prlimit64, pid, which, new, old);
}

EXPORT int pm_names_getrlimit(int which, struct rlimit *old) {
    return pm_names_prlimit(0, which, NULL, old);
}

EXPORT int pm_names_getrlimit64(int which, struct rlimit *old) {
    return pm_names_prlimit(0, which, NULL, old);
}

EXPORT int pm_names_prlimit64(pid_t pid, int which, const struct rlimit *new, struct rlimit *old) {
    return pm_names_prlimit(pid, which, new, old);
}

EXPORT int pm_names_setrlimit(int which, const struct rlimit *new) {
    return pm_names_prlimit(0, which, new, NULL);
}

EXPORT int pm_names_setrlimit64(int which, const struct rlimit *new) {
    return pm_names_prlimit(0, which, new, NULL);
}
