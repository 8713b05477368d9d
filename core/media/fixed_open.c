// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "fixed_open.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/options.h"
#include "base/os.h"
#include "file.h"
#include "heap_part.h"
#include "journal.h"
#include "persist.h"

// ---- finding it ---------------------------------------------------------------------------------

// Devices and files belong to root where an administrator has made them for a user.
static int check_owner(const struct stat *st, struct pm_error *err) {
    if (st->st_uid != geteuid() && !(S_ISCHR(st->st_mode) && st->st_uid == 0))
        return pm_fail(err, PM_OPERATIONAL,
                       "%s belongs to user %u, not to user %u; refusing to "
                       "use it",
                       pm_heap.dir, (unsigned)st->st_uid, (unsigned)geteuid());
    if (st->st_mode & (S_ISCHR(st->st_mode) ? 002u : 022u))
        return pm_fail(err, PM_OPERATIONAL,
                       "%s can be written by others (mode %03o); run: chmod go-w '%s'", pm_heap.dir,
                       (unsigned)st->st_mode & 0777, pm_heap.dir);
    return PM_OK;
}

static int check_magic(int fd, struct pm_error *err) {
    static const struct pm_layout nothing;
    const struct pm_layout *layout = pm_fixed_peek(fd);
    if (!layout && errno != ENODATA)
        return pm_fail(err, PM_OPERATIONAL, "%s: cannot map it: %s", pm_heap.dir,
                       pm_strerror(errno));
    int status = pm_layout_check(layout ? layout : &nothing, pm_heap.dir, err);
    if (layout)
        pm_fixed_unpeek(layout);
    return status;
}

// A flock belongs to an inode, and each node of a device (mknod, a container's /dev) is one.
static void open_gate(const struct stat *st) {
    struct stat gate;
    int fd = pm_fixed_open_gate(st);
    if (fd < 0 || fstat(fd, &gate) != 0)
        return;
    pm_fixed.gate = pm_os_fd_high(fd);
    pm_fixed.gate_dev = gate.st_dev;
    pm_fixed.gate_ino = gate.st_ino;
}

int pm_fixed_find(bool readonly, int *out, struct pm_error *err) {
    struct stat st;
    *out = -1;
    if (lstat(pm_heap.dir, &st) != 0 || !(S_ISREG(st.st_mode) || S_ISCHR(st.st_mode)))
        return PM_NO_FIXED;
    int flags = readonly ? O_RDONLY : O_RDWR;
    int fd = open(pm_heap.dir, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0)
        return pm_fail(err, PM_OPERATIONAL, "%s: cannot open it: %s", pm_heap.dir,
                       pm_strerror(errno));
    *out = fd = pm_os_fd_high(fd);
    pm_fixed.readonly = readonly;
    pm_fixed.device = S_ISCHR(st.st_mode);
    pm_fixed.dev = st.st_dev;
    pm_fixed.ino = st.st_ino;
    uint64_t align = pm_fixed.device ? pm_fixed_device_number(fd, "align") : 0;
    pm_fixed.granule = pm_fixed.device ? (align ? align : PM_FIXED_ALIGN) : PM_PAGE_SIZE;
    if (pm_fixed.device)
        open_gate(&st);
    int status = check_owner(&st, err);
    if (status == PM_OK && pm_fixed.granule > PM_FIXED_ALIGN)
        status = pm_fail(err, PM_OPERATIONAL,
                         "%s is mapped in units of %lu bytes; make it with an alignment of 2 MiB",
                         pm_heap.dir, (unsigned long)pm_fixed.granule);
    return status == PM_OK ? check_magic(fd, err) : status;
}

// ---- opening ------------------------------------------------------------------------------------

// The address is a multiple of 2 MiB, as the part's place is: so the kernel can map 2 MiB at once.
static bool map_head(uint64_t len) {
    char *room = pm_os_reserve_unused(len + PM_FIXED_ALIGN);
    if (!room)
        return false;
    uintptr_t spare = -(uintptr_t)room & (PM_FIXED_ALIGN - 1);
    int prot = PROT_READ | (pm_fixed.readonly ? 0 : PROT_WRITE);
    static struct pm_file all = {.name = "layout"}; // its name stays (pm_persist_refused)
    all.fd = pm_heap.dir_fd;
    void *map = pm_file_map(&all, room + spare, len, prot, MAP_FIXED, 0);
    if (spare)
        munmap(room, spare);
    if (PM_FIXED_ALIGN > spare)
        munmap(room + spare + len, PM_FIXED_ALIGN - spare);
    if (map == MAP_FAILED) {
        munmap(room + spare, len);
        return false;
    }
    pm_os_advise(map, len, MADV_DONTDUMP);
    pm_fixed.head = map;
    pm_fixed.head_len = len;
    return true;
}

static struct pm_file *file_of(unsigned part) {
    return part == PM_PART_BITMAPS ? &pm_heap.shard[0].bitmaps : pm_heap_part(part);
}

static void take_part(unsigned part, const struct pm_part_range *r) {
    struct pm_file *file = file_of(part);
    if (!file || !r->room)
        return;
    file->fd = pm_fixed.fd;
    file->dev = pm_fixed.dev;
    file->ino = pm_fixed.ino;
    file->at = r->at;
    file->reach = file->room = r->room;
    file->map = part == PM_JOURNAL_DATA ? NULL : pm_fixed.head + r->at;
    file->length = &pm_fixed.lengths->pages[part];
}

int pm_fixed_measure(struct pm_error *err) {
    for (unsigned part = 0; part < PM_PARTS; part++) {
        struct pm_file *file = file_of(part);
        uint64_t word = pm_fixed.lengths->pages[part];
        uint64_t bytes = (uint64_t)pm_unseal(word) << PM_PAGE_SHIFT;
        if (!file || file->length != &pm_fixed.lengths->pages[part])
            continue;
        if (!pm_sealed(word, PM_SALT_LENGTH(part)) || bytes > file->room)
            return pm_fail(err, PM_DAMAGE,
                           "%s/layout: the length of %s (%016lx) does not match its check",
                           pm_heap.dir, file->name, (unsigned long)word);
        file->size = bytes;
    }
    return PM_OK;
}

// A heap that was made larger has the rest of the medium, up to the new end, in heap.0.
static int check_grown(struct pm_layout *layout, uint64_t there, struct pm_error *err) {
    uint64_t word = pm_fixed.lengths->grown;
    uint64_t bytes = word ? (uint64_t)pm_unseal(word) << PM_PAGE_SHIFT : layout->bytes;
    if ((word && !pm_sealed(word, PM_SALT_GROWN)) || bytes < layout->bytes ||
        bytes % PM_FIXED_ALIGN)
        return pm_fail(err, PM_DAMAGE, "%s/layout: its size (%016lx) does not match its check",
                       pm_heap.dir, (unsigned long)word);
    if (bytes > there)
        return pm_fail(err, PM_DAMAGE, "%s has %lu bytes, its heap needs %lu; was it cut?",
                       pm_heap.dir, (unsigned long)there, (unsigned long)bytes);
    layout->part[PM_JOURNAL_DATA].room += bytes - layout->bytes;
    return PM_OK;
}

int pm_fixed_open(struct pm_error *err) {
    int status = PM_OK, fd = pm_fixed_fd();
    const struct pm_layout *layout = fd < 0 ? NULL : pm_fixed_peek(fd);
    if (!layout)
        return pm_fail(err, PM_OPERATIONAL, "%s: cannot map it: %s", pm_heap.dir,
                       pm_strerror(errno));
    struct pm_layout found = *layout;
    pm_fixed_unpeek(layout);
    status = pm_layout_check(&found, pm_heap.dir, err);
    uint64_t there = pm_fixed_bytes(fd);
    if (status == PM_OK && found.bytes > there)
        return pm_fail(err, PM_DAMAGE, "%s has %lu bytes, its heap needs %lu; was it cut?",
                       pm_heap.dir, (unsigned long)there, (unsigned long)found.bytes);
    if (status != PM_OK)
        return status;
    pm_fixed_persist(fd);
    if (!map_head(found.part[PM_JOURNAL_DATA].at))
        return pm_fail(err, PM_OPERATIONAL, "%s: cannot map its head: %s", pm_heap.dir,
                       pm_strerror(errno));
    pm_fixed.lengths = (struct pm_lengths *)(void *)(pm_fixed.head + sizeof found);
    pm_fixed.zeroed = found.flags & PM_LAYOUT_ZEROED;
    status = check_grown(&found, there, err);
    for (unsigned part = 0; part < PM_PARTS && status == PM_OK; part++)
        take_part(part, &found.part[part]);
    if (status == PM_OK)
        status = pm_fixed_measure(err);
    // All space is there from the start: so a promise of it costs nothing.
    pm_options.reserve.number = PM_RESERVE_STRICT;
    return status;
}
