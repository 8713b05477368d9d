// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "look.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "booklog.h"
#include "crc.h"
#include "heap.h"
#include "offline.h"
#include "os.h"

enum { TRIES = 50, TRY_NS = 2000000 };

// A file of the heap as it was read, in memory of our own: nothing in it changes any more.
struct copy {
    char *data;
    size_t size, room;
};

static struct copy super_copy, log_copy, log_again, slabs_copy;

int look_open(const char *dir, struct pm_error *err) {
    snprintf(pm_heap.dir, sizeof pm_heap.dir, "%s", dir);
    pm_heap.dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (pm_heap.dir_fd < 0)
        return pm_fail(err, PM_OPERATIONAL, "%s: cannot open the heap: %s", dir, strerror(errno));
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

// As much of the file as there is, up to `most` bytes. False with errno.
static bool read_file(const char *name, struct copy *copy, size_t most) {
    int fd = openat(pm_heap.dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
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

// ---- owner and files ---------------------------------------------------------------------------------

static void look_at_process(struct look *look) {
    char path[40], line[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)look->pid);
    FILE *in = fopen(path, "re");
    if (in && !fgets(line, sizeof line, in))
        *line = '\0';
    if (in)
        fclose(in);
    const char *end = strrchr(line, ')'); // its name may have any characters
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

static int look_at_super(struct look *look, struct pm_error *err) {
    if (!read_file("superblock", &super_copy, sizeof(struct pm_super_file)))
        return pm_fail(err, PM_OPERATIONAL, "%s/superblock: %s", pm_heap.dir, strerror(errno));
    struct pm_super_file *file = (struct pm_super_file *)super_copy.data;
    if (super_copy.size < sizeof *file || file->super.magic != PM_SUPER_MAGIC ||
        file->super.version != PM_FORMAT_VERSION ||
        file->super.crc != pm_crc32c(0, &file->super, offsetof(struct pm_superblock, crc)))
        return pm_fail(err, PM_DAMAGE, "%s/superblock: not that of a heap of version %u",
                       pm_heap.dir, PM_FORMAT_VERSION);
    pm_heap.super = file;
    look->clean = file->state.state == PM_STATE_CLEAN;
    look->opens = file->state.opens;
    look->pid = (pid_t)file->state.owner_pid;
    look->start = file->state.owner_start;
    look->roots = pm_heap_root_count();
    look_at_process(look);
    return PM_OK;
}

static void look_at_files(struct look *look) {
    static const char *const names[] = {"heap.0",    "superblock", "slabs.0",
                                        "booklog.0", "bitmaps.0",  "morph.0"};
    look->metadata_bytes = look->heap_bytes = look->data_bytes = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct stat st;
        if (fstatat(pm_heap.dir_fd, names[i], &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        uint64_t bytes = (uint64_t)st.st_blocks * 512;
        if (i == 0) {
            look->heap_bytes = (uint64_t)st.st_size;
            look->data_bytes = bytes;
        } else {
            look->metadata_bytes += bytes;
        }
    }
}

// ---- extents -----------------------------------------------------------------------------------------

static struct look *counting;

static void count_slab(uint64_t page) {
    uint64_t at = (page << PM_PAGE_SHIFT >> PM_SLAB_SHIFT) * sizeof(struct pm_slab_header);
    struct pm_slab_header header = {0};
    if (at + sizeof header <= slabs_copy.size)
        memcpy(&header, slabs_copy.data + at, sizeof header);
    unsigned cls = header.now ? (uint32_t)header.now >> PM_NOW_SHIFT : header.size_class;
    bool good = header.magic == PM_SLAB_MAGIC && cls <= PM_CLASSES;
    counting->class_slabs[good ? cls : 0]++;
    counting->slabs++;
}

static int count_entry(uint64_t entry, pm_log_pos pos, struct pm_error *err) {
    (void)pos;
    uint64_t page = pm_entry_page(entry), pages = pm_entry_pages(entry);
    if ((page + pages) << PM_PAGE_SHIFT > counting->heap_bytes)
        return pm_fail(err, PM_DAMAGE, "an extent behind the end of the heap"); // grown since
    if (pm_entry_type(entry) == PM_ENTRY_SLAB) {
        count_slab(page);
    } else {
        counting->extents++;
        counting->extent_bytes += pages << PM_PAGE_SHIFT;
    }
    return PM_OK;
}

// What the log says, out of a copy that nobody else touches, by the code that opens heaps.
static bool count_log(struct look *look) {
    struct pm_error ignored;
    if (log_copy.size < sizeof(struct pm_log_header))
        return false;
    pm_heap.log.map = log_copy.data;
    pm_heap.log.size = log_copy.size;
    pm_heap.log.reach = sizeof(struct pm_log_header) + PM_HEAP_RANGE / PM_PAGE_SIZE * 8;
    counting = look;
    look->slabs = look->extents = look->extent_bytes = 0;
    memset(look->class_slabs, 0, sizeof look->class_slabs);
    if (pm_log_load(count_entry, &ignored) != PM_OK)
        return false;
    struct pm_log_stats stats = pm_log_stats();
    look->log_chunks = stats.chunks;
    look->log_active = stats.active;
    look->log_live = stats.live;
    return true;
}

static bool same_log(void) {
    return log_copy.size == log_again.size &&
           memcmp(log_copy.data, log_again.data, log_copy.size) == 0;
}

// Twice the same, with the slabs' headers between: then this was the log while they were read.
static bool try_extents(struct look *look) {
    if (!read_file("booklog.0", &log_copy, SIZE_MAX / 2) ||
        !read_file("slabs.0", &slabs_copy, look->heap_bytes / PM_SLAB_SIZE * 64 + 64) ||
        !read_file("booklog.0", &log_again, SIZE_MAX / 2))
        return false;
    look_at_files(look);
    return same_log() && count_log(look);
}

static void look_at_extents(struct look *look) {
    const struct timespec pause = {.tv_nsec = TRY_NS};
    look->settled = false;
    for (int i = 0; i < TRIES && !look->settled; i++) {
        struct look next = *look;
        if (i)
            nanosleep(&pause, NULL);
        if (try_extents(&next)) {
            *look = next;
            look->settled = true;
        }
    }
}

int look_take(struct look *look, bool *gone, struct pm_error *err) {
    const struct timespec pause = {.tv_nsec = TRY_NS};
    int status = PM_OK;
    struct stat st;
    *gone = false;
    for (int i = 0; i < TRIES; i++) { // a heap that is being made has no superblock for a moment
        status = look_at_super(look, err);
        if (status == PM_OK)
            break;
        nanosleep(&pause, NULL);
    }
    if (status != PM_OK) {
        *gone = fstat(pm_heap.dir_fd, &st) == 0 && st.st_nlink == 0;
        return status;
    }
    look_at_files(look);
    look_at_extents(look);
    return PM_OK;
}
