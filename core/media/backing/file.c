// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "base/os_file.h"
#include "base/signal_stack.h"
#include "fixed.h"
#include "media/core_dump.h"
#include "media/persist.h"
#include "media/shard_place.h"
#include "nameless.h"
#include "view.h"
#include "work_copy.h"

bool pm_file_is_ours(const struct pm_file *file) {
    return pm_os_fd_is(file->fd, file->dev, file->ino);
}

// A part of a fixed medium is mapped with its head. Under PMALLOC_COMMIT that mapping is private.
static char *in_head(const struct pm_file *file, uint64_t offset) {
    return file->length && file->map && !pm_heap_is_journaled() ? file->map + offset : NULL;
}

static void *map_shared(const struct pm_file *file, void *at, size_t len, int prot, int flags,
                        uint64_t offset) {
    off_t in_fd = (off_t)(file->at + offset);
    if (!at && in_head(file, offset))
        return in_head(file, offset);
    if (!at)
        at = pm_os_place(len);
    if (pm_durability == PM_DURABLE_LINE || pm_durability == PM_DURABLE_CACHE) {
        void *map = mmap(at, len, prot, flags | MAP_SHARED_VALIDATE | MAP_SYNC, file->fd, in_fd);
        // A kernel that does not know MAP_SHARED_VALIDATE says EINVAL.
        bool refused = map == MAP_FAILED && (errno == EOPNOTSUPP || errno == EINVAL);
        if (!refused || !pm_persist_refused(file->name))
            return map;
    }
    return mmap(at, len, prot, flags | MAP_SHARED, file->fd, in_fd);
}

void *pm_file_map(const struct pm_file *file, void *at, size_t len, int prot, int flags,
                  uint64_t offset) {
    if (pm_heap_is_journaled())
        return mmap(at ? at : pm_os_place(len), len, prot, flags | MAP_PRIVATE | MAP_NORESERVE,
                    pm_work_fd(file), (off_t)pm_work_offset(file, offset));
    return map_shared(file, at, len, prot, flags, offset);
}

// A part of a fixed medium is found by the mapping of its head.
static void *noted(const struct pm_file *file, void *map, size_t len, uint64_t offset) {
    if (map != MAP_FAILED && !file->length)
        pm_view_note(map, len, file->name, false, offset);
    return map;
}

void *pm_file_map_shared(const struct pm_file *file, size_t len, uint64_t offset) {
    return noted(file, map_shared(file, NULL, len, PROT_READ | PROT_WRITE, 0, offset), len, offset);
}

bool pm_file_try(const struct pm_file *file) {
    void *page = pm_file_map(file, NULL, PM_PAGE_SIZE, PROT_READ, 0, 0);
    if (page == MAP_FAILED)
        return false;
    pm_file_unmap(file, page, PM_PAGE_SIZE); // where a sandbox forbids munmap the page stays
    return true;
}

const void *pm_file_view(const struct pm_file *file, size_t len, uint64_t offset) {
    if (in_head(file, offset))
        return in_head(file, offset);
    void *map =
        mmap(pm_os_place(len), len, PROT_READ, MAP_SHARED, file->fd, (off_t)(file->at + offset));
    return noted(file, map, len, offset) == MAP_FAILED ? NULL : map;
}

void pm_file_unmap(const struct pm_file *file, const void *at, size_t len) {
    pm_view_forget(at);
    bool head = file->length && (uintptr_t)at - (uintptr_t)file->map < file->room;
    if (!head)
        munmap((void *)(uintptr_t)at, len);
}

static void hold(struct pm_file *file, int fd, const struct stat *st) {
    file->fd = pm_os_fd_high(fd);
    file->dev = st->st_dev;
    file->ino = st->st_ino;
    file->size = (size_t)st->st_size;
}

bool pm_file_hold(struct pm_file *file, int fd) {
    struct stat st;
    if (fstat(fd, &st) != 0) {
        close(fd);
        return false;
    }
    hold(file, fd, &st);
    return true;
}

// Zeroes stay holes.
static bool copy_bytes(int fd, const char *from, size_t size) {
    static const char zeroes[PM_PAGE_SIZE];
    bool good = ftruncate(fd, (off_t)size) == 0;
    for (size_t at = 0, len; at < size && good; at += len) {
        len = size - at < PM_PAGE_SIZE ? size - at : PM_PAGE_SIZE;
        good =
            memcmp(from + at, zeroes, len) == 0 || pm_os_write_all(fd, from + at, len, (off_t)at);
    }
    return good;
}

bool pm_file_again(struct pm_file *file) {
    struct pm_file fresh = *file;
    bool alone = pm_os_one_thread() && !pm_os_own_count();
    int fd = alone ? pm_nameless_fd() : -1;
    if (fd < 0 || !pm_file_hold(&fresh, fd))
        return false;
    bool good = !file->size || copy_bytes(fresh.fd, file->map, file->size);
    if (good && file->map)
        good = pm_file_map(&fresh, file->map, file->reach, PROT_READ | PROT_WRITE,
                           MAP_FIXED | MAP_NORESERVE, 0) != MAP_FAILED;
    if (!good) {
        close(fresh.fd);
        return false;
    }
    fresh.size = file->size;
    *file = fresh;
    pm_heap_dump_used(); // the new mapping knows nothing of what the old one was told
    for (unsigned i = 0; i < pm_heap.shards; i++)
        pm_shard_place(&pm_heap.shard[i]);
    return true;
}

static bool say_closed(void) {
    static _Atomic bool said;
    if (!atomic_exchange(&said, true))
        pm_event(
            PM_EV_FILES_CLOSED,
            "the program has closed the files of its heap, which has no root and so no name; "
            "while it has several threads they cannot be made again, and the heap cannot grow: "
            "set PMALLOC_HEAP, or a root before that");
    errno = EBADF;
    return false;
}

struct again {
    struct pm_file *file;
    bool good;
};

// The program has closed our descriptor, as a daemon does that closes all of them. The number may
// be the program's now, so it is left alone, and the file is opened again by its path.
static bool open_by_path(struct pm_file *file) {
    char path[sizeof pm_heap.dir + 32];
    snprintf(path, sizeof path, "%s/%s", pm_heap.dir, file->name);
    int fd = open(path, (pm_heap.readonly ? O_RDONLY : O_RDWR) | O_NOFOLLOW | O_CLOEXEC);
    if (!pm_os_fd_is(fd, file->dev, file->ino)) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    file->fd = pm_os_fd_high(fd);
    return true;
}

static void open_again(void *arg) {
    struct again *again = arg;
    struct pm_file *file = again->file;
    if (file->length)
        again->good = (file->fd = pm_medium_fd(pm_medium_of(file))) >= 0;
    else if (pm_heap.nameless)
        again->good = pm_file_again(file) || say_closed();
    else
        again->good = open_by_path(file);
}

bool pm_file_ready(struct pm_file *file) {
    if (pm_file_is_ours(file))
        return true;
    struct again again = {.file = file};
    pm_signal_stack_run(open_again, &again); // a malloc may come here, on any stack
    return again.good;
}

void pm_file_close(struct pm_file *file) {
    if (!file->length && pm_file_is_ours(file))
        pm_os_close(file->fd);
    file->fd = -1;
    file->length = NULL;
    file->at = file->room = 0;
}

// A device has no cache but the processor's: flushed lines are durable, and it knows no fsync.
bool pm_file_sync(struct pm_file *file) {
    if ((file->length && pm_medium_of(file)->device) ||
        (pm_file_ready(file) && fsync(file->fd) == 0))
        return true;
    pm_fixed_take_reports();
    pm_sync_failed();
    return false;
}

uint64_t pm_file_next_data(const struct pm_file *file, uint64_t at) {
    off_t data = lseek(file->fd, (off_t)(file->at + at), SEEK_DATA);
    return data >= 0 ? (uint64_t)data - file->at : errno == ENXIO ? UINT64_MAX : at;
}

int pm_file_open(struct pm_file *file, int flags, struct pm_error *err) {
    struct stat st;
    if (file->length || pm_heap.nameless)
        return PM_OK;
    // O_NONBLOCK: if somebody has put a pipe in the file's place, open() must not wait for its
    // other end.
    int fd = openat(pm_heap.dir_fd, file->name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0 && errno == ENOENT)
        return pm_fail(err, PM_DAMAGE, "%s/%s is missing; the heap is incomplete, restore the file",
                       pm_heap.dir, file->name);
    if (fd < 0 && errno == EROFS)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s/%s: %s; mount it writable, or only read the heap: PMALLOC_OPEN=private",
                       pm_heap.dir, file->name, pm_strerror(errno));
    if (fd < 0 || fstat(fd, &st) != 0)
        return pm_fail(err, PM_OPERATIONAL, "%s/%s: %s%s", pm_heap.dir, file->name,
                       pm_strerror(errno),
                       errno == EACCES ? "; who is its owner, and what is its mode?" : "");
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid()) {
        close(fd);
        return pm_fail(err, PM_OPERATIONAL,
                       "%s/%s is not a plain file of user %u; refusing to use it", pm_heap.dir,
                       file->name, (unsigned)geteuid());
    }
    hold(file, fd, &st);
    return PM_OK;
}
