// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "outbox_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/bare_thread.h"

// ---- which one ----------------------------------------------------------------------------------

static int option(int fd, int name) {
    int value = 0;
    socklen_t len = sizeof value;
    long error = pm_bare_call6(SYS_getsockopt, fd, SOL_SOCKET, name, (long)&value, (long)&len, 0);
    return error == 0 ? value : -1;
}

// What was found last. Whoever writes it makes `fd` invalid first, and valid last.
static struct known {
    _Atomic int fd;
    _Atomic uint64_t device, inode;
} known[64];

static bool is_stream(int fd, const struct stat *st) {
    struct known *k = &known[(unsigned)fd % (sizeof known / sizeof *known)];
    if (atomic_load(&k->fd) == fd && atomic_load(&k->inode) == st->st_ino &&
        atomic_load(&k->device) == st->st_dev && atomic_load(&k->fd) == fd)
        return true;
    int family = option(fd, SO_DOMAIN);
    if (option(fd, SO_TYPE) != SOCK_STREAM ||
        (family != AF_INET && family != AF_INET6 && family != AF_UNIX))
        return false;
    atomic_store(&k->fd, -1);
    atomic_store(&k->inode, st->st_ino);
    atomic_store(&k->device, st->st_dev);
    atomic_store(&k->fd, fd);
    return true;
}

// A pipe of packets: two that leave by one call would be one.
static bool keeps_apart(int fd) { return pm_bare_call(SYS_fcntl, fd, F_GETFL, 0, 0) & O_DIRECT; }

bool pm_outbox_fd_find(int fd, struct pm_outbox_fd *out) {
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0)
        return false;
    *out = (struct pm_outbox_fd){fd, S_ISSOCK(st.st_mode), st.st_dev, st.st_ino};
    return out->socket ? is_stream(fd, &st) : S_ISFIFO(st.st_mode) && !keeps_apart(fd);
}

static bool is_still(const struct pm_outbox_fd *to) {
    struct stat st;
    return fstat(to->fd, &st) == 0 && st.st_dev == to->device && st.st_ino == to->inode;
}

// ---- its room -----------------------------------------------------------------------------------

// One that can be written to takes this much for certain: a pipe by pipe(7), a socket because a
// third of its buffer is free.
#define SURE PIPE_BUF
// The kernel counts its own structures, too, for each call. So half of the size must do for all.
#define OF_CALL 1280
#define HALF 2
// Of an empty buffer.
#define SHARE 4
// No program makes a buffer smaller: socket(7) says 2048 bytes, which the kernel doubles. Where the
// system's default for new sockets is smaller, what leaves may wait for the peer.
#define LEAST 4096

static size_t buffer(const struct pm_outbox_fd *to) {
    int size = option(to->fd, SO_SNDBUF);
    return size > 0 ? (size_t)size : 0;
}

static bool is_empty(const struct pm_outbox_fd *to, size_t len, size_t size) {
    int waiting = 1;
    return pm_bare_call(SYS_ioctl, to->fd, TIOCOUTQ, (long)&waiting, 0) == 0 && waiting == 0 &&
           len <= size / SHARE;
}

static bool fits(const struct pm_outbox_fd *to, struct pm_outbox_waiting waiting, size_t len) {
    size_t all = waiting.bytes + len, size;
    if (!to->socket)
        return all <= SURE;
    size_t wanted = all + (waiting.calls + 1) * OF_CALL;
    if (wanted <= LEAST / HALF)
        return true;
    size = buffer(to);
    return wanted <= size / HALF && (all <= SURE || is_empty(to, all, size));
}

// More than POLLOUT says that the call would fail.
bool pm_outbox_fd_has_room(const struct pm_outbox_fd *to, struct pm_outbox_waiting waiting,
                           size_t len) {
    struct pollfd p = {.fd = to->fd, .events = POLLOUT};
    return pm_bare_call(SYS_poll, (long)&p, 1, 0, 0) == 1 && p.revents == POLLOUT &&
           fits(to, waiting, len);
}

bool pm_outbox_fd_is_there(const struct pm_outbox_fd *to) {
    struct pollfd p = {.fd = to->fd};
    return pm_bare_call(SYS_poll, (long)&p, 1, 0, 0) == 0;
}

// ---- sending ------------------------------------------------------------------------------------

// Errors that wait for the program's next call. A few are enough: each stands only between a send
// and that call.
static struct failure {
    _Atomic int error;
    struct pm_outbox_fd of;
} failures[32];
static _Atomic uint32_t failed;

// EPIPE comes again by itself.
static void note_error(const struct pm_outbox_fd *to, int error) {
    static _Atomic uint32_t next;
    if (error == EPIPE || error == EBADF)
        return;
    struct failure *f =
        &failures[atomic_fetch_add(&next, 1) % (sizeof failures / sizeof *failures)];
    atomic_store(&f->error, 0);
    f->of = *to;
    atomic_store(&f->error, error);
    atomic_fetch_add(&failed, 1);
}

int pm_outbox_fd_error(const struct pm_outbox_fd *of) {
    if (!atomic_load_explicit(&failed, memory_order_relaxed))
        return 0;
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        int error = atomic_load(&failures[i].error);
        if (error && pm_outbox_is_of(&failures[i].of, of) &&
            atomic_compare_exchange_strong(&failures[i].error, &error, 0)) {
            atomic_fetch_sub(&failed, 1);
            return error;
        }
    }
    return 0;
}

// Nothing is sent by it.
bool pm_outbox_fd_is_shut(const struct pm_outbox_fd *to) {
    long error = to->socket ? pm_bare_call6(SYS_sendto, to->fd, (long)"", 0,
                                            MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0)
                            : 0;
    if (error < 0 && error != -EAGAIN)
        note_error(to, (int)-error);
    return error < 0;
}

// Waits with a limit, so that the end of the other side is seen.
static void await_room(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    pm_bare_call(SYS_poll, (long)&p, 1, 100, 0);
}

static long send_some(const struct pm_outbox_fd *to, const char *bytes, size_t len) {
    if (to->socket)
        return pm_bare_call6(SYS_sendto, to->fd, (long)bytes, (long)len,
                             MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
    struct pollfd p = {.fd = to->fd, .events = POLLOUT};
    if (pm_bare_call(SYS_poll, (long)&p, 1, 0, 0) == 0)
        return -EAGAIN;
    return pm_bare_call(SYS_write, to->fd, (long)bytes, (long)(len < SURE ? len : SURE), 0);
}

static bool send_all(const struct pm_outbox_fd *to, const char *bytes, size_t len) {
    while (len) {
        long sent = send_some(to, bytes, len);
        if (sent == -EAGAIN)
            await_room(to->fd);
        else if (sent < 0 && sent != -EINTR) {
            note_error(to, (int)-sent);
            return false;
        }
        bytes += sent > 0 ? sent : 0;
        len -= sent > 0 ? (size_t)sent : 0;
    }
    return true;
}

void pm_outbox_fd_send(const struct pm_outbox_fd *to, const char *bytes, size_t len) {
    const uint64_t pipe = 1ull << (SIGPIPE - 1);
    const struct timespec now = {0};
    uint64_t mask, pending;
    if (!is_still(to))
        return;
    if (to->socket) { // it raises none
        send_all(to, bytes, len);
        return;
    }
    pm_bare_call(SYS_rt_sigprocmask, SIG_BLOCK, (long)&pipe, (long)&mask, sizeof mask);
    pm_bare_call(SYS_rt_sigpending, (long)&pending, sizeof pending, 0, 0);
    if (!send_all(to, bytes, len) && !(pending & pipe))
        pm_bare_call(SYS_rt_sigtimedwait, (long)&pipe, 0, (long)&now, sizeof pipe);
    pm_bare_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&mask, 0, sizeof mask);
}
