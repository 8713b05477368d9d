// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "looker.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

#include "bare_thread.h"
#include "lock.h"
#include "os.h"

#define NR_CLOSE_RANGE 436 // younger than the oldest headers that this is built with
#define STACK_BYTES 16384u
#define WAIT_NS 50000000 // between two looks whether it is still there
#define WAITS 40         // then it seems to be halted
#define TRIES 10000      // to have it to oneself
#define NAP_NS 1000000   // between later ones
#define NAPS 2000u
#define WHOLE_TEXT (-1l) // open, read, close: pm_looker_text()

// A futex, and whose turn it is.
enum { STARTING, RESTS, ASKED, WORKS, DONE, QUITS };

static struct {
    _Atomic uint32_t state;
    long number, arg[4], result;
} job;

static struct pm_lock asking; // one asks at a time
static long keeper;           // its process
static int kept_proc;         // in its table
static _Atomic bool halted;
static char stack[STACK_BYTES] __attribute__((aligned(16)));

// ---- the thread ---------------------------------------------------------------------------------

PM_BARE static void wait_while(uint32_t seen) {
    pm_bare_call6(SYS_futex, (long)&job.state, FUTEX_WAIT_PRIVATE, seen, 0, 0, 0);
}

PM_BARE static void enter(uint32_t state) {
    atomic_store_explicit(&job.state, state, memory_order_release);
    pm_bare_call6(SYS_futex, (long)&job.state, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
}

PM_BARE static long read_whole(void) {
    char *text = (char *)job.arg[1];
    long size = job.arg[2], have = 0, got = 1;
    long fd = pm_bare_call(SYS_openat, kept_proc, job.arg[0], O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    while (have < size && got > 0) {
        got = pm_bare_call(SYS_read, fd, (long)(text + have), size - have, 0);
        have += got > 0 ? got : 0;
    }
    pm_bare_call(SYS_close, fd, 0, 0, 0);
    return have ? have : got;
}

// Of the copy of the program's table it keeps /proc alone.
PM_BARE static bool part(void) {
    long all = (long)~0u, below = 0;
    if (kept_proc > 0)
        below = pm_bare_call(NR_CLOSE_RANGE, 0, kept_proc - 1, 0, 0);
    return below == 0 && pm_bare_call(NR_CLOSE_RANGE, kept_proc + 1, all, 0, 0) == 0;
}

PM_BARE static void work(void) {
    for (;;) {
        uint32_t seen = atomic_load_explicit(&job.state, memory_order_acquire);
        if (seen == QUITS)
            return;
        if (seen != ASKED || !atomic_compare_exchange_strong(&job.state, &seen, WORKS)) {
            wait_while(seen);
            continue;
        }
        job.result = job.number == WHOLE_TEXT
                         ? read_whole()
                         : pm_bare_call(job.number, job.arg[0], job.arg[1], job.arg[2], job.arg[3]);
        enter(DONE);
    }
}

PM_BARE static void run(void) {
    pm_bare_call(SYS_prctl, PR_SET_NAME, (long)"pmalloc-look", 0, 0);
    if (!part())
        return;
    if (kept_proc < 0)
        kept_proc = (int)pm_bare_call(SYS_openat, AT_FDCWD, (long)"/proc",
                                      O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    if (kept_proc < 0)
        return;
    enter(RESTS);
    work();
}

// ---- start and stop -----------------------------------------------------------------------------

static uint32_t id(void) { return atomic_load_explicit(&pm_os_looker, memory_order_acquire); }

// Not FUTEX_WAIT_PRIVATE, because the kernel's wake-up at the end of a thread is not private.
static void await_end(long was) {
    uint32_t seen;
    while ((seen = id()) != 0)
        pm_bare_call6(SYS_futex, (long)&pm_os_looker, FUTEX_WAIT, seen, 0, 0, 0);
    pm_bare_thread_leave(was);
}

bool pm_looker_start(int proc) {
    const struct timespec pause = {0, WAIT_NS};
    if (id())
        return true;
    atomic_store_explicit(&job.state, STARTING, memory_order_relaxed);
    kept_proc = proc;
    keeper = pm_bare_call(SYS_getpid, 0, 0, 0, 0);
    long made = pm_bare_thread_apart(run, stack + sizeof stack, &pm_os_looker);
    if (made < 0)
        return false;
    while (id() && atomic_load_explicit(&job.state, memory_order_acquire) == STARTING)
        pm_bare_call6(SYS_futex, (long)&job.state, FUTEX_WAIT_PRIVATE, STARTING, (long)&pause, 0,
                      0);
    if (!id())
        pm_bare_thread_leave(made);
    return id() != 0;
}

void pm_looker_stop(void) {
    long was = id();
    if (!was)
        return;
    pm_lock_raw(&asking);
    enter(QUITS);
    await_end(was);
    pm_unlock_raw(&asking);
}

void pm_looker_forked(void) {
    atomic_store_explicit(&pm_os_looker, 0, memory_order_relaxed);
    atomic_store_explicit(&asking.word, 0, memory_order_relaxed);
}

void pm_looker_halted(bool on) { atomic_store_explicit(&halted, on, memory_order_relaxed); }

bool pm_looker_is_there(void) {
    return id() && !atomic_load_explicit(&halted, memory_order_relaxed) &&
           pm_bare_call(SYS_getpid, 0, 0, 0, 0) == keeper;
}

// ---- asking it ----------------------------------------------------------------------------------

// A request that it has not begun can be taken back. One that it works on stores to the caller's
// memory, so that is awaited.
static bool await(void) {
    const struct timespec pause = {0, WAIT_NS};
    for (unsigned waits = 0;;) {
        uint32_t seen = atomic_load_explicit(&job.state, memory_order_acquire);
        if (seen == DONE)
            return true;
        bool lost = !id() || (seen == ASKED && waits >= WAITS);
        if (lost && (seen != ASKED || atomic_compare_exchange_strong(&job.state, &seen, RESTS)))
            return false;
        if (!lost && pm_bare_call6(SYS_futex, (long)&job.state, FUTEX_WAIT_PRIVATE, seen,
                                   (long)&pause, 0, 0) == -ETIMEDOUT)
            waits++;
    }
}

// A signal handler of the program's may have interrupted who asks, and ask, too. It finds another
// way to open a file, so it gives up soon. But a file that is open there can be read nowhere else:
// whoever has one waits until another thread has been answered, however busy the machine is. That
// thread is not one that it has interrupted, or nothing would have been opened; it may be one that
// it holds.
static bool have_alone(unsigned naps) {
    const struct timespec nap = {0, NAP_NS};
    for (unsigned i = 0; i < TRIES + naps; i++) {
        if (pm_trylock_raw(&asking))
            return true;
        if (i < TRIES)
            pm_bare_call(SYS_sched_yield, 0, 0, 0, 0);
        else
            pm_bare_call(SYS_nanosleep, (long)&nap, 0, 0, 0);
    }
    return false;
}

static long ask(unsigned naps, long number, long a, long b, long c, long d) {
    long result = PM_LOOKER_NONE;
    if (pm_looker_is_there() && have_alone(naps)) {
        job.number = number;
        job.arg[0] = a;
        job.arg[1] = b;
        job.arg[2] = c;
        job.arg[3] = d;
        enter(ASKED);
        if (await())
            result = job.result;
        pm_unlock_raw(&asking);
    }
    return result;
}

long pm_looker_open(const char *path, int flags) {
    long fd = ask(0, SYS_openat, kept_proc, (long)path, flags | O_CLOEXEC, 0);
    return fd < 0 ? fd : fd | PM_LOOKER_FD;
}

long pm_looker_text(const char *path, char *text, size_t size) {
    return ask(0, WHOLE_TEXT, (long)path, (long)text, (long)size, 0);
}

long pm_looker_call(long number, int fd, long b, long c, long d) {
    long result = ask(NAPS, number, fd & ~PM_LOOKER_FD, b, c, d);
    return result == PM_LOOKER_NONE ? -EBADF : result;
}
