// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "heap_make.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/os.h"
#include "base/os_file.h"
#include "heap_lock.h"
#include "media/backing/file.h"
#include "media/backing/nameless.h"
#include "media/backing/volume.h"
#include "media/backup/backup.h"
#include "media/log/log.h"
#include "media/persist.h"
#include "origin.h"
#include "superblock.h"

#define SUPERBLOCK pm_heap.super_file.name
#define NEW_SUPERBLOCK pm_heap.new_super.name

int pm_make_reason(struct pm_error *err, const char *what) {
    const char *next = errno == ENOSPC ? "; make room there, or name a directory on another device"
                       : errno == EDQUOT ? "; the quota is used up: see quota(1)"
                       : errno == EFBIG  ? "; see `ulimit -f`"
                       : errno == EACCES ? "; who is its owner, and what is its mode?"
                                         : "";
    return pm_fail(err, PM_OPERATIONAL, "%s/%s: %s%s", pm_heap.dir, what, pm_strerror(errno), next);
}

static int new_fd(const char *name) {
    const int flags = O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC;
    return pm_heap.nameless ? pm_nameless_fd() : openat(pm_heap.dir_fd, name, flags, 0600);
}

// The file is written, if it is `good`. Nothing else leads to an unnamed one, so that stays open.
static bool made(struct pm_file *file, int fd, bool good) {
    if (good && pm_heap.nameless)
        return pm_file_hold(file, fd);
    if (fd >= 0)
        close(fd);
    return good;
}

static bool write_log_header(int fd) {
    struct pm_log_header log;
    pm_log_header_init(&log);
    return pm_os_write_all(fd, &log, sizeof log, 0);
}

bool pm_make_file(const struct pm_heap_file *f, bool sync) {
    bool is_log = pm_heap_file(f) == &pm_heap.shard[f->shard].log;
    int fd = new_fd(pm_heap_file(f)->name);
    return made(pm_heap_file(f), fd,
                fd >= 0 && (!is_log || write_log_header(fd)) && (!sync || fsync(fd) == 0));
}

// Whether a sync makes anything durable there, or that is not known.
static bool is_disk(int fd) {
    enum pm_durability here;
    return !pm_persist_probe(fd, &here) || here != PM_DURABLE_NONE;
}

// The files of a new heap, but the superblock. The file is synced by the descriptor that wrote it:
// syncfs(), which comes later, says nothing of it on kernels before 5.8.
static int make_empty(const struct pm_superblock *super, struct pm_error *err) {
    bool syncs = !pm_heap.nameless && is_disk(pm_heap.dir_fd);
    for (size_t i = 0; i < PM_FIRST_FILES; i++) {
        const struct pm_heap_file *f = &pm_heap_files[i];
        bool sync = syncs && pm_heap_file(f) == &pm_heap.shard[0].log;
        if (f->empty && (!f->feature || super->incompat & f->feature) && !pm_make_file(f, sync))
            return pm_make_reason(err, f->name);
    }
    return PM_OK;
}

// The names and lengths of all files; their contents are synced one by one. The first call may
// report what any program has failed to write to this file system, however long ago.
static bool sync_names(int fd) { return syncfs(fd) == 0 || syncfs(fd) == 0; }

static bool write_superblock(int fd, const struct pm_superblock *super) {
    static const char page[PM_PAGE_SIZE]; // the first page of a root table; opening reads it
    struct pm_state_words state = pm_state_new();
    struct pm_slots slots;
    pm_slots_new(&slots);
    return pm_os_write_all(fd, super, sizeof *super, 0) &&
           pm_os_write_all(fd, &state, sizeof state, offsetof(struct pm_super_file, state)) &&
           pm_os_write_all(fd, &slots, sizeof slots, offsetof(struct pm_super_file, slots)) &&
           pm_os_write_all(fd, page, sizeof page, offsetof(struct pm_super_file, roots[0])) &&
           pm_os_write_all(fd, page, sizeof page, offsetof(struct pm_super_file, roots[1])) &&
           ftruncate(fd, sizeof(struct pm_super_file)) == 0 &&
           (!is_disk(fd) || (fsync(fd) == 0 && sync_names(fd)));
}

static bool make_superblock(const struct pm_superblock *super) {
    int fd = new_fd(NEW_SUPERBLOCK);
    return made(&pm_heap.super_file, fd, fd >= 0 && write_superblock(fd, super));
}

// The name must be durable before the first store to the heap. Without its name the heap would be
// made anew, and the stores would be lost.
static int name_superblock(struct pm_error *err) {
    if (renameat(pm_heap.dir_fd, NEW_SUPERBLOCK, pm_heap.dir_fd, SUPERBLOCK) != 0 ||
        (is_disk(pm_heap.dir_fd) && fsync(pm_heap.dir_fd) != 0)) {
        int saved = errno;
        pm_make_reason(err, NEW_SUPERBLOCK);
        unlinkat(pm_heap.dir_fd, NEW_SUPERBLOCK, 0);
        errno = saved;
        return err->status;
    }
    pm_heap.created = true;
    return PM_OK;
}

// The superblock gets its name last, when everything is complete. So an interruption leaves a heap
// or a remnant. A remnant with the files of `names` may lie there.
int pm_make_files(const struct pm_dir_names *names, struct pm_error *err) {
    struct pm_superblock super;
    if (!pm_os_file_size(sizeof(struct pm_super_file)))
        return pm_make_reason(err, NEW_SUPERBLOCK);
    pm_superblock_new(&super);
    if (names->volumes)
        pm_volumes_remove(pm_heap.dir_fd); // the remnant's
    for (size_t i = PM_FIRST_FILES; i < PM_FIRST_FILES + PM_SHARD_FILES * (names->shards - 1u); i++)
        unlinkat(pm_heap.dir_fd, pm_heap_files[i].name, 0);
    if (names->backup) { // of a heap that was one, and is gone
        unlinkat(pm_heap.dir_fd, PM_BACKUP_CHECKSUMS, 0);
        unlinkat(pm_heap.dir_fd, PM_BACKUP_INCREMENTS, 0);
    }
    unlinkat(pm_heap.dir_fd, pm_heap.shard[0].bitmaps.name, 0);
    // Unlinked, not truncated, because a forked child may still map it.
    unlinkat(pm_heap.dir_fd, pm_heap.shard[0].data.name, 0);
    if (make_empty(&super, err) != PM_OK)
        return err->status;
    return make_superblock(&super) ? name_superblock(err) : pm_make_reason(err, NEW_SUPERBLOCK);
}

// ---- without names ------------------------------------------------------------------------------

#define OWN_FDS "/proc/thread-self/fd" // it takes these to give a file its name

int pm_make_nameless(const char *where, const char *what, struct pm_error *err) {
    struct pm_superblock super;
    pm_nameless_begin(where, what);
    pm_superblock_new(&super);
    pm_heap.nameless = true;
    bool good = access(OWN_FDS, X_OK) == 0 && pm_os_file_size(sizeof(struct pm_super_file)) &&
                make_superblock(&super);
    int status = good ? make_empty(&super, err) : pm_make_reason(err, SUPERBLOCK);
    pm_heap.created = pm_heap.nameless = status == PM_OK;
    for (size_t i = 0; i < PM_FIRST_FILES && status != PM_OK; i++)
        pm_file_close(pm_heap_file(&pm_heap_files[i]));
    return status;
}

static bool link_fd(int fd, const char *name) {
    char path[40];
    snprintf(path, sizeof path, OWN_FDS "/%d", fd);
    return linkat(AT_FDCWD, path, pm_heap.dir_fd, name, AT_SYMLINK_FOLLOW) == 0;
}

// A file that has lost its name can get no other one: the kernel says ENOENT. So after a naming
// that has failed half way the files are made again.
static bool link_file(struct pm_file *file, const char *name) {
    if (!pm_file_ready(file))
        return false;
    return link_fd(file->fd, name) ||
           (errno == ENOENT && pm_file_again(file) && link_fd(file->fd, name));
}

// superblock.new comes first: with it what an interruption leaves is a remnant. superblock comes
// last. While the files had no names, nothing in them had to be durable.
int pm_make_names(struct pm_error *err) {
    for (size_t i = 0; i < pm_heap_file_count(); i++) {
        const struct pm_heap_file *f = &pm_heap_files[i];
        const char *name = pm_heap_file(f) == &pm_heap.super_file ? NEW_SUPERBLOCK : f->name;
        struct pm_file *file = pm_heap_file(f);
        if (pm_heap_holds(f) &&
            !(link_file(file, name) && (!pm_persist_syncs() || pm_file_sync(file))))
            return pm_make_reason(err, name);
    }
    pm_origin_record(); // the files may have been made again since it was opened
    int status = pm_dir_lock(pm_heap.super_file.fd, PM_OPEN_EXISTING, false, err); // of a new one
    return status == PM_OK ? name_superblock(err) : status;
}
