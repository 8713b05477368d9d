// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A sandbox may forbid a system call at any time, mostly with EPERM. Then another call that does
// the same is used instead, and the forbidden one is not tried again.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/file_limit.h"
#include "base/lazy_table.h"
#include "base/os.h"
#include "base/os_file.h"
#include "base/own_limit.h"
#include "base/populate.h"
#include "commit_room.h"
#include "emptied.h"
#include "file.h"
#include "fixed.h"
#include "heap_space.h"
#include "media/core_dump.h"
#include "media/full.h"
#include "media/persist.h"
#include "work_copy.h"

#define HUGE_PAGE ((uint64_t)2 << 20)

void pm_shard_is_anonymous(struct pm_shard *s, uint64_t writable) {
    s->anonymous = (struct pm_lazy_table){pm_heap_at(s->offset), s->limit, writable, true};
}

// ---- blocks and lengths -------------------------------------------------------------------------

static bool forbidden(void) { return errno == EPERM || errno == EACCES || errno == ENOSYS; }

// Of the process. They become true once, under whatever lock.
static _Atomic bool no_fallocate, no_ftruncate;

static int fallocate_here(int fd, int mode, off_t offset, off_t len) {
    return pm_cancel_asynchronous ? (int)syscall(SYS_fallocate, fd, mode, offset, len)
                                  : fallocate(fd, mode, offset, len);
}

// Repeats fallocate when a signal has interrupted it: tmpfs then undoes all of it. Fails with
// EOPNOTSUPP if the file system or a sandbox does not allow the call at all.
static bool allocate(int fd, int mode, uint64_t offset, uint64_t len) {
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
    if (forbidden()) {
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
    bool good = result == 0 || errno == EINVAL || forbidden();
    if (!mapped)
        munmap(at, len);
    if (!good)
        pm_full_note(errno = ENOSPC);
    return good;
}

static bool back_with_space(const struct pm_file *file, uint64_t offset, uint64_t len) {
    return allocate(file->fd, 0, offset, len) ||
           (errno == EOPNOTSUPP &&
            populate(file, offset & ~(PM_PAGE_SIZE - 1), len + (offset & (PM_PAGE_SIZE - 1))));
}

// If ftruncate is forbidden, allocating the last byte makes the file longer. Nothing can make it
// shorter then.
static bool set_length(int fd, uint64_t from, uint64_t size) {
    int status = -1;
    while (!no_ftruncate && (status = ftruncate(fd, (off_t)size)) != 0 && errno == EINTR) {
    }
    if (status != 0 && !no_ftruncate)
        no_ftruncate = forbidden();
    return status == 0 || (no_ftruncate && size > from && allocate(fd, 0, size - 1, 1));
}

// The caller has asked for room (RLIMIT_FSIZE). Beyond the limit the kernel sends SIGXFSZ.
static bool grow_within_limit(struct pm_file *file, size_t size) {
    if (size <= file->size)
        return true;
    if (file->length)
        return pm_fixed_set_length(file, size);
    size = (size + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1);
    if (size > file->reach || !pm_file_ready(file))
        return false;
    if (!allocate(file->fd, 0, file->size, size - file->size) &&
        (errno != EOPNOTSUPP || !set_length(file->fd, file->size, size) ||
         !populate(file, file->size & ~(PM_PAGE_SIZE - 1),
                   size - (file->size & ~(PM_PAGE_SIZE - 1)))))
        return false;
    file->size = size;
    return true;
}

bool pm_file_grow(struct pm_file *file, size_t size) {
    if (size <= file->size || file->length)
        return grow_within_limit(file, size);
    struct pm_file_room room = pm_file_room(size);
    bool good = room.good && grow_within_limit(file, size);
    pm_file_room_end(room);
    return good;
}

bool pm_file_back_with_space(struct pm_file *file, uint64_t offset, uint64_t len) {
    if (file->length)
        return offset + len <= file->room;
    return pm_file_ready(file) && back_with_space(file, offset, len);
}

// A failed sync need not report this page: it may report any other of the file.
static bool is_durable(bool synced, const char *call) {
    if (synced || pm_persist_forbidden(call))
        return true;
    pm_sync_failed();
    return false;
}

// On a plain file the last page alone is synced, which nobody has stored to yet: the file system
// makes durable what it needs to find that page, and so the length. fdatasync would write all that
// the program has stored so far.
static bool last_page_durable(const struct pm_shard *s, uint64_t bytes) {
    char *page = pm_heap_at(s->offset + bytes - PM_PAGE_SIZE);
    return is_durable((pm_cancel_asynchronous ? (int)syscall(SYS_msync, page, PM_PAGE_SIZE, MS_SYNC)
                                              : msync(page, PM_PAGE_SIZE, MS_SYNC)) == 0,
                      "msync");
}

// The log must not name pages beyond the durable end of the file. After a power failure the heap
// would look truncated.
static bool length_durable(const struct pm_shard *s, uint64_t bytes) {
    int fd = s->data.fd;
    if (pm_persist_waits())
        return last_page_durable(s, bytes);
    return pm_durability == PM_DURABLE_NONE ||
           is_durable((pm_cancel_asynchronous ? (int)syscall(SYS_fdatasync, fd) : fdatasync(fd)) ==
                          0,
                      "fdatasync");
}

static size_t slabs_for(uint64_t bytes) {
    return bytes / PM_SLAB_SIZE * sizeof(struct pm_slab_header);
}

// The caller has asked for room for a heap.0 of this length. slabs.0 is much shorter.
static bool grow_slabs(struct pm_shard *s, uint64_t bytes) {
    return grow_within_limit(&s->slabs, slabs_for(bytes));
}

static bool is_data_of(const struct pm_shard *s, int fd) {
    return pm_os_fd_is(fd, s->data.dev, s->data.ino);
}

// Small stacks have no room for a path. Where there is no /proc, or the program has closed the
// descriptor.
static __attribute__((noinline)) int open_for_reading(const struct pm_file *file) {
    char path[sizeof pm_heap.dir + 32];
    if (file->length)
        snprintf(path, sizeof path, "%s", pm_medium_of(file)->path);
    else
        snprintf(path, sizeof path, "%s/%s", pm_heap.dir, file->name);
    return open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
}

int pm_shard_pin(struct pm_shard *s) {
    char path[48];
    snprintf(path, sizeof path, "/proc/thread-self/fd/%d", s->data.fd);
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    bool good = is_data_of(s, fd);
    if (!good) {
        if (fd >= 0)
            close(fd);
        fd = open_for_reading(&s->data);
        good = is_data_of(s, fd);
    }
    // The length of a fixed medium is nobody's to change, and this lock would be the heap's.
    if (good && (s->data.length || flock(fd, LOCK_SH | LOCK_NB) == 0))
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

// Truncating a file discards even the pages that a private mapping has copied. So it needs the lock
// that pm_shard_pin() shares.
static bool cut_length(const struct pm_shard *s, uint64_t size) {
    int fd = s->data.fd;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        return false;
    bool good = set_length(fd, s->data.size, size);
    flock(fd, LOCK_UN);
    return good;
}

bool pm_shard_complete(struct pm_shard *s) {
    return pm_file_grow(&s->slabs, slabs_for(s->frontier));
}

bool pm_shard_cut(struct pm_shard *s, uint64_t bytes) {
    if (s->data.size <= bytes || s->data.length)
        return true;
    if (!pm_file_ready(&s->data) || !cut_length(s, bytes))
        return false;
    pm_work_empty(s, bytes, s->data.size - bytes);
    s->data.size = bytes;
    return true;
}

static bool make_longer(struct pm_shard *s, uint64_t bytes) {
    return s->data.length ? pm_fixed_set_length(&s->data, bytes)
                          : set_length(s->data.fd, s->data.size, bytes);
}

// Under PMALLOC_COMMIT the file becomes longer at once, which changes nothing that the last commit
// says. It becomes shorter after the next one.
static bool set_journaled_length(struct pm_shard *s, uint64_t bytes) {
    if (bytes < s->frontier)
        return pm_emptied_add(s->offset + bytes, s->frontier - bytes);
    if (!pm_file_ready(&s->data) || !pm_os_address_space(bytes) || !grow_slabs(s, bytes) ||
        (bytes > s->data.size && !make_longer(s, bytes)))
        return false;
    if (bytes > s->data.size)
        s->data.size = bytes;
    pm_shard_dump_up_to(s, bytes);
    return true;
}

// A part's length never falls: so bytes beyond it were never in use.
static bool set_part_length(struct pm_shard *s, uint64_t bytes) {
    bool good = bytes > s->frontier && pm_os_address_space(bytes) && grow_slabs(s, bytes) &&
                pm_fixed_set_length(&s->data, bytes);
    if (good)
        pm_shard_dump_up_to(s, bytes);
    return good;
}

static bool set_file_length(struct pm_shard *s, uint64_t bytes) {
    bool grows = bytes > s->frontier;
    if (s->data.length)
        return set_part_length(s, bytes);
    // A clean close vouches for the data file's length. So that changes last, after everything
    // else that may fail.
    if (!pm_file_ready(&s->data) ||
        (grows && !(pm_os_address_space(bytes) && grow_slabs(s, bytes))) ||
        !(bytes < s->frontier ? cut_length(s, bytes) : set_length(s->data.fd, s->data.size, bytes)))
        return false;
    if (grows && !length_durable(s, bytes)) {
        s->length_unknown = !set_length(s->data.fd, bytes, s->data.size);
        return false;
    }
    s->length_unknown = false;
    s->data.size = bytes;
    pm_shard_dump_up_to(s, bytes);
    return true;
}

// Room in the limit of the heap, for all shards together.
static bool reserve_length(uint64_t more) {
    if (atomic_fetch_add_explicit(&pm_heap.length, more, memory_order_relaxed) + more <=
        pm_heap.limit)
        return true;
    atomic_fetch_sub_explicit(&pm_heap.length, more, memory_order_relaxed);
    return false;
}

bool pm_shard_set_frontier(struct pm_shard *s, uint64_t bytes) {
    uint64_t more = bytes > s->frontier ? bytes - s->frontier : 0;
    uint64_t less = bytes < s->frontier ? s->frontier - bytes : 0;
    if (more && (bytes > s->limit || !reserve_length(more)))
        return false;
    struct pm_file_room room = {.good = true};
    if (more && pm_heap_on_media() && !s->data.length)
        room = pm_file_room(bytes);
    bool good = !room.good               ? false
                : pm_heap_is_journaled() ? set_journaled_length(s, bytes)
                : pm_heap_on_media()     ? set_file_length(s, bytes)
                                         : (!more || pm_address_limit_told_allows(bytes)) &&
                                           pm_lazy_table_need(&s->anonymous, bytes);
    pm_file_room_end(room);
    if (good)
        s->frontier = bytes;
    atomic_fetch_sub_explicit(&pm_heap.length, good ? less : more, memory_order_relaxed);
    return good;
}

// Touching one page and MADV_COLLAPSE give a zeroed 2 MiB page in a third of the time that 512
// faults take. But where a hypervisor takes back free huge pages, it has to provide a new one each
// time, and that takes ten times as long. Small pages then come from memory that was just freed. So
// after a slow call the next SLOW_REST pieces do without.
#define SLOW_NS 1200000u // the time of the 512 faults
#define SLOW_REST 16u

static bool allocate_huge(struct pm_shard *s, uint64_t offset) {
    if (pm_durability != PM_DURABLE_NONE || pm_persist_dax() || pm_heap_is_journaled() ||
        (s->rest && s->rest--) || !allocate(s->data.fd, 0, offset - s->offset, PM_PAGE_SIZE))
        return false;
    *(volatile char *)pm_heap_at(offset) = 0;
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    bool good = madvise(pm_heap_at(offset), HUGE_PAGE, MADV_COLLAPSE) == 0;
    clock_gettime(CLOCK_MONOTONIC, &after);
    if ((after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec > SLOW_NS)
        s->rest = SLOW_REST;
    return good;
}

// A heap that grows by this much at once will soon touch it. One call replaces a fault for every
// page.
#define TOUCH_AT_ONCE ((uint64_t)256 << 10)

static void touch(uint64_t offset, uint64_t len) {
    static _Atomic bool refused; // as no_fallocate
    if (len >= TOUCH_AT_ONCE && pm_durability == PM_DURABLE_NONE && !pm_heap_is_journaled() &&
        !refused)
        refused = madvise(pm_heap_at(offset), len, MADV_POPULATE_WRITE) != 0 &&
                  (errno == EINVAL || forbidden()); // an old kernel, a sandbox
}

uint64_t pm_heap_unit(void) {
    return pm_heap_on_media() && pm_persist_dax() && !pm_heap_is_fixed() ? HUGE_PAGE : PM_PAGE_SIZE;
}

static bool allocate_small(struct pm_shard *s, uint64_t offset, uint64_t len) {
    return len == 0 || back_with_space(&s->data, offset - s->offset, len);
}

static bool allocate_space(struct pm_shard *s, uint64_t offset, uint64_t len) {
    uint64_t end = offset + len;
    uint64_t huge = (offset + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    if (huge + HUGE_PAGE > end)
        return allocate_small(s, offset, len);
    if (!allocate_small(s, offset, huge - offset))
        return false;
    for (; huge + HUGE_PAGE <= end; huge += HUGE_PAGE)
        if (!allocate_huge(s, huge) && !allocate_small(s, huge, HUGE_PAGE))
            return false;
    return allocate_small(s, huge, end - huge);
}

// The shard is about to take this much.
static bool journal_has_room(const struct pm_shard *s, uint64_t taken) {
    bool together = s->data.dev == pm_heap.journal.dev;
    if (!pm_heap_is_journaled() || pm_commit_has_room(taken, together ? taken : 0))
        return true;
    pm_full_note(ENOSPC);
    return false;
}

bool pm_heap_allocate_space(uint64_t offset, uint64_t len) {
    if (!pm_heap_on_media())
        return true;
    struct pm_shard *s = pm_shard_at(offset);
    // First: the file gives back its space only at a commit, for which there might be no room.
    if (!pm_file_ready(&s->data) || !journal_has_room(s, len) ||
        (pm_heap_is_journaled() && !pm_emptied_use(offset, len)))
        return false;
    if (s->data.length)
        return true;
    if (allocate_space(s, offset, len)) {
        touch(offset, len);
        return true;
    }
    pm_heap_release_space(offset, len); // a full file system may have allocated a part of it
    return false;
}

// Beyond the ranges that can be kept apart, the space is allocated.
bool pm_heap_promise_space(uint64_t offset, uint64_t len, bool *empty) {
    *empty = pm_heap_is_journaled() && pm_emptied_promise(offset, len);
    return *empty || !pm_heap_is_journaled() || pm_heap_allocate_space(offset, len);
}

#define SPARE ((uint64_t)128 << 10) // for a shard's files of metadata, which grow, too

uint64_t pm_shard_outstanding(struct pm_shard *s, uint64_t promised) {
    struct stat st;
    if (!pm_heap_on_media() || s->data.length || !pm_file_ready(&s->data) ||
        fstat(s->data.fd, &st) != 0)
        return 0;
    uint64_t used = (uint64_t)st.st_blocks * 512;
    return promised > used ? promised - used : 0;
}

bool pm_shard_has_room(struct pm_shard *s, uint64_t len, uint64_t promised, bool *known) {
    *known = true;
    if (!pm_heap_on_media() || s->data.length) // a part of a medium has the space of its addresses
        return true;
    struct statvfs fs;
    if (!pm_file_ready(&s->data))
        return false;
    if (fstatvfs(s->data.fd, &fs) != 0) {
        *known = !forbidden();
        return false;
    }
    uint64_t more = len + pm_shard_outstanding(s, promised) + SPARE * pm_heap.shards;
    // tmpfs without a size limit reports a total of 0 blocks.
    if (fs.f_blocks != 0 && more > (uint64_t)fs.f_bavail * fs.f_frsize) {
        pm_full_note(ENOSPC);
        return false;
    }
    return journal_has_room(s, more);
}

bool pm_heap_release_space(uint64_t offset, uint64_t len) {
    if (pm_heap_state() == PM_HEAP_VOLATILE)
        return madvise(pm_heap_at(offset), len, MADV_DONTNEED) == 0;
    if (pm_heap_is_journaled())
        return pm_emptied_add(offset, len);
    // A private mapping of the file would show the file again if its pages were dropped.
    if (!pm_heap_on_media())
        return mmap(pm_heap_at(offset), len, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
    struct pm_shard *s = pm_shard_at(offset);
    if (s->data.length)
        return true;
    const int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    return pm_file_ready(&s->data) &&
           (allocate(s->data.fd, punch, offset - s->offset, len) ||
            (no_fallocate && madvise(pm_heap_at(offset), len, MADV_REMOVE) == 0));
}

bool pm_heap_released_is_zero(void) { return !pm_heap_is_fixed(); }

bool pm_heap_fresh_is_zero(void) { return !pm_heap_is_fixed() || pm_fixed.zeroed; }

bool pm_heap_shows_holes(void) {
    return pm_heap_on_media() && !pm_heap_is_journaled() && !pm_heap_is_fixed();
}

uint64_t pm_heap_next_data(struct pm_written *known, uint64_t *offset, uint64_t end) {
    if (!pm_heap_on_media() || pm_heap_is_journaled())
        return end - *offset;
    return pm_heap_next_in_file(known, offset, end);
}

// A file that was cut meanwhile has no data there either, but its end is no hole: a hole begins
// where a look within the file finds no data.
static bool is_hole(const struct pm_shard *s, off_t at) {
    return errno == ENXIO && lseek(s->data.fd, at, SEEK_HOLE) >= 0;
}

uint64_t pm_heap_next_in_file(struct pm_written *known, uint64_t *offset, uint64_t end) {
    struct pm_shard *s = pm_shard_at(*offset);
    if (s->data.length || !pm_file_ready(&s->data))
        return end - *offset;
    if (*offset < known->from || *offset >= known->to) {
        off_t at = (off_t)(*offset - s->offset), data = lseek(s->data.fd, at, SEEK_DATA);
        if (data < 0)
            return is_hole(s, at) ? 0 : end - *offset;
        if (s->offset + (uint64_t)data >= end)
            return 0;
        *offset = s->offset + (uint64_t)data;
        off_t hole = lseek(s->data.fd, data, SEEK_HOLE);
        *known = (struct pm_written){*offset, hole < 0 ? end : s->offset + (uint64_t)hole};
    }
    return (known->to > end ? end : known->to) - *offset;
}
