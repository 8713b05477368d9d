// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The calls of libc that tell another process something and do not sleep, by their names, for
// PMALLOC_COMMIT=output (commit/triggers.h). Those that may sleep are in waits.c.
//
// A started program is told something by its arguments, its environment and its files. Its own
// output is about data that was committed before. A fork comes to fork/fork.c, an exec to execs.c.
#include <aio.h>
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <syslog.h>
#include <unistd.h>

#include "commit/triggers.h"
#include "export.h"
#include "next.h"
#include "threads/calls.h"

typedef size_t len;
typedef char *const *list;
typedef const struct aiocb *const *requests;
typedef const posix_spawn_file_actions_t *actions;
typedef const posix_spawnattr_t *attributes;

// Not the program itself, and no question whether there is a process (signal 0).
static bool signals_other(pid_t to, int number) { return number != 0 && to != getpid(); }

// Result, what it is without the function, name, parameters, arguments, what it says. Requests of
// aio.h: what they do is not looked at.
// clang-format off
#define SAY(f) .kind = PM_CALL_SAYS, .fd = f
#define TELL .kind = PM_CALL_TELLS
#define TELL_IF(condition) .kind = (condition) ? PM_CALL_TELLS : PM_CALL_OTHER
#define SAYS(X)                                                                                    \
    X(ssize_t, -1, pwrite, (int f, const void *p, len n, off_t at), (f, p, n, at), SAY(f))         \
    X(ssize_t, -1, pwritev, (int f, const struct iovec *v, int n, off_t at), (f, v, n, at),        \
      SAY(f))                                                                                      \
    X(int, -1, shutdown, (int f, int how), (f, how), SAY(f))                                       \
    X(int, -1, aio_write, (struct aiocb *r), (r), TELL)                                            \
    X(int, -1, lio_listio, (int mode, requests r, int n, struct sigevent *e),                      \
      (mode, r, n, e), TELL)                                                                       \
    X(int, -1, aio_fsync, (int how, struct aiocb *r), (how, r), TELL)                              \
    X(int, -1, kill, (pid_t p, int s), (p, s), TELL_IF(signals_other(p, s)))                       \
    X(int, -1, killpg, (pid_t p, int s), (p, s), TELL_IF(s))                                       \
    X(int, -1, sigqueue, (pid_t p, int s, union sigval v), (p, s, v),                              \
      TELL_IF(signals_other(p, s)))                                                                \
    X(int, -1, system, (const char *line), (line), TELL_IF(line))                                  \
    X(int, -1, posix_spawn, (pid_t *p, const char *file, actions a, attributes t, list argv,       \
                         list envp), (p, file, a, t, argv, envp), TELL)                            \
    X(int, -1, posix_spawnp, (pid_t *p, const char *file, actions a, attributes t, list argv,      \
                          list envp), (p, file, a, t, argv, envp), TELL)                           \
    X(FILE *, NULL, popen, (const char *line, const char *how), (line, how), TELL)                 \
    X(void, (void)0, vsyslog, (int level, const char *format, va_list args),                       \
      (level, format, args), TELL)

#ifdef __GLIBC__
// pidfd_spawn(), which glibc has from 2.39 on. A program that asks by dlsym() whether there is one
// finds the name here, so it has to work.
typedef int spawn_fn(pid_t *, const char *, actions, attributes, list, list);
static int spawn_by(spawn_fn *spawn, int *fd, const char *file, actions a, attributes t, list argv,
                    list envp) {
    pid_t child;
    int probe = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (probe < 0)
        return errno;
    close(probe);
    int error = spawn(&child, file, a, t, argv, envp);
    if (error)
        return error;
    *fd = (int)syscall(SYS_pidfd_open, child, 0);
    return *fd < 0 ? errno : 0;
}
#define BY_SPAWN spawn_by(pm_says_posix_spawn, f, file, a, t, argv, envp)
#define BY_SPAWNP spawn_by(pm_says_posix_spawnp, f, file, a, t, argv, envp)

// glibc's second names, and its own functions.
#define SECOND_NAMES(X)                                                                            \
    X(ssize_t, -1, pwrite64, (int f, const void *p, len n, off_t at), (f, p, n, at), SAY(f))       \
    X(ssize_t, -1, pwritev64, (int f, const struct iovec *v, int n, off_t at), (f, v, n, at),      \
      SAY(f))                                                                                      \
    X(int, -1, aio_write64, (struct aiocb *r), (r), TELL)                                          \
    X(int, -1, aio_fsync64, (int how, struct aiocb *r), (how, r), TELL)                            \
    X(int, -1, lio_listio64, (int mode, requests r, int n, struct sigevent *e),                    \
      (mode, r, n, e), TELL)                                                                       \
    X(int, -1, tgkill, (pid_t p, pid_t t, int s), (p, t, s), TELL_IF(signals_other(p, s)))         \
    X(int, -1, pidfd_send_signal, (int f, int s, void *info, unsigned flags), (f, s, info, flags), \
      TELL_IF(s))                                                                                  \
    X(int, BY_SPAWN, pidfd_spawn, (int *f, const char *file, actions a, attributes t, list argv,   \
                               list envp), (f, file, a, t, argv, envp), TELL)                      \
    X(int, BY_SPAWNP, pidfd_spawnp, (int *f, const char *file, actions a, attributes t, list argv, \
                                 list envp), (f, file, a, t, argv, envp), TELL)                    \
    X(void, (void)0, __vsyslog_chk, (int level, int flag, const char *format, va_list args),       \
      (level, flag, format, args), TELL)
#else
#define SECOND_NAMES(X)
#endif
// clang-format on

#define DEFINE(type, failed, name, parameters, arguments, ...)                                     \
    EXPORT type pm_says_##name parameters __asm__(#name);                                          \
    EXPORT type pm_says_##name parameters {                                                        \
        static type(*_Atomic known) parameters;                                                    \
        type(*next) parameters = known;                                                            \
        if (!next) {                                                                               \
            *(void **)&next = dlsym(RTLD_NEXT, #name);                                             \
            if (!next) {                                                                           \
                errno = ENOSYS;                                                                    \
                return failed;                                                                     \
            }                                                                                      \
            known = next;                                                                          \
        }                                                                                          \
        if (pm_triggers_on) {                                                                      \
            struct pm_call call = {__VA_ARGS__};                                                   \
            pm_trigger_enter(&call);                                                               \
        }                                                                                          \
        return next arguments;                                                                     \
    }
SAYS(DEFINE)
SECOND_NAMES(DEFINE)

static void log_line(int level, int flag, const char *format, va_list args) {
#ifdef __GLIBC__
    if (flag >= 0) {
        pm_says___vsyslog_chk(level, flag, format, args);
        return;
    }
#endif
    (void)flag;
    pm_says_vsyslog(level, format, args);
}

EXPORT void syslog(int level, const char *format, ...) {
    va_list args;
    va_start(args, format);
    log_line(level, -1, format, args);
    va_end(args);
}

EXPORT void __syslog_chk(int level, int flag, const char *format, ...);
EXPORT void __syslog_chk(int level, int flag, const char *format, ...) {
    va_list args;
    va_start(args, format);
    log_line(level, flag, format, args);
    va_end(args);
}

// vfork() returns twice on one stack, so libc's function must find it as the caller left it. This
// one only asks where that is.
typedef pid_t vfork_fn(void);
__attribute__((used)) static vfork_fn *before_vfork(void) {
    static _Atomic(void *) known;
    vfork_fn *next;
    *(void **)&next = pm_next(&known, "vfork");
    pm_trigger_tells();
    pm_calls_share();
    return next;
}

EXPORT __attribute__((naked)) pid_t vfork(void) {
    __asm__("endbr64\n\t"
            "sub $8, %rsp\n\t"
            "call before_vfork\n\t"
            "add $8, %rsp\n\t"
            "jmp *%rax");
}
