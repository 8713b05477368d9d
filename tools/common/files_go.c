// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "files_go.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/nodes.h"
#include "base/os_file.h"
#include "machine_nodes.h"
#include "media/backing/volume.h"
#include "media/backing/volume_sync.h"
#include "media/persist.h"

static char buffer[1 << 20];

// Holes stay holes.
static bool copy_bytes(int from, int to, off_t size) {
    off_t at = 0;
    while (at < size && (at = lseek(from, at, SEEK_DATA)) >= 0) {
        off_t end = lseek(from, at, SEEK_HOLE);
        size_t len = (size_t)(end - at) < sizeof buffer ? (size_t)(end - at) : sizeof buffer;
        ssize_t got = end > at ? pm_os_read_at(from, buffer, len, (uint64_t)at) : -1;
        if (got <= 0 || !pm_os_write_all(to, buffer, (size_t)got, (uint64_t)at))
            return false;
        at += got;
    }
    return at >= 0 || errno == ENXIO; // the rest is a hole
}

static bool copy_open(int from, int to) {
    struct stat st;
    return fstat(from, &st) == 0 && ftruncate(to, st.st_size) == 0 &&
           copy_bytes(from, to, st.st_size) && (!pm_persist_syncs() || fsync(to) == 0);
}

static bool copy_file(const char *old, const char *new) {
    const int flags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int from = openat(pm_heap.dir_fd, old, O_RDONLY | flags);
    if (from < 0)
        return errno == ENOENT; // a heap need not have it
    int to = openat(pm_heap.dir_fd, new, O_RDWR | O_CREAT | O_EXCL | flags, 0600);
    bool good = to >= 0 && copy_open(from, to);
    int saved = errno;
    close(from);
    if (to >= 0)
        close(to);
    errno = saved;
    return good;
}

static bool copy_shard(unsigned shard, unsigned from, unsigned to) {
    char old[PM_FILE_NAME], new[PM_FILE_NAME];
    for (const struct pm_heap_file *f = pm_heap_files; f < pm_heap_files + PM_HEAP_FILES; f++) {
        if (f->shard != shard || f->holds == PM_FILE_NOTHING)
            continue;
        pm_volume_file_name(f, from, old);
        pm_volume_file_name(f, to, new);
        if (!copy_file(old, new))
            return false;
    }
    return pm_volume_sync(to);
}

static int move_shard(unsigned shard, unsigned to, struct pm_error *err) {
    if (!copy_shard(shard, pm_heap.shard[shard].volume, to)) {
        int why = errno;
        pm_volumes_tidy();
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s: data file %u cannot be copied to the heap's directory number %u: "
                       "%s; the heap is whole, and its files lie where they did",
                       pm_heap.dir, shard, to + 1, pm_strerror(why));
    }
    pm_shard_moved(shard, to);
    pm_shard_set_volume(shard, to);
    return PM_OK;
}

int files_go(unsigned node, unsigned id, unsigned *count, struct pm_error *err) {
    unsigned to = 0;
    int status = PM_OK;
    while (to < pm_heap.volumes && pm_volume_node(to) != (int)node)
        to++;
    if (to == pm_heap.volumes)
        return PM_OK;
    if (!pm_nodes.injected)
        machine_node_prefer(id);
    for (unsigned i = 1; i < pm_heap.shards && status == PM_OK; i++) {
        unsigned from = pm_heap.shard[i].volume;
        int now = from == to ? (int)node : pm_volume_node(from);
        if (now < 0 || (unsigned)now == node)
            continue;
        status = move_shard(i, to, err);
        *count += status == PM_OK;
    }
    if (*count && status == PM_OK && !pm_volumes_tidy())
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s: files that lie elsewhere now cannot be removed: %s; run this again",
                       pm_heap.dir, pm_strerror(errno));
    return status;
}
