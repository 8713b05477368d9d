// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "file_limit.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lock.h"
#include "message.h"

static struct rlimit first;
static bool known;               // `first`: the program has set a limit
static _Atomic unsigned changes; // odd while it is lifted; changed in turn
// In its turn, and while it is lifted.
static struct rlimit programs;
static unsigned calls;

// No lock of those in lock.h: the end of a program holds all of them and writes files. Whoever has
// the turn may have been interrupted by this thread's signal handler, so nobody waits for ever.
static _Atomic bool taken;
#define TRIES 2000
#define PAUSE_NS 50000

static bool take_turn(void) {
    const struct timespec pause = {0, PAUSE_NS};
    pm_locks_held++; // so that nobody holds this thread here
    for (unsigned i = 0; i < TRIES; i++) {
        if (!atomic_exchange_explicit(&taken, true, memory_order_acquire))
            return true;
        pm_locks_held--;
        nanosleep(&pause, NULL);
        pm_locks_held++;
    }
    pm_locks_held--;
    return false;
}

static void end_turn(void) {
    atomic_store_explicit(&taken, false, memory_order_release);
    pm_locks_held--;
}

static bool get(struct rlimit *limit) {
    return syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, NULL, limit) == 0;
}

static bool set(const struct rlimit *limit) {
    return syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, limit, NULL) == 0;
}

static bool allows(const struct rlimit *limit, uint64_t size) {
    return limit->rlim_cur == RLIM_INFINITY || size <= limit->rlim_cur;
}

static void say_forbidden(void) {
    static _Atomic bool said;
    if (!atomic_exchange(&said, true))
        pm_event(
            PM_EV_FILE_LIMIT,
            "the heap cannot grow: the program has limited its files (RLIMIT_FSIZE) to %llu "
            "bytes, and its hard limit forbids to lift that for the heap; leave the hard limit "
            "as it is",
            (unsigned long long)programs.rlim_cur);
}

// A soft limit may rise to the hard one, and the hard one in a privileged process.
static bool lift(uint64_t size) {
    struct rlimit soft = {first.rlim_cur, programs.rlim_max};
    if (soft.rlim_cur > soft.rlim_max)
        soft.rlim_cur = soft.rlim_max;
    if (!known || !allows(&first, size))
        return false;
    bool good = (allows(&soft, size) && set(&soft)) || set(&first);
    if (!good)
        say_forbidden();
    return good;
}

static struct pm_file_room lift_or_join(uint64_t size) {
    struct pm_file_room room = {.good = true};
    if (!take_turn())
        return (struct pm_file_room){.good = false};
    if (!calls && (!get(&programs) || allows(&programs, size))) {
        end_turn();
        return room;
    }
    room.good = calls ? allows(&first, size) : lift(size);
    room.lifted = room.good;
    if (room.good && calls++ == 0)
        atomic_fetch_add_explicit(&changes, 1, memory_order_release);
    end_turn();
    return room;
}

// A limit that was read while another call had lifted it says nothing.
uint64_t pm_file_limit(void) {
    struct rlimit now = {.rlim_cur = RLIM_INFINITY};
    int saved = errno;
    unsigned before = atomic_load_explicit(&changes, memory_order_acquire);
    bool good = !(before & 1) && (get(&now) || true) &&
                before == atomic_load_explicit(&changes, memory_order_acquire);
    errno = saved;
    return !good ? 0 : now.rlim_cur == RLIM_INFINITY ? UINT64_MAX : now.rlim_cur;
}

struct pm_file_room pm_file_room(uint64_t size) {
    int saved = errno;
    struct pm_file_room room =
        pm_file_limit_allows(size) ? (struct pm_file_room){.good = true} : lift_or_join(size);
    errno = room.good ? saved : EFBIG;
    return room;
}

void pm_file_room_end(struct pm_file_room room) {
    if (!room.lifted)
        return;
    int saved = errno;
    while (!take_turn()) {
    }
    if (--calls == 0) {
        set(&programs);
        atomic_fetch_add_explicit(&changes, 1, memory_order_release);
    }
    end_turn();
    errno = saved;
}

void pm_file_limit_forked(void) {
    taken = false;
    if (calls)
        set(&programs);
    calls = 0;
    changes = 0;
}

int pm_file_limit_set(pid_t pid, const struct rlimit *limit, struct rlimit *old) {
    const struct timespec pause = {0, PAUSE_NS};
    bool turn = take_turn();
    for (unsigned i = 0; turn && calls && i < TRIES; i++) {
        end_turn();
        nanosleep(&pause, NULL);
        turn = take_turn();
    }
    if (turn && limit && !known)
        known = get(&first);
    int status = (int)syscall(SYS_prlimit64, pid, RLIMIT_FSIZE, limit, old);
    if (turn)
        end_turn();
    return status;
}
