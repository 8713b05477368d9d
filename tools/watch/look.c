// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "look.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"
#include "media/backing/fixed.h"
#include "media/backing/volume.h"
#include "media/backing/volume_file.h"
#include "media/commit/journal_files.h"
#include "media/heap.h"
#include "media/log/log.h"
#include "media/open/heap_open.h"
#include "media/open/shard_make.h"
#include "moved/rebased.h"
#include "recovery/recovered.h"
#include "tools/common/files.h"
#include "tools/common/open_in_use.h"

enum { TRIES = 50, TRY_NS = 2000000 };

// A copy of one of the heap's files. The copy does not change any more.
struct copy {
    char *data;
    size_t size, room;
};

static struct copy super_copy, log_copy, log_again, slabs_copy;
static const char *heap_dir;
static int heap_fd;

static int open_medium(const char *path, struct pm_error *err) {
    int status = open_in_use(path, err);
    heap_fd = pm_heap.dir_fd;
    return status;
}

int look_open(const char *dir, struct pm_error *err) {
    static char first[sizeof pm_heap.dir];
    snprintf(first, sizeof first, "%.*s", (int)pm_volume_first(dir), dir);
    const char *all = dir;
    heap_dir = dir = first;
    heap_fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (heap_fd < 0 && errno == ENOTDIR)
        return open_medium(all, err);
    if (heap_fd < 0)
        return pm_fail(err, PM_OPERATIONAL, "%s: cannot open the heap: %s", dir,
                       pm_strerror(errno));
    return PM_OK;
}

static bool reserve(struct copy *copy, size_t size) {
    if (size <= copy->room)
        return true;
    char *data = realloc(copy->data, size + size / 4);
    if (!data)
        return false;
    copy->data = data;
    copy->room = size + size / 4;
    return true;
}

static bool read_part(const struct pm_file *part, struct copy *copy, size_t most) {
    size_t size = pm_fixed_length(part);
    size = size < most ? size : most;
    copy->size = 0;
    if (!reserve(copy, size)) {
        errno = ENOMEM;
        return false;
    }
    memcpy(copy->data, part->map, copy->size = size);
    return true;
}

// Reads the file, at most `most` bytes of it. False: it failed, with errno.
static bool read_file(const struct pm_file *file, const char *name, struct copy *copy,
                      size_t most) {
    if (file->length)
        return read_part(file, copy, most);
    int fd = openat(heap_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat st;
    copy->size = 0;
    bool good = fd >= 0 && fstat(fd, &st) == 0;
    if (good && (size_t)st.st_size < most)
        most = (size_t)st.st_size;
    if (good && !reserve(copy, most)) {
        errno = ENOMEM;
        good = false;
    }
    while (good && copy->size < most) {
        ssize_t got = pread(fd, copy->data + copy->size, most - copy->size, (off_t)copy->size);
        if (got < 0 && errno == EINTR)
            continue;
        good = got >= 0;
        if (got <= 0)
            break;
        copy->size += (size_t)got;
    }
    int saved = errno;
    if (fd >= 0)
        close(fd);
    errno = saved;
    return good;
}

// ---- owner and files ----------------------------------------------------------------------------

static void look_at_process(struct look *look) {
    char path[40], line[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)look->pid);
    FILE *in = fopen(path, "re");
    if (in && !fgets(line, sizeof line, in))
        *line = '\0';
    if (in)
        fclose(in);
    const char *end = strrchr(line, ')'); // ends the name, which may have any characters
    static const char *const words[][2] = {{"R", "running"}, {"S", "sleeping"}, {"D", "waiting"},
                                           {"T", "stopped"}, {"t", "traced"},   {"Z", "dead"},
                                           {"X", "dead"}};
    snprintf(look->process, sizeof look->process, "unknown");
    for (size_t i = 0; end && strlen(end) > 2 && i < sizeof words / sizeof *words; i++)
        if (end[2] == *words[i][0])
            snprintf(look->process, sizeof look->process, "%s", words[i][1]);
    bool same = look->start != 0 && pm_os_start_time(look->pid) == look->start;
    if (!same || !strcmp(look->process, "dead"))
        look->pid = 0;
}

static void look_at_late_roots(struct look *look, const struct pm_super_file *file) {
    const struct pm_root_table *t = &file->roots[file->state.root_epoch & 1];
    look->late_roots = look->late_waiting = 0;
    for (uint32_t i = 0; i < t->count && i < PM_ROOT_MAX; i++) {
        bool late = t->root[i].part == 0 && t->root[i].when != PM_ROOT_AT_START;
        look->late_roots += late && !pm_root_is_dropped(&t->root[i]);
        look->late_waiting += late && t->root[i].waits && !pm_root_is_dropped(&t->root[i]);
    }
}

static int look_at_super(struct look *look, struct pm_error *err) {
    const char *name = pm_heap.super_file.name;
    if (!read_file(&pm_heap.super_file, name, &super_copy, sizeof(struct pm_super_file)))
        return pm_fail(err, PM_OPERATIONAL, "%s/%s: %s", heap_dir, name, pm_strerror(errno));
    const struct pm_super_file *file = (const struct pm_super_file *)super_copy.data;
    if (super_copy.size < sizeof *file)
        return pm_fail(err, PM_DAMAGE, "%s/superblock has %zu bytes, needs %zu", heap_dir,
                       super_copy.size, sizeof *file);
    int status = pm_superblock_check(&file->super, heap_dir, err);
    if (status != PM_OK)
        return status;
    look->base = file->super.base;
    look->range = file->super.range;
    look->clean = file->state.state == PM_STATE_CLEAN;
    look->opens = file->state.opens;
    look->pid = (pid_t)file->state.owner_pid;
    look->start = file->state.owner_start;
    look->roots = pm_super_root_count(file);
    memcpy(look->uuid, file->super.uuid, sizeof look->uuid);
    look_at_late_roots(look, file);
    if (!pm_rebased_read(&file->state, &look->rebased))
        look->rebased = (struct pm_rebased){0};
    if (!pm_recovered_read(&file->state, &look->recovered))
        look->recovered = (struct pm_recovered){0};
    look_at_process(look);
    return PM_OK;
}

// Keeps the least full of the file systems, as PMALLOC_WARN does: the heap grows there.
static void look_at_file_system(struct look *look, int fd) {
    struct statvfs fs;
    if (fd < 0 || fstatvfs(fd, &fs) != 0)
        return;
    uint64_t bytes = (uint64_t)fs.f_blocks * fs.f_frsize,
             left = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (look->medium_bytes &&
        (double)left * (double)look->medium_bytes <= (double)look->medium_free * (double)bytes)
        return;
    look->medium_bytes = bytes;
    look->medium_free = left;
}

static void look_at_medium(struct look *look) {
    look->medium_bytes = look->medium_free = 0;
    if (!pm_fixed_is_open())
        look_at_file_system(look, heap_fd);
    for (unsigned k = 1; !pm_fixed_is_open() && k < PM_VOLUMES; k++) {
        char name[] = PM_VOLUME_FILE ".0";
        name[sizeof name - 2] = (char)('0' + k);
        int fd = openat(heap_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
            break;
        look_at_file_system(look, fd);
        close(fd);
    }
    for (unsigned i = 0; pm_fixed_is_open() && i < pm_heap.shards; i++) {
        const struct pm_file *data = &pm_heap.shard[i].data;
        look->medium_bytes += data->room;
        look->medium_free += data->room - pm_fixed_length(data);
    }
}

static int look_at_files(struct look *look, struct pm_error *err) {
    struct files files;
    struct pm_error ignored;
    if (pm_fixed_is_open())
        (void)pm_fixed_measure(&ignored);
    if (files_measure(heap_fd, heap_dir, &files, err) != PM_OK)
        return err->status;
    look->heap_bytes = files.heap_bytes;
    look->data_bytes = files.data_bytes;
    look->metadata_bytes = files.metadata_bytes;
    look_at_medium(look);
    return PM_OK;
}

// ---- extents ------------------------------------------------------------------------------------

static struct look *counting;

static void count_slab(uint64_t page) {
    uint64_t at = (page << PM_PAGE_SHIFT >> PM_SLAB_SHIFT) * sizeof(struct pm_slab_header);
    struct pm_slab_header header = {0};
    if (at + sizeof header <= slabs_copy.size)
        memcpy(&header, slabs_copy.data + at, sizeof header);
    unsigned cls =
        header.current ? (uint32_t)header.current >> PM_CURRENT_SHIFT : header.size_class;
    bool good = header.magic == PM_SLAB_MAGIC && cls <= PM_CLASSES;
    counting->class_slabs[good ? cls : 0]++;
    counting->slabs++;
}

static int count_entry(struct pm_shard *s, uint64_t entry, pm_log_pos pos, struct pm_error *err) {
    (void)s, (void)pos;
    uint64_t page = pm_entry_page(entry), pages = pm_entry_length(entry);
    if ((page + pages) << PM_PAGE_SHIFT > counting->heap_bytes)
        return pm_fail(err, PM_DAMAGE, "an extent after the end of the heap"); // it has grown since
    if (pm_entry_is_slab(entry)) {
        count_slab(page);
    } else {
        counting->extents++;
        counting->extent_bytes += pages << PM_PAGE_SHIFT;
    }
    return PM_OK;
}

// Reads the copy of the log with the same code that opens heaps.
static bool count_log(struct look *look) {
    struct pm_error ignored;
    counting = look;
    struct pm_log_stats stats;
    if (pm_log_read(log_copy.data, log_copy.size, count_entry, &stats, &ignored) != PM_OK)
        return false;
    look->log_chunks += stats.chunks;
    look->log_active += stats.active;
    look->log_live += stats.live;
    return true;
}

static bool same_log(void) {
    return log_copy.size == log_again.size &&
           memcmp(log_copy.data, log_again.data, log_copy.size) == 0;
}

// The name under which the shard's file lies in one of the heap's directories. Parts have none.
static bool find(const struct pm_file *file, char name[PM_FILE_NAME]) {
    if (file->length)
        return true;
    for (size_t i = 0; i < PM_HEAP_FILES; i++)
        if (pm_heap_file(&pm_heap_files[i]) == file)
            return pm_volume_find(heap_fd, &pm_heap_files[i], name);
    return false;
}

// Reads the log, the slab headers, and the log again. If both times the log was the same, it was so
// while the headers were read.
static bool try_shard(struct look *look, const struct pm_shard *s, struct pm_error *err) {
    char log[PM_FILE_NAME] = "", slabs[PM_FILE_NAME] = "";
    if (!find(&s->log, log) || !find(&s->slabs, slabs) ||
        !read_file(&s->log, log, &log_copy, SIZE_MAX / 2) ||
        !read_file(&s->slabs, slabs, &slabs_copy, look->heap_bytes / PM_SLAB_SIZE * 64 + 64) ||
        !read_file(&s->log, log, &log_again, SIZE_MAX / 2)) {
        if (errno != ENOENT) // else the owner is removing the heap
            pm_fail(err, PM_OPERATIONAL, "%s: %s and %s cannot be read: %s", heap_dir, s->log.name,
                    s->slabs.name, pm_strerror(errno));
        return false;
    }
    return look_at_files(look, err) == PM_OK && same_log() && count_log(look);
}

static bool try_extents(struct look *look, struct pm_error *err) {
    unsigned shards = pm_super_shards((const struct pm_super_file *)super_copy.data);
    bool good = shards != 0;
    look->slabs = look->extents = look->extent_bytes = 0;
    look->log_chunks = look->log_active = look->log_live = 0;
    memset(look->class_slabs, 0, sizeof look->class_slabs);
    for (unsigned i = 0; i < shards && good; i++)
        good = try_shard(look, &pm_heap.shard[i], err);
    return good;
}

// A log that changes too fast is no error.
static int look_at_extents(struct look *look, struct pm_error *err) {
    const struct timespec pause = {.tv_nsec = TRY_NS};
    look->settled = false;
    for (int i = 0; i < TRIES && !look->settled; i++) {
        struct look next = *look;
        err->status = PM_OK;
        if (i)
            nanosleep(&pause, NULL);
        if (try_extents(&next, err)) {
            *look = next;
            look->settled = true;
        }
    }
    return look->settled ? PM_OK : err->status;
}

// ---- the last commit ----------------------------------------------------------------------------

static bool read_part_at(const struct pm_file *journal, void *to, size_t len, uint64_t at) {
    bool there = at + len <= pm_fixed_length(journal);
    if (there)
        memcpy(to, journal->map + at, len);
    else
        errno = PM_JOURNAL_ENDS;
    return there;
}

// A journal that has no name ends where it begins.
static bool read_journal(unsigned file, void *to, size_t len, uint64_t at) {
    const struct pm_file *journal = &pm_heap.journal;
    (void)file; // nothing else is asked for
    if (journal->length)
        return read_part_at(journal, to, len, at);
    int fd = openat(heap_fd, journal->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool good = fd >= 0 && pm_journal_pread(fd, to, len, at);
    int saved = fd < 0 && errno == ENOENT ? PM_JOURNAL_ENDS : errno;
    if (fd >= 0)
        close(fd);
    errno = saved;
    return good;
}

static uint64_t journal_length(void) {
    const struct pm_file *journal = &pm_heap.journal;
    struct stat st;
    if (journal->length)
        return pm_fixed_length(journal) ? journal->room : 0;
    bool there = fstatat(heap_fd, journal->name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    return there ? (uint64_t)st.st_size : 0;
}

// While the next one is being written, nothing can be read of either.
static int look_at_commit(struct look *look, struct pm_error *err) {
    static const struct pm_journal_io io = {.read = read_journal};
    static char *buffer;
    const struct pm_superblock *super = (const struct pm_superblock *)super_copy.data;
    struct pm_journal_found found;
    look->journal_bytes = 0;
    if (!(super->incompat & PM_INCOMPAT_JOURNAL))
        return PM_OK;
    look->journal_bytes = journal_length();
    if (!buffer && !(buffer = malloc(PM_JOURNAL_BUFFER)))
        return pm_fail(err, PM_OPERATIONAL, "%s/journal: no memory to read it", heap_dir);
    int error = pm_journal_find(&io, buffer, super->uuid, &found);
    if (error)
        return pm_fail(err, PM_OPERATIONAL, "%s/journal cannot be read: %s", heap_dir,
                       pm_strerror(error));
    if (found.groups)
        look->commit = found;
    return PM_OK;
}

int look_take(struct look *look, bool *gone, struct pm_error *err) {
    const struct timespec pause = {.tv_nsec = TRY_NS};
    int status = PM_OK;
    struct stat st;
    *gone = false;
    for (int i = 0; i < TRIES; i++) { // a heap that is being made may not have its superblock yet
        status = look_at_super(look, err);
        if (status == PM_OK)
            break;
        nanosleep(&pause, NULL);
    }
    if (status != PM_OK) {
        *gone = fstat(heap_fd, &st) == 0 && st.st_nlink == 0;
        return status;
    }
    status = look_at_files(look, err);
    if (status == PM_OK)
        status = look_at_extents(look, err);
    if (status == PM_OK)
        status = look_at_commit(look, err);
    return status;
}

void look_close(void) {
    if (pm_fixed_is_open())
        pm_heap_release();
    else if (heap_fd >= 0)
        close(heap_fd);
    heap_fd = -1;
}
