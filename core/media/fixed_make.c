// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "fixed_make.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/options.h"
#include "base/os.h"
#include "file.h"
#include "fixed.h"
#include "fixed_copy.h"
#include "journal.h"
#include "lane_format.h"
#include "log.h"
#include "persist.h"
#include "superblock.h"

static const char *path;
static bool is_device;
static struct pm_file medium = {.name = "layout", .fd = -1};

static int failed(const char *what, struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL, "%s: %s: %s", path, what, pm_strerror(errno));
}

// ---- the file or device -------------------------------------------------------------------------

// Only in a file that did not exist is anything allocated.
static int create(uint64_t size, struct pm_error *err) {
    if (size == 0)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s does not exist; name a file or device, or give --size to make a file",
                       path);
    medium.fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (medium.fd < 0)
        return failed("cannot be made", err);
    int status = -1;
    while ((status = fallocate(medium.fd, 0, 0, (off_t)size)) != 0 && errno == EINTR) {
    }
    if (status == 0)
        return PM_OK;
    failed("its space cannot be allocated", err);
    unlink(path);
    return err->status;
}

static int open_there(const struct stat *st, struct pm_error *err) {
    if (S_ISDIR(st->st_mode))
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is a directory: a heap there is made by the first program that uses it; "
                       "name a file or device",
                       path);
    if (!S_ISREG(st->st_mode) && !S_ISCHR(st->st_mode))
        return pm_fail(err, PM_OPERATIONAL, "%s is neither a file nor a DAX device", path);
    medium.fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    return medium.fd < 0 ? failed("cannot open it", err) : PM_OK;
}

// A device may have several nodes, and so several locks; this one is of them all (fixed_open.c). It
// is held until the tool ends.
static bool lock_gate(const struct stat *st) {
    int fd = S_ISCHR(st->st_mode) ? pm_fixed_open_gate(st) : -1;
    return fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0;
}

static int check_medium(const struct stat *st, bool force, struct pm_error *err) {
    if (S_ISREG(st->st_mode) && st->st_uid != geteuid())
        return pm_fail(err, PM_OPERATIONAL, "%s belongs to user %u, not to user %u", path,
                       (unsigned)st->st_uid, (unsigned)geteuid());
    if (flock(medium.fd, LOCK_EX | LOCK_NB) != 0 || !lock_gate(st))
        return pm_fail(err, PM_OPERATIONAL, "%s is in use by another process", path);
    if (S_ISREG(st->st_mode) && (uint64_t)st->st_blocks * 512 < (uint64_t)st->st_size && !force)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s has %lu bytes, but space for %lu only; allocate it: `fallocate -l %lu "
                       "%s`, or give --force if its file system keeps no holes",
                       path, (unsigned long)st->st_size, (unsigned long)st->st_blocks * 512,
                       (unsigned long)st->st_size, path);
    return PM_OK;
}

static int find_size(uint64_t size, uint64_t *bytes, struct pm_error *err) {
    uint64_t there = pm_fixed_bytes(medium.fd);
    if (there == 0)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is no DAX device, or is empty; its size is not known", path);
    if (size > there)
        return pm_fail(err, PM_OPERATIONAL, "%s has %lu bytes, less than the %lu of --size", path,
                       (unsigned long)there, (unsigned long)size);
    *bytes = (size ? size : there) & ~(PM_FIXED_ALIGN - 1);
    if (*bytes < PM_FIXED_LEAST)
        return pm_fail(err, PM_OPERATIONAL, "%s: %lu bytes are too few for a heap, which needs %lu",
                       path, (unsigned long)(size ? size : there), (unsigned long)PM_FIXED_LEAST);
    return PM_OK;
}

// ---- what it holds ------------------------------------------------------------------------------

#define WINDOW ((uint64_t)64 << 20)

// The first byte that is not zero, or `len`.
static uint64_t first_byte(const char *at, uint64_t len) {
    uint64_t i = 0;
    for (const uint64_t *word = (const void *)at; i < len && *word == 0; i += sizeof *word)
        word++;
    while (i < len && at[i] == 0)
        i++;
    return i;
}

static int say_found(const char *at, uint64_t offset, uint64_t byte, struct pm_error *err) {
    uint64_t magic;
    memcpy(&magic, at, sizeof magic);
    if (offset == 0 && magic == PM_LAYOUT_MAGIC)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s holds a heap already; --force makes a new one and loses it", path);
    return pm_fail(err, PM_OPERATIONAL,
                   "%s is not empty: its byte %lu is not zero; --force overwrites what it holds",
                   path, (unsigned long)(offset + byte));
}

static int check_zeroes(uint64_t from, uint64_t bytes, struct pm_error *err) {
    for (uint64_t at = from; at < bytes; at += WINDOW) {
        uint64_t len = bytes - at < WINDOW ? bytes - at : WINDOW;
        char *map = mmap(NULL, len, PROT_READ, MAP_SHARED, medium.fd, (off_t)at);
        if (map == MAP_FAILED)
            return failed("cannot map it", err);
        uint64_t byte = first_byte(map, len);
        int status = byte < len ? say_found(map, at, byte, err) : PM_OK;
        munmap(map, len);
        if (status != PM_OK)
            return status;
    }
    return PM_OK;
}

// ---- the layout ---------------------------------------------------------------------------------

static uint64_t between(uint64_t least, uint64_t value, uint64_t most) {
    value = value < least ? least : value > most ? most : value;
    return (value + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1);
}

// Room for each part, for so many bytes of data. slabs.0 has a header for every slab; the log's
// entries are of at least 16 KiB each, and a compaction needs them twice. The others are a guess at
// what programs need: without room in them slabs do not morph, roots are refused, and recovery
// marks after a clean close, too. Bitmaps fill theirs where all blocks have 16 bytes. The parts do
// not move when the heap becomes larger, so they have room for GROWTH times as much.
#define GROWTH 4u
static uint64_t room_of(unsigned part, uint64_t bytes) {
    const uint64_t kib = 1024, mib = kib * kib;
    switch (part) {
    case PM_JOURNAL_SUPER:
        return between(sizeof(struct pm_super_file) + PM_LANES_BYTES, 0, 0);
    case PM_JOURNAL_ROOTS:
        return between(512 * kib, bytes / 64, 64 * mib);
    case PM_JOURNAL_SLABS:
        return between(PM_PAGE_SIZE, GROWTH * bytes / 1024, bytes);
    case PM_JOURNAL_LOG:
        return between(0, GROWTH * bytes / 1024 + 128 * kib, bytes);
    case PM_JOURNAL_MORPH:
        return between(64 * kib, GROWTH * bytes / 512, bytes);
    case PM_PART_BITMAPS:
        return between(64 * kib, bytes / 120, bytes);
    default:
        return 0;
    }
}

// The journal comes last: the superblock must lie in what pm_fixed_peek() maps.
static void lay_out(struct pm_layout *layout, uint64_t bytes, uint64_t journal, bool zeroed) {
    uint64_t at = sizeof(struct pm_layout) + sizeof(struct pm_lengths);
    *layout = (struct pm_layout){.version = PM_LAYOUT_VERSION,
                                 .parts = PM_PARTS,
                                 .bytes = bytes,
                                 .flags = zeroed ? PM_LAYOUT_ZEROED : 0};
    for (unsigned part = 0; part < PM_PARTS; part++) {
        uint64_t room = room_of(part, bytes);
        if (room)
            layout->part[part] = (struct pm_part_range){at, room};
        at += room;
    }
    journal = (journal + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1);
    if (journal)
        layout->part[PM_JOURNAL_SELF] = (struct pm_part_range){at, journal};
    at = (at + journal + PM_FIXED_ALIGN - 1) & ~(PM_FIXED_ALIGN - 1);
    uint64_t room = bytes - at < PM_SHARD_RANGE ? bytes - at : PM_SHARD_RANGE;
    layout->part[PM_JOURNAL_DATA] = (struct pm_part_range){at, room};
}

// ---- writing it ---------------------------------------------------------------------------------

static void fill_lengths(struct pm_lengths *lengths) {
    for (unsigned part = 0; part < PM_PARTS; part++) {
        uint64_t bytes = part == PM_JOURNAL_SUPER ? sizeof(struct pm_super_file)
                         : part == PM_JOURNAL_LOG ? sizeof(struct pm_log_header)
                                                  : 0;
        lengths->pages[part] = pm_seal((uint32_t)(bytes >> PM_PAGE_SHIFT), PM_SALT_LENGTH(part));
    }
}

static void fill_super(struct pm_super_file *file) {
    struct pm_state_words state = pm_state_new();
    pm_superblock_new(&file->super);
    memcpy(&file->state, &state, sizeof state);
    pm_slots_new(&file->slots);
}

static bool be_durable(const char *at, size_t len) {
    pm_make_durable(at, len);
    return pm_durability == PM_DURABLE_NONE || is_device || fsync(medium.fd) == 0;
}

static bool begin_heap(char *head) {
    pm_commit_u64((uint64_t *)(void *)head, 0); // magic of a heap that is overwritten
    return be_durable(head, PM_PAGE_SIZE);
}

static bool fill_head(char *head, struct pm_layout *layout, bool copy) {
    uint64_t len = layout->part[PM_JOURNAL_DATA].at;
    struct pm_layout *there = (struct pm_layout *)(void *)head;
    memset(head + sizeof there->magic, 0, len - sizeof there->magic);
    fill_lengths((struct pm_lengths *)(void *)(head + sizeof *layout));
    struct pm_super_file *super =
        (struct pm_super_file *)(void *)(head + layout->part[PM_JOURNAL_SUPER].at);
    fill_super(super);
    pm_log_header_init((struct pm_log_header *)(void *)(head + layout->part[PM_JOURNAL_LOG].at));
    if (copy && !pm_fixed_copy_head(head, layout))
        return false;
    memcpy(layout->uuid, super->super.uuid, sizeof layout->uuid);
    layout->magic = PM_LAYOUT_MAGIC;
    layout->crc = pm_layout_crc(layout);
    memcpy(head + sizeof there->magic, (const char *)layout + sizeof there->magic,
           sizeof *layout - sizeof there->magic);
    if (!be_durable(head, len))
        return false;
    pm_commit_u64(&there->magic, PM_LAYOUT_MAGIC);
    return be_durable(head, PM_PAGE_SIZE);
}

static int write_heap(uint64_t bytes, const struct pm_fixed_wish *wish, struct pm_fixed_made *made,
                      struct pm_error *err) {
    struct pm_layout layout;
    bool zeroed = !wish->force;
    lay_out(&layout, bytes, wish->journal, zeroed);
    if (wish->copy && pm_fixed_copy_check(&layout, path, err) != PM_OK)
        return err->status;
    *made = (struct pm_fixed_made){.created = made->created,
                                   .device = made->device,
                                   .zeroed = zeroed,
                                   .data = layout.part[PM_JOURNAL_DATA].room,
                                   .head = layout.part[PM_JOURNAL_DATA].at,
                                   .journal = layout.part[PM_JOURNAL_SELF].room};
    pm_fixed.device = is_device;
    pm_fixed_persist(medium.fd);
    char *head = pm_file_map(&medium, NULL, made->head, PROT_READ | PROT_WRITE, 0, 0);
    if (head == MAP_FAILED)
        return failed("cannot map it", err);
    bool good = begin_heap(head) && (!wish->copy || pm_fixed_copy_data(&medium, &layout));
    int status =
        good && fill_head(head, &layout, wish->copy) ? PM_OK : failed("cannot be written", err);
    munmap(head, made->head);
    return status;
}

// Less than that leaves no room for a commit beside those of a lap.
#define LEAST_JOURNAL ((uint64_t)1 << 20)

static int check_journal(uint64_t bytes, uint64_t journal, struct pm_error *err) {
    if (!journal || (journal >= LEAST_JOURNAL && journal <= bytes / 2))
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "%s: --journal takes from 1 MiB to half of the %lu bytes of the heap", path,
                   (unsigned long)bytes);
}

int pm_fixed_make(const char *where, const struct pm_fixed_wish *wish, struct pm_fixed_made *made,
                  struct pm_error *err) {
    struct stat st;
    uint64_t bytes = 0;
    path = where;
    *made = (struct pm_fixed_made){.created = lstat(path, &st) != 0 && errno == ENOENT};
    int status = made->created ? create(wish->size, err) : open_there(&st, err);
    if (status == PM_OK && fstat(medium.fd, &st) != 0)
        status = failed("cannot be read", err);
    if (status == PM_OK)
        status = check_medium(&st, wish->force, err);
    made->device = is_device = status == PM_OK && S_ISCHR(st.st_mode);
    if (status == PM_OK)
        status = find_size(wish->size, &bytes, err);
    if (status == PM_OK)
        status = check_journal(bytes, wish->journal, err);
    if (status == PM_OK && !wish->force && !made->created)
        status = check_zeroes(0, bytes, err);
    if (status == PM_OK)
        status = write_heap(bytes, wish, made, err);
    if (status != PM_OK && made->created && medium.fd >= 0)
        unlink(path);
    if (medium.fd >= 0)
        close(medium.fd); // and unlocks it
    return status;
}

// ---- making it larger ---------------------------------------------------------------------------

static bool zero_range(uint64_t from, uint64_t to) {
    bool good = true;
    for (uint64_t at = from; at < to && good; at += WINDOW) {
        uint64_t len = to - at < WINDOW ? to - at : WINDOW;
        char *map = pm_file_map(&medium, NULL, len, PROT_READ | PROT_WRITE, 0, at);
        if (map == MAP_FAILED)
            return false;
        memset(map, 0, len);
        good = be_durable(map, len);
        munmap(map, len);
    }
    return good;
}

// What the heap is, and how large. The headers of slabs are as many as their part has room for.
static int check_growth(const char *head, uint64_t bytes, uint64_t *now, struct pm_error *err) {
    const struct pm_layout *layout = (const void *)head;
    uint64_t word = ((const struct pm_lengths *)(const void *)(layout + 1))->grown;
    *now = word ? (uint64_t)pm_unseal(word) << PM_PAGE_SHIFT : layout->bytes;
    uint64_t most = layout->part[PM_JOURNAL_DATA].at + layout->part[PM_JOURNAL_SLABS].room /
                                                           sizeof(struct pm_slab_header) *
                                                           PM_SLAB_SIZE;
    if (word && !pm_sealed(word, PM_SALT_GROWN))
        return pm_fail(err, PM_DAMAGE, "%s/layout: its size does not match its check", path);
    if (bytes < *now)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: its heap has %lu bytes; it can become larger, not smaller", path,
                       (unsigned long)*now);
    if (bytes <= most)
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "%s: its heap has metadata for %lu bytes, less than %lu; give --size %lu, or "
                   "make a new heap",
                   path, (unsigned long)most, (unsigned long)bytes,
                   (unsigned long)(most & ~(PM_FIXED_ALIGN - 1)));
}

static int grow_heap(char *head, uint64_t bytes, bool force, struct pm_fixed_made *made,
                     struct pm_error *err) {
    const struct pm_layout *layout = (const void *)head;
    struct pm_lengths *lengths = (struct pm_lengths *)(void *)(head + sizeof *layout);
    uint64_t now;
    int status = pm_layout_check(layout, path, err);
    if (status == PM_OK)
        status = check_growth(head, bytes, &now, err);
    if (status != PM_OK)
        return status;
    made->zeroed = layout->flags & PM_LAYOUT_ZEROED;
    made->head = layout->part[PM_JOURNAL_DATA].at;
    made->journal = layout->part[PM_JOURNAL_SELF].room;
    made->data = bytes - made->head;
    if (made->zeroed && force && !zero_range(now, bytes))
        return failed("cannot be written", err);
    if (made->zeroed && !force)
        status = check_zeroes(now, bytes, err);
    if (status != PM_OK || bytes == now)
        return status;
    pm_commit_u64(&lengths->grown, pm_seal((uint32_t)(bytes >> PM_PAGE_SHIFT), PM_SALT_GROWN));
    return be_durable(head, PM_FIXED_ALIGN) ? PM_OK : failed("cannot be written", err);
}

int pm_fixed_grow(const char *where, uint64_t size, bool force, struct pm_fixed_made *made,
                  struct pm_error *err) {
    struct stat st;
    uint64_t bytes = 0;
    path = where;
    *made = (struct pm_fixed_made){0};
    int status = lstat(path, &st) != 0 ? failed("cannot be read", err) : open_there(&st, err);
    if (status == PM_OK)
        status = check_medium(&st, force, err);
    made->device = is_device = status == PM_OK && S_ISCHR(st.st_mode);
    if (status == PM_OK)
        status = find_size(size, &bytes, err);
    pm_fixed.device = is_device;
    if (status == PM_OK)
        pm_fixed_persist(medium.fd);
    char *head = status == PM_OK
                     ? pm_file_map(&medium, NULL, PM_FIXED_ALIGN, PROT_READ | PROT_WRITE, 0, 0)
                     : MAP_FAILED;
    if (status == PM_OK && head == MAP_FAILED)
        status = failed("cannot map it", err);
    if (status == PM_OK)
        status = grow_heap(head, bytes, force, made, err);
    if (head != MAP_FAILED)
        munmap(head, PM_FIXED_ALIGN);
    if (medium.fd >= 0)
        close(medium.fd); // and unlocks it
    return status;
}
