// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "fixed_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "base/crc.h"
#include "base/os.h"
#include "base/os_file.h"
#include "media/backing/file.h"
#include "media/backing/fixed.h"
#include "media/backing/fixed_map.h"
#include "media/commit/journal_files.h"
#include "media/journal/journal.h"
#include "media/persist.h"

#define WINDOW ((uint64_t)64 << 20)

// The file that a part has the contents of; NULL: none. Of a heap at rest bitmaps are not needed.
static const struct pm_file *source_of(const struct pm_layout *layout, unsigned part) {
    unsigned shard = layout->place.shard;
    if (part == PM_JOURNAL_SELF || part == PM_PART_BITMAPS || shard >= pm_heap.shards ||
        !layout->part[part].room)
        return NULL;
    const struct pm_file *f = pm_medium_part(shard, part);
    return f && f->fd >= 0 ? f : NULL;
}

// An open heap does not keep its record of loaded objects open. The one that is not in force may be
// there, too.
static int open_record(struct pm_file *f, struct pm_error *err) {
    int fd = openat(pm_heap.dir_fd, f->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return PM_OK;
    if (fd < 0 || !pm_file_hold(f, fd))
        return pm_fail(err, PM_OPERATIONAL, "%.300s/%s: cannot be read: %s", pm_heap.dir, f->name,
                       pm_strerror(errno));
    return PM_OK;
}

int pm_fixed_copy_begin(struct pm_error *err) {
    if (pm_fixed_is_open())
        return pm_fail(err, PM_OPERATIONAL, "%s: --from takes a heap in a directory", pm_heap.dir);
    if (pm_journal_opened.is == PM_JOURNAL_WHOLE) // the bytes of the files are what is copied
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s/journal holds a commit that is not in the other files yet: run "
                       "`pmalloc-recover %.300s`",
                       pm_heap.dir, pm_heap.dir);
    int status = open_record(&pm_heap.objects, err);
    return status == PM_OK ? open_record(&pm_heap.other_objects, err) : status;
}

uint64_t pm_fixed_copy_record(void) {
    uint64_t one = pm_heap.objects.size, other = pm_heap.other_objects.size;
    return one > other ? one : other;
}

void pm_fixed_copy_end(void) {
    pm_file_close(&pm_heap.objects);
    pm_file_close(&pm_heap.other_objects);
}

int pm_fixed_copy_check(const struct pm_layout *layout, const char *path, struct pm_error *err) {
    if (pm_heap.shards > layout->place.media)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s has %u data files; name as many files or devices for it", pm_heap.dir,
                       pm_heap.shards);
    for (unsigned part = 0; part < PM_PARTS; part++) {
        const struct pm_file *f = source_of(layout, part);
        if (f && f->size > layout->part[part].room)
            return pm_fail(err, PM_OPERATIONAL,
                           "%s/%s has %zu bytes, but there would be room for %lu in %s; give more "
                           "space",
                           pm_heap.dir, f->name, f->size, (unsigned long)layout->part[part].room,
                           path);
    }
    return PM_OK;
}

static const char *unread; // the file that could not be read

const char *pm_fixed_copy_unread(void) { return unread; }

// Behind the file's end there are zeroes.
static bool read_file(const struct pm_file *f, char *to, size_t len, uint64_t at) {
    ssize_t got = pm_os_read_at(f->fd, to, len, at);
    bool good = got == (ssize_t)len || (got >= 0 && at + (uint64_t)got >= f->size);
    if (!good) {
        errno = got < 0 ? errno : EIO; // the file was cut meanwhile
        unread = f->name;
        return false;
    }
    memset(to + got, 0, len - (size_t)got);
    return true;
}

static size_t whole_pages(const struct pm_file *f) {
    return (f->size + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1);
}

// The copied heap is synced, and has no journal.
static void forget_journal(struct pm_super_file *super) {
    super->state.doubt = 0;
    super->state.applied = 0;
}

bool pm_fixed_copy_head(char *head, const struct pm_layout *layout) {
    struct pm_lengths *lengths = (struct pm_lengths *)(void *)(head + sizeof *layout);
    bool good = true;
    for (unsigned part = 0; part < PM_PARTS && good; part++) {
        const struct pm_file *f = source_of(layout, part);
        if (!f)
            continue;
        if (part != PM_JOURNAL_DATA)
            good = read_file(f, head + layout->part[part].at, whole_pages(f), 0);
        if (part == PM_JOURNAL_SUPER)
            forget_journal((struct pm_super_file *)(void *)(head + layout->part[part].at));
        lengths->pages[part] =
            pm_seal((uint32_t)(whole_pages(f) >> PM_PAGE_SHIFT), PM_SALT_LENGTH(part));
    }
    return good;
}

// Holes are zeroes of the program, so they are stored, too.
bool pm_fixed_copy_data(const struct pm_fixed_target *t, const struct pm_layout *layout) {
    const struct pm_file *f = source_of(layout, PM_JOURNAL_DATA);
    bool good = true;
    for (uint64_t at = 0; f && good && at < f->size; at += WINDOW) {
        uint64_t rest = (f->size - at + PM_FIXED_ALIGN - 1) & ~(PM_FIXED_ALIGN - 1);
        uint64_t len = rest < WINDOW ? rest : WINDOW;
        uint64_t used = f->size - at < len ? f->size - at : len;
        char *map = pm_medium_map(t->medium->fd, NULL, len, PROT_READ | PROT_WRITE,
                                  layout->part[PM_JOURNAL_DATA].at + at);
        if (map == MAP_FAILED)
            return false;
        good = read_file(f, map, used, at) && pm_target_sync(t, map, used);
        munmap(map, len);
    }
    return good;
}
