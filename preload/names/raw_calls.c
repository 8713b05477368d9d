// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// libc's syscall(), for programs that name a system call by its number: the locks of Rust and of
// libstdc++, libuv, io_uring. A call that may sleep is recorded while it lasts, like the calls of
// waits.c are. The table says which calls these are, and what they may store. A second table says
// which calls tell somebody something or make a file durable, for PMALLOC_COMMIT=output.
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "again.h"
#include "base/signal_stack.h"
#include "commit/kernel_stores.h"
#include "commit/outbox.h"
#include "commit/triggers.h"
#include "export.h"
#include "filters.h"
#include "fork/fork.h"
#include "handlers.h"
#include "media/commit/stored_pages.h"
#include "next.h"
#include "process/leaks_marker.h"
#include "process/own_fds.h"
#include "state/advice.h"
#include "threads/calls.h"
#include "threads/threads.h"

// Younger than the oldest headers that this is built with.
#define NR_FUTEX_WAITV 449
#define NR_FUTEX_WAIT 455
#define NR_EPOLL_PWAIT2 441
#define NR_PIDFD_SEND_SIGNAL 424
#define NR_CLOSE_RANGE 436
#define NR_MSEAL 462
#define IO_EVENT_BYTES 32u

// Arguments are numbered from 1; 0: there is none.
struct stored {
    uint8_t at;     // the argument that points there
    uint8_t count;  // the argument that says how many
    uint8_t header; // bytes before the first one
    uint8_t size;   // bytes of one; 0: the count is of bits, in words of 64
};

struct sleeper {
    short number;
    struct stored stored[4];
    uint8_t vectors, messages; // the arguments that point to them
    uint8_t count;             // the argument that says how many; 0: one
};

#define N(at, count, bytes)                                                                        \
    { at, count, 0, bytes }
#define ONE(at, type)                                                                              \
    { at, 0, 0, sizeof(type) }
#define BITS(at)                                                                                   \
    { at, 1, 0, 0 }
#define TIME(at) ONE(at, struct timespec)
#define ADDRESS(at, len) ONE(at, struct sockaddr_storage), ONE(len, socklen_t)

// Sorted by how often programs make them.
static const struct sleeper sleepers[] = {
    {SYS_futex, {{0}}, 0, 0, 0},
    {SYS_io_uring_enter, {{0}}, 0, 0, 0},
    {SYS_io_getevents, {N(4, 3, IO_EVENT_BYTES)}, 0, 0, 0},
    {SYS_io_pgetevents, {N(4, 3, IO_EVENT_BYTES)}, 0, 0, 0},
    {SYS_getrandom, {N(1, 2, 1)}, 0, 0, 0},
    {SYS_read, {N(2, 3, 1)}, 0, 0, 0},
    {SYS_write, {{0}}, 0, 0, 0},
    {SYS_readv, {{0}}, 2, 0, 3},
    {SYS_writev, {{0}}, 0, 0, 0},
    {SYS_preadv2, {{0}}, 2, 0, 3},
    {SYS_pwritev2, {{0}}, 0, 0, 0},
    {SYS_poll, {N(1, 2, sizeof(struct pollfd))}, 0, 0, 0},
    {SYS_ppoll, {N(1, 2, sizeof(struct pollfd)), TIME(3)}, 0, 0, 0},
    {SYS_select, {BITS(2), BITS(3), BITS(4), TIME(5)}, 0, 0, 0},
    {SYS_pselect6, {BITS(2), BITS(3), BITS(4), TIME(5)}, 0, 0, 0},
    {SYS_epoll_wait, {N(2, 3, sizeof(struct epoll_event))}, 0, 0, 0},
    {SYS_epoll_pwait, {N(2, 3, sizeof(struct epoll_event))}, 0, 0, 0},
    {NR_EPOLL_PWAIT2, {N(2, 3, sizeof(struct epoll_event))}, 0, 0, 0},
    {SYS_nanosleep, {TIME(2)}, 0, 0, 0},
    {SYS_clock_nanosleep, {TIME(4)}, 0, 0, 0},
    {SYS_pause, {{0}}, 0, 0, 0},
    {SYS_rt_sigsuspend, {{0}}, 0, 0, 0},
    {SYS_rt_sigtimedwait, {ONE(2, siginfo_t)}, 0, 0, 0},
    {SYS_accept, {ADDRESS(2, 3)}, 0, 0, 0},
    {SYS_accept4, {ADDRESS(2, 3)}, 0, 0, 0},
    {SYS_connect, {{0}}, 0, 0, 0},
    {SYS_recvfrom, {N(2, 3, 1), ADDRESS(5, 6)}, 0, 0, 0},
    {SYS_recvmsg, {{0}}, 0, 2, 0},
    {SYS_recvmmsg, {N(2, 3, sizeof(struct mmsghdr)), TIME(5)}, 0, 2, 3},
    {SYS_sendto, {{0}}, 0, 0, 0},
    {SYS_sendmsg, {{0}}, 0, 0, 0},
    {SYS_sendmmsg, {N(2, 3, sizeof(struct mmsghdr))}, 0, 0, 0},
    {SYS_sendfile, {ONE(3, off_t)}, 0, 0, 0},
    {SYS_splice, {ONE(2, off_t), ONE(4, off_t)}, 0, 0, 0},
    {SYS_tee, {{0}}, 0, 0, 0},
    {SYS_vmsplice, {{0}}, 2, 0, 3},
    {SYS_copy_file_range, {ONE(2, off_t), ONE(4, off_t)}, 0, 0, 0},
    {SYS_fsync, {{0}}, 0, 0, 0},
    {SYS_fdatasync, {{0}}, 0, 0, 0},
    {SYS_syncfs, {{0}}, 0, 0, 0},
    {SYS_sync, {{0}}, 0, 0, 0},
    {SYS_msync, {{0}}, 0, 0, 0},
    {SYS_sync_file_range, {{0}}, 0, 0, 0},
    {SYS_msgrcv, {{2, 3, sizeof(long), 1}}, 0, 0, 0},
    {SYS_msgsnd, {{0}}, 0, 0, 0},
    {SYS_semop, {{0}}, 0, 0, 0},
    {SYS_semtimedop, {{0}}, 0, 0, 0},
    {SYS_mq_timedreceive, {N(2, 3, 1), ONE(4, unsigned)}, 0, 0, 0},
    {SYS_mq_timedsend, {{0}}, 0, 0, 0},
    {NR_FUTEX_WAITV, {{0}}, 0, 0, 0},
    {NR_FUTEX_WAIT, {{0}}, 0, 0, 0},
};

#define ARGUMENTS 6
#define WORD_BITS 64

static const struct sleeper *find(long number, const long *argument) {
    if (number == SYS_futex) {
        int command = (int)argument[1] & FUTEX_CMD_MASK;
        if (command == FUTEX_WAKE || command == FUTEX_REQUEUE || command == FUTEX_CMP_REQUEUE ||
            command == FUTEX_WAKE_OP || command == FUTEX_WAKE_BITSET || command == FUTEX_UNLOCK_PI)
            return NULL;
    }
    for (size_t i = 0; i < sizeof sleepers / sizeof *sleepers; i++)
        if (sleepers[i].number == number)
            return &sleepers[i];
    return NULL;
}

static struct iovec memory_of(const struct stored *stored, const long *argument) {
    void *at = stored->at ? (void *)argument[stored->at - 1] : NULL;
    size_t count = stored->count ? (size_t)argument[stored->count - 1] : 1;
    size_t bytes = stored->size ? count * stored->size
                                : (count + WORD_BITS - 1) / WORD_BITS * sizeof(uint64_t);
    return (struct iovec){at, at ? stored->header + bytes : 0};
}

static void describe(const struct sleeper *of, const long *argument, struct pm_call *call) {
    size_t count = of->count ? (size_t)argument[of->count - 1] : 1;
    for (size_t i = 0; i < sizeof of->stored / sizeof *of->stored; i++)
        call->memory[i] = memory_of(&of->stored[i], argument);
    if (of->vectors) {
        call->vectors = (const struct iovec *)argument[of->vectors - 1];
        call->vector_count = count;
    }
    if (of->messages) {
        call->messages = (const struct mmsghdr *)argument[of->messages - 1];
        call->message_count = count;
    }
    call->by_futex = of->number == SYS_futex;
}

// What says something by a descriptor, and which argument that is; or in any case (0).
static const struct {
    short number;
    uint8_t fd;
} speakers[] = {
    {SYS_write, 1},
    {SYS_pwrite64, 1},
    {SYS_writev, 1},
    {SYS_pwritev, 1},
    {SYS_pwritev2, 1},
    {SYS_sendto, 1},
    {SYS_sendmsg, 1},
    {SYS_sendmmsg, 1},
    {SYS_sendfile, 1},
    {SYS_splice, 3},
    {SYS_tee, 2},
    {SYS_vmsplice, 1},
    {SYS_copy_file_range, 3},
    {SYS_fsync, 0},
    {SYS_fdatasync, 0},
    {SYS_syncfs, 0},
    {SYS_sync, 0},
    {SYS_msync, 0},
    {SYS_sync_file_range, 0},
    {SYS_connect, 0},
    {SYS_shutdown, 1},
    {SYS_io_uring_enter, 0},
    {SYS_io_submit, 0},
    {SYS_msgsnd, 0},
    {SYS_semop, 0},
    {SYS_semtimedop, 0},
    {SYS_mq_timedsend, 0},
    {SYS_kill, 0},
    {SYS_tkill, 0},
    {SYS_tgkill, 0},
    {SYS_rt_sigqueueinfo, 0},
    {SYS_rt_tgsigqueueinfo, 0},
    {NR_PIDFD_SEND_SIGNAL, 0},
    {SYS_fork, 0},
    {SYS_clone, 0},
    {PM_NR_CLONE3, 0},
    {SYS_execve, 0},
    {SYS_execveat, 0},
    {SYS_exit_group, 0},
};

// Signals to this process, threads, io_uring without a request, and syncs that nobody waits for.
static bool is_silent(long number, const long *argument) {
    switch (number) {
    case SYS_kill:
    case SYS_tgkill:
    case SYS_rt_sigqueueinfo:
    case SYS_rt_tgsigqueueinfo:
        return argument[0] == getpid();
    case SYS_clone:
        return argument[0] & CLONE_THREAD;
    case SYS_io_uring_enter:
        return argument[1] == 0;
    case SYS_msync:
        return !(argument[2] & MS_SYNC);
    case SYS_sync_file_range:
        return !(argument[3] & PM_RANGE_IS_AWAITED);
    }
    return false;
}

// Before a call that closes descriptors; see pm_outbox_closed().
static unsigned closing(long number, const long *argument) {
    if (number == SYS_dup2 || number == SYS_dup3)
        return pm_outbox_closing((unsigned)argument[1], (unsigned)argument[1]);
    return number == SYS_close ? pm_outbox_closing((unsigned)argument[0], (unsigned)argument[0])
                               : 0;
}

static void say(long number, const long *argument) {
    for (size_t i = 0; i < sizeof speakers / sizeof *speakers; i++) {
        if (speakers[i].number != number || is_silent(number, argument))
            continue;
        unsigned fd = speakers[i].fd;
        bool durable = number == SYS_pwritev2 && argument[5] & PM_WRITE_IS_DURABLE;
        struct pm_call call = {.kind = fd && !durable ? PM_CALL_SAYS : PM_CALL_TELLS,
                               .fd = fd ? (int)argument[fd - 1] : -1};
        pm_trigger_enter(&call);
        return;
    }
}

typedef long syscall_fn(long, long, long, long, long, long, long);

// ---- a call that our signal has interrupted -----------------------------------------------------

// Sleeps on for the time that was left, which the kernel has stored. A caller that waits for a
// futex for some time expects to be woken for no reason, and knows better how long it would wait.
static bool prepare_again(long number, long *a) {
    bool futex = number == SYS_futex || number == NR_FUTEX_WAIT || number == NR_FUTEX_WAITV;
    if (futex || number == SYS_connect || !find(number, a))
        return false;
    if (number == SYS_nanosleep)
        a[0] = a[1];
    if (number == SYS_clock_nanosleep && !(a[1] & TIMER_ABSTIME))
        a[2] = a[3];
    return true;
}

// The time that is left is wanted of each sleep.
static long make(syscall_fn *next, long number, const long *argument) {
    struct timespec left = {0};
    long result, a[ARGUMENTS];
    memcpy(a, argument, sizeof a);
    if (number == SYS_nanosleep && !a[1])
        a[1] = (long)&left;
    else if (number == SYS_clock_nanosleep && !a[3])
        a[3] = (long)&left;
    PM_AGAIN(result = next(number, a[0], a[1], a[2], a[3], a[4], a[5]),
             result == -1 && errno == EINTR && prepare_again(number, a));
    return result;
}

static __attribute__((noinline)) long sleep_in(const struct sleeper *of, syscall_fn *next,
                                               const long *a) {
    struct pm_call call = {0};
    describe(of, a, &call);
    pm_call_enter(&call);
    long result = make(next, of->number, a);
    pm_call_leave(&call);
    return result;
}

static __attribute__((noinline)) long recorded(syscall_fn *next, long number,
                                               const long *argument) {
    if (pm_triggers_on)
        say(number, argument);
    bool executes = number == SYS_execve || number == SYS_execveat; // as execs.c does
    const struct sleeper *of = find(number, argument);
    if (number == SYS_vmsplice)
        atomic_store_explicit(&pm_kernel_got_pages, true, memory_order_relaxed);
    if (number == SYS_userfaultfd)
        pm_stored_give_way();
    if (executes || number == SYS_userfaultfd)
        pm_marker_end();
    if (of)
        return sleep_in(of, next, argument);
    const long *a = argument;
    unsigned place = pm_triggers_on ? closing(number, argument) : 0;
    bool kept_off = executes && pm_threads_keep_off();
    long result = next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (kept_off)
        pm_threads_let_on();
    pm_outbox_closed(place);
    return result;
}

static __attribute__((noinline)) long install_filter(syscall_fn *next, long number, const long *a) {
    struct pm_sandbox s;
    bool filters = pm_filters_before(&s, number, a);
    long result = next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (filters)
        pm_filters_after(&s, number, a, result);
    return result;
}

// As advice.c, for memory that reaches into the heap.
static __attribute__((noinline)) long advise(long number, const long *a) {
    void *at = (void *)a[0];
    size_t len = (size_t)a[1];
    long result =
        number == SYS_madvise         ? pm_advice_madvise(at, len, (int)a[2])
        : number == SYS_mprotect      ? pm_advice_mprotect(at, len, (int)a[2], -1)
        : number == SYS_pkey_mprotect ? pm_advice_mprotect(at, len, (int)a[2], (int)a[3])
        : number == SYS_mmap   ? pm_advice_mmap(at, len, (int)a[2], (int)a[3], (int)a[4], a[5])
        : number == SYS_munmap ? pm_advice_munmap(at, len)
        : number == NR_MSEAL   ? pm_advice_mseal(at, len, (unsigned long)a[2])
                               : pm_advice_mremap(at, len, (size_t)a[2], (int)a[3], (void *)a[4]);
    if (result >= 0 || result < -4095)
        return result;
    errno = (int)-result;
    return -1;
}

static bool advises(long number) {
    return number == SYS_madvise || number == SYS_mprotect || number == SYS_mremap ||
           number == SYS_mmap || number == SYS_munmap || number == SYS_pkey_mprotect ||
           number == NR_MSEAL;
}

static bool makes_process(long number) {
    return number == SYS_clone || number == SYS_fork || number == SYS_vfork ||
           number == PM_NR_CLONE3;
}

// As clone.c, for a child with memory of its own.
static __attribute__((noinline)) long make_process(syscall_fn *next,
                                                   const struct pm_fork_call *call) {
    const long *a = call->argument;
    if (pm_fork_call_forks(call) && pm_fork_serves()) {
        long pid = pm_fork_call(call);
        if (pid >= 0)
            return pid;
        errno = (int)-pid;
        return -1;
    }
    if (pm_fork_call_shares(call))
        pm_calls_share();
    if (pm_calls_recorded)
        return recorded(next, call->number, a);
    return next(call->number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static __attribute__((noinline)) long act(long number, const long *a) {
    long result = number == SYS_sigaltstack
                      ? pm_signal_stack_set((const void *)a[0], (void *)a[1])
                      : pm_handlers_syscall(a[0], (const void *)a[1], (void *)a[2], (size_t)a[3]);
    if (result >= 0)
        return result;
    errno = (int)-result;
    return -1;
}

static __attribute__((noinline)) long close_range_by_number(long from, long to, long flags) {
    unsigned place = pm_outbox_closing((unsigned)from, (unsigned)to);
    long result = pm_close_range((unsigned)from, (unsigned)to, (int)flags);
    pm_outbox_closed(place);
    if (result == 0)
        return 0;
    errno = (int)-result;
    return -1;
}

// All six arguments are passed on, whether the caller gave them or not, as libc's function does.
EXPORT syscall_fn pm_wait_syscall __asm__("syscall");
EXPORT long pm_wait_syscall(long number, long a, long b, long c, long d, long e, long f) {
    static _Atomic(void *) known;
    syscall_fn *next;
    *(void **)&next = pm_next(&known, "syscall");
    if (!next)
        return -1;
    if (number == SYS_seccomp || (number == SYS_prctl && a == PR_SET_SECCOMP))
        return install_filter(next, number, (const long[ARGUMENTS]){a, b, c, d, e, f});
    if (number == SYS_rt_sigaction || number == SYS_sigaltstack)
        return act(number, (const long[ARGUMENTS]){a, b, c, d, e, f});
    if ((pm_advice_ours((void *)a, (size_t)b) ||
         (number == SYS_mremap && d & MREMAP_FIXED && pm_advice_ours((void *)e, (size_t)c))) &&
        advises(number))
        return advise(number, (const long[ARGUMENTS]){a, b, c, d, e, f});
    if (makes_process(number)) {
        struct pm_fork_call call = {number, {a, b, c, d, e, f}};
        return make_process(next, &call);
    }
    if (number == NR_CLOSE_RANGE)
        return close_range_by_number(a, b, c);
    if (pm_calls_recorded)
        return recorded(next, number, (const long[ARGUMENTS]){a, b, c, d, e, f});
    return make(next, number, (const long[ARGUMENTS]){a, b, c, d, e, f});
}
