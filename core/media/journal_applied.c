// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Whether the files hold all commits of the journal. Of each page the last commit counts that names
// it, so the groups are gone through from the last to the first, and a page that was seen is passed
// over.
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/os.h"
#include "journal.h"

// All of it is address space that takes memory where it is written.
#define SEEN_BYTES (PM_SHARD_RANGE / PM_PAGE_SIZE / 8)

static struct comparing {
    uint64_t *group_at;               // where each group is
    size_t group_bytes;               // of that table
    char *seen[PM_JOURNAL_FILES];     // a bit for each page
    uint64_t limit[PM_JOURNAL_FILES]; // the first page that a later length has cut off, + 1; or 0
    char page[PM_PAGE_SIZE];
} c;

static void give_back(void) {
    if (c.group_at)
        munmap(c.group_at, c.group_bytes);
    for (unsigned file = 0; file < PM_JOURNAL_FILES; file++)
        if (c.seen[file])
            munmap(c.seen[file], SEEN_BYTES);
    memset(&c, 0, sizeof c);
}

static bool find_groups(const struct pm_journal_io *io, void *buffer,
                        const struct pm_journal_found *found) {
    struct pm_journal_reading r = pm_journal_read_from(io, buffer, found);
    c.group_bytes = found->groups * sizeof *c.group_at;
    c.group_at = pm_os_reserve(c.group_bytes);
    for (uint64_t n = 0; c.group_at && n < found->groups; n++) {
        c.group_at[n] = r.at;
        if (!pm_journal_read_next(&r))
            return false;
    }
    return c.group_at != NULL;
}

// Whether a later entry names the page. Now one does.
static bool was_seen(unsigned file, uint64_t page) {
    char bit = (char)(1 << page % 8), *byte = &c.seen[file][page / 8];
    bool seen = (c.limit[file] && page >= c.limit[file] - 1) || *byte & bit;
    *byte |= bit;
    return seen;
}

static bool same_page(const struct pm_journal_io *io, unsigned file, uint64_t page,
                      const char *wanted) {
    return was_seen(file, page) || (io->read(file, c.page, PM_PAGE_SIZE, page * PM_PAGE_SIZE) &&
                                    memcmp(c.page, wanted, PM_PAGE_SIZE) == 0);
}

// `end`: the end of the contents of its pages.
static bool same_entry(const struct pm_journal_io *io, const struct pm_journal_entry *e,
                       const char *end) {
    static const char zeroes[PM_PAGE_SIZE];
    unsigned file = pm_journal_file(e->member, e->shard);
    if (!c.seen[file] && !(c.seen[file] = pm_os_reserve(SEEN_BYTES)))
        return false;
    if (e->kind == PM_JOURNAL_LENGTH) {
        uint64_t pages = (e->first + PM_PAGE_SIZE - 1) / PM_PAGE_SIZE;
        if (!c.limit[file] || c.limit[file] > pages + 1)
            c.limit[file] = pages + 1;
    }
    for (uint64_t i = e->pages; i--;)
        if (!same_page(io, file, e->first + i,
                       e->kind == PM_JOURNAL_ZERO ? zeroes : end - (e->pages - i) * PM_PAGE_SIZE))
            return false;
    return true;
}

// The group was read once, so it fits.
static bool same_group(const struct pm_journal_io *io, struct pm_journal_group *group,
                       uint64_t at) {
    const struct pm_journal_entry *e = pm_journal_entries(group);
    if (!io->read(PM_JOURNAL_SELF, group, sizeof *group, at) || group->pages > PM_JOURNAL_PAGES ||
        group->entries > PM_JOURNAL_ENTRIES_1)
        return false;
    size_t bytes = (size_t)group->pages * PM_PAGE_SIZE;
    if (bytes && !io->read(PM_JOURNAL_SELF, group + 1, bytes, at + sizeof *group))
        return false;
    const char *end = (const char *)(group + 1) + bytes;
    for (uint32_t i = group->entries; i--;) {
        if (!same_entry(io, &e[i], end))
            return false;
        if (e[i].kind == PM_JOURNAL_PAGE)
            end -= (size_t)e[i].pages * PM_PAGE_SIZE;
    }
    return true;
}

bool pm_journal_applied(const struct pm_journal_io *io, void *buffer,
                        const struct pm_journal_found *found) {
    bool same = find_groups(io, buffer, found);
    for (uint64_t n = found->groups; n-- && same;)
        same = same_group(io, buffer, c.group_at[n]);
    give_back();
    return same;
}
