// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The media of a new heap, step by step. Each step is durable before the next:
//
//   1  the magic of each, the first one's first, is zero: a heap that lay there is gone
//   2  everything else, but for the magics
//   3  the magic of each, the first one's last: now the heap is there
#include "fixed_make.h"

#include <string.h>

#include "base/crc.h"
#include "base/os_file.h"
#include "fixed_copy.h"
#include "fixed_target.h"
#include "media/backing/fixed_layout.h"
#include "media/journal/journal.h"
#include "media/lane_format.h"
#include "media/log/log.h"
#include "media/open/shard_make.h"
#include "media/open/superblock.h"
#include "media/persist.h"

static struct pm_medium media[PM_MEDIA];
static struct pm_fixed_target target[PM_MEDIA];
static struct pm_layout layouts[PM_MEDIA];

// ---- the layout ---------------------------------------------------------------------------------

static uint64_t between(uint64_t least, uint64_t value, uint64_t most) {
    value = value < least ? least : value > most ? most : value;
    return (value + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1);
}

// Room for each part, for a given number of bytes of data. slabs.N has a header for every slab; the
// log's entries are of at least 16 KiB each, and a compaction needs them twice. The others are a
// guess at what programs need: without room in them slabs do not morph, roots are refused, and
// recovery marks after a clean close, too. Bitmaps fill theirs where all blocks have 16 bytes. A
// record of loaded objects takes 1 to 3 MiB, and one that is copied may become longer; of what it
// has no room for it says less (objects_record.c). The parts do not move when the heap becomes
// larger, so they have room for GROWTH times as much.
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
    case PM_PART_OBJECTS:
    case PM_PART_OTHER_OBJECTS:
        return between(mib, bytes / 32, 8 * mib) + between(0, pm_fixed_copy_record(), bytes);
    default:
        return 0;
    }
}

// The superblock and the roots lie on the first medium. The journal comes last there: the
// superblock must lie in what pm_fixed_peek() maps.
static void lay_out(struct pm_layout *layout, const struct pm_layout_place *place, uint64_t bytes,
                    const struct pm_fixed_wish *wish) {
    uint64_t at = sizeof(struct pm_layout) + sizeof(struct pm_lengths);
    uint64_t journal = place->number ? 0 : (wish->journal + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1);
    *layout = (struct pm_layout){.version = PM_LAYOUT_VERSION,
                                 .parts = PM_PARTS,
                                 .bytes = bytes,
                                 .flags = wish->force ? 0 : PM_LAYOUT_ZEROED,
                                 .place = *place};
    for (unsigned part = 0; part < PM_PARTS; part++) {
        bool shared = part < PM_JOURNAL_DATA || part > PM_PART_BITMAPS;
        uint64_t room = shared && place->number ? 0 : room_of(part, bytes);
        if (room)
            layout->part[part] = (struct pm_part_range){at, room};
        at += room;
    }
    if (journal)
        layout->part[PM_JOURNAL_SELF] = (struct pm_part_range){at, journal};
    at = (at + journal + PM_FIXED_ALIGN - 1) & ~(PM_FIXED_ALIGN - 1);
    uint64_t room = bytes - at < PM_SHARD_RANGE ? bytes - at : PM_SHARD_RANGE;
    layout->part[PM_JOURNAL_DATA] = (struct pm_part_range){at, room};
}

static uint64_t head_of(unsigned i) { return layouts[i].part[PM_JOURNAL_DATA].at; }

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

// As many shards as media; none of them in another directory. One that is new has no record of the
// last clean close: so that heap is recovered when it is opened.
static void set_shards(struct pm_super_file *file, unsigned count) {
    struct pm_shard_state *state = (struct pm_shard_state *)(void *)file->state.reserved;
    memset(state->volume, 0, sizeof state->volume);
    if (count == pm_super_shards(file))
        return;
    file->state.state = PM_STATE_DIRTY;
    state->shards = pm_seal(count, PM_SALT_SHARDS);
    file->super.incompat |= PM_INCOMPAT_SHARDS;
    file->super.crc = pm_crc32c(0, &file->super, offsetof(struct pm_superblock, crc));
}

static bool store_magic(unsigned i, uint64_t magic) {
    __atomic_store_n((uint64_t *)(void *)target[i].head, magic, __ATOMIC_RELEASE);
    return pm_target_sync(&target[i], target[i].head, PM_PAGE_SIZE);
}

// Fills the head of a medium, but for its magic. The first one comes first, and makes the heap's
// identity.
static bool fill_head(unsigned i, unsigned count, bool copy) {
    struct pm_layout *layout = &layouts[i];
    char *head = target[i].head;
    uint64_t len = head_of(i);
    memset(head + sizeof layout->magic, 0, len - sizeof layout->magic);
    fill_lengths((struct pm_lengths *)(void *)(head + sizeof *layout));
    struct pm_super_file *super =
        (struct pm_super_file *)(void *)(target[0].head + layouts[0].part[PM_JOURNAL_SUPER].at);
    if (i == 0)
        fill_super(super);
    pm_log_header_init((struct pm_log_header *)(void *)(head + layout->part[PM_JOURNAL_LOG].at));
    if (copy && !pm_fixed_copy_head(head, layout))
        return false;
    if (i == 0) {
        set_shards(super, count);
        super->state.origin = (struct pm_origin){0}; // a copy of all of a heap at rest
    }
    memcpy(layout->uuid, super->super.uuid, sizeof layout->uuid);
    layout->magic = PM_LAYOUT_MAGIC;
    layout->crc = pm_layout_crc(layout);
    memcpy(head + sizeof layout->magic, (const char *)layout + sizeof layout->magic,
           sizeof *layout - sizeof layout->magic);
    return pm_target_sync(&target[i], head, len);
}

// A failed making leaves no heap, in the caches either.
static int take_back(unsigned count, unsigned failed, struct pm_error *err) {
    const char *unread = pm_fixed_copy_unread();
    int status = unread ? pm_fail(err, PM_OPERATIONAL, "%s/%s: cannot be read: %s", pm_heap.dir,
                                  unread, pm_strerror(errno))
                        : pm_target_failed(&target[failed], "cannot be written", err);
    for (unsigned k = 0; k < count; k++)
        store_magic(k, 0);
    return status;
}

static int write_heap(unsigned count, bool copy, struct pm_error *err) {
    unsigned i = 0;
    bool good = true;
    for (unsigned k = 0; k < count && good; k++)
        good = store_magic(i = k, 0);
    for (unsigned k = 0; k < count && good; k++)
        good = (!copy || pm_fixed_copy_data(&target[i = k], &layouts[k])) &&
               fill_head(i = k, count, copy);
    for (unsigned k = count; k-- > 0 && good;)
        good = store_magic(i = k, PM_LAYOUT_MAGIC);
    for (unsigned k = 0; k < count && good; k++)
        if (!media[k].device && pm_durability != PM_DURABLE_NONE) // an earlier try may have made it
            good = pm_os_sync_parent(target[i = k].medium->path);
    return good ? PM_OK : take_back(count, i, err);
}

// ---- all of it ----------------------------------------------------------------------------------

// Less than that leaves no room for a commit beside the commits of a lap.
#define LEAST_JOURNAL ((uint64_t)1 << 20)

static int check_journal(uint64_t journal, struct pm_error *err) {
    if (!journal || (journal >= LEAST_JOURNAL && journal <= target[0].bytes / 2))
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "%s: --journal takes from 1 MiB to half of the %lu bytes of the heap",
                   media[0].path, (unsigned long)target[0].bytes);
}

static int open_all(const char *const path[], unsigned count, const struct pm_fixed_wish *wish,
                    struct pm_error *err) {
    int status = PM_OK;
    for (unsigned i = 0; i < count; i++) {
        target[i] = (struct pm_fixed_target){.medium = &media[i], .one_of_several = count > 1};
        media[i] = (struct pm_medium){.fd = -1, .lock = -1, .gate = -1};
    }
    for (unsigned i = 0; i < count && status == PM_OK; i++)
        status = pm_target_open(&target[i], path[i], wish->size, true, wish->force, err);
    if (status == PM_OK)
        status = pm_fixed_persist(media, count, err);
    if (status == PM_OK)
        status = check_journal(wish->journal, err);
    for (unsigned i = 0; i < count && status == PM_OK; i++)
        if (!wish->force && !target[i].created)
            status = pm_target_make_zeroes(&target[i], 0, target[i].bytes, err);
    return status;
}

static int lay_out_all(unsigned count, const struct pm_fixed_wish *wish, struct pm_fixed_made *made,
                       struct pm_error *err) {
    int status = PM_OK;
    for (unsigned i = 0; i < count && status == PM_OK; i++) {
        struct pm_layout_place place = {.number = (uint16_t)i,
                                        .media = (uint16_t)count,
                                        .shard = (uint16_t)i,
                                        .shards = (uint16_t)count};
        struct pm_layout *layout = &layouts[i];
        lay_out(layout, &place, target[i].bytes, wish);
        uint64_t room = layout->part[PM_JOURNAL_DATA].room;
        made[i] = (struct pm_fixed_made){.created = target[i].created,
                                         .device = media[i].device,
                                         .zeroed = !wish->force,
                                         .data = room,
                                         .head = head_of(i),
                                         .journal = layout->part[PM_JOURNAL_SELF].room,
                                         .beyond = target[i].bytes - head_of(i) - room,
                                         .number = i,
                                         .media = count};
        if (wish->copy)
            status = pm_fixed_copy_check(layout, media[i].path, err);
    }
    return status;
}

int pm_fixed_make(const char *const path[], unsigned count, const struct pm_fixed_wish *wish,
                  struct pm_fixed_made *made, struct pm_error *err) {
    int status = open_all(path, count, wish, err);
    if (status == PM_OK && wish->copy)
        status = pm_fixed_copy_begin(err);
    if (status == PM_OK)
        status = lay_out_all(count, wish, made, err);
    for (unsigned i = 0; i < count && status == PM_OK; i++)
        status = pm_target_map_head(&target[i], head_of(i), err);
    if (status == PM_OK)
        status = write_heap(count, wish->copy, err);
    pm_fixed_copy_end();
    for (unsigned i = 0; i < count; i++)
        pm_target_close(&target[i], status != PM_OK);
    return status;
}
