// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "others.h"

#include <dirent.h>
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

// A signal that no program sends or blocks, for the C library keeps it to itself.
#ifdef __GLIBC__
#include <sys/single_threaded.h>
#define SIGNAL 33 // SIGSETXID
#else
#define SIGNAL 34 // SIGSYNCCALL of musl
static const bool __libc_single_threaded; // which does not tell
#endif
#define THREADS (1 << 22) // the kernel's bound of thread ids
#define PATIENCE_MS 200
#define PF_EXITING 4ul // field 9 of /proc/PID/stat, proc(5)

// By thread id. A thread goes from RUNNING to ASKED when it is sent the signal, to PARKED when it has arrived.
enum { RUNNING, ASKED, PARKED };
static _Atomic uint8_t *thread;
static _Atomic uint32_t turn; // futex; odd while threads are to wait

// ---- who there is ------------------------------------------------------------------------------------

static int open_tasks(void) { return open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

// Calls `each` for every thread but this one; false when the list cannot be read. No opendir(), which allocates.
static bool each_other(void (*each)(pid_t id, void *arg), void *arg) {
    _Alignas(struct dirent) char buffer[4096];
    pid_t self = (pid_t)syscall(SYS_gettid);
    int fd = open_tasks();
    if (fd < 0)
        return false;
    long got;
    while ((got = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0)
        for (long at = 0; at < got;) {
            const struct dirent *entry = (const void *)(buffer + at);
            at += entry->d_reclen;
            int id = atoi(entry->d_name); // 0 for "." and ".."
            if (id > 0 && id < THREADS && id != self)
                each(id, arg);
        }
    close(fd);
    return got == 0;
}

// Whether the thread will store nothing any more: it is on its way out, where it is still listed after it was joined,
// or it was the first one and stays listed after pthread_exit() until the process ends.
static bool is_dead(pid_t id) {
    char path[48], text[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)id);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    const char *at = strrchr(text, ')'); // field 2; the name before it may hold anything
    for (unsigned field = 2; at && field < 9; field++)
        at = strchr(at + 1, ' ');
    return got < 0 ? errno == ESRCH : at && (strtoul(at + 1, NULL, 10) & PF_EXITING);
}

static void count_living(pid_t id, void *arg) { *(unsigned *)arg += !is_dead(id); }

bool pm_others_none(void) {
    unsigned living = 0;
    if (__libc_single_threaded)
        return true;
    return each_other(count_living, &living) && living == 0;
}

// ---- standing still ----------------------------------------------------------------------------------

// As the kernel has it; libc's sigaction() does not let this signal through.
struct action {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
};
static struct action before;

static long set_action(const struct action *now, struct action *old) {
    return syscall(SYS_rt_sigaction, SIGNAL, now, old, sizeof now->mask);
}

void pm_others_return(void);
__asm__(".text\n.hidden pm_others_return\n.globl pm_others_return\n"
        ".type pm_others_return, @function\npm_others_return:\n"
        "mov $15, %eax\nsyscall\n.size pm_others_return, . - pm_others_return\n"); // rt_sigreturn

static void park(int unused) {
    (void)unused;
    int saved = errno;
    uint32_t now = atomic_load_explicit(&turn, memory_order_acquire);
    pid_t id = (pid_t)syscall(SYS_gettid);
    if (now & 1) {
        // Release: whatever this thread has stored is seen by who sees it parked.
        atomic_store_explicit(&thread[id], PARKED, memory_order_release);
        while (atomic_load_explicit(&turn, memory_order_acquire) == now)
            pm_futex_wait(&turn, now);
    }
    errno = saved;
}

struct round {
    unsigned running;
    bool thorough; // looks whether those that do not answer are alive
};

static void ask(pid_t id, void *arg) {
    struct round *r = arg;
    uint8_t seen = RUNNING;
    if (atomic_compare_exchange_strong_explicit(&thread[id], &seen, ASKED, memory_order_acq_rel,
                                                memory_order_acquire))
        syscall(SYS_tgkill, getpid(), id, SIGNAL);
    r->running += seen == RUNNING || (seen == ASKED && !(r->thorough && is_dead(id)));
}

// A thread that is not listed yet can only come from one that runs: two rounds without any.
static bool all_parked(void) {
    uint64_t end = pm_os_now_ms() + PATIENCE_MS;
    for (unsigned quiet = 0, rounds = 0; pm_os_now_ms() < end; rounds++) {
        struct round r = {.thorough = rounds > 20};
        if (!each_other(ask, &r))
            return false;
        quiet = r.running ? 0 : quiet + 1;
        if (quiet == 2)
            return true;
        if (r.running) {
            struct timespec pause = {0, 50000};
            syscall(SYS_nanosleep, &pause, NULL);
        }
    }
    return false;
}

bool pm_others_stop(void) {
    struct action ours = {park, 0x04000000 /* SA_RESTORER */ | SA_RESTART | SA_ONSTACK,
                          pm_others_return, 0};
    thread = pm_os_reserve(THREADS);
    if (!thread || set_action(&ours, &before) != 0)
        return false;
    atomic_fetch_add_explicit(&turn, 1, memory_order_release);
    if (all_parked())
        return true;
    // The handler stays: the signal may yet arrive somewhere.
    atomic_fetch_add_explicit(&turn, 1, memory_order_release);
    pm_futex_wake(&turn, 1 << 30);
    return false;
}

void pm_others_resume(void) {
    set_action(&before, NULL);
    atomic_fetch_add_explicit(&turn, 1, memory_order_release);
    pm_futex_wake(&turn, 1 << 30);
}
