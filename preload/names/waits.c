// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The calls of libc that may sleep, by their names. Each is recorded while it lasts
// (threads/calls.h), so that a hold leaves the thread asleep. Here are those that a signal would
// not leave alone:
//
//   ends with EINTR     poll, select, epoll_wait, sleeps, semaphores, message queues, signal waits,
//                       and sockets with a timeout
//   transfers less      write, send, sendfile, splice; also read and recv, which may wait for all
//   does not hear it    fsync and its kin: a hold would wait for the disk
//
// Others (wait4, flock, the locks of libc) are repeated by the kernel after our signal.
//
// The names are given to the assembler, because libc's headers declare some of these functions with
// types of their own, and define others inline.
#include <errno.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#include "again.h"
#include "base/options.h"
#include "commit/kernel_stores.h"
#include "commit/triggers.h"
#include "export.h"
#include "locks.h"
#include "media/adopt.h"
#include "next.h"
#include "state/replaced.h"
#include "threads/calls.h"
#include "threads/postpone.h"
#include "threads/sections.h"

typedef const struct timespec *until;
typedef const sigset_t *mask;
typedef size_t len;

// Result, name, parameters, arguments, where the call stores.
// clang-format off
#define FDS(p, n) .memory = {{p, (n) * sizeof(struct pollfd)}}
#define SETS(n, r, w, e, t) .memory = {{r, r ? SET(n) : 0}, {w, w ? SET(n) : 0},                   \
                                       {e, e ? SET(n) : 0}, {(void *)t, t ? sizeof *t : 0}}
#define SET(n) (((size_t)(n) + 63) / 64 * 8)
#define ONE(p) .memory = {{(void *)p, p ? sizeof *p : 0}}
#define BYTES(p, n) .memory = {{p, n}}
#define FROM(p, n, a, l) .memory = {{p, n}, {a, a ? sizeof(struct sockaddr_storage) : 0},          \
                                    {l, l ? sizeof(socklen_t) : 0}}
#define VECTORS(v, n) .vectors = v, .vector_count = (size_t)(n)
#define MESSAGES(m, n) .messages = (const void *)m, .message_count = n
// libc may allocate or free in it, or use its own blocks.
#define MORE .by_futex = true, .does_more = true
#define WAITS_IF(t) .kind = t ? PM_CALL_WAITS : PM_CALL_OTHER
#define LASTS(t) WAITS_IF((!t || t->tv_sec || t->tv_nsec))
#define ASKS(t) .kind = t ? PM_CALL_WAITS : PM_CALL_LOOKS
#define ASKS_FOR(t) ASKS((!t || t->tv_sec || t->tv_nsec))
#define WAIT .kind = PM_CALL_WAITS
#define NAP .kind = PM_CALL_WAITS, .naps = true
#define READ(f) .kind = PM_CALL_READS, .fd = f
#define RECEIVE(f, flags) .kind = flags & MSG_DONTWAIT ? PM_CALL_OTHER : PM_CALL_READS, .fd = f
#define SAY(f) .kind = PM_CALL_SAYS, .fd = f
// The same; what it says may leave later.
#define SAY_BYTES(f, p, n) SAY(f), .said = &(const struct pm_said){.bytes = p, .count = n}
#define SAY_VECTOR(f, v, n)                                                                        \
    SAY(f), .said = &(const struct pm_said){.vector = v, .count = (size_t)(n)}
#define SEND(f, p, n, how)                                                                         \
    SAY(f), .said = &(const struct pm_said){.bytes = p, .count = n, .sends = true, .flags = how}
#define SEND_MESSAGE(f, m, how)                                                                    \
    SAY(f), .said = &(const struct pm_said){.message = m, .sends = true, .flags = how}
#define ADDRESSED ~0 // to an address: no flag says so
#define TELL .kind = PM_CALL_TELLS
#define TELL_IF(condition) .kind = (condition) ? PM_CALL_TELLS : PM_CALL_OTHER
#define TELL_BY(f, flags)                                                                          \
    .kind = (flags) & PM_WRITE_IS_DURABLE ? PM_CALL_TELLS : PM_CALL_SAYS, .fd = f

#define READINESS(X)                                                                               \
    X(int, poll, (struct pollfd *p, nfds_t n, int t), (p, n, t),                                   \
      FDS(p, n), ASKS(t))                                                                          \
    X(int, ppoll, (struct pollfd *p, nfds_t n, until t, mask m), (p, n, t, m),                     \
      FDS(p, n), ASKS_FOR(t))                                                                      \
    X(int, select, (int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *t),                    \
      (n, r, w, e, t), SETS(n, r, w, e, t), ASKS((!t || t->tv_sec || t->tv_usec)))                 \
    X(int, pselect, (int n, fd_set *r, fd_set *w, fd_set *e, until t, mask m),                     \
      (n, r, w, e, t, m), SETS(n, r, w, e, t), ASKS_FOR(t))                                        \
    X(int, epoll_wait, (int f, struct epoll_event *e, int n, int t), (f, e, n, t),                 \
      BYTES(e, (size_t)n * sizeof *e), ASKS(t))                                                    \
    X(int, epoll_pwait, (int f, struct epoll_event *e, int n, int t, mask m), (f, e, n, t, m),     \
      BYTES(e, (size_t)n * sizeof *e), ASKS(t))                                                    \
    X(int, epoll_pwait2, (int f, struct epoll_event *e, int n, until t, mask m),                   \
      (f, e, n, t, m), BYTES(e, (size_t)n * sizeof *e), ASKS_FOR(t))                               \
    X(int, aio_suspend, (const void *const *list, int n, until t), (list, n, t),                   \
      MORE, LASTS(t)) \
    X(ssize_t, getrandom, (void *p, len n, unsigned flags), (p, n, flags), BYTES(p, n))

// Begun again with the time that is left.
#define NAPS(X)                                                                                    \
    X(int, nanosleep, (until t, struct timespec *rest), (t, rest), ONE(rest), NAP)                \
    X(int, clock_nanosleep, (clockid_t c, int f, until t, struct timespec *rest),                  \
      (c, f, t, rest), ONE(rest), NAP)                                                            \
    X(int, thrd_sleep, (until t, struct timespec *rest), (t, rest), ONE(rest), NAP)               \
    X(unsigned, sleep, (unsigned s), (s), NAP)                                                    \
    X(int, usleep, (useconds_t us), (us), NAP)

#define SLEEPS(X)                                                                                  \
    X(int, pause, (void), (), WAIT)                                                                \
    X(int, sigpause, (int m), (m), WAIT) \
    X(int, sigsuspend, (mask m), (m), WAIT)                                                        \
    X(int, sigwait, (mask m, int *s), (m, s), ONE(s), WAIT)                                        \
    X(int, sigwaitinfo, (mask m, siginfo_t *i), (m, i), ONE(i), WAIT)                              \
    X(int, sigtimedwait, (mask m, siginfo_t *i, until t), (m, i, t), ONE(i), LASTS(t))

#define QUEUES(X)                                                                                  \
    X(ssize_t, msgrcv, (int q, void *p, len n, long type, int f), (q, p, n, type, f),              \
      BYTES(p, n + sizeof(long)), WAIT)                                                            \
    X(int, msgsnd, (int q, const void *p, len n, int f), (q, p, n, f), TELL)                       \
    X(int, semop, (int s, void *o, len n), (s, o, n), TELL)                                        \
    X(int, semtimedop, (int s, void *o, len n, until t), (s, o, n, t), TELL)                       \
    X(ssize_t, mq_receive, (mqd_t q, char *p, len n, unsigned *prio), (q, p, n, prio),             \
      .memory = {{p, n}, {prio, prio ? sizeof *prio : 0}}, WAIT)                                   \
    X(ssize_t, mq_timedreceive, (mqd_t q, char *p, len n, unsigned *prio, until t),                \
      (q, p, n, prio, t), .memory = {{p, n}, {prio, prio ? sizeof *prio : 0}}, WAIT)               \
    X(int, mq_send, (mqd_t q, const char *p, len n, unsigned prio), (q, p, n, prio), TELL)         \
    X(int, mq_timedsend, (mqd_t q, const char *p, len n, unsigned prio, until t),                  \
      (q, p, n, prio, t), TELL)

#define SOCKETS(X)                                                                                 \
    X(int, accept, (int f, void *a, void *l), (f, a, l),                                           \
      FROM(NULL, 0, a, l), READ(f))                                                                \
    X(int, accept4, (int f, void *a, void *l, int flags), (f, a, l, flags),                        \
      FROM(NULL, 0, a, l), READ(f))                                                                \
    X(ssize_t, recv, (int f, void *p, len n, int flags), (f, p, n, flags),                         \
      BYTES(p, n), RECEIVE(f, flags))                                                              \
    X(ssize_t, recvfrom, (int f, void *p, len n, int flags, void *a, void *l),                     \
      (f, p, n, flags, a, l), FROM(p, n, a, l), RECEIVE(f, flags))                                 \
    X(ssize_t, recvmsg, (int f, struct msghdr *m, int flags), (f, m, flags),                       \
      MESSAGES(m, 1), RECEIVE(f, flags))                                                           \
    X(int, recvmmsg, (int f, void *m, unsigned n, int flags, void *t), (f, m, n, flags, t),        \
      BYTES(m, n * sizeof(struct mmsghdr)), MESSAGES(m, n), RECEIVE(f, flags))                     \
    X(ssize_t, send, (int f, const void *p, len n, int flags), (f, p, n, flags),                   \
      SEND(f, p, n, flags))                                                                        \
    X(ssize_t, sendto, (int f, const void *p, len n, int flags, const void *a, socklen_t l),       \
      (f, p, n, flags, a, l), SEND(f, p, n, a ? ADDRESSED : flags))                                \
    X(ssize_t, sendmsg, (int f, const struct msghdr *m, int flags), (f, m, flags),                 \
      SEND_MESSAGE(f, m, flags))                                                                   \
    X(int, sendmmsg, (int f, void *m, unsigned n, int flags), (f, m, n, flags),                    \
      BYTES(m, n * sizeof(struct mmsghdr)), SAY(f))

// Not made twice: then it has another answer.
#define ONCE(X) X(int, connect, (int f, const void *a, socklen_t l), (f, a, l), TELL)

#define TRANSFERS(X)                                                                               \
    X(ssize_t, read, (int f, void *p, len n), (f, p, n), BYTES(p, n), READ(f))                     \
    X(ssize_t, readv, (int f, const struct iovec *v, int n), (f, v, n),                            \
      VECTORS(v, n), READ(f))                                                                      \
    X(ssize_t, write, (int f, const void *p, len n), (f, p, n), SAY_BYTES(f, p, n))                \
    X(ssize_t, writev, (int f, const struct iovec *v, int n), (f, v, n), SAY_VECTOR(f, v, n))      \
    X(ssize_t, preadv2, (int f, const struct iovec *v, int n, off_t at, int flags),                \
      (f, v, n, at, flags), VECTORS(v, n), READ(f))                                                \
    X(ssize_t, pwritev2, (int f, const struct iovec *v, int n, off_t at, int flags),               \
      (f, v, n, at, flags), TELL_BY(f, flags))                                                     \
    X(int, eventfd_read, (int f, uint64_t *n), (f, n), ONE(n), READ(f))                            \
    X(int, eventfd_write, (int f, uint64_t n), (f, n), SAY(f))                                     \
    X(ssize_t, sendfile, (int to, int from, off_t *at, len n), (to, from, at, n),                  \
      ONE(at), SAY(to))                                                                            \
    X(ssize_t, splice, (int from, off_t *a, int to, off_t *b, len n, unsigned flags),              \
      (from, a, to, b, n, flags), .memory = {{a, a ? sizeof *a : 0}, {b, b ? sizeof *b : 0}},      \
      SAY(to))                                                                                     \
    X(ssize_t, tee, (int from, int to, len n, unsigned flags), (from, to, n, flags), SAY(to))      \
    X(ssize_t, vmsplice, (int f, const struct iovec *v, len n, unsigned flags),                    \
      (f, v, n, flags), VECTORS(v, n), SAY(gets_pages(f)))                                         \
    X(ssize_t, copy_file_range, (int from, off_t *a, int to, off_t *b, len n, unsigned flags),     \
      (from, a, to, b, n, flags), .memory = {{a, a ? sizeof *a : 0}, {b, b ? sizeof *b : 0}},      \
      SAY(to))

// They make files durable, and may sleep as long as the disk does.
#define SYNCS(X)                                                                                   \
    X(int, fsync, (int f), (f), TELL)                                                              \
    X(int, fdatasync, (int f), (f), TELL)                                                          \
    X(int, syncfs, (int f), (f), TELL)                                                             \
    X(int, msync, (void *p, len n, int flags), (p, n, flags), TELL_IF(flags & MS_SYNC))            \
    X(int, sync_file_range, (int f, off_t at, off_t n, unsigned flags), (f, at, n, flags),         \
      TELL_IF(flags & PM_RANGE_IS_AWAITED))

// Other processes and threads.
#define OTHERS(X)                                                                                  \
    X(pid_t, wait, (int *s), (s), ONE(s), WAIT)                                                    \
    X(pid_t, waitpid, (pid_t p, int *s, int o), (p, s, o), ONE(s), WAITS_IF(!(o & WNOHANG)))       \
    X(pid_t, wait3, (int *s, int o, struct rusage *r), (s, o, r),                                  \
      .memory = {{s, s ? sizeof *s : 0}, {r, r ? sizeof *r : 0}}, WAITS_IF(!(o & WNOHANG)))        \
    X(pid_t, wait4, (pid_t p, int *s, int o, struct rusage *r), (p, s, o, r),                      \
      .memory = {{s, s ? sizeof *s : 0}, {r, r ? sizeof *r : 0}}, WAITS_IF(!(o & WNOHANG)))        \
    X(int, waitid, (idtype_t t, id_t p, siginfo_t *i, int o), (t, p, i, o), ONE(i),                \
      WAITS_IF(!(o & WNOHANG)))                                                                    \
    X(int, pthread_join, (pthread_t t, void **r), (t, r), ONE(r), WAIT, MORE)          \
    X(int, thrd_join, (thrd_t t, int *r), (t, r), ONE(r), WAIT, MORE)

// glibc's second names: of functions that check the buffer's size, and of large files.
#ifdef __GLIBC__
#define SECOND_NAMES(X)                                                                            \
    X(int, __poll_chk, (struct pollfd *p, nfds_t n, int t, len size), (p, n, t, size),             \
      FDS(p, n), ASKS(t))                                                                          \
    X(int, __ppoll_chk, (struct pollfd *p, nfds_t n, until t, mask m, len size),                   \
      (p, n, t, m, size), FDS(p, n), ASKS_FOR(t))                                                  \
    X(ssize_t, __read_chk, (int f, void *p, len n, len size), (f, p, n, size),                     \
      BYTES(p, n), READ(f))                                                                        \
    X(ssize_t, __recv_chk, (int f, void *p, len n, len size, int flags), (f, p, n, size, flags),   \
      BYTES(p, n), RECEIVE(f, flags))                                                              \
    X(ssize_t, __recvfrom_chk, (int f, void *p, len n, len size, int flags, void *a, void *l),     \
      (f, p, n, size, flags, a, l), FROM(p, n, a, l), RECEIVE(f, flags))                           \
    X(int, __xpg_sigpause, (int s), (s), WAIT)                                                     \
    X(int, aio_suspend64, (const void *const *list, int n, until t), (list, n, t),                 \
      MORE, LASTS(t))                                                                  \
    X(int, gai_suspend, (const void *const *list, int n, until t), (list, n, t),                   \
      MORE, LASTS(t))                                                                  \
    X(ssize_t, preadv64v2, (int f, const struct iovec *v, int n, off_t at, int flags),             \
      (f, v, n, at, flags), VECTORS(v, n), READ(f))                                                \
    X(ssize_t, pwritev64v2, (int f, const struct iovec *v, int n, off_t at, int flags),            \
      (f, v, n, at, flags), TELL_BY(f, flags))                                                     \
    X(ssize_t, sendfile64, (int to, int from, off_t *at, len n), (to, from, at, n),                \
      ONE(at), SAY(to))
#else
#define SECOND_NAMES(X)
#endif
// clang-format on
#define WAITS(X)                                                                                   \
    READINESS(X) SLEEPS(X) QUEUES(X) SOCKETS(X) TRANSFERS(X) SYNCS(X) OTHERS(X) SECOND_NAMES(X)

static int gets_pages(int fd) {
    atomic_store_explicit(&pm_kernel_got_pages, true, memory_order_relaxed);
    return fd;
}

#define FIND(type, name, parameters)                                                               \
    typedef type name##_fn parameters;                                                             \
    static _Atomic(void *) known_##name;                                                           \
    static name##_fn *libcs_##name(void) {                                                         \
        name##_fn *next;                                                                           \
        *(void **)&next = pm_next(&known_##name, #name);                                           \
        return next;                                                                               \
    }

// `ready`: libc's function is known. `make`: what makes the call then.
#define RECORDED(type, arguments, ready, make, ...)                                                \
    {                                                                                              \
        if (!(ready))                                                                              \
            return (type)-1;                                                                       \
        if (!pm_calls_recorded && !pm_replaced_awaited)                                            \
            return make arguments;                                                                 \
        struct pm_call call = {__VA_ARGS__};                                                       \
        if (pm_replaced_awaited)                                                                   \
            pm_trigger_shows(&call);                                                               \
        if (!pm_calls_recorded)                                                                    \
            return make arguments;                                                                 \
        if (pm_trigger_before(&call))                                                              \
            return (type)call.result;                                                              \
        pm_call_enter(&call);                                                                      \
        type result = make arguments;                                                              \
        pm_call_leave(&call);                                                                      \
        pm_trigger_after(&call);                                                                   \
        if (call.kind == PM_CALL_LOOKS && result > 0)                                              \
            pm_trigger_came(&call);                                                                \
        return result;                                                                             \
    }
#define CALL(type, name, parameters, arguments, ready, make, ...)                                  \
    EXPORT type pm_wait_##name parameters __asm__(#name);                                          \
    EXPORT type pm_wait_##name parameters RECORDED(type, arguments, ready, make, __VA_ARGS__)

#define DEFINE_ONCE(type, name, parameters, arguments, ...)                                        \
    FIND(type, name, parameters)                                                                   \
    CALL(type, name, parameters, arguments, libcs_##name(), libcs_##name(), __VA_ARGS__)
ONCE(DEFINE_ONCE)

// Begun again, most have all of their time once more.
#define FIND_AGAIN(type, name, parameters, arguments)                                              \
    FIND(type, name, parameters)                                                                   \
    static inline type again_##name parameters {                                                   \
        type result;                                                                               \
        PM_AGAIN(result = libcs_##name() arguments, result == (type)-1 && errno == EINTR);         \
        return result;                                                                             \
    }
#define DEFINE(type, name, parameters, arguments, ...)                                             \
    FIND_AGAIN(type, name, parameters, arguments)                                                  \
    CALL(type, name, parameters, arguments, libcs_##name(), again_##name, __VA_ARGS__)
WAITS(DEFINE)

// It returns nothing, and so does not fail.
FIND(void, sync, (void))
static inline int make_sync(void) {
    libcs_sync()();
    return 0;
}
CALL(int, sync, (void), (), libcs_sync(), make_sync, TELL)

// ---- semaphores ---------------------------------------------------------------------------------

// Under PMALLOC_COMMIT_SEMAPHORES=lock, from a wait to a post of the same thread.
static bool are_locks(void) {
    return pm_options.commit_semaphores.number == PM_SEMAPHORES_LOCK && pm_sections_counted();
}

FIND(int, sem_post, (sem_t * s))

// What an earlier run held is free: one that is 0, and that somebody waits for first of all.
static void reset_semaphore(void *object) {
    int value = 1;
    if (sem_getvalue(object, &value) == 0 && value <= 0)
        libcs_sem_post()(object);
}

static void adopt_semaphore(sem_t *s) {
    if (__builtin_expect(!pm_surely_adopted(s), 0) &&
        pm_options.commit_semaphores.number == PM_SEMAPHORES_LOCK)
        pm_locks_adopt(s, reset_semaphore);
}

#define SEMAPHORES(X)                                                                              \
    X(sem_wait, (sem_t * s), (s))                                                                  \
    X(sem_timedwait, (sem_t * s, until t), (s, t))                                                 \
    X(sem_clockwait, (sem_t * s, clockid_t c, until t), (s, c, t))

// `sleep`: how libc's function is called.
#define DEFINE_SEMAPHORE(name, parameters, arguments, sleep)                                       \
    EXPORT int pm_wait_##name parameters __asm__(#name);                                           \
    EXPORT int pm_wait_##name parameters {                                                         \
        adopt_semaphore(s);                                                                        \
        if (!are_locks())                                                                          \
            return sleep arguments;                                                                \
        struct pm_section section = pm_section_before(pm_gate());                                  \
        int result = sleep arguments;                                                              \
        if (result == 0)                                                                           \
            pm_section_begin(section, s);                                                          \
        return result;                                                                             \
    }
#define DEFINE_SEMAPHORE_WAIT(name, parameters, arguments)                                         \
    FIND_AGAIN(int, name, parameters, arguments)                                                   \
    static int recorded_##name parameters RECORDED(                                                \
        int, arguments, libcs_##name(), again_##name, .memory = {{s, sizeof *s}},                  \
        .by_futex = true, .kind = are_locks() ? PM_CALL_OTHER : PM_CALL_WAITS)                     \
        DEFINE_SEMAPHORE(name, parameters, arguments, recorded_##name)
SEMAPHORES(DEFINE_SEMAPHORE_WAIT)

FIND(int, sem_trywait, (sem_t * s))
DEFINE_SEMAPHORE(sem_trywait, (sem_t * s), (s), libcs_sem_trywait())

EXPORT int sem_post(sem_t *s) {
    if (are_locks())
        pm_section_end(pm_gate());
    return libcs_sem_post()(s);
}

// ---- naps ---------------------------------------------------------------------------------------

#define FIND_NAP(type, name, parameters, arguments, ...) FIND(type, name, parameters)
NAPS(FIND_NAP)

// A nap sleeps on for what was left.
static int again_nanosleep(until t, struct timespec *rest) {
    struct timespec left = {0};
    int result;
    PM_AGAIN((result = libcs_nanosleep()(t, &left), t = &left), result != 0 && errno == EINTR);
    if (rest && result != 0 && errno == EINTR)
        *rest = left;
    return result;
}

static int again_clock_nanosleep(clockid_t c, int f, until t, struct timespec *rest) {
    struct timespec left = {0};
    int result;
    PM_AGAIN((result = libcs_clock_nanosleep()(c, f, t, &left), t = f & TIMER_ABSTIME ? t : &left),
             result == EINTR);
    if (rest && result == EINTR && !(f & TIMER_ABSTIME))
        *rest = left;
    return result;
}

static int again_thrd_sleep(until t, struct timespec *rest) {
    struct timespec left = {0};
    int result;
    PM_AGAIN((result = libcs_thrd_sleep()(t, &left), t = &left), result == -1);
    if (rest && result == -1)
        *rest = left;
    return result;
}

static unsigned again_sleep(unsigned s) {
    struct timespec left = {.tv_sec = s};
    int saved = errno;
    if (again_nanosleep(&left, &left) == 0 || errno != EINTR) {
        errno = saved;
        return 0;
    }
    return (unsigned)left.tv_sec;
}

static int again_usleep(useconds_t us) {
    const struct timespec time = {us / 1000000, us % 1000000 * 1000};
    return again_nanosleep(&time, NULL);
}

#define DEFINE_NAP(type, name, parameters, arguments, ...)                                         \
    CALL(type, name, parameters, arguments, libcs_##name() && libcs_nanosleep(), again_##name,     \
         __VA_ARGS__)
NAPS(DEFINE_NAP)
