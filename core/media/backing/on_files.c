// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/file_limit.h"
#include "base/os.h"
#include "base/os_file.h"
#include "data_pin.h"
#include "file.h"
#include "file_space.h"
#include "media/core_dump.h"
#include "media/full.h"
#include "media/persist.h"
#include "rows.h"

// ---- length -------------------------------------------------------------------------------------

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

bool pm_files_extend(struct pm_shard *s, uint64_t bytes) {
    return pm_space_set_length(s->data.fd, s->data.size, bytes);
}

// A clean close vouches for the data file's length. So that changes last, after everything else
// that may fail.
static bool set_length(struct pm_shard *s, uint64_t bytes) {
    bool grows = bytes > s->frontier;
    if (!pm_file_ready(&s->data) ||
        (grows && !(pm_os_address_space(bytes) && pm_slabs_grow_in_room(s, bytes))) ||
        !(grows ? pm_files_extend(s, bytes) : pm_shard_cut_file(s, bytes)))
        return false;
    if (grows && !length_durable(s, bytes)) {
        s->length_unknown = !pm_space_set_length(s->data.fd, bytes, s->data.size);
        return false;
    }
    s->length_unknown = false;
    s->data.size = bytes;
    pm_shard_dump_up_to(s, bytes);
    return true;
}

bool pm_files_set_length(struct pm_shard *s, uint64_t bytes) {
    struct pm_file_room room = {.good = true};
    if (bytes > s->frontier)
        room = pm_file_room(bytes);
    bool good = room.good && set_length(s, bytes);
    pm_file_room_end(room);
    return good;
}

// ---- space --------------------------------------------------------------------------------------

// Touching one page and MADV_COLLAPSE give a zeroed 2 MiB page in a third of the time that 512
// faults take. But where a hypervisor takes back free huge pages, it has to provide a new one each
// time, and that takes ten times as long. Small pages then come from memory that was just freed. So
// after a slow call the next SLOW_REST pieces do without.
#define SLOW_NS 1200000u // the time of the 512 faults
#define SLOW_REST 16u

static bool allocate_huge(struct pm_shard *s, uint64_t offset) {
    if (pm_durability != PM_DURABLE_NONE || pm_persist_dax() || (s->rest && s->rest--) ||
        !pm_space_allocate(s->data.fd, 0, offset - s->offset, PM_PAGE_SIZE))
        return false;
    *(volatile char *)pm_heap_at(offset) = 0;
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    bool good = madvise(pm_heap_at(offset), PM_HUGE_PAGE, MADV_COLLAPSE) == 0;
    clock_gettime(CLOCK_MONOTONIC, &after);
    if ((after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec > SLOW_NS)
        s->rest = SLOW_REST;
    return good;
}

// A heap that grows by this much at once will soon touch it. One call replaces a fault for every
// page.
#define TOUCH_AT_ONCE ((uint64_t)256 << 10)

static void touch(uint64_t offset, uint64_t len) {
    static _Atomic bool refused; // it becomes true once
    if (len >= TOUCH_AT_ONCE && pm_durability == PM_DURABLE_NONE && !refused)
        refused = madvise(pm_heap_at(offset), len, MADV_POPULATE_WRITE) != 0 &&
                  (errno == EINVAL || pm_os_is_forbidden(errno)); // an old kernel, a sandbox
}

static bool allocate_small(struct pm_shard *s, uint64_t offset, uint64_t len) {
    return len == 0 || pm_space_back(&s->data, offset - s->offset, len);
}

static bool allocate_space(struct pm_shard *s, uint64_t offset, uint64_t len) {
    uint64_t end = offset + len;
    uint64_t huge = (offset + PM_HUGE_PAGE - 1) & ~(PM_HUGE_PAGE - 1);
    if (huge + PM_HUGE_PAGE > end)
        return allocate_small(s, offset, len);
    if (!allocate_small(s, offset, huge - offset))
        return false;
    for (; huge + PM_HUGE_PAGE <= end; huge += PM_HUGE_PAGE)
        if (!allocate_huge(s, huge) && !allocate_small(s, huge, PM_HUGE_PAGE))
            return false;
    return allocate_small(s, huge, end - huge);
}

bool pm_files_allocate(struct pm_shard *s, uint64_t offset, uint64_t len) {
    if (!pm_file_ready(&s->data))
        return false;
    if (allocate_space(s, offset, len)) {
        touch(offset, len);
        return true;
    }
    pm_files_release(s, offset, len); // a full file system may have allocated a part of it
    return false;
}

uint64_t pm_files_outstanding(struct pm_shard *s, uint64_t promised) {
    struct stat st;
    if (!pm_file_ready(&s->data) || fstat(s->data.fd, &st) != 0)
        return 0;
    uint64_t used = (uint64_t)st.st_blocks * 512;
    return promised > used ? promised - used : 0;
}

bool pm_files_have_room(struct pm_shard *s, uint64_t more, bool *known) {
    struct pm_os_space space;
    if (!pm_file_ready(&s->data))
        return false;
    if (!pm_os_space(s->data.fd, &space)) {
        *known = !pm_os_is_forbidden(errno);
        return false;
    }
    if (!space.all || more <= space.free)
        return true;
    pm_full_note(ENOSPC);
    return false;
}

bool pm_files_release(struct pm_shard *s, uint64_t offset, uint64_t len) {
    return pm_file_ready(&s->data) &&
           pm_space_punch(s->data.fd, offset - s->offset, len, pm_heap_at(offset));
}
