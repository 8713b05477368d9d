// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Makes one medium of a heap larger. Who uses the heap has locked all of its media: so the lock of
// this one is enough.
#include <sys/mman.h>

#include "base/crc.h"
#include "fixed_make.h"
#include "fixed_target.h"
#include "media/backing/fixed_layout.h"
#include "media/backing/fixed_map.h"
#include "media/journal/journal.h"
#include "media/open/heap_open.h"
#include "media/persist.h"

static bool zero_range(const struct pm_fixed_target *t, uint64_t from, uint64_t to) {
    bool good = true;
    for (uint64_t at = from; at < to && good; at += PM_TARGET_WINDOW) {
        uint64_t len = to - at < PM_TARGET_WINDOW ? to - at : PM_TARGET_WINDOW;
        char *map = pm_medium_map(t->medium->fd, NULL, len, PROT_READ | PROT_WRITE, at);
        if (map == MAP_FAILED)
            return false;
        pm_zero(map, len);
        good = pm_target_sync(t, map, len);
        munmap(map, len);
    }
    return good;
}

// Whether this build may change the heap. Its first medium has the superblock; of the others the
// layout alone says it, by its version and flags. A torn page may wait for what its journal has.
static int check_superblock(const struct pm_fixed_target *t, struct pm_error *err) {
    const struct pm_layout *layout = (const void *)t->head;
    const struct pm_part_range *r = &layout->part[PM_JOURNAL_SUPER];
    const struct pm_superblock *super = (const void *)(t->head + r->at);
    const char *path = t->medium->path;
    if (layout->place.number != 0)
        return PM_OK;
    if (r->room < sizeof *super || r->at > t->head_len - sizeof *super)
        return pm_fail(err, PM_DAMAGE, "%s/layout: there is no room for its superblock", path);
    int status = pm_superblock_check(super, path, err);
    if (status != PM_DAMAGE || !(super->incompat & PM_INCOMPAT_JOURNAL))
        return status;
    return pm_fail(err, PM_OPERATIONAL,
                   "%s/superblock: checksum is wrong, which its journal may mend: recover the heap "
                   "by `pmalloc-recover`, then make it larger",
                   path);
}

// How large the heap is, and shall be: `t->bytes`.
static int check_growth(struct pm_fixed_target *t, uint64_t *now, struct pm_error *err) {
    const struct pm_layout *layout = (const void *)t->head;
    const char *path = t->medium->path;
    uint64_t word = ((const struct pm_lengths *)(const void *)(layout + 1))->grown;
    uint64_t full = layout->part[PM_JOURNAL_DATA].at + PM_SHARD_RANGE;
    uint64_t most = pm_layout_most(layout);
    *now = word ? (uint64_t)pm_unseal(word) << PM_PAGE_SHIFT : layout->bytes;
    if (word && !pm_sealed(word, PM_SALT_GROWN))
        return pm_fail(err, PM_DAMAGE, "%s/layout: its size does not match its check", path);
    if (t->there < *now)
        return pm_fail(err, PM_DAMAGE, "%s has %lu bytes, its heap needs %lu; was it cut?", path,
                       (unsigned long)t->there, (unsigned long)*now);
    if (t->bytes > full)
        t->bytes = *now > full ? *now : full;
    if (t->bytes < *now)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: its heap has %lu bytes; it can become larger, not smaller", path,
                       (unsigned long)*now);
    if (t->bytes <= most || t->bytes == *now)
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "%s: its heap has metadata for %lu bytes, less than %lu; give --size %lu, or "
                   "make a new heap",
                   path, (unsigned long)most, (unsigned long)t->bytes, (unsigned long)most);
}

static int grow_medium(struct pm_fixed_target *t, bool force, struct pm_fixed_made *made,
                       struct pm_error *err) {
    const struct pm_layout *layout = (const void *)t->head;
    struct pm_lengths *lengths = (struct pm_lengths *)(void *)(t->head + sizeof *layout);
    uint64_t now;
    int status = pm_layout_check(layout, t->medium->path, err);
    if (status == PM_OK)
        status = check_superblock(t, err);
    if (status == PM_OK)
        status = check_growth(t, &now, err);
    if (status != PM_OK)
        return status;
    made->zeroed = layout->flags & PM_LAYOUT_ZEROED;
    made->head = layout->part[PM_JOURNAL_DATA].at;
    made->journal = layout->part[PM_JOURNAL_SELF].room;
    made->data = layout->part[PM_JOURNAL_DATA].room + (t->bytes - layout->bytes);
    made->beyond = made->data < PM_SHARD_RANGE ? 0 : t->there - made->head - made->data;
    made->same = t->bytes == now;
    made->number = layout->place.number;
    made->media = layout->place.media;
    if (made->zeroed && force && !zero_range(t, now, t->bytes))
        return pm_target_failed(t, "cannot be written", err);
    if (made->zeroed && !force)
        status = pm_target_make_zeroes(t, now, t->bytes, err);
    if (status != PM_OK)
        return status;
    // Also where the heap is as large already: an earlier try may have stored the word, and may not
    // have made it durable.
    uint64_t grown =
        made->same ? lengths->grown : pm_seal((uint32_t)(t->bytes >> PM_PAGE_SHIFT), PM_SALT_GROWN);
    __atomic_store_n(&lengths->grown, grown, __ATOMIC_RELEASE);
    return pm_target_sync(t, t->head, PM_FIXED_ALIGN)
               ? PM_OK
               : pm_target_failed(t, "cannot be written", err);
}

int pm_fixed_grow(const char *path, uint64_t size, bool force, struct pm_fixed_made *made,
                  struct pm_error *err) {
    static struct pm_medium medium; // static, because the message of a failed flush has its path
    struct pm_fixed_target t = {.medium = &medium};
    *made = (struct pm_fixed_made){0};
    int status = pm_target_open(&t, path, size, false, force, err);
    if (status == PM_OK)
        status = pm_fixed_persist(&medium, 1, err);
    made->device = medium.device;
    if (status == PM_OK)
        status = pm_target_map_head(&t, PM_FIXED_ALIGN, err);
    if (status == PM_OK)
        status = grow_medium(&t, force, made, err);
    pm_target_close(&t, false);
    return status;
}
