// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The calls of libaio and liburing that submit requests or wait for them, by their names. These
// libraries make their system calls themselves, so raw_calls.c does not see them, and the kernel
// ends such a call with EINTR after any signal. Each is recorded while it lasts, like the calls of
// waits.c are.
#include <errno.h>
#include <stddef.h>
#include <time.h>

#include "again.h"
#include "commit/triggers.h"
#include "export.h"
#include "other_library.h"
#include "threads/calls.h"

struct io_event {
    unsigned long long words[4];
};
struct ring;
struct cqe;
typedef const struct timespec *until;

#define EVENTS(p, n) .memory = {{p, (size_t)(n) * sizeof *p}}
#define ONE(p) .memory = {{p, p ? sizeof *p : 0}}
// The requests themselves are not looked at.
#define TELL .kind = PM_CALL_TELLS
#define TELL_IF(n) .kind = n ? PM_CALL_TELLS : PM_CALL_OTHER

// Name, parameters, arguments, where the call stores.
// clang-format off
#define LIBAIO(X)                                                                                  \
    X(io_submit, (void *c, long n, void **list), (c, n, list), TELL_IF(n))                         \
    X(io_getevents, (void *c, long least, long n, struct io_event *e, until t),                    \
      (c, least, n, e, t), EVENTS(e, n))                                                           \
    X(io_pgetevents, (void *c, long least, long n, struct io_event *e, until t, const void *mask), \
      (c, least, n, e, t, mask), EVENTS(e, n))
#define LIBURING(X)                                                                                \
    X(io_uring_enter, (unsigned f, unsigned n, unsigned least, unsigned flags, const void *mask),  \
      (f, n, least, flags, mask), TELL_IF(n))                                                      \
    X(io_uring_enter2,                                                                             \
      (unsigned f, unsigned n, unsigned least, unsigned flags, const void *mask, size_t len),      \
      (f, n, least, flags, mask, len), TELL_IF(n))                                                 \
    X(io_uring_submit, (struct ring *r), (r), TELL)                                                \
    X(io_uring_submit_and_wait, (struct ring *r, unsigned n), (r, n), TELL)                        \
    X(io_uring_submit_and_get_events, (struct ring *r), (r), TELL)                                 \
    X(io_uring_submit_and_wait_timeout,                                                            \
      (struct ring *r, struct cqe **c, unsigned n, void *t, const void *mask), (r, c, n, t, mask), \
      ONE(c), TELL)                                                                                \
    X(io_uring_submit_and_wait_min_timeout,                                                        \
      (struct ring *r, struct cqe **c, unsigned n, void *t, unsigned least, const void *mask),     \
      (r, c, n, t, least, mask), ONE(c), TELL)                                                     \
    X(io_uring_wait_cqes, (struct ring *r, struct cqe **c, unsigned n, void *t, const void *mask), \
      (r, c, n, t, mask), ONE(c))                                                                  \
    X(io_uring_wait_cqe_timeout, (struct ring *r, struct cqe **c, void *t), (r, c, t), ONE(c))     \
    X(__io_uring_get_cqe,                                                                          \
      (struct ring *r, struct cqe **c, unsigned n, unsigned least, const void *mask),              \
      (r, c, n, least, mask), ONE(c), TELL_IF(n))                                                  \
    X(__io_uring_sqring_wait, (struct ring *r), (r), TELL)
// clang-format on

#define DEFINE(name, parameters, arguments, ...)                                                   \
    typedef int name##_fn parameters;                                                              \
    EXPORT int pm_wait_##name parameters __asm__(#name);                                           \
    EXPORT int pm_wait_##name parameters {                                                         \
        static struct pm_other other;                                                              \
        name##_fn *next;                                                                           \
        *(void **)&next = pm_other(&other, #name, __builtin_return_address(0));                    \
        if (!next)                                                                                 \
            return -ENOSYS;                                                                        \
        int result;                                                                                \
        if (!pm_calls_recorded) {                                                                  \
            PM_AGAIN(result = next arguments, result == -EINTR);                                   \
            return result;                                                                         \
        }                                                                                          \
        struct pm_call call = {.does_more = true, __VA_ARGS__};                                    \
        pm_trigger_before(&call);                                                                  \
        pm_call_enter(&call);                                                                      \
        PM_AGAIN(result = next arguments, result == -EINTR);                                       \
        pm_call_leave(&call);                                                                      \
        pm_trigger_after(&call);                                                                   \
        return result;                                                                             \
    }
LIBAIO(DEFINE)
LIBURING(DEFINE)
