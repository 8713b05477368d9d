// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "spare.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_limit.h"
#include "base/options.h"
#include "base/os_file.h"
#include "media/backing/file_space.h"
#include "media/backing/fixed.h"
#include "media/heap.h"

#define NAME pm_heap.spare.name

uint64_t pm_spare_bytes(void) {
    struct stat st;
    int saved = errno;
    bool there = !pm_fixed_is_open() && !pm_heap.nameless &&
                 fstatat(pm_heap.dir_fd, NAME, &st, AT_SYMLINK_NOFOLLOW) == 0;
    errno = saved;
    return there ? (uint64_t)st.st_blocks * 512 : 0;
}

static bool drop(void) { return unlinkat(pm_heap.dir_fd, NAME, 0) == 0 || errno == ENOENT; }

// Asked first: ext4 takes all that there is before it says that this is too little.
static bool may_fit(uint64_t bytes, uint64_t there) {
    struct pm_os_space space;
    if (!pm_os_space(pm_heap.dir_fd, &space) || !space.all || bytes <= there + space.free)
        return true;
    errno = ENOSPC;
    return false;
}

// Without a sync: after a kill or a power failure less may be there, and the next start looks. What
// was there before stays if there is no room for more.
static bool make(uint64_t bytes) {
    struct stat st;
    int fd = openat(pm_heap.dir_fd, NAME, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
                    0600);
    if (fd < 0)
        return false;
    bool known = fstat(fd, &st) == 0;
    off_t before = known ? st.st_size : 0;
    struct pm_file_room room = pm_file_room(bytes);
    bool good = room.good && may_fit(bytes, known ? (uint64_t)st.st_blocks * 512 : 0) &&
                pm_space_allocate(fd, 0, 0, bytes) && ftruncate(fd, (off_t)bytes) == 0;
    pm_file_room_end(room);
    int saved = errno;
    if (!good && (before == 0 || ftruncate(fd, before) != 0))
        drop();
    close(fd);
    errno = saved;
    return good;
}

int pm_spare_set(uint64_t bytes, struct pm_error *err) {
    if (bytes ? make(bytes) : drop())
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL, "%.300s/%s: %s", pm_heap.dir, NAME, pm_strerror(errno));
}

static bool has_twice(uint64_t bytes) {
    struct pm_os_space space;
    return pm_os_space(pm_heap.dir_fd, &space) && (!space.all || space.free / 2 >= bytes);
}

void pm_spare_begin(void) {
    uint64_t want = pm_options.spare.number;
    int saved = errno;
    struct pm_error err;
    if (!want || !pm_heap_on_media() || pm_fixed_is_open() || pm_heap.nameless ||
        pm_spare_bytes() >= want)
        return;
    if (!has_twice(want))
        pm_event(PM_EV_NO_SPARE,
                 "PMALLOC_SPARE: %lu bytes are in reserve for the heap %.300s, not %lu: its file "
                 "system has less than twice as much free; make room there",
                 (unsigned long)pm_spare_bytes(), pm_heap.dir, (unsigned long)want);
    else if (pm_spare_set(want, &err) != PM_OK)
        pm_event(PM_EV_NO_SPARE, "PMALLOC_SPARE: %lu bytes are in reserve, not %lu: %s",
                 (unsigned long)pm_spare_bytes(), (unsigned long)want, err.text);
    errno = saved;
}
