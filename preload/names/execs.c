// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// libc's functions that execute another program. The signal of a hold (threads/threads.h) must not
// be pending then: the new program has no handler for it, and it would end that. So no hold is
// under way while a thread executes, and none begins. Under PMALLOC_COMMIT=output what the new
// program is told comes after a commit.
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

#include "base/own_limit.h"
#include "commit/triggers.h"
#include "export.h"
#include "process/leaks_marker.h"
#include "threads/calls.h"
#include "threads/threads.h"

typedef char *const *list;

// Name, parameters and arguments of each function that takes lists.
// clang-format off
#define EXECS(X)                                                                                   \
    X(execve, (const char *file, list argv, list envp), (file, argv, envp))                        \
    X(execv, (const char *file, list argv), (file, argv))                                          \
    X(execvp, (const char *file, list argv), (file, argv))                                         \
    X(execvpe, (const char *file, list argv, list envp), (file, argv, envp))                       \
    X(fexecve, (int fd, list argv, list envp), (fd, argv, envp))                                   \
    X(execveat, (int at, const char *file, list argv, list envp, int flags),                       \
      (at, file, argv, envp, flags))
// clang-format on

#define DEFINE(name, parameters, arguments)                                                        \
    EXPORT int pm_##name parameters __asm__(#name);                                                \
    EXPORT int pm_##name parameters {                                                              \
        int(*next) parameters;                                                                     \
        *(void **)&next = dlsym(RTLD_NEXT, #name);                                                 \
        if (!next) {                                                                               \
            errno = ENOSYS;                                                                        \
            return -1;                                                                             \
        }                                                                                          \
        pm_trigger_tells();                                                                        \
        pm_marker_end();                                                                           \
        bool kept_off = pm_calls_recorded && pm_threads_keep_off();                                \
        bool limited = pm_own_limits_give_up(true);                                                \
        int result = next arguments;                                                               \
        if (limited)                                                                               \
            pm_own_limits_give_up(false);                                                          \
        if (kept_off)                                                                              \
            pm_threads_let_on();                                                                   \
        return result;                                                                             \
    }
EXECS(DEFINE)

// The others take their arguments one by one; the environment comes after the last one.
static size_t count(va_list from) {
    size_t n = 0;
    while (va_arg(from, const char *))
        n++;
    return n;
}

static void gather(va_list from, const char *first, const char **argv, size_t n) {
    argv[0] = first;
    for (size_t i = 1; i <= n + 1; i++)
        argv[i] = va_arg(from, const char *);
}

#define DEFINE_LISTED(name, takes_envp, call)                                                      \
    EXPORT int pm_##name(const char *file, const char *first, ...) __asm__(#name);                 \
    EXPORT int pm_##name(const char *file, const char *first, ...) {                               \
        va_list some, all;                                                                         \
        va_start(some, first);                                                                     \
        va_copy(all, some);                                                                        \
        size_t n = first ? count(some) : 0;                                                        \
        const char *argv[n + 2];                                                                   \
        argv[1] = NULL;                                                                            \
        if (first)                                                                                 \
            gather(all, first, argv, n);                                                           \
        else                                                                                       \
            argv[0] = NULL;                                                                        \
        list envp = takes_envp ? va_arg(all, list) : NULL;                                         \
        (void)envp;                                                                                \
        va_end(some);                                                                              \
        va_end(all);                                                                               \
        return call;                                                                               \
    }
DEFINE_LISTED(execl, false, pm_execv(file, (list)argv))
DEFINE_LISTED(execlp, false, pm_execvp(file, (list)argv))
DEFINE_LISTED(execle, true, pm_execve(file, (list)argv, envp))
