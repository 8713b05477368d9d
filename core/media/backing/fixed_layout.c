// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "fixed_layout.h"

#include <string.h>

#include "base/crc.h"
#include "media/heap.h"
#include "media/journal/journal.h"

uint32_t pm_layout_crc(const struct pm_layout *layout) {
    return pm_crc32c(0, layout, offsetof(struct pm_layout, crc));
}

// Files that are not a shard's lie on the first medium.
static bool may_have(const struct pm_layout *layout, unsigned part) {
    bool of_shard = part >= PM_JOURNAL_DATA && part <= PM_PART_BITMAPS;
    return layout->place.number == 0 || of_shard;
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
           (!r->room || may_have(layout, part)) && r->at <= layout->bytes &&
           r->room <= layout->bytes - r->at && (part == PM_JOURNAL_DATA || r->at + r->room <= head);
}

// One shard on each medium is what this build makes and reads.
static bool is_known(const struct pm_layout *layout) {
    const struct pm_layout_place *place = &layout->place;
    return layout->version == PM_LAYOUT_VERSION && layout->parts == PM_PARTS &&
           !(layout->flags & ~PM_LAYOUT_ZEROED) && place->shard == place->number &&
           place->shards == place->media && place->next == 0;
}

int pm_layout_check(const struct pm_layout *layout, const char *path, struct pm_error *err) {
    const struct pm_layout_place *place = &layout->place;
    if (layout->magic != PM_LAYOUT_MAGIC)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: Not a directory, and it holds no heap; name a directory, or make a "
                       "heap in it: `pmalloc-recover --make %s`",
                       path, path);
    if (layout->crc != pm_layout_crc(layout))
        return pm_fail(err, PM_DAMAGE, "%s/layout: checksum is wrong; restore it from a backup",
                       path);
    if (!is_known(layout)) {
        pm_fail(err, PM_OPERATIONAL,
                "%s/layout was made by another build of PMAlloc (version %u); it is not damaged, "
                "and nothing was changed",
                path, layout->version);
        err->why = PM_WHY_FOREIGN;
        return err->status;
    }
    if (place->media > PM_MEDIA || place->number >= place->media)
        return pm_fail(err, PM_DAMAGE, "%s/layout: it is number %u of %u", path, place->number + 1u,
                       place->media);
    for (unsigned part = 0; part < PM_PARTS; part++)
        if (!part_is_good(layout, part))
            return pm_fail(err, PM_DAMAGE, "%s/layout: part %u lies nowhere", path, part);
    for (unsigned part = 0; part < PM_PARTS; part++) // none of them wraps around
        if (!part_is_alone(layout, part))
            return pm_fail(err, PM_DAMAGE, "%s/layout: part %u lies over another one", path, part);
    return PM_OK;
}

uint64_t pm_layout_most(const struct pm_layout *layout) {
    uint64_t headers = layout->part[PM_JOURNAL_SLABS].room / sizeof(struct pm_slab_header);
    uint64_t data = headers << PM_SLAB_SHIFT & ~(PM_FIXED_ALIGN - 1);
    return layout->part[PM_JOURNAL_DATA].at + (data < PM_SHARD_RANGE ? data : PM_SHARD_RANGE);
}

int pm_layout_check_place(const struct pm_layout *layout, const struct pm_layout_named *named,
                          unsigned place, const char *path, struct pm_error *err) {
    const struct pm_layout_place *is = &layout->place;
    if (memcmp(layout->uuid, named->first->uuid, sizeof layout->uuid) != 0)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s belongs to another heap than %.300s; name the file or device that is "
                       "number %u of that heap",
                       path, named->path, place + 1);
    if (is->media != named->media && is->media == 1)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is the only file or device of its heap, and %u are named; name it alone",
                       path, named->media);
    if (is->media != named->media)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is number %u of the %u files or devices of its heap, and %u %s named; "
                       "name all of them, in their order: PATH:PATH",
                       path, is->number + 1u, is->media, named->media,
                       named->media == 1 ? "is" : "are");
    if (is->number != place)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is number %u of the files and devices of its heap, and stands at place "
                       "%u; name them in their order",
                       path, is->number + 1u, place + 1);
    return PM_OK;
}
