// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Wrong ways to recover a journal, for the simulators: some image must show each.
#ifndef PMALLOC_TESTS_UNIT_JOURNAL_WRONG_H
#define PMALLOC_TESTS_UNIT_JOURNAL_WRONG_H

#include <string.h>

#include "base/crc.h"
#include "media/journal/journal.h"

enum wrong_way {
    WRONG_SKIPS,    // leaves out a commit that is not the last one
    WRONG_ORDER,    // applies the last one first
    WRONG_NO_CHAIN, // takes any whole group of the heap's that lies behind the ones before
    WRONG_NO_CRC,   // takes groups that are torn
};

static uint32_t wrong_crc(struct pm_journal_group *group) {
    group->crc = 0;
    return pm_crc32c(0, group, (1 + (size_t)group->pages) * PM_PAGE_SIZE);
}

// The journal becomes what the wrong way takes it for.
static void wrong_mend(const struct pm_journal_io *io, struct pm_journal_group *group,
                       enum wrong_way way) {
    uint64_t at = 0, lap = 0, epoch = 0;
    uint32_t before = 0, number = 0;
    while (io->read(PM_JOURNAL_SELF, group, sizeof *group, at) &&
           group->magic == PM_JOURNAL_MAGIC && group->pages <= PM_JOURNAL_PAGES) {
        size_t bytes = (1 + (size_t)group->pages) * PM_PAGE_SIZE;
        uint32_t was = group->crc;
        if (!io->read(PM_JOURNAL_SELF, group, bytes, at) ||
            (way == WRONG_NO_CHAIN && wrong_crc(group) != was))
            break;
        if (way == WRONG_NO_CHAIN) {
            if (group->number != number)
                break;
            group->lap = at ? lap : group->lap;
            group->before = before;
            group->epoch = number ? epoch : group->epoch > epoch ? group->epoch : epoch + 1;
        }
        group->crc = wrong_crc(group);
        lap = group->lap, before = group->crc, epoch = group->epoch;
        number = group->last ? 0 : number + 1;
        io->write(PM_JOURNAL_SELF, group, sizeof *group, at);
        at += bytes;
    }
    io->sync(PM_JOURNAL_SELF);
}

// The commits one by one.
#define WRONG_MOST 64u
static unsigned wrong_split(const struct pm_journal_io *io, void *buffer,
                            const struct pm_journal_found *found,
                            struct pm_journal_found part[WRONG_MOST]) {
    struct pm_journal_reading r = pm_journal_read_from(io, buffer, found);
    unsigned count = 0;
    uint64_t groups = 0;
    struct pm_journal_found next = *found;
    for (uint64_t n = 0; n < found->groups && count < WRONG_MOST && pm_journal_read_next(&r); n++) {
        next.groups = ++groups;
        if (r.number)
            continue;
        part[count++] = next;
        next.at = r.at, next.lap = r.lap, next.before = r.before;
        groups = 0;
    }
    return count;
}

// As pm_journal_recover() does it, but in the wrong way.
static bool wrong_recover(const struct pm_journal_io *io, void *buffer, const uint8_t uuid[16],
                          enum wrong_way way) {
    struct pm_journal_found found, part[WRONG_MOST];
    struct pm_journal_touched touched = {0};
    if (way == WRONG_NO_CHAIN || way == WRONG_NO_CRC) {
        wrong_mend(io, buffer, way);
        return pm_journal_look(io, buffer, uuid, &found) == 0 &&
               pm_journal_recover(io, buffer, &found);
    }
    if (pm_journal_look(io, buffer, uuid, &found) != 0)
        return false;
    unsigned count = found.groups ? wrong_split(io, buffer, &found, part) : 0;
    bool good = io->sync(PM_JOURNAL_SELF);
    for (unsigned i = 0; i < count && good; i++) {
        unsigned n = way == WRONG_ORDER ? count - 1 - i : i;
        if (way != WRONG_SKIPS || n != count / 2 || n == count - 1)
            good = pm_journal_write_through(io, buffer, &part[n], true, &touched);
    }
    return good && pm_journal_sync_touched(io, &touched) && pm_journal_retire(io, count != 0);
}

#endif
