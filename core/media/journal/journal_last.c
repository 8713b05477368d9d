// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Of each page only the last commit that names it is used. So the groups are gone through from the
// last to the first, and a page that was seen is passed over.
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/os.h"
#include "journal.h"

static struct walk {
    const struct pm_journal_io *io;
    pm_journal_last_fn *fn;
    void *arg;
    uint64_t *group_at;               // where each group is
    size_t group_bytes;               // of that table
    char *seen[PM_JOURNAL_FILES];     // a bit for each page
    uint64_t pages[PM_JOURNAL_FILES]; // how many a file has by what the commits name
    uint64_t limit[PM_JOURNAL_FILES]; // the first page that a later length has cut off, + 1; or 0
    uint64_t end[PM_JOURNAL_FILES];   // the same of the last length
} w;

static uint64_t seen_bytes(unsigned file) { return w.pages[file] / 8 + 1; }

static void give_back(void) {
    if (w.group_at)
        munmap(w.group_at, w.group_bytes);
    for (unsigned file = 0; file < PM_JOURNAL_FILES; file++)
        if (w.seen[file])
            munmap(w.seen[file], seen_bytes(file));
    memset(&w, 0, sizeof w);
}

static void count_pages(const struct pm_journal_group *group) {
    const struct pm_journal_entry *e = pm_journal_entries(group);
    for (uint32_t i = 0; i < group->entries; i++) {
        uint64_t *pages = &w.pages[pm_journal_file(e[i].member, e[i].shard)];
        uint64_t end = e[i].kind == PM_JOURNAL_LENGTH ? 0 : e[i].first + e[i].pages;
        *pages = end > *pages ? end : *pages;
    }
}

static bool find_groups(void *buffer, const struct pm_journal_found *found) {
    struct pm_journal_reading r = pm_journal_read_from(w.io, buffer, found);
    w.group_bytes = found->groups * sizeof *w.group_at;
    w.group_at = pm_os_reserve(w.group_bytes);
    for (uint64_t n = 0; w.group_at && n < found->groups; n++) {
        w.group_at[n] = r.at;
        if (!pm_journal_read_next(&r)) {
            errno = r.error ? r.error : EIO; // it was whole when it was found
            return false;
        }
        count_pages(r.group);
    }
    return w.group_at != NULL;
}

// Whether a later entry names the page, or has cut off its contents. Zeroes are not cut off: the
// file may have become longer since, and a failed sync may have lost the cut.
static bool is_seen(unsigned file, uint64_t page, bool zeroes) {
    return (!zeroes && w.limit[file] && page >= w.limit[file] - 1) ||
           (w.seen[file][page / 8] & 1 << page % 8) != 0;
}

static void see(unsigned file, uint64_t page) { w.seen[file][page / 8] |= (char)(1 << page % 8); }

// The runs of pages that no later entry names. `from`: the contents of the first page, or NULL.
static bool each_run(unsigned file, uint64_t first, uint64_t end, const char *from) {
    for (uint64_t page = first, to; page < end; page = to) {
        for (to = page; to < end && !is_seen(file, to, !from); to++)
            see(file, to);
        if (to > page && !w.fn(w.io, file, page, to - page,
                               from ? from + (page - first) * PM_PAGE_SIZE : NULL, w.arg))
            return false;
        if (to == page)
            to++;
    }
    return true;
}

// `end`: the end of the contents of its pages.
static bool each_entry(const struct pm_journal_entry *e, const char *end) {
    unsigned file = pm_journal_file(e->member, e->shard);
    if (!w.seen[file] && !(w.seen[file] = pm_os_reserve(seen_bytes(file))))
        return false;
    if (e->kind == PM_JOURNAL_LENGTH) {
        uint64_t pages = (e->first + PM_PAGE_SIZE - 1) / PM_PAGE_SIZE;
        w.end[file] = w.end[file] ? w.end[file] : pages + 1;
        if (!w.limit[file] || w.limit[file] > pages + 1)
            w.limit[file] = pages + 1;
        return true;
    }
    bool zeroes = e->kind == PM_JOURNAL_ZERO;
    return each_run(file, e->first, e->first + e->pages,
                    zeroes ? NULL : end - (size_t)e->pages * PM_PAGE_SIZE);
}

// The group was read once, so it fits.
static bool each_in_group(struct pm_journal_group *group, uint64_t at) {
    const struct pm_journal_entry *e = pm_journal_entries(group);
    if (!w.io->read(PM_JOURNAL_SELF, group, sizeof *group, at))
        return false;
    size_t bytes = (size_t)group->pages * PM_PAGE_SIZE;
    if (bytes && !w.io->read(PM_JOURNAL_SELF, group + 1, bytes, at + sizeof *group))
        return false;
    const char *end = (const char *)(group + 1) + bytes;
    for (uint32_t i = group->entries; i--;) {
        if (!each_entry(&e[i], end))
            return false;
        if (e[i].kind == PM_JOURNAL_PAGE)
            end -= (size_t)e[i].pages * PM_PAGE_SIZE;
    }
    return true;
}

bool pm_journal_each_last(const struct pm_journal_io *io, void *buffer,
                          const struct pm_journal_found *found, pm_journal_last_fn *fn, void *arg) {
    w = (struct walk){.io = io, .fn = fn, .arg = arg};
    bool good = found->groups == 0 || find_groups(buffer, found);
    for (uint64_t n = found->groups; n-- && good;)
        good = each_in_group(buffer, w.group_at[n]);
    int saved = errno;
    give_back();
    errno = saved;
    return good;
}

// ---- what is done with them ---------------------------------------------------------------------

static bool same_page(unsigned file, uint64_t number, const char *page, const char *wanted) {
    const size_t at = PM_JOURNAL_OWN_WORDS, next = at + PM_JOURNAL_OWN_BYTES;
    if (!pm_journal_has_own_words(file, number))
        return memcmp(page, wanted, PM_PAGE_SIZE) == 0;
    return memcmp(page, wanted, at) == 0 &&
           memcmp(page + next, wanted + next, PM_PAGE_SIZE - next) == 0;
}

// *differs: a page is not the same. So it is where the file ends before it, or is missing.
static bool compare(const struct pm_journal_io *io, unsigned file, uint64_t first, uint64_t pages,
                    const char *from, void *differs) {
    static char page[PM_PAGE_SIZE];
    static const char zeroes[PM_PAGE_SIZE];
    for (uint64_t i = 0; i < pages; i++) {
        bool got = io->read(file, page, sizeof page, (first + i) * PM_PAGE_SIZE);
        bool beyond = w.end[file] && first + i >= w.end[file] - 1;
        if (!got && !from && errno == PM_JOURNAL_ENDS && beyond)
            continue;
        *(bool *)differs =
            got ? !same_page(file, first + i, page, from ? from + i * PM_PAGE_SIZE : zeroes)
                : errno == PM_JOURNAL_ENDS || errno == ENOENT;
        if (!got || *(bool *)differs)
            return false;
    }
    return true;
}

int pm_journal_applied(const struct pm_journal_io *io, void *buffer,
                       const struct pm_journal_found *found) {
    bool differs = false;
    if (pm_journal_each_last(io, buffer, found, compare, &differs))
        return 1;
    return differs ? 0 : -1;
}

static bool write_again(const struct pm_journal_io *io, unsigned file, uint64_t first,
                        uint64_t pages, const char *from, void *touched) {
    uint64_t at = first * PM_PAGE_SIZE, bytes = pages * PM_PAGE_SIZE;
    ((struct pm_journal_touched *)touched)->file[file] = true;
    return from ? pm_journal_anew(io, file, from, bytes, at) : io->zero(file, at, bytes);
}

bool pm_journal_write_again(const struct pm_journal_io *io, void *buffer,
                            const struct pm_journal_found *found,
                            struct pm_journal_touched *touched) {
    return pm_journal_each_last(io, buffer, found, write_again, touched);
}
