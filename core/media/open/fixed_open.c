// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "fixed_open.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/os.h"
#include "base/os_file.h"
#include "heap_lock.h"
#include "media/backing/fixed_layout.h"
#include "media/backing/fixed_map.h"
#include "media/journal/journal.h"
#include "media/persist.h"

// ---- finding them -------------------------------------------------------------------------------

static int read_layout(const struct pm_medium *m, int fd, struct pm_layout *out,
                       struct pm_error *err) {
    const struct pm_layout *there = pm_fixed_peek(fd, m->path);
    if (!there && errno != ENODATA)
        return pm_fail(err, PM_OPERATIONAL, "%s: cannot map it: %s", m->path, pm_strerror(errno));
    if (!there)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: Not a directory, and its %lu bytes are too few for a heap, which needs "
                       "%lu; was it cut? Name a directory, or a file or device with a heap",
                       m->path, (unsigned long)pm_fixed_bytes(fd), (unsigned long)PM_FIXED_LEAST);
    *out = *there;
    pm_fixed_unpeek(there);
    return pm_layout_check(out, m->path, err);
}

// A flock belongs to an inode, and each node of a device (mknod, a container's /dev) is one.
static int open_gate(struct pm_medium *m, const struct stat *st, struct pm_error *err) {
    struct stat gate;
    int fd = pm_fixed_open_gate(st);
    if (fd < 0 && errno == ENOENT) // no /sys
        return PM_OK;
    if (fd < 0 || fstat(fd, &gate) != 0)
        return pm_fail(err, PM_OPERATIONAL, "%s: its folder in /sys cannot be opened: %s", m->path,
                       pm_strerror(errno));
    m->gate = pm_os_fd_high(fd);
    m->gate_dev = gate.st_dev;
    m->gate_ino = gate.st_ino;
    return PM_OK;
}

// Under one name or two: a device by its numbers.
static bool is_same(const struct pm_medium *a, const struct pm_medium *b) {
    struct stat x, y;
    return (a->dev == b->dev && a->ino == b->ino) ||
           (a->device && b->device && fstat(a->lock, &x) == 0 && fstat(b->lock, &y) == 0 &&
            x.st_rdev == y.st_rdev);
}

static int check_twice(const struct pm_medium *m, struct pm_error *err) {
    for (const struct pm_medium *other = pm_fixed.medium; other < m; other++)
        if (is_same(other, m))
            return pm_fail(err, PM_OPERATIONAL,
                           "%s and %.300s are one and the same; name each file or device of the "
                           "heap once",
                           m->path, other->path);
    return PM_OK;
}

static int open_medium(struct pm_medium *m, struct stat *st, struct pm_error *err) {
    int flags = pm_fixed.readonly ? O_RDONLY : O_RDWR;
    int fd = open(m->path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, st) != 0)
        return pm_fail(err, PM_OPERATIONAL, "%s: cannot open it: %s", m->path, pm_strerror(errno));
    m->lock = fd = pm_os_fd_high(fd);
    m->device = S_ISCHR(st->st_mode);
    m->dev = st->st_dev;
    m->ino = st->st_ino;
    uint64_t align = m->device ? pm_fixed_device_number(fd, "align") : 0;
    m->granule = m->device ? (align ? align : PM_FIXED_ALIGN) : PM_PAGE_SIZE;
    if (m->device && pm_fixed_bytes(fd) == 0)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is no DAX device, or /sys does not say how large it is", m->path);
    if (m->device && open_gate(m, st, err) != PM_OK)
        return err->status;
    if (m->granule > PM_FIXED_ALIGN)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is mapped in units of %lu bytes; make it with an alignment of 2 MiB",
                       m->path, (unsigned long)m->granule);
    return pm_fixed_check_owner(m->path, st, err);
}

// `text` as an absolute path: the program may change its directory.
static int set_path(struct pm_medium *m, const char *text, size_t len, struct pm_error *err) {
    char dir[sizeof m->path] = "";
    if (*text != '/' && !getcwd(dir, sizeof dir))
        return pm_fail(err, PM_OPERATIONAL, "%.300s: %s", text, pm_strerror(errno));
    size_t before = strlen(dir);
    if (before && dir[before - 1] != '/')
        dir[before++] = '/';
    if (len == 0 || before + len >= sizeof m->path)
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s: a file or device has no name, or too long a "
                       "one",
                       text);
    memcpy(m->path, dir, before);
    memcpy(m->path + before, text, len);
    m->path[before + len] = '\0';
    return PM_OK;
}

// Gives the next medium its path. PM_NO_FIXED: the first is neither file nor device.
static int add_medium(const char *text, size_t len, struct pm_error *err) {
    struct stat st;
    if (pm_fixed.count == PM_MEDIA)
        return pm_fail(err, PM_OPERATIONAL, "%.300s: a heap has at most %u files and devices", text,
                       PM_MEDIA);
    struct pm_medium *m = &pm_fixed.medium[pm_fixed.count];
    int status = set_path(m, text, len, err);
    if (status == PM_OK && pm_fixed.count)
        status = pm_fixed_check_name(m->path, err);
    if (status != PM_OK)
        return status;
    m->fd = m->lock = m->gate = -1;
    m->head = NULL;
    m->lengths = NULL;
    bool there = lstat(m->path, &st) == 0;
    if (!(there && (S_ISREG(st.st_mode) || S_ISCHR(st.st_mode))) && pm_fixed.count == 0)
        return PM_NO_FIXED;
    if (there && S_ISLNK(st.st_mode))
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is a symbolic link, which is not followed; name what it points to",
                       m->path);
    if (there && !S_ISREG(st.st_mode) && !S_ISCHR(st.st_mode))
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is neither a file nor a DAX device, as %.300s is; a heap lies in "
                       "directories, or in files and devices",
                       m->path, pm_heap.dir);
    pm_fixed.count++;
    return open_medium(m, &st, err);
}

static struct pm_layout layout[PM_MEDIA];

// They may have been made anew before they were locked.
static int check_all(struct pm_error *err) {
    struct pm_layout_named named = {layout, pm_fixed.medium[0].path, pm_fixed.count};
    int status = PM_OK;
    for (unsigned i = 0; i < pm_fixed.count && status == PM_OK; i++) {
        struct pm_medium *m = &pm_fixed.medium[i];
        status = read_layout(m, m->lock, &layout[i], err);
        if (status == PM_OK)
            status = check_twice(m, err);
        if (status == PM_OK)
            status = pm_layout_check_place(&layout[i], &named, i, m->path, err);
    }
    return status;
}

int pm_fixed_find(const char *more, bool readonly, int *out, struct pm_error *err) {
    pm_fixed.readonly = readonly;
    int status = add_medium(pm_heap.dir, strlen(pm_heap.dir), err);
    *out = pm_fixed.count ? pm_fixed.medium[0].lock : -1;
    while (*more && status == PM_OK) {
        size_t len = strcspn(more, ":");
        status = add_medium(more, len, err);
        more += len + (more[len] != '\0');
    }
    return status == PM_OK ? check_all(err) : status;
}

int pm_fixed_lock(enum pm_open_mode mode, bool wait, struct pm_error *err) {
    int status = PM_OK;
    for (PM_EACH_MEDIUM(m)) {
        if (status == PM_OK)
            status = pm_dir_lock(m->lock, mode, wait, err);
        if (status == PM_OK && m->gate >= 0)
            status = pm_dir_lock(m->gate, mode, wait, err);
    }
    return status;
}

bool pm_fixed_still_there(void) {
    bool good = true;
    for (PM_EACH_MEDIUM(m))
        good = good && pm_os_fd_at_path(m->lock, m->path);
    return good;
}

// ---- opening ------------------------------------------------------------------------------------

// The address is a multiple of 2 MiB, as the part's place is: so the kernel can map 2 MiB at once.
static bool map_head(struct pm_medium *m, uint64_t len) {
    char *room = pm_os_reserve_unused(len + PM_FIXED_ALIGN);
    if (!room)
        return false;
    uintptr_t spare = -(uintptr_t)room & (PM_FIXED_ALIGN - 1);
    int prot = PROT_READ | (pm_fixed.readonly ? 0 : PROT_WRITE);
    void *map = pm_medium_map(m->lock, room + spare, len, prot, 0);
    if (spare)
        munmap(room, spare);
    if (PM_FIXED_ALIGN > spare)
        munmap(room + spare + len, PM_FIXED_ALIGN - spare);
    if (map == MAP_FAILED) {
        munmap(room + spare, len);
        return false;
    }
    pm_os_advise(map, len, MADV_DONTDUMP);
    m->head = map;
    m->head_len = len;
    return true;
}

static void take_part(struct pm_medium *m, unsigned part, const struct pm_part_range *r) {
    struct pm_file *file = pm_medium_part((unsigned)(m - pm_fixed.medium), part);
    if (!file || !r->room)
        return;
    file->fd = m->fd;
    file->dev = m->dev;
    file->ino = m->ino;
    file->at = r->at;
    file->reach = file->room = r->room;
    file->map = part == PM_JOURNAL_DATA ? NULL : m->head + r->at;
    file->length = &m->lengths->pages[part];
}

static int measure(const struct pm_medium *m, struct pm_error *err) {
    for (unsigned part = 0; part < PM_PARTS; part++) {
        struct pm_file *file = pm_medium_part((unsigned)(m - pm_fixed.medium), part);
        uint64_t word = m->lengths->pages[part];
        uint64_t bytes = (uint64_t)pm_unseal(word) << PM_PAGE_SHIFT;
        if (!file || file->length != &m->lengths->pages[part])
            continue;
        if (!pm_sealed(word, PM_SALT_LENGTH(part)) || bytes > file->room)
            return pm_fail(err, PM_DAMAGE,
                           "%s/layout: the length of %s (%016lx) does not match its check", m->path,
                           file->name, (unsigned long)word);
        file->size = bytes;
    }
    return PM_OK;
}

int pm_fixed_measure(struct pm_error *err) {
    int status = PM_OK;
    for (PM_EACH_MEDIUM(m))
        if (status == PM_OK)
            status = measure(m, err);
    return status;
}

// A heap that was made larger has the rest of the medium, up to the new end, in heap.N.
static int check_grown(const struct pm_medium *m, struct pm_layout *found, uint64_t there,
                       struct pm_error *err) {
    uint64_t word = m->lengths->grown;
    uint64_t bytes = word ? (uint64_t)pm_unseal(word) << PM_PAGE_SHIFT : found->bytes;
    if ((word && !pm_sealed(word, PM_SALT_GROWN)) || bytes < found->bytes ||
        bytes % PM_FIXED_ALIGN || (bytes > found->bytes && bytes > pm_layout_most(found)))
        return pm_fail(err, PM_DAMAGE, "%s/layout: its size (%016lx) does not match its check",
                       m->path, (unsigned long)word);
    if (bytes > there)
        return pm_fail(err, PM_DAMAGE, "%s has %lu bytes, its heap needs %lu; was it cut?", m->path,
                       (unsigned long)there, (unsigned long)bytes);
    found->part[PM_JOURNAL_DATA].room += bytes - found->bytes;
    return PM_OK;
}

static int use_medium(struct pm_medium *m, struct pm_layout *found, struct pm_error *err) {
    uint64_t there = pm_fixed_bytes(m->lock);
    if (found->bytes > there)
        return pm_fail(err, PM_DAMAGE, "%s has %lu bytes, its heap needs %lu; was it cut?", m->path,
                       (unsigned long)there, (unsigned long)found->bytes);
    if (pm_medium_fd(m) < 0 || !map_head(m, found->part[PM_JOURNAL_DATA].at))
        return pm_fail(err, PM_OPERATIONAL, "%s: cannot map its head: %s", m->path,
                       pm_strerror(errno));
    m->lengths = (struct pm_lengths *)(void *)(m->head + sizeof *found);
    pm_fixed.zeroed = pm_fixed.zeroed && found->flags & PM_LAYOUT_ZEROED;
    int status = check_grown(m, found, there, err);
    for (unsigned part = 0; part < PM_PARTS && status == PM_OK; part++)
        take_part(m, part, &found->part[part]);
    if (status == PM_OK)
        status = measure(m, err);
    return status;
}

// A process that was killed, or a tool, may have left the last of these words in the caches alone,
// or its sync has failed: then a later sync does not write them. So they are stored again.
void pm_fixed_settle(void) {
    const size_t len = sizeof(struct pm_layout) + sizeof(struct pm_lengths);
    for (PM_EACH_MEDIUM(m)) {
        for (size_t at = 0; at < len; at += PM_PAGE_SIZE) {
            volatile char *page = m->head + at;
            *page = *page;
        }
        pm_make_durable(m->head, len);
    }
}

int pm_fixed_open(struct pm_error *err) {
    int status = check_all(err);
    if (status == PM_OK)
        status = pm_fixed_persist(pm_fixed.medium, pm_fixed.count, err);
    pm_fixed.open = pm_fixed.zeroed = true;
    for (unsigned i = 0; i < pm_fixed.count && status == PM_OK; i++)
        status = use_medium(&pm_fixed.medium[i], &layout[i], err);
    return status;
}
