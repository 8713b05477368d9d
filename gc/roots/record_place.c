// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "record_place.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "base/os_file.h"
#include "media/backing/dir_held.h"
#include "media/backing/file.h"
#include "media/backing/fixed.h"
#include "media/heap.h"
#include "media/persist.h"

static struct pm_file *file_of(uint32_t generation) {
    return generation & 1 ? &pm_heap.other_objects : &pm_heap.objects;
}

const char *pm_record_place_name(uint32_t generation) { return file_of(generation)->name; }

bool pm_record_place_may_be(void) {
    return pm_fixed_is_open() ? pm_heap.objects.length && pm_heap.other_objects.length
                              : !pm_heap.nameless;
}

// ---- a file -------------------------------------------------------------------------------------

static bool open_file(struct pm_record_place *p, uint32_t generation, enum pm_record_use use) {
    struct stat st;
    int access = use == PM_RECORD_READ ? O_RDONLY : O_RDWR;
    int flags = access | (use == PM_RECORD_MAKE ? O_CREAT : 0);
    p->fd = pm_dir_ready() ? openat(pm_heap.dir_fd, pm_record_place_name(generation),
                                    flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600)
                           : -1;
    if (p->fd < 0)
        return false;
    bool good = fstat(p->fd, &st) == 0;
    if (good && S_ISREG(st.st_mode))
        return true;
    errno = good ? EINVAL : errno;
    pm_record_place_close(p);
    return false;
}

// ---- a part -------------------------------------------------------------------------------------

// Stores go through the mapping of the head. Under PMALLOC_COMMIT that is private, and nobody
// stores to these parts there.
static char *mapped(const struct pm_record_place *p, uint64_t at) {
    return pm_heap_is_journaled() ? NULL : p->part->map + at;
}

// One without a byte is a file that is not there.
static bool open_part(struct pm_record_place *p, uint32_t generation, enum pm_record_use use) {
    p->part = file_of(generation);
    errno = ENOENT;
    if (use != PM_RECORD_MAKE && !p->part->size)
        return false;
    p->fd = pm_medium_fd(pm_medium_of(p->part));
    return p->fd >= 0;
}

static bool write_part(const struct pm_record_place *p, const void *from, size_t len, uint64_t at) {
    if (at + len > p->part->room) {
        errno = ENOSPC;
        return false;
    }
    if (at + len > p->part->size && !pm_fixed_set_length(p->part, at + len))
        return false;
    char *to = mapped(p, at);
    if (!to)
        return pm_os_write_all(p->fd, from, len, p->part->at + at);
    memcpy(to, from, len);
    return true;
}

static ssize_t read_part(const struct pm_record_place *p, void *to, size_t len, uint64_t at) {
    uint64_t there = p->part->size > at ? p->part->size - at : 0;
    len = there < len ? there : len;
    const char *from = mapped(p, at);
    if (!from)
        return pm_os_read_at(p->fd, to, len, p->part->at + at);
    memcpy(to, from, len);
    return (ssize_t)len;
}

// ---- either -------------------------------------------------------------------------------------

bool pm_record_place_open(struct pm_record_place *p, uint32_t generation, enum pm_record_use use) {
    *p = (struct pm_record_place){.fd = -1};
    return pm_fixed_is_open() ? open_part(p, generation, use) : open_file(p, generation, use);
}

void pm_record_place_close(struct pm_record_place *p) {
    int saved = errno;
    if (p->fd >= 0 && !p->part) // that of a part is its medium's
        close(p->fd);
    p->fd = -1;
    errno = saved;
}

bool pm_record_place_length(const struct pm_record_place *p, uint64_t *bytes) {
    struct stat st;
    if (p->part)
        return *bytes = p->part->size, true;
    if (fstat(p->fd, &st) != 0)
        return false;
    *bytes = (uint64_t)st.st_size;
    return true;
}

ssize_t pm_record_place_read(const struct pm_record_place *p, void *to, size_t len, uint64_t at) {
    return p->part ? read_part(p, to, len, at) : pm_os_read_at(p->fd, to, len, at);
}

bool pm_record_place_write(const struct pm_record_place *p, const void *from, size_t len,
                           uint64_t at) {
    if (p->part)
        return write_part(p, from, len, at);
    return pm_os_file_size(at + len) && pm_os_write_all(p->fd, from, len, at);
}

static bool zero_part(const struct pm_record_place *p, uint64_t bytes) {
    static const char zeroes[PM_PAGE_SIZE];
    bool good = true;
    for (uint64_t at = 0; at < bytes && good; at += sizeof zeroes)
        good = write_part(p, zeroes, sizeof zeroes, at);
    return good && pm_fixed_set_length(p->part, bytes);
}

bool pm_record_place_clear(const struct pm_record_place *p, uint64_t bytes) {
    if (p->part)
        return zero_part(p, bytes);
    return pm_os_file_size(bytes) && ftruncate(p->fd, 0) == 0 &&
           ftruncate(p->fd, (off_t)bytes) == 0;
}

bool pm_record_place_sync(const struct pm_record_place *p) {
    if (p->part && !mapped(p, 0))
        return pm_file_sync(p->part);
    if (p->part) {
        pm_make_durable(mapped(p, 0), p->part->size);
        return true;
    }
    return fsync(p->fd) == 0 && (fsync(pm_heap.dir_fd) == 0 || errno == EINVAL);
}

void pm_record_place_remove(uint32_t generation) {
    struct pm_file *f = file_of(generation);
    if (pm_fixed_is_open() && f->size)
        pm_fixed_set_length(f, 0);
    else if (!pm_fixed_is_open() && pm_dir_ready())
        unlinkat(pm_heap.dir_fd, f->name, 0);
}
