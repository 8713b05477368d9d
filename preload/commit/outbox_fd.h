// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Where an answer goes: a stream socket or a pipe, its room, and how it is sent there. For outbox.h
// alone. Only bare system calls, so that PMAlloc's thread may send.
#ifndef PM_OUTBOX_FD_H
#define PM_OUTBOX_FD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A number alone may become another file's.
struct pm_outbox_fd {
    int fd;
    bool socket; // else a pipe
    uint64_t device, inode;
};

static inline bool pm_outbox_is(const struct pm_outbox_fd *a, const struct pm_outbox_fd *b) {
    return a->fd == b->fd && a->inode == b->inode && a->device == b->device;
}

// The same socket or pipe, maybe by another number.
static inline bool pm_outbox_is_of(const struct pm_outbox_fd *a, const struct pm_outbox_fd *b) {
    return a->inode == b->inode && a->device == b->device;
}

// False: it is no stream socket, and no pipe of bytes.
bool pm_outbox_fd_find(int fd, struct pm_outbox_fd *out);
// What is to go there before: its bytes, and in how many calls.
struct pm_outbox_waiting {
    size_t bytes, calls;
};

// Whether `len` bytes will go out at once, behind `waiting`: the kernel has that much room, and
// nothing says that the other end is gone.
bool pm_outbox_fd_has_room(const struct pm_outbox_fd *to, struct pm_outbox_waiting waiting,
                           size_t len);
// Whether either end has said that nothing more goes there (shutdown). No poll says so.
bool pm_outbox_fd_is_shut(const struct pm_outbox_fd *to);
// Whether the other end is there.
bool pm_outbox_fd_is_there(const struct pm_outbox_fd *to);
// Sends all of it, and waits for the other end if the room was another process's. What cannot be
// sent is lost, as what a kernel has of a connection that breaks. Blocks SIGPIPE meanwhile.
void pm_outbox_fd_send(const struct pm_outbox_fd *to, const char *bytes, size_t len);
// The error that a send has found, which the kernel tells only once; 0: none. It is told now.
int pm_outbox_fd_error(const struct pm_outbox_fd *of);

#endif
