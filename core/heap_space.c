// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Space for the heap's files, from and back to the file system; their lengths.
//
// A sandbox may forbid a call amid the program's work, mostly with EPERM. Where another call does the same it is taken
// instead, and the forbidden one is not tried again.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "guard.h"
#include "heap.h"
#include "os.h"
#include "persist.h"
#include "table.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define HUGE_PAGE ((uint64_t)2 << 20)

// False when the data file could not be given back the length that the heap has: then no close is clean.
bool pm_length_known = true;

static struct pm_table anonymous; // the data of a volatile heap

void pm_heap_is_anonymous(uint64_t writable) {
    anonymous = (struct pm_table){(char *)(uintptr_t)pm_base, pm_heap.limit, writable};
}

// ---- blocks and lengths ------------------------------------------------------------------------------

static bool forbidden(void) { return errno == EPERM || errno == EACCES || errno == ENOSYS; }

static bool no_fallocate, no_ftruncate;

static int fallocate_here(int fd, int mode, off_t offset, off_t len) {
    return pm_guard_asynchronous ? (int)syscall(SYS_fallocate, fd, mode, offset, len)
                                 : fallocate(fd, mode, offset, len);
}

// The program's signals may interrupt it, and tmpfs then undoes all of it. EOPNOTSUPP: not in this way.
static bool allocate(int fd, int mode, uint64_t offset, uint64_t len) {
    int status = -1;
    errno = EOPNOTSUPP;
    while (!no_fallocate && (status = fallocate_here(fd, mode, (off_t)offset, (off_t)len)) != 0 &&
           errno == EINTR) {
    }
    if (status == 0)
        return true;
    if (forbidden()) {
        no_fallocate = true;
        errno = EOPNOTSUPP;
    }
    return false;
}

// Stores to a mapping allocate, too; this way without SIGBUS where there is no room. Kernels before 5.14 cannot, nor
// can who has forbidden this call as well: then it is left to the stores.
static bool populate(const struct pm_file *file, uint64_t offset, uint64_t len) {
    bool mapped = file->map && offset + len <= file->reach;
    char *at = mapped ? file->map + offset
                      : pm_file_map(file, NULL, len, PROT_READ | PROT_WRITE, 0, offset);
    if (at == MAP_FAILED)
        return false;
    bool good = madvise(at, len, MADV_POPULATE_WRITE) == 0 || errno == EINVAL || forbidden();
    if (!mapped)
        munmap(at, len);
    if (!good)
        errno = ENOSPC;
    return good;
}

static bool back(const struct pm_file *file, uint64_t offset, uint64_t len) {
    return allocate(file->fd, 0, offset, len) ||
           (errno == EOPNOTSUPP &&
            populate(file, offset & ~(PM_PAGE_SIZE - 1), len + (offset & (PM_PAGE_SIZE - 1))));
}

// A block at the end of what is to be the file makes it longer, too, but none makes it shorter.
static bool set_length(int fd, uint64_t from, uint64_t size) {
    int status = -1;
    while (!no_ftruncate && (status = ftruncate(fd, (off_t)size)) != 0 && errno == EINTR) {
    }
    if (status != 0 && !no_ftruncate)
        no_ftruncate = forbidden();
    return status == 0 || (no_ftruncate && size > from && allocate(fd, 0, size - 1, 1));
}

bool pm_file_grow(struct pm_file *file, size_t size) {
    if (size <= file->size)
        return true;
    size = (size + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1);
    if (size > file->reach || !pm_os_file_size(size) || !pm_file_ready(file))
        return false;
    if (!allocate(file->fd, 0, file->size, size - file->size) &&
        (errno != EOPNOTSUPP || !set_length(file->fd, file->size, size) ||
         !populate(file, file->size & ~(PM_PAGE_SIZE - 1),
                   size - (file->size & ~(PM_PAGE_SIZE - 1)))))
        return false;
    file->size = size;
    return true;
}

bool pm_file_back(struct pm_file *file, uint64_t offset, uint64_t len) {
    return pm_file_ready(file) && back(file, offset, len);
}

// The log must not name pages behind the durable end of the file: after a power loss the heap would look cut off.
static bool length_durable(void) {
    int fd = pm_heap.data.fd;
    return pm_durability == PM_DURABLE_NONE ||
           (pm_guard_asynchronous ? (int)syscall(SYS_fdatasync, fd) : fdatasync(fd)) == 0;
}

static bool grow_slabs(uint64_t bytes) {
    return pm_file_grow(&pm_heap.slabs, bytes / PM_SLAB_SIZE * sizeof(struct pm_slab_header));
}

int pm_heap_pin(void) {
    char path[sizeof pm_heap.dir + 32];
    struct stat st;
    if (!pm_file_ready(&pm_heap.data))
        return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", pm_heap.data.fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        snprintf(path, sizeof path, "%s/%s", pm_heap.dir, pm_heap.data.name);
        fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    }
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_dev == pm_heap.data.dev &&
        st.st_ino == pm_heap.data.ino && flock(fd, LOCK_SH | LOCK_NB) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

// Cutting a file takes even copied pages from whoever maps it privately; see pm_heap_pin().
static bool cut_length(int fd, uint64_t size) {
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        return false;
    bool good = set_length(fd, pm_heap.data.size, size);
    flock(fd, LOCK_UN);
    return good;
}

bool pm_heap_complete(void) { return grow_slabs(pm_heap.frontier); }

bool pm_heap_set_frontier(uint64_t bytes) {
    if (bytes > pm_heap.frontier && bytes > pm_heap.limit)
        return false;
    if (!pm_heap.persistent && !pm_table_need(&anonymous, bytes))
        return false;
    if (pm_heap.persistent) {
        bool grows = bytes > pm_heap.frontier;
        // The data file's length is vouched for by a clean close, so it is the last that may fail to change.
        if (!pm_file_ready(&pm_heap.data) ||
            (grows && !(pm_os_file_size(bytes) && grow_slabs(bytes))) ||
            !(bytes < pm_heap.frontier ? cut_length(pm_heap.data.fd, bytes)
                                       : set_length(pm_heap.data.fd, pm_heap.data.size, bytes)))
            return false;
        if (grows && !length_durable()) {
            pm_length_known = set_length(pm_heap.data.fd, bytes, pm_heap.data.size);
            return false;
        }
        pm_length_known = true;
        pm_heap.data.size = bytes;
    }
    pm_heap.frontier = bytes;
    return true;
}

// One touched page and MADV_COLLAPSE give a zeroed 2 MiB page in a third of the time that 512 faults take. Not so where a
// hypervisor takes back whole huge pages that are free and has to provide them anew, at ten times the price, while small ones
// come from what was just freed: so a slow one is not followed by more for a while.
#define SLOW_NS 1200000u // what the faults take
#define SLOW_REST 16u

static bool commit_huge(uint64_t offset) {
    static unsigned rest; // the extent lock is held
    if (pm_durability != PM_DURABLE_NONE || (rest && rest--) ||
        !allocate(pm_heap.data.fd, 0, offset, PM_PAGE_SIZE))
        return false;
    *(volatile char *)pm_heap_at(offset) = 0;
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    bool good = madvise(pm_heap_at(offset), HUGE_PAGE, MADV_COLLAPSE) == 0;
    clock_gettime(CLOCK_MONOTONIC, &after);
    if ((after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec > SLOW_NS)
        rest = SLOW_REST;
    return good;
}

// A heap that grows by so much at once will touch it soon: one call instead of a fault for every page.
#define TOUCH_AT_ONCE ((uint64_t)256 << 10)

static void touch(uint64_t offset, uint64_t len) {
    static bool refused; // the extent lock is held
    if (len >= TOUCH_AT_ONCE && pm_durability == PM_DURABLE_NONE && !refused)
        refused = madvise(pm_heap_at(offset), len, MADV_POPULATE_WRITE) != 0 &&
                  (errno == EINVAL || forbidden()); // an old kernel, a sandbox
}

static bool commit_small(uint64_t offset, uint64_t len) {
    return len == 0 || back(&pm_heap.data, offset, len);
}

static bool commit(uint64_t offset, uint64_t len) {
    uint64_t end = offset + len;
    uint64_t huge = (offset + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    if (huge + HUGE_PAGE > end)
        return commit_small(offset, len);
    if (!commit_small(offset, huge - offset))
        return false;
    for (; huge + HUGE_PAGE <= end; huge += HUGE_PAGE)
        if (!commit_huge(huge) && !commit_small(huge, HUGE_PAGE))
            return false;
    return commit_small(huge, end - huge);
}

bool pm_heap_commit(uint64_t offset, uint64_t len) {
    if (!pm_heap.persistent)
        return true;
    if (!pm_file_ready(&pm_heap.data))
        return false;
    if (commit(offset, len)) {
        touch(offset, len);
        return true;
    }
    pm_heap_uncommit(offset, len); // what a full file system gave of it
    return false;
}

#define SPARE ((uint64_t)128 << 10) // for the files of metadata, which grow meanwhile

bool pm_heap_has_room(uint64_t len, uint64_t promised, bool *known) {
    *known = true;
    if (!pm_heap.persistent)
        return true;
    struct statvfs fs;
    struct stat st;
    if (!pm_file_ready(&pm_heap.data) || fstat(pm_heap.data.fd, &st) != 0)
        return false;
    if (fstatvfs(pm_heap.data.fd, &fs) != 0) {
        *known = !forbidden();
        return false;
    }
    uint64_t used = (uint64_t)st.st_blocks * 512;
    uint64_t outstanding = promised > used ? promised - used : 0;
    // tmpfs without a size limit reports zero blocks in all
    return fs.f_blocks == 0 || len + outstanding + SPARE <= (uint64_t)fs.f_bavail * fs.f_frsize;
}

bool pm_heap_uncommit(uint64_t offset, uint64_t len) {
    // Dropped pages of a private file mapping would show the file again.
    if (pm_heap.file_beneath)
        return mmap(pm_heap_at(offset), len, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
    if (!pm_heap.persistent)
        return madvise(pm_heap_at(offset), len, MADV_DONTNEED) == 0;
    return pm_file_ready(&pm_heap.data) &&
           (allocate(pm_heap.data.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, len) ||
            (no_fallocate && madvise(pm_heap_at(offset), len, MADV_REMOVE) == 0));
}

uint64_t pm_heap_next_data(struct pm_written *known, uint64_t *offset, uint64_t end) {
    if (!pm_heap.persistent || !pm_file_ready(&pm_heap.data))
        return end - *offset;
    if (*offset < known->from || *offset >= known->to) {
        off_t data = lseek(pm_heap.data.fd, (off_t)*offset, SEEK_DATA);
        if (data < 0)
            return errno == ENXIO ? 0 : end - *offset;
        if ((uint64_t)data >= end)
            return 0;
        *offset = (uint64_t)data;
        off_t hole = lseek(pm_heap.data.fd, data, SEEK_HOLE);
        *known = (struct pm_written){*offset, hole < 0 ? end : (uint64_t)hole};
    }
    return (known->to > end ? end : known->to) - *offset;
}
