// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "journal_part.h"

#include <errno.h>

#include "fixed.h"
#include "heap_part.h"
#include "media/journal/checkpoint.h"
#include "media/journal/journal.h"

struct pm_file *pm_journal_part(unsigned file) {
    struct pm_file *f = pm_heap_part(file);
    return f && f->length ? f : NULL;
}

// The journal's length covers what was written to it, and no more: what a former lap has left
// behind that is never read.
bool pm_journal_part_store(struct pm_file *part, unsigned file, size_t len, uint64_t *at) {
    uint64_t end = *at + len;
    if (end > part->room) {
        errno = ENOSPC;
        return false;
    }
    *at += part->at;
    return file != PM_JOURNAL_SELF || end <= part->size || pm_fixed_set_length(part, end);
}

bool pm_journal_part_load(const struct pm_file *part, size_t len, uint64_t *at) {
    if (*at + len > part->size) {
        errno = PM_JOURNAL_ENDS;
        return false;
    }
    *at += part->at;
    return true;
}

// Behind the end of a part there are zeroes, as behind a file's end. heap.0 stays as long: what was
// once in use is treated as released space, and is zeroed when it is handed out. The journal
// becomes empty twice, because its length may be durable later than the next stores to it.
bool pm_journal_part_set_length(struct pm_file *part, unsigned file, uint64_t bytes,
                                pm_journal_zero_fn *zero) {
    uint64_t to = part->size;
    uint64_t from = (bytes + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1);
    if (file % PM_JOURNAL_MEMBERS == PM_JOURNAL_DATA && bytes < to)
        return true;
    if (file == PM_JOURNAL_SELF)
        to = bytes == 0 && to ? PM_PAGE_SIZE : from;
    return (from >= to || zero(file, from, to - from)) && pm_fixed_set_length(part, bytes);
}

int pm_journal_part_check(struct pm_error *err) {
    if (!pm_fixed_is_open())
        return PM_OK;
    const struct pm_medium *device = pm_fixed_device();
    if (device)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: PMALLOC_COMMIT: a device cannot be mapped private; unset it, or use a "
                       "file on a file system with DAX, or a heap in a directory",
                       device->path);
    if (!pm_heap.journal.length)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: PMALLOC_COMMIT: this heap has no room for a journal; copy it with "
                       "pmalloc-backup, or make a heap with `pmalloc-recover --make --journal "
                       "SIZE`",
                       pm_heap.dir);
    if (pm_checkpoint_lap > pm_heap.journal.room / 4)
        pm_checkpoint_lap = pm_heap.journal.room / 4;
    return PM_OK;
}

// A lap, then the commit, and headers among its pages.
uint64_t pm_journal_part_pages(void) {
    return pm_heap.journal.length ? pm_heap.journal.room / 2 >> PM_PAGE_SHIFT : UINT64_MAX;
}
