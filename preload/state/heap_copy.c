// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "heap_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/file_limit.h"
#include "base/os.h"
#include "base/os_file.h"
#include "blocks/holes.h"
#include "media/backing/backing.h"
#include "media/backing/careful.h"
#include "media/backing/dir_held.h"
#include "media/backing/file.h"
#include "media/backing/fixed.h"
#include "media/backing/marks.h"
#include "media/backing/volume.h"
#include "media/commit/commit.h"
#include "media/core_dump.h"
#include "media/heap.h"
#include "media/open/heap_dir.h"
#include "media/open/heap_lock.h"
#include "media/open/origin.h"
#include "media/persist.h"
#include "pages/frontier.h"

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif
#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif
#define NAMES_TRIED 100

static bool is_there(size_t i) { return pm_heap_holds(&pm_heap_files[i]); }

// The copy while it is made; after move_in() the first heap. `file` is indexed by the rows of the
// table.
static struct other {
    char dir[sizeof pm_heap.dir];
    int dir_fd;
    struct pm_file file[PM_HEAP_FILES];
} other;

// The name of the first heap. The copies of children's children are named after it, too.
static char stem[sizeof pm_heap.dir];

static int reason(struct pm_error *err, const char *what) {
    return pm_fail(err, PM_OPERATIONAL, "%s/%s: %s", other.dir, what, pm_strerror(errno));
}

// ---- making -------------------------------------------------------------------------------------

// Until the superblock has its name, the directory is a remnant. Another process that gets its lock
// may remove it. If that happens before we have the lock, errno becomes ENOENT.
static bool lock_dir(void) {
    struct pm_error why;
    int fd = open(other.dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return false;
    other.dir_fd = fd = pm_os_fd_high(fd);
    if (pm_dir_lock(fd, PM_OPEN_CREATE, true, &why) == PM_OK) {
        if (pm_os_fd_at_path(fd, other.dir))
            return true;
        errno = ENOENT;
    }
    int saved = errno;
    close(fd);
    other.dir_fd = -1;
    errno = saved;
    return false;
}

static int make_dir(struct pm_error *err) {
    if (!stem[0])
        strcpy(stem, pm_heap.dir);
    for (unsigned n = 1; n <= NAMES_TRIED; n++) {
        int len = snprintf(other.dir, sizeof other.dir, n == 1 ? "%s.%d" : "%s.%d.%u", stem,
                           (int)getpid(), n);
        if (len >= (int)sizeof other.dir)
            return pm_fail(err, PM_OPERATIONAL, "%.60s...: the path is too long", stem);
        if (mkdir(other.dir, 0700) == 0) {
            if (lock_dir())
                return PM_OK;
            if (errno != ENOENT) {
                reason(err, ".");
                rmdir(other.dir);
                return err->status;
            }
        } else if (errno != EEXIST) {
            break;
        }
    }
    return pm_fail(err, PM_OPERATIONAL, "%s: cannot make the directory of a second heap: %s",
                   other.dir, pm_strerror(errno));
}

static int make_file(size_t i, struct pm_error *err) {
    struct stat st;
    struct pm_file *copy = &other.file[i], *file = pm_heap_file(&pm_heap_files[i]);
    // All files of the copy lie in one directory.
    const char *name = pm_heap_files[i].name;
    *copy = *file;
    memcpy(copy->name, name, sizeof pm_heap_files[i].name);
    if (file == &pm_heap.super_file)
        name = pm_heap.new_super.name;
    copy->fd = pm_os_fd_high(
        openat(other.dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (copy->fd < 0 || fstat(copy->fd, &st) != 0)
        return reason(err, name);
    copy->dev = st.st_dev;
    copy->ino = st.st_ino;
    return PM_OK;
}

static bool allocate(int fd, uint64_t at, uint64_t len) {
    return fallocate(fd, 0, (off_t)at, (off_t)len) == 0 || errno == EOPNOTSUPP;
}

// A slab without holes, page by page if it has some.
static bool allocate_slab(int fd, uint32_t slab, uint64_t at) {
    const struct pm_vslab *v = &pm_vslabs[slab];
    uint16_t holes = v->holes ? v->holes & (uint16_t)~pm_holes_used(v) : 0;
    if (!holes)
        return allocate(fd, at, PM_SLAB_SIZE);
    for (unsigned page = 0; page < PM_SLAB_SIZE >> PM_PAGE_SHIFT; page++)
        if (!(holes >> page & 1) && !allocate(fd, at + page * PM_PAGE_SIZE, PM_PAGE_SIZE))
            return false;
    return true;
}

// A mapping that the program has made over its blocks is no part of the heap. Nor is a page that
// cannot be read: in the copy these are zeroes.
static bool write_pages(int fd, const char *from, uint64_t len, uint64_t at) {
    bool good = true;
    if (pm_careful_may_load(from, len))
        return pm_os_write_all(fd, from, len, at);
    for (uint64_t i = 0; i < len && good; i += PM_PAGE_SIZE) {
        const char *page = pm_careful_page(from + i);
        good = !page || pm_os_write_all(fd, page, PM_PAGE_SIZE, at + i);
    }
    pm_careful_end();
    return good;
}

static bool is_zero(const char *page) {
    return page[0] == 0 && memcmp(page, page + 1, PM_PAGE_SIZE - 1) == 0;
}

// Under PMALLOC_COMMIT nobody knows which pages have no data, so pages of zeroes are left out.
static bool copy_part(int fd, const char *from, uint64_t len, uint64_t at) {
    if (!pm_heap_is_journaled() || !pm_careful_may_load(from, len))
        return write_pages(fd, from, len, at);
    for (uint64_t i = 0; i < len; i += PM_PAGE_SIZE)
        if (!is_zero(from + i) && !pm_os_write_all(fd, from + i, PM_PAGE_SIZE, at + i))
            return false;
    return true;
}

static bool copy_ours(int fd, uint64_t offset, uint64_t len, uint64_t at) {
    uint64_t from = offset, end = offset + len;
    bool good = true;
    for (; good && (len = pm_marks_free_of(PM_MARK_AWAY, &offset, end)) != 0; offset += len)
        good = copy_part(fd, pm_heap_at(offset), len, at + (offset - from));
    return good;
}

// Allocates the same space in the copy: where a store to the first heap cannot fail for lack of
// space, it must not fail in the copy.
static bool copy_extents(const struct pm_shard *s, int fd) {
    struct pm_written known = {0};
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;) {
        const struct pm_extent *e = &pm_extents[i];
        uint64_t at = e->page << PM_PAGE_SHIFT, end = at + pm_extent_bytes(e), part;
        if (pm_shard_of_extent(i) != s)
            continue;
        if (!(e->slab ? allocate_slab(fd, pm_extent_slab(e), at - s->offset)
                      : !e->backed || allocate(fd, at - s->offset, end - at)))
            return false;
        for (; at < end && (part = pm_heap_next_data(&known, &at, end)) != 0; at += part)
            if (!copy_ours(fd, at, part, at - s->offset))
                return false;
    }
    return true;
}

static bool copy_whole(const struct pm_file *file, int fd) {
    if (file->size == 0)
        return true;
    if (file->map && pm_heap_is_journaled())
        return pm_os_write_all(fd, file->map, file->size, 0);
    // A mapping of its own, because the roots file is mapped piece by piece elsewhere.
    void *map = mmap(pm_os_place(file->size), file->size, PROT_READ, MAP_SHARED, file->fd, 0);
    if (map == MAP_FAILED)
        return false;
    bool good = pm_os_write_all(fd, map, file->size, 0);
    munmap(map, file->size);
    return good && (!pm_heap_is_journaled() || pm_commit_write_roots(fd));
}

// The copy is another heap, this process owns it, and it is dirty.
static bool write_identity(int fd) {
    struct pm_superblock super = pm_heap.super->super;
    uint64_t state = PM_STATE_DIRTY, owner = (uint64_t)getpid();
    uint64_t start = pm_os_start_time(getpid());
    size_t at = offsetof(struct pm_super_file, state);
    size_t shards = at + offsetof(struct pm_state, reserved);
    const uint8_t volume[PM_SHARDS] = {0};
    const uint32_t lap = pm_heap.super->state.lap; // of memory, which goes on with it
    const uint64_t none = 0;                       // its files are synced, and it has no journal
    struct pm_origin origin = pm_origin_of(fd);
    if (getrandom(super.uuid, sizeof super.uuid, GRND_NONBLOCK) != (ssize_t)sizeof super.uuid)
        memcpy(super.uuid, &owner, sizeof owner);
    super.crc = pm_crc32c(0, &super, offsetof(struct pm_superblock, crc));
    return pm_os_write_all(fd, &super, sizeof super, 0) &&
           pm_os_write_all(fd, &state, sizeof state, at + offsetof(struct pm_state, state)) &&
           pm_os_write_all(fd, &origin, sizeof origin, at + offsetof(struct pm_state, origin)) &&
           pm_os_write_all(fd, volume, sizeof volume,
                           shards + offsetof(struct pm_shard_state, volume)) &&
           pm_os_write_all(fd, &none, sizeof none, at + offsetof(struct pm_state, doubt)) &&
           pm_os_write_all(fd, &none, sizeof none, at + offsetof(struct pm_state, applied)) &&
           pm_os_write_all(fd, &lap, sizeof lap, at + offsetof(struct pm_state, lap)) &&
           pm_os_write_all(fd, &owner, sizeof owner, at + offsetof(struct pm_state, owner_pid)) &&
           pm_os_write_all(fd, &start, sizeof start, at + offsetof(struct pm_state, owner_start));
}

static int fill_file(size_t i, struct pm_error *err) {
    struct pm_file *file = pm_heap_file(&pm_heap_files[i]);
    const struct pm_shard *s = &pm_heap.shard[pm_heap_files[i].shard];
    bool data = pm_heap_files[i].holds == PM_FILE_DATA;
    int fd = other.file[i].fd;
    struct pm_file_room room = pm_file_room(data ? s->frontier : file->size);
    bool good = pm_file_ready(file) && room.good;
    if (data) {
        good = good && ftruncate(fd, (off_t)s->frontier) == 0 && copy_extents(s, fd);
        other.file[i].size = s->frontier;
    } else {
        good = good && copy_whole(file, fd);
    }
    if (good && file == &pm_heap.super_file)
        good = write_identity(fd);
    pm_file_room_end(room);
    good = good && (!pm_persist_syncs() || fsync(fd) == 0);
    return good ? PM_OK : reason(err, file->name);
}

// The record of loaded objects is not kept open, and the table of types never was.
static int copy_record(const struct pm_file *record, struct pm_error *err) {
    struct stat st;
    int from = openat(pm_heap.dir_fd, record->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (from < 0)
        return errno == ENOENT ? PM_OK : reason(err, record->name);
    bool good = fstat(from, &st) == 0 && pm_os_file_size((uint64_t)st.st_size);
    int to = good ? openat(other.dir_fd, record->name,
                           O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)
                  : -1;
    long got = to < 0 ? -1 : 1;
    while (got > 0 && (got = syscall(SYS_sendfile, to, from, NULL, (size_t)1 << 30)) > 0) {
    }
    good = got == 0 && (!pm_persist_syncs() || fsync(to) == 0);
    int saved = errno;
    if (to >= 0)
        close(to);
    close(from);
    errno = saved;
    return good ? PM_OK : reason(err, record->name);
}

static int give_name(struct pm_error *err) {
    struct pm_error why;
    const char *from = pm_heap.new_super.name, *to = pm_heap.super_file.name;
    if (pm_dir_lock(other.file[PM_ROW_super_file].fd, PM_OPEN_CREATE, false, &why) != PM_OK)
        return reason(err, "lock");
    if (renameat(other.dir_fd, from, other.dir_fd, to) != 0 ||
        (pm_persist_syncs() && (fsync(other.dir_fd) != 0 || !pm_os_sync_parent(other.dir))))
        return reason(err, to);
    return PM_OK;
}

static void close_other(void) {
    for (size_t i = 0; i < pm_heap_file_count(); i++)
        if (other.file[i].fd >= 0)
            close(other.file[i].fd);
    if (other.dir_fd >= 0)
        close(other.dir_fd);
    other.dir_fd = -1;
}

static void remove_other(void) {
    pm_dir_empty(other.dir_fd);
    rmdir(other.dir);
}

// ---- the change ---------------------------------------------------------------------------------

static bool map_file(const struct pm_file *copy, bool *changed) {
    int flags = MAP_FIXED | MAP_NORESERVE, prot = PROT_READ | PROT_WRITE;
    bool good = true;
    if (!copy->map)
        return true;
    // Of other files' addresses there are no marks.
    uint64_t from = pm_heap_offset(copy->map), at = from, end = from + copy->reach;
    for (uint64_t len; good && (len = pm_marks_free_of(PM_MARK_AWAY, &at, end)) != 0; at += len) {
        good = pm_file_map(copy, pm_heap_at(at), len, prot, flags, at - from) != MAP_FAILED;
        *changed |= good;
    }
    return good;
}

// Maps the copy at the same addresses, because all pointers point there.
static int move_in(struct pm_error *err) {
    bool changed = false, good = true;
    // The first heap may be on DAX, and the copy not. So far nothing was stored to the copy through
    // a mapping, so the kernel may still refuse MAP_SYNC.
    pm_persist_promise(false);
    for (size_t i = 0; good && i < pm_heap_file_count(); i++)
        good = other.file[i].map || !is_there(i) || pm_file_try(&other.file[i]);
    for (size_t i = 0; good && i < pm_heap_file_count(); i++)
        good = map_file(&other.file[i], &changed);
    pm_persist_promise(true);
    if (!good && !changed)
        return reason(err, "mmap");
    for (size_t i = 0; i < pm_heap_file_count(); i++) {
        if (!is_there(i))
            continue;
        struct pm_file before = *pm_heap_file(&pm_heap_files[i]);
        *pm_heap_file(&pm_heap_files[i]) = other.file[i];
        other.file[i] = before;
    }
    char name[sizeof other.dir];
    int fd = pm_heap.dir_fd;
    strcpy(name, pm_heap.dir);
    strcpy(pm_heap.dir, other.dir);
    strcpy(other.dir, name);
    pm_dir_adopt(other.dir_fd);
    pm_heap.volumes = 1;
    for (unsigned i = 1; i < pm_heap.shards; i++)
        pm_shard_set_volume(i, 0);
    other.dir_fd = fd;
    // The process cannot go on: files of both heaps are mapped. On disk both heaps are whole.
    if (!good)
        pm_refuse(PM_EV_COPY_FAILED, "cannot map the heap copy %s: %s", pm_heap.dir,
                  pm_strerror(errno));
    pm_heap_dump_used();
    if (pm_heap_is_journaled() && pm_commit_change_heap(err) != PM_OK)
        pm_refuse(pm_event_of(err), "%s", err->text);
    for (unsigned i = 0; i < pm_heap.shards; i++)
        pm_extent_purge_to(&pm_heap.shard[i], 0); // reclaimed extents have no space in the copy
    return PM_OK;
}

int pm_heap_copy_make(struct pm_error *err) {
    if (pm_fixed_is_open())
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: there is no second heap in a file or device, for the copy that this "
                       "PMALLOC_FORK wants; use a heap in a directory for it",
                       pm_heap.dir);
    (void)pm_dir_ready(); // a daemon may have closed the descriptor; move_in() needs it
    other.dir_fd = -1;
    for (size_t i = 0; i < PM_HEAP_FILES; i++)
        other.file[i].fd = -1;
    int status = make_dir(err);
    if (status != PM_OK)
        return status;
    // superblock.new is made first: if the making is interrupted, it marks the rest as a remnant.
    for (size_t i = 0; i < pm_heap_file_count() && status == PM_OK; i++)
        if (is_there(i))
            status = make_file(i, err);
    for (size_t i = pm_heap_file_count(); i-- > 0 && status == PM_OK;)
        if (is_there(i))
            status = fill_file(i, err);
    if (status == PM_OK)
        status = copy_record(&pm_heap.objects, err);
    if (status == PM_OK)
        status = copy_record(&pm_heap.other_objects, err);
    if (status == PM_OK)
        status = copy_record(&pm_heap.types, err);
    if (status == PM_OK)
        status = give_name(err);
    if (status == PM_OK)
        status = move_in(err);
    if (status != PM_OK) {
        remove_other();
        close_other();
    }
    return status;
}

// ---- after the making ---------------------------------------------------------------------------

void pm_heap_copy_part(void) { close_other(); }

static long rename2(const char *from, const char *to, unsigned flags) {
    return syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags);
}

// Exchanges the names of the two heaps. Some file systems cannot do that in one step. There the
// name is missing for a moment, and a program that starts just then makes a new heap. Nothing is
// lost: both heaps are still there. `aside` becomes the path at which the first heap lies then.
static bool exchange(char *aside) {
    strcpy(aside, pm_heap.dir);
    if (rename2(pm_heap.dir, other.dir, RENAME_EXCHANGE) == 0)
        return true;
    if (errno != EINVAL && errno != ENOSYS)
        return false;
    size_t len = strlen(aside);
    if (len + sizeof ".old" > sizeof other.dir)
        return false;
    memcpy(aside + len, ".old", sizeof ".old");
    if (rename(other.dir, aside) != 0)
        return false;
    if (rename(pm_heap.dir, other.dir) == 0)
        return true;
    int saved = errno;
    rename(aside, other.dir);
    errno = saved;
    return false;
}

// A name is durable once its directory is. Else the heap from before the fork stays, since after a
// power failure it may have the name again.
static int make_names_durable(struct pm_error *err) {
    if (!pm_persist_syncs() || pm_os_sync_parent(pm_heap.dir))
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "%.200s: its new name cannot be made durable: %s; after a power failure it may "
                   "lie beside that name, with the id of process %d",
                   pm_heap.dir, pm_strerror(errno), (int)getpid());
}

int pm_heap_copy_take_place(struct pm_error *err) {
    static char aside[sizeof other.dir];
    struct stat st;
    bool good, there = lstat(other.dir, &st) == 0;
    if (!there) {
        // The first heap was removed when its owner ended.
        good = rename2(pm_heap.dir, other.dir, RENAME_NOREPLACE) == 0;
    } else if (!pm_os_fd_is(other.dir_fd, st.st_dev, st.st_ino)) {
        good = false;
        errno = EEXIST;
    } else {
        good = exchange(aside);
    }
    if (!good)
        pm_fail(err, PM_OPERATIONAL, "cannot take the place of %.200s: %s; the heap is %.200s now",
                other.dir, pm_strerror(errno), pm_heap.dir);
    if (good)
        strcpy(pm_heap.dir, other.dir);
    int status = good ? make_names_durable(err) : err->status;
    if (status == PM_OK && there && pm_dir_empty(other.dir_fd))
        rmdir(aside);
    close_other();
    return status;
}
