// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A sandbox may forbid a system call at any time, mostly with EPERM. Then another call that does
// the same is used instead, and the forbidden one is not tried again.
#include "file_space.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/file_limit.h"
#include "base/os.h"
#include "base/os_file.h"
#include "base/populate.h"
#include "file.h"
#include "fixed.h"
#include "media/full.h"

// Of the process. They become true once, under whatever lock.
static _Atomic bool no_fallocate, no_ftruncate;

static int fallocate_here(int fd, int mode, off_t offset, off_t len) {
    return pm_cancel_asynchronous ? (int)syscall(SYS_fallocate, fd, mode, offset, len)
                                  : fallocate(fd, mode, offset, len);
}

// Repeats fallocate when a signal has interrupted it: tmpfs then undoes all of it. Fails with
// EOPNOTSUPP if the file system or a sandbox does not allow the call at all.
bool pm_space_allocate(int fd, int mode, uint64_t offset, uint64_t len) {
    int status = -1, saved = errno;
    errno = EOPNOTSUPP;
    while (!no_fallocate && (status = fallocate_here(fd, mode, (off_t)offset, (off_t)len)) != 0 &&
           errno == EINTR) {
    }
    if (status == 0) {
        errno = saved;
        return true;
    }
    pm_full_note(errno);
    if (pm_os_is_forbidden(errno)) {
        no_fallocate = true;
        errno = EOPNOTSUPP;
    }
    return false;
}

// Allocates space through a mapping, as stores would, but without SIGBUS if there is no room. If
// the kernel is older than 5.14, or a sandbox forbids this, the stores themselves allocate the
// space.
static bool populate(const struct pm_file *file, uint64_t offset, uint64_t len) {
    bool mapped = file->map && offset + len <= file->reach;
    char *at = mapped ? file->map + offset
                      : pm_file_map(file, NULL, len, PROT_READ | PROT_WRITE, 0, offset);
    if (at == MAP_FAILED)
        return false;
    long result = pm_populate(at, len, MADV_POPULATE_WRITE);
    errno = (int)-result;
    bool good = result == 0 || errno == EINVAL || pm_os_is_forbidden(errno);
    if (!mapped)
        munmap(at, len);
    if (!good)
        pm_full_note(errno = ENOSPC);
    return good;
}

bool pm_space_back(const struct pm_file *file, uint64_t offset, uint64_t len) {
    return pm_space_allocate(file->fd, 0, offset, len) ||
           (errno == EOPNOTSUPP &&
            populate(file, offset & ~(PM_PAGE_SIZE - 1), len + (offset & (PM_PAGE_SIZE - 1))));
}

// If ftruncate is forbidden, allocating the last byte makes the file longer. Nothing can make it
// shorter then.
bool pm_space_set_length(int fd, uint64_t from, uint64_t size) {
    int status = -1;
    while (!no_ftruncate && (status = ftruncate(fd, (off_t)size)) != 0 && errno == EINTR) {
    }
    if (status != 0 && !no_ftruncate)
        no_ftruncate = pm_os_is_forbidden(errno);
    return status == 0 || (no_ftruncate && size > from && pm_space_allocate(fd, 0, size - 1, 1));
}

bool pm_file_grow_in_room(struct pm_file *file, size_t size) {
    if (size <= file->size)
        return true;
    if (file->length)
        return pm_fixed_set_length(file, size);
    size = (size + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1);
    if (size > file->reach || !pm_file_ready(file))
        return false;
    if (!pm_space_allocate(file->fd, 0, file->size, size - file->size) &&
        (errno != EOPNOTSUPP || !pm_space_set_length(file->fd, file->size, size) ||
         !populate(file, file->size & ~(PM_PAGE_SIZE - 1),
                   size - (file->size & ~(PM_PAGE_SIZE - 1)))))
        return false;
    file->size = size;
    return true;
}

bool pm_file_grow(struct pm_file *file, size_t size) {
    if (size <= file->size || file->length)
        return pm_file_grow_in_room(file, size);
    struct pm_file_room room = pm_file_room(size);
    bool good = room.good && pm_file_grow_in_room(file, size);
    pm_file_room_end(room);
    return good;
}

bool pm_file_back_with_space(struct pm_file *file, uint64_t offset, uint64_t len) {
    if (file->length)
        return offset + len <= file->room;
    return pm_file_ready(file) && pm_space_back(file, offset, len);
}

bool pm_space_punch(int fd, uint64_t offset, uint64_t len, void *at) {
    return pm_space_allocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, len) ||
           (no_fallocate && madvise(at, len, MADV_REMOVE) == 0);
}

static size_t slabs_for(uint64_t bytes) {
    return bytes / PM_SLAB_SIZE * sizeof(struct pm_slab_header);
}

bool pm_slabs_grow_in_room(struct pm_shard *s, uint64_t bytes) {
    return pm_file_grow_in_room(&s->slabs, slabs_for(bytes));
}

bool pm_shard_complete(struct pm_shard *s) {
    return pm_file_grow(&s->slabs, slabs_for(s->frontier));
}
