// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "fixed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/options.h"
#include "base/os.h"
#include "base/os_file.h"
#include "journal_format.h"
#include "persist.h"

struct pm_fixed pm_fixed = {.fd = -1, .gate = -1};

// ---- the medium ---------------------------------------------------------------------------------

uint64_t pm_fixed_device_number(int fd, const char *name) {
    char path[96], text[32] = "";
    struct stat st;
    if (fstat(fd, &st) != 0)
        return 0;
    snprintf(path, sizeof path, "/sys/dev/char/%u:%u/%s", major(st.st_rdev), minor(st.st_rdev),
             name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = file >= 0 ? read(file, text, sizeof text - 1) : -1;
    if (file >= 0)
        close(file);
    return got > 0 ? strtoull(text, NULL, 0) : 0;
}

int pm_fixed_open_gate(const struct stat *st) {
    char path[64];
    snprintf(path, sizeof path, "/sys/dev/char/%u:%u/", major(st->st_rdev), minor(st->st_rdev));
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

uint64_t pm_fixed_bytes(int fd) {
    struct stat st;
    if (fstat(fd, &st) != 0)
        return 0;
    return S_ISCHR(st.st_mode) ? pm_fixed_device_number(fd, "size") : (uint64_t)st.st_size;
}

// A device is mapped in whole units only.
const struct pm_layout *pm_fixed_peek(int fd) {
    if (pm_fixed_bytes(fd) < PM_FIXED_LEAST) {
        errno = ENODATA;
        return NULL;
    }
    const void *map = mmap(NULL, PM_FIXED_ALIGN, PROT_READ, MAP_SHARED, fd, 0);
    return map == MAP_FAILED ? NULL : map;
}

void pm_fixed_unpeek(const struct pm_layout *layout) {
    munmap((void *)(uintptr_t)layout, PM_FIXED_ALIGN);
}

// ---- the layout ---------------------------------------------------------------------------------

uint32_t pm_layout_crc(const struct pm_layout *layout) {
    return pm_crc32c(0, layout, offsetof(struct pm_layout, crc));
}

static bool overlap(const struct pm_part_range *a, const struct pm_part_range *b) {
    return a->room && b->room && a->at < b->at + b->room && b->at < a->at + a->room;
}

// No part has a byte of another one, or of the first two pages.
static bool part_is_alone(const struct pm_layout *layout, unsigned part) {
    const struct pm_part_range *r = layout->part;
    bool alone = !r[part].room || r[part].at >= sizeof *layout + sizeof(struct pm_lengths);
    for (unsigned other = 0; other < part; other++)
        alone = alone && !overlap(&r[part], &r[other]);
    return alone;
}

static bool part_is_good(const struct pm_layout *layout, unsigned part) {
    const struct pm_part_range *r = &layout->part[part];
    uint64_t align = part == PM_JOURNAL_DATA ? PM_FIXED_ALIGN : PM_PAGE_SIZE;
    uint64_t head = layout->part[PM_JOURNAL_DATA].at;
    return r->at % align == 0 && r->room % align == 0 && r->room <= PM_SHARD_RANGE &&
           r->at <= layout->bytes && r->room <= layout->bytes - r->at &&
           (part == PM_JOURNAL_DATA || r->at + r->room <= head);
}

int pm_layout_check(const struct pm_layout *layout, const char *path, struct pm_error *err) {
    if (layout->magic != PM_LAYOUT_MAGIC)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: Not a directory, and it holds no heap; name a directory, or make a "
                       "heap in it: `pmalloc-recover --make %s`",
                       path, path);
    if (layout->crc != pm_layout_crc(layout))
        return pm_fail(err, PM_DAMAGE, "%s/layout: checksum is wrong; restore it from a backup",
                       path);
    if (layout->version != PM_LAYOUT_VERSION || layout->parts != PM_PARTS ||
        layout->flags & ~PM_LAYOUT_ZEROED) {
        pm_heap.foreign = true;
        return pm_fail(err, PM_OPERATIONAL,
                       "%s/layout was made by another build of PMAlloc (version %u); it is not "
                       "damaged, and nothing was changed",
                       path, layout->version);
    }
    for (unsigned part = 0; part < PM_PARTS; part++)
        if (!part_is_good(layout, part))
            return pm_fail(err, PM_DAMAGE, "%s/layout: part %u lies nowhere", path, part);
    for (unsigned part = 0; part < PM_PARTS; part++) // none of them wraps around
        if (!part_is_alone(layout, part))
            return pm_fail(err, PM_DAMAGE, "%s/layout: part %u lies over another one", path, part);
    return PM_OK;
}

void pm_fixed_persist(int fd) {
    int forced = (int)pm_options.persist.number - 1;
    if (pm_fixed.device)
        pm_persist_init_device(forced, pm_heap.dir);
    else
        pm_persist_init(fd, forced, pm_heap.dir);
}

bool pm_fixed_read_state(int fd, struct pm_state *state) {
    const struct pm_layout *layout = pm_fixed_peek(fd);
    struct pm_error ignored;
    if (!layout)
        return false;
    uint64_t at = layout->part[PM_JOURNAL_SUPER].at + offsetof(struct pm_super_file, state);
    bool good = pm_layout_check(layout, pm_heap.dir, &ignored) == PM_OK &&
                at + sizeof *state <= PM_FIXED_ALIGN;
    if (good)
        memcpy(state, (const char *)layout + at, sizeof *state);
    pm_fixed_unpeek(layout);
    return good;
}

// ---- the open heap ------------------------------------------------------------------------------

int pm_fixed_fd(void) {
    if (pm_os_fd_is(pm_fixed.fd, pm_fixed.dev, pm_fixed.ino))
        return pm_fixed.fd;
    int fd = open(pm_heap.dir, (pm_fixed.readonly ? O_RDONLY : O_RDWR) | O_NOFOLLOW | O_CLOEXEC);
    if (!pm_os_fd_is(fd, pm_fixed.dev, pm_fixed.ino)) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    return pm_fixed.fd = pm_os_fd_high(fd);
}

void pm_fixed_close(void) {
    if (pm_fixed.head)
        munmap(pm_fixed.head, pm_fixed.head_len);
    if (pm_os_fd_is(pm_fixed.fd, pm_fixed.dev, pm_fixed.ino))
        close(pm_fixed.fd);
    if (pm_fixed.gate >= 0 && pm_os_fd_is(pm_fixed.gate, pm_fixed.gate_dev, pm_fixed.gate_ino))
        close(pm_fixed.gate);
    pm_fixed.fd = pm_fixed.gate = -1;
    pm_fixed.head = NULL;
    pm_fixed.lengths = NULL;
}

bool pm_fixed_set_length(struct pm_file *file, uint64_t bytes) {
    bytes = (bytes + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1);
    unsigned part = (unsigned)(file->length - pm_fixed.lengths->pages);
    if (bytes > file->room) {
        errno = ENOSPC;
        return false;
    }
    pm_commit_u64(file->length, pm_seal((uint32_t)(bytes >> PM_PAGE_SHIFT), PM_SALT_LENGTH(part)));
    file->size = bytes;
    return true;
}
