// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "outbox.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/lock.h"
#include "base/message.h"
#include "base/os.h"
#include "base/own_memory.h"
#include "base/proc.h"
#include "commits.h"
#include "outbox_fd.h"

#define BYTES ((size_t)256 << 10)
#define ANSWERS 1024u // a power of two
#define PIECES 16u
#define ACTIVE_NS 50000000u // afterwards PMAlloc's thread sleeps until it is woken

bool pm_outbox_on;
_Atomic uint32_t pm_outbox_count;

struct answer {
    struct pm_outbox_fd to;
    uint64_t taken;     // when, in nanoseconds
    uint64_t before;    // the instants so far: it may leave after a commit with a later one
    uint32_t from, len; // in `bytes`
};

// Answers have numbers: those from `gone` to `taken` are there. Those below `closed` get no more
// bytes, because a commit may be under way for them. `lock` guards all of it. The holder of
// `sending` alone lets answers go; who wants both takes it first.
static struct {
    struct pm_lock lock, sending;
    char *bytes;
    struct answer *answer;
    size_t end; // of the bytes in use
    uint64_t gone, taken, closed;
    uint64_t patience;    // TIME, in nanoseconds
    uint64_t said, turns; // figures
    _Atomic pid_t owner;  // a child of vfork() sees its parent's outbox
} box = {.lock = PM_LOCK(PM_RANK_OUTBOX), .sending = PM_LOCK(PM_RANK_SENDING)};

// Descriptors that threads are about to close, and how many such threads there are; `lock` guards
// both. A thread that is cancelled in its call leaves its place used: then answers to that number
// are made one by one.
#define CLOSERS 32u
static struct {
    bool used;
    unsigned from, to;
} closer[CLOSERS];
static unsigned closers;

static _Atomic uint32_t bell; // a futex, for PMAlloc's thread
static _Atomic bool deaf;     // it sleeps until the bell rings
static _Atomic uint64_t last; // when an answer was taken
static _Atomic bool due;      // an answer that no commit is made for has waited for long enough

void pm_outbox_begin(uint64_t us) {
    box.bytes = us ? pm_own_reserve(BYTES) : NULL;
    box.answer = box.bytes ? pm_own_reserve(ANSWERS * sizeof *box.answer) : NULL;
    box.patience = us * 1000;
    atomic_store_explicit(&box.owner, getpid(), memory_order_relaxed);
    pm_outbox_on = box.answer != NULL;
}

void pm_outbox_forked(void) {
    pm_lock_reset(&box.lock);
    pm_lock_reset(&box.sending);
    box.gone = box.closed = box.taken;
    box.end = 0;
    memset(closer, 0, sizeof closer);
    closers = 0;
    atomic_store_explicit(&box.owner, getpid(), memory_order_relaxed);
    atomic_store_explicit(&pm_outbox_count, 0, memory_order_relaxed);
    atomic_store_explicit(&deaf, false, memory_order_relaxed);
}

void pm_outbox_say(void) {
    if (pm_outbox_on)
        pm_event(PM_EV_STATS, "stats: answers that waited for others: %lu, which left in %lu turns",
                 (unsigned long)box.said, (unsigned long)box.turns);
}

static struct answer *at(uint64_t number) { return &box.answer[number % ANSWERS]; }

// ---- what a call says ---------------------------------------------------------------------------

struct pieces {
    struct iovec piece[PIECES];
    size_t count, len;
};

// The kernel copies: an address of the program's may be wrong, and then its call is to say so. Who
// takes answers is the owner.
static bool load(void *to, size_t len, const struct iovec *from, size_t count) {
    const struct iovec here = {to, len};
    pid_t self = atomic_load_explicit(&box.owner, memory_order_relaxed);
    return !atomic_load_explicit(&pm_proc_no_detour, memory_order_relaxed) &&
           syscall(SYS_process_vm_readv, self, &here, 1, from, count, 0L) == (long)len;
}

static bool load_vector(const struct iovec *vector, size_t count, struct pieces *out) {
    const struct iovec there = {(void *)(uintptr_t)vector, count * sizeof *vector};
    out->count = count;
    return count && count <= PIECES && load(out->piece, there.iov_len, &there, 1);
}

// One with an address or with descriptors is not taken.
static bool load_message(const struct msghdr *message, struct pieces *out) {
    struct msghdr m;
    const struct iovec there = {(void *)(uintptr_t)message, sizeof m};
    return load(&m, sizeof m, &there, 1) && !m.msg_name && !m.msg_namelen && !m.msg_controllen &&
           load_vector(m.msg_iov, m.msg_iovlen, out);
}

static bool find_pieces(const struct pm_said *said, struct pieces *out) {
    bool good = true;
    out->len = 0;
    if (said->message)
        good = load_message(said->message, out);
    else if (said->vector)
        good = load_vector(said->vector, said->count, out);
    else
        *out = (struct pieces){{{(void *)(uintptr_t)said->bytes, said->count}}, 1, 0};
    for (size_t i = 0; i < out->count && good; i++) {
        good = out->piece[i].iov_len <= BYTES;
        out->len += out->piece[i].iov_len;
    }
    return good && out->len && out->len <= BYTES;
}

// ---- taking -------------------------------------------------------------------------------------

static struct pm_outbox_waiting waiting_for(const struct pm_outbox_fd *to) {
    struct pm_outbox_waiting waiting = {0, 0};
    for (uint64_t i = box.gone; i < box.taken; i++)
        if (pm_outbox_is_of(&at(i)->to, to)) {
            waiting.bytes += at(i)->len;
            waiting.calls++;
        }
    return waiting;
}

// Bytes for where the last answer goes join it: both leave by one call.
static void note(const struct pm_outbox_fd *to, uint32_t len) {
    uint64_t now = pm_os_now_ns(), before = pm_commits_instants();
    struct answer *a = box.taken > box.closed ? at(box.taken - 1) : NULL;
    if (a && pm_outbox_is(&a->to, to)) {
        a->len += len;
        a->before = before;
    } else {
        *at(box.taken++) = (struct answer){*to, now, before, (uint32_t)box.end, len};
        atomic_fetch_add(&pm_outbox_count, 1);
    }
    box.end += len;
    box.said++;
    atomic_store(&last, now);
}

static bool is_being_closed(unsigned fd) {
    bool found = false;
    for (unsigned i = 0; closers && i < CLOSERS && !found; i++)
        found = closer[i].used && fd - closer[i].from <= closer[i].to - closer[i].from;
    return found;
}

static bool put(const struct pm_outbox_fd *to, const struct pieces *p) {
    bool good = pm_outbox_on && p->len <= BYTES - box.end && box.taken - box.gone < ANSWERS &&
                pm_outbox_fd_has_room(to, waiting_for(to), p->len) && !pm_outbox_fd_is_shut(to) &&
                load(box.bytes + box.end, p->len, p->piece, p->count);
    if (good)
        note(to, (uint32_t)p->len);
    return good;
}

// An error of an answer that went before.
static bool tell_error(const struct pm_outbox_fd *to, struct pm_call *call) {
    int error = pm_outbox_fd_error(to);
    call->result = -1;
    errno = error ? error : errno;
    return error != 0;
}

// The descriptor is looked at with the lock: who is about to make another one of it says so first,
// and then sends what was taken for the old one.
static bool take_locked(struct pm_call *call) {
    struct pm_outbox_fd to;
    struct pieces p;
    const int harmless = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE;
    if (is_being_closed((unsigned)call->fd) || !pm_outbox_fd_find(call->fd, &to))
        return false;
    if (tell_error(&to, call))
        return true;
    if ((call->said->sends && !to.socket) || call->said->flags & ~harmless ||
        !find_pieces(call->said, &p))
        return false;
    call->result = (long)p.len;
    return put(&to, &p);
}

static bool take(struct pm_call *call) {
    if (call->fd <= STDERR_FILENO)
        return false;
    pm_lock(&box.lock);
    bool good = take_locked(call);
    pm_unlock(&box.lock);
    if (good && atomic_load(&deaf) && atomic_exchange(&deaf, false))
        pm_outbox_wake();
    return good;
}

// It keeps errno, but for an error that it tells.
bool pm_outbox_take(struct pm_call *call) {
    int saved = errno;
    struct pm_cancel cancel = pm_cancel_hold();
    bool taken = take(call);
    pm_cancel_release(cancel);
    if (taken && atomic_load_explicit(&due, memory_order_relaxed))
        pm_outbox_flush();
    if (!taken || call->result >= 0)
        errno = saved;
    return taken;
}

// ---- leaving ------------------------------------------------------------------------------------

static bool next(uint64_t to, struct answer *out) {
    pm_lock(&box.lock);
    bool more = box.gone < to;
    if (more)
        *out = *at(box.gone);
    pm_unlock(&box.lock);
    return more;
}

static void let_go(void) {
    pm_lock(&box.lock);
    box.gone++;
    if (box.gone == box.taken)
        box.end = 0;
    pm_unlock(&box.lock);
    atomic_fetch_sub(&pm_outbox_count, 1);
}

// Those below the number. Nothing of the heap is stored to meanwhile, and the other end may be
// slow: so the thread counts as one that is asleep in a call. PMAlloc's thread must not wait, and
// leaves what finds no room.
static void send_to(uint64_t number, bool waits) {
    struct pm_call call = {.kind = PM_CALL_SAYS, .fd = -1};
    const struct pm_outbox_waiting none = {0, 0};
    struct answer a;
    pm_call_enter(&call);
    pm_lock(&box.sending);
    for (bool any = false; next(number, &a); any = true) {
        if (!waits && !pm_outbox_fd_has_room(&a.to, none, a.len) && pm_outbox_fd_is_there(&a.to))
            break;
        box.turns += !any;
        pm_outbox_fd_send(&a.to, box.bytes + a.from, a.len);
        let_go();
    }
    pm_unlock(&box.sending);
    pm_call_leave(&call);
}

// No answer so far gets more bytes. Returns the number of the next one, and the instants that a
// commit for all of them must come after.
static uint64_t close_all(uint64_t *before) {
    pm_lock(&box.lock);
    uint64_t number = box.closed = box.taken;
    *before = number > box.gone ? at(number - 1)->before : 0;
    atomic_store_explicit(&due, false, memory_order_relaxed);
    pm_unlock(&box.lock);
    return number;
}

void pm_outbox_flush(void) {
    struct pm_cancel cancel = pm_cancel_hold();
    uint64_t before, number = close_all(&before);
    pm_commits_cover_first(before);
    send_to(number, true);
    pm_commits_bring();
    pm_cancel_release(cancel);
}

static bool is_ours(void) {
    return atomic_load_explicit(&box.owner, memory_order_relaxed) == getpid();
}

static bool has(unsigned from, unsigned to) {
    bool found = false;
    pm_lock(&box.lock);
    for (uint64_t i = box.gone; i < box.taken && !found; i++)
        found = (unsigned)at(i)->to.fd - from <= to - from;
    pm_unlock(&box.lock);
    return found;
}

void pm_outbox_flush_before(unsigned from, unsigned to) {
    int saved = errno;
    if (!is_ours())
        return;
    struct pm_cancel cancel = pm_cancel_hold();
    bool found = from <= to && has(from, to);
    pm_cancel_release(cancel);
    if (found)
        pm_outbox_flush();
    errno = saved;
}

// Returns which one it is, from 1 on; 0: there is no room, and what another thread says while the
// commit is made may be lost.
static unsigned note_closer(unsigned from, unsigned to) {
    unsigned i = 0;
    pm_lock(&box.lock);
    while (i < CLOSERS && closer[i].used)
        i++;
    if (i < CLOSERS) {
        closer[i].used = true;
        closer[i].from = from;
        closer[i].to = to;
        closers++;
    }
    pm_unlock(&box.lock);
    return i < CLOSERS ? i + 1 : 0;
}

unsigned pm_outbox_begin_closing(unsigned from, unsigned to) {
    int saved = errno;
    if (!is_ours())
        return 0;
    struct pm_cancel cancel = pm_cancel_hold();
    unsigned place = from <= to ? note_closer(from, to) : 0;
    pm_cancel_release(cancel);
    pm_outbox_look_at(from, to);
    errno = saved;
    return place;
}

void pm_outbox_end_closing(unsigned place) {
    int saved = errno;
    struct pm_cancel cancel = pm_cancel_hold();
    pm_lock(&box.lock);
    closer[place - 1].used = false;
    closers--;
    pm_unlock(&box.lock);
    pm_cancel_release(cancel);
    errno = saved;
}

void pm_outbox_last(void) {
    uint64_t before;
    if (atomic_load(&pm_outbox_count))
        send_to(close_all(&before), true);
}

void pm_outbox_end(void) {
    pm_outbox_on = false;
    if (atomic_load(&pm_outbox_count))
        pm_outbox_flush();
}

// ---- PMAlloc's thread ---------------------------------------------------------------------------

void pm_outbox_wake(void) {
    atomic_fetch_add(&bell, 1);
    pm_futex_wake(&bell, 1);
}

bool pm_outbox_looks(void) {
    return pm_outbox_on &&
           (atomic_load(&pm_outbox_count) || pm_os_now_ns() - atomic_load(&last) < ACTIVE_NS);
}

// When the oldest answer was taken that is there, or that no commit is made for yet.
static void oldest(uint64_t *all, uint64_t *open) {
    pm_lock(&box.lock);
    *all = box.taken > box.gone ? at(box.gone)->taken : 0;
    *open = box.taken > box.closed ? at(box.closed)->taken : 0;
    pm_unlock(&box.lock);
}

uint64_t pm_outbox_look(void) {
    uint64_t now = pm_os_now_ns(), since, open, before;
    oldest(&since, &open);
    if (since && now - since < box.patience)
        return (box.patience - (now - since)) / 1000 + 1;
    if (since && now - since < 2 * box.patience) {
        if (open && now - open >= box.patience)
            atomic_store_explicit(&due, true, memory_order_relaxed);
        uint64_t left = 2 * box.patience - (now - since), of_open = now - open;
        if (open && of_open < box.patience && box.patience - of_open < left)
            left = box.patience - of_open;
        return left / 1000 + 1;
    }
    if (since) {
        uint64_t number = close_all(&before);
        if (pm_commits_covered() <= before && !pm_commits_by_time())
            return box.patience / 4000 + 1; // once more
        send_to(number, false);
    }
    return box.patience / 1000;
}

// Sequentially consistent: either this thread sees the answer, or who takes it sees that this one
// is deaf.
void pm_outbox_sleep(uint64_t us) {
    uint32_t seen = atomic_load(&bell);
    atomic_store(&deaf, true);
    if (!atomic_load(&pm_outbox_count))
        pm_futex_wait_us(&bell, seen, us);
    atomic_store(&deaf, false);
}
