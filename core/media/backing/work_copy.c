// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "work_copy.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "base/file_limit.h"
#include "base/os.h"
#include "base/os_file.h"

bool pm_work_wanted;

// The file in memory is as long as the data file can become, which takes no memory. All stores and
// loads of ours go through `bytes`: the program may close the descriptor, and nothing could open it
// again.
static struct work {
    int fd;
    uint64_t dev, ino;
    char *bytes; // NULL: there is no copy
} work[PM_SHARDS];

static struct work *work_of(const struct pm_shard *s) { return &work[pm_shard_number(s)]; }

char *pm_work_bytes(const struct pm_shard *s) { return work_of(s)->bytes; }

int pm_work_fd(const struct pm_file *file) {
    for (unsigned i = 0; i < PM_SHARDS; i++)
        if (file == &pm_heap.shard[i].data && work[i].bytes)
            return pm_os_fd_is(work[i].fd, work[i].dev, work[i].ino) ? work[i].fd : -1;
    return file->fd;
}

uint64_t pm_work_offset(const struct pm_file *file, uint64_t offset) {
    for (unsigned i = 0; file->at && i < PM_SHARDS; i++)
        if (file == &pm_heap.shard[i].data && work[i].bytes)
            return offset;
    return file->at + offset;
}

void pm_work_drop(struct pm_shard *s) {
    struct work *w = work_of(s);
    if (!w->bytes)
        return;
    munmap(w->bytes, pm_shard_reach());
    if (pm_os_fd_is(w->fd, w->dev, w->ino))
        pm_os_close(w->fd);
    *w = (struct work){.fd = -1};
}

static bool open_memory(struct work *w, uint64_t bytes) {
    struct stat st;
    struct pm_file_room room = pm_file_room(bytes);
    bool good = room.good;
    if (good)
        w->fd = pm_os_fd_high((int)syscall(SYS_memfd_create, "pmalloc", MFD_CLOEXEC));
    good = good && w->fd >= 0 && ftruncate(w->fd, (off_t)bytes) == 0 && fstat(w->fd, &st) == 0;
    pm_file_room_end(room);
    if (!good)
        return false;
    w->dev = st.st_dev;
    w->ino = st.st_ino;
    void *at = mmap(pm_os_place(bytes), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                    w->fd, 0);
    if (at == MAP_FAILED)
        return false;
    w->bytes = at;
    pm_os_advise(at, bytes, MADV_DONTDUMP);
    return true;
}

// More than the machine's memory would end in its being killed for want of memory.
static bool fits_in_memory(const struct pm_shard *s) {
    struct sysinfo info;
    struct stat st;
    if (fstat(s->data.fd, &st) != 0)
        return false;
    if (st.st_dev != s->data.dev || st.st_ino != s->data.ino) {
        errno = EBADF; // the program has closed it
        return false;
    }
    errno = ENOMEM;
    return syscall(SYS_sysinfo, &info) != 0 ||
           (uint64_t)st.st_blocks * 512 < (uint64_t)info.totalram * info.mem_unit;
}

// Holes stay holes.
static bool read_data(const struct pm_shard *s, char *to) {
    uint64_t size = s->data.size;
    if (s->data.length) // has none
        return pm_os_read_all(s->data.fd, to, size, s->data.at);
    for (uint64_t at = 0; at < size;) {
        off_t data = lseek(s->data.fd, (off_t)at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            return true;
        uint64_t from = data < 0 ? at : (uint64_t)data;
        off_t hole = data < 0 ? -1 : lseek(s->data.fd, data, SEEK_HOLE);
        uint64_t end = hole < 0 || (uint64_t)hole > size ? size : (uint64_t)hole;
        if (!pm_os_read_all(s->data.fd, to + from, end - from, from))
            return false;
        at = end;
    }
    return true;
}

bool pm_work_make(struct pm_shard *s) {
    struct work *w = work_of(s);
    if (!pm_work_wanted)
        return true;
    pm_work_drop(s);
    if (fits_in_memory(s) && open_memory(w, pm_shard_reach()) && read_data(s, w->bytes))
        return true;
    int saved = errno;
    if (w->bytes)
        pm_work_drop(s);
    else if (w->fd > 0)
        close(w->fd);
    w->fd = -1;
    errno = saved;
    return false;
}

void pm_work_empty(const struct pm_shard *s, uint64_t at, uint64_t len) {
    const struct work *w = work_of(s);
    // Fails for nothing that is mapped so.
    if (w->bytes && len)
        (void)madvise(w->bytes + at, len, MADV_REMOVE);
}
