// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "threads.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lock.h"
#include "os.h"
#include "os_file.h"

// A signal that hardly any program sends or blocks, because the C library uses it for itself.
#ifdef __GLIBC__
#include <sys/single_threaded.h>
#define SIGNAL 33 // SIGSETXID
#else
#define SIGNAL 34 // SIGSYNCCALL of musl
static const bool __libc_single_threaded; // musl has no such variable: false means "not known"
#endif
#define THREADS ((size_t)1 << 22) // the kernel's thread ids are less than this
#define PATIENCE_MS 200
#define SA_RESTORER 0x04000000

// By thread id, what was asked of the thread. 0: nothing. 2 * T: to wait in turn T. 2 * T + 1: to
// wait in turn T, and the thread has heard it. The memory is never freed: a thread may run the
// handler long after its turn.
static _Atomic uint32_t *thread;
// The number of the turn; a futex. It is odd while threads are to wait.
static _Atomic uint32_t turn;

// ---- which threads there are --------------------------------------------------------------------

static int open_tasks(void) { return open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

struct listing {
    pid_t self;
    void (*each)(pid_t id, void *arg);
    void *arg;
};

static bool visit(const char *name, void *arg) {
    const struct listing *list = arg;
    int id = atoi(name);
    pid_t own = (pid_t)atomic_load_explicit(&pm_os_own_thread, memory_order_acquire);
    if (id > 0 && (size_t)id < THREADS && id != list->self && id != own)
        list->each(id, list->arg);
    return true;
}

// Calls `each` for every other thread. False: the list cannot be read.
static bool each_other(void (*each)(pid_t id, void *arg), void *arg) {
    struct listing list = {.self = (pid_t)syscall(SYS_gettid), .each = each, .arg = arg};
    int fd = open_tasks();
    if (fd < 0)
        return false;
    bool good = pm_os_each_name(fd, visit, &list);
    close(fd);
    return good;
}

// Reads a file of the thread in /proc. False: it cannot be read; *gone then says whether the thread
// exists no more.
static bool read_about(pid_t id, const char *file, char *text, size_t len, bool *gone) {
    char path[48];
    snprintf(path, sizeof path, "/proc/self/task/%d/%s", (int)id, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, len - 1);
    *gone = got < 0 && errno == (fd < 0 ? ENOENT : ESRCH);
    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = '\0';
    return got > 0;
}

// Whether the thread will store nothing any more because it is exiting. A thread may still be
// listed after it was joined. The first thread stays listed after pthread_exit() until the process
// ends.
static bool is_dead(pid_t id) {
    char text[256];
    bool gone;
    if (!read_about(id, "stat", text, sizeof text, &gone))
        return gone;
    return pm_os_stat_number(text, PM_STAT_FLAGS) & PM_STAT_EXITING;
}

static void count_living(pid_t id, void *arg) { *(unsigned *)arg += !is_dead(id); }

bool pm_threads_none(void) {
    unsigned living = 0;
    if (__libc_single_threaded)
        return true;
    return each_other(count_living, &living) && living == 0;
}

static void find_stopped(pid_t id, void *arg) {
    char text[256];
    bool gone;
    const char *at = read_about(id, "stat", text, sizeof text, &gone) ? strrchr(text, ')') : NULL;
    *(bool *)arg |= at && at[1] && strchr("Tt", at[2]);
}

bool pm_threads_stopped(void) {
    bool stopped = false;
    return each_other(find_stopped, &stopped) && stopped;
}

// ---- standing still -----------------------------------------------------------------------------

// The kernel's own struct, for a direct system call: libc's sigaction() refuses this signal.
struct action {
    void (*handler)(int, siginfo_t *, void *);
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
};
static struct action before, before_fault;
static bool owed; // a thread may yet run our handler because of an earlier turn

static long set_action(int number, const struct action *now, struct action *old) {
    return syscall(SYS_rt_sigaction, number, now, old, sizeof now->mask);
}

void pm_threads_return(void);
__asm__(".text\n.hidden pm_threads_return\n.globl pm_threads_return\n"
        ".type pm_threads_return, @function\npm_threads_return:\n"
        "mov $15, %eax\nsyscall\n.size pm_threads_return, . - pm_threads_return\n"); // rt_sigreturn

static void wait_for_end_of(uint32_t now) {
    while ((now & 1) && atomic_load_explicit(&turn, memory_order_acquire) == now)
        pm_futex_wait(&turn, now);
}

// The handler. If nothing was asked of this thread, libc sent the signal, so libc's handler is
// called.
static void hear(int number, siginfo_t *info, void *context) {
    int saved = errno;
    pid_t id = (pid_t)syscall(SYS_gettid);
    uint32_t asked = atomic_load_explicit(&thread[id], memory_order_acquire);
    // Release: a thread that sees "heard" (in ask) also sees everything that this thread has
    // stored.
    while (asked && !(asked & 1) &&
           !atomic_compare_exchange_weak_explicit(&thread[id], &asked, asked | 1,
                                                  memory_order_release, memory_order_acquire)) {
    }
    if (asked && !(asked & 1))
        wait_for_end_of(asked >> 1);
    else if ((uintptr_t)before.handler > 1) // SIG_DFL, SIG_IGN
        before.handler(number, info, context);
    errno = saved;
}

// Whether the thread is in the kernel and our signal is pending for it, so that it runs our handler
// before it does anything else in the program. Until then the kernel may still store the result of
// one system call. That does no harm, because the thread stores nothing after it.
static bool is_held(pid_t id, bool *deaf) {
    char text[4096];
    bool gone;
    *deaf = false;
    if (!read_about(id, "status", text, sizeof text, &gone))
        return gone;
    const char *state = strstr(text, "\nState:\t"), *pending = strstr(text, "\nSigPnd:\t");
    const char *blocked = strstr(text, "\nSigBlk:\t");
    if (!state || !pending || !blocked)
        return false;
    uint64_t deaf_to = strtoull(blocked + 9, NULL, 16), waiting = strtoull(pending + 9, NULL, 16);
    *deaf = deaf_to >> (SIGSEGV - 1) & 1;
    return strchr("DTt", state[8]) && (waiting & ~deaf_to) >> (SIGNAL - 1) & 1;
}

struct round {
    uint32_t turn;
    unsigned running;
    bool deaf;     // one of the running threads blocks SIGSEGV
    bool thorough; // looks in /proc at threads that have not answered
    bool last;     // no more time
};

static void ask(pid_t id, void *arg) {
    struct round *r = arg;
    uint32_t seen = atomic_load_explicit(&thread[id], memory_order_acquire), asked = r->turn << 1;
    if (seen == (asked | 1))
        return;
    bool deaf, on_its_way = seen && !(seen & 1); // a signal is pending, maybe of an earlier turn
    if (seen != asked &&
        atomic_compare_exchange_strong_explicit(&thread[id], &seen, asked, memory_order_acq_rel,
                                                memory_order_acquire) &&
        !on_its_way && syscall(SYS_tgkill, getpid(), id, SIGNAL) != 0)
        atomic_store_explicit(&thread[id], 0, memory_order_release);
    if (r->thorough && is_dead(id))
        return;
    if (r->thorough && is_held(id, &deaf)) {
        owed = true;
        return;
    }
    r->deaf |= r->thorough && deaf;
    r->running++;
}

// A look at a thread in /proc takes longer than most threads need to answer.
#define LOOK_EVERY 16

// A thread that is not listed yet can only have been made by one that runs. So when two rounds in a
// row find no running thread, there is none.
static enum pm_threads ask_all(uint32_t now) {
    uint64_t end = pm_os_now_ms() + PATIENCE_MS;
    struct round r = {.turn = now};
    for (unsigned quiet = 0, rounds = 0; !r.last; rounds++) {
        bool last = pm_os_now_ms() >= end;
        bool thorough = last || rounds % LOOK_EVERY >= LOOK_EVERY - 2;
        r = (struct round){.turn = now, .last = last, .thorough = thorough};
        if (!each_other(ask, &r))
            return PM_THREADS_RUN;
        quiet = r.running ? 0 : quiet + 1;
        if (quiet == 2)
            return PM_THREADS_STILL;
        if (r.running) {
            struct timespec pause = {0, 50000};
            syscall(SYS_nanosleep, &pause, NULL);
        }
    }
    return r.deaf ? PM_THREADS_DEAF : PM_THREADS_RUN;
}

enum pm_threads pm_threads_stop(void) {
    const struct action ours = {hear, SA_RESTORER | SA_SIGINFO | SA_RESTART | SA_ONSTACK,
                                pm_threads_return, 0};
    struct action old;
    uint32_t now = atomic_fetch_add_explicit(&turn, 1, memory_order_release) + 1;
    if (!thread)
        thread = pm_os_reserve(THREADS * sizeof *thread);
    if (!thread || set_action(SIGNAL, NULL, &old) != 0)
        return PM_THREADS_RUN;
    if (old.handler != hear)
        before = old;
    if (set_action(SIGNAL, &ours, NULL) != 0)
        return PM_THREADS_RUN;
    enum pm_threads result = ask_all(now);
    owed |= result != PM_THREADS_STILL;
    return result;
}

// A thread that has met unwritable memory may be delayed on its way to the handler, until after the
// end of the turn. So the handler stays. It lets so many threads repeat their store; a fault with
// another reason comes again at once, uses them up, and then meets the program's own handler.
#define LATE_FAULTS 4096
static _Atomic int late_faults;

// The SIGSEGV handler: waits, then lets the thread repeat its store. A SIGSEGV that a process has
// sent would not come again, so it is sent again.
static void fault(int number, siginfo_t *info, void *context) {
    (void)context;
    int saved = errno;
    bool sent = info->si_code <= 0;
    uint32_t now = atomic_load_explicit(&turn, memory_order_acquire);
    if (now & 1)
        wait_for_end_of(now);
    else if (sent || atomic_fetch_sub_explicit(&late_faults, 1, memory_order_relaxed) <= 0)
        set_action(SIGSEGV, &before_fault, NULL);
    if (sent)
        syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);
    errno = saved;
}

bool pm_threads_catch(void) {
    const struct action ours = {fault, SA_RESTORER | SA_SIGINFO | SA_RESTART | SA_ONSTACK,
                                pm_threads_return, ~0ull};
    struct action old;
    if (set_action(SIGSEGV, NULL, &old) != 0)
        return false;
    if (old.handler != fault)
        before_fault = old;
    atomic_store_explicit(&late_faults, LATE_FAULTS, memory_order_relaxed);
    return set_action(SIGSEGV, &ours, NULL) == 0;
}

void pm_threads_resume(void) {
    if (thread && !owed) // else keep our handler: a signal of ours may yet arrive
        set_action(SIGNAL, &before, NULL);
    atomic_fetch_add_explicit(&turn, 1, memory_order_release);
    pm_futex_wake(&turn, 1 << 30);
}
