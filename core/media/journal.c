// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "journal.h"

#include <errno.h>
#include <string.h>

#include "base/crc.h"

static char *contents(struct pm_journal_group *group) { return (char *)(group + 1); }

static size_t group_bytes(const struct pm_journal_group *group) {
    return (1 + (size_t)group->pages) * PM_PAGE_SIZE;
}

// The crc is the last word of the header before the entries, and counts as 0.
static uint32_t group_crc(const struct pm_journal_group *group) {
    const uint32_t none = 0;
    size_t before = offsetof(struct pm_journal_group, crc), after = before + sizeof none;
    uint32_t crc = pm_crc32c(0, group, before);
    crc = pm_crc32c(crc, &none, sizeof none);
    return pm_crc32c(crc, (const char *)group + after, group_bytes(group) - after);
}

// ---- writing ------------------------------------------------------------------------------------

void pm_journal_begin(struct pm_journal *j, const uint8_t uuid[16], uint64_t epoch, uint64_t time) {
    struct pm_journal_group *group = j->group;
    j->at = j->pages = j->held = 0;
    j->failed = j->forced = false;
    memset(group, 0, sizeof *group);
    group->magic = PM_JOURNAL_MAGIC;
    memcpy(group->uuid, uuid, sizeof group->uuid);
    group->epoch = epoch;
    group->time = time;
}

static void write_group(struct pm_journal *j, bool last) {
    struct pm_journal_group *group = j->group;
    size_t bytes = group_bytes(group);
    group->last = !last ? 0 : j->forced ? PM_JOURNAL_LAST_FORCED : PM_JOURNAL_LAST;
    group->held = last ? j->held : 0;
    group->crc = group_crc(group);
    if (!j->failed && !j->io->write(PM_JOURNAL_SELF, group, bytes, j->at)) {
        j->failed = true;
        j->error = errno;
    }
    j->at += bytes;
    j->pages += group->pages;
    group->number++;
    memset(group->entry, 0, group->entries * sizeof group->entry[0]);
    group->entries = group->pages = 0;
}

static struct pm_journal_entry *add(struct pm_journal *j, enum pm_journal_kind kind, unsigned file,
                                    uint64_t first) {
    struct pm_journal_group *group = j->group;
    if (group->entries == PM_JOURNAL_ENTRIES || group->pages == j->most)
        write_group(j, false);
    struct pm_journal_entry *entry = &group->entry[group->entries++];
    *entry = (struct pm_journal_entry){.first = first,
                                       .kind = (uint8_t)kind,
                                       .member = (uint8_t)(file % PM_JOURNAL_MEMBERS),
                                       .shard = (uint8_t)(file / PM_JOURNAL_MEMBERS)};
    return entry;
}

void pm_journal_add_pages(struct pm_journal *j, unsigned file, uint64_t first, const void *from,
                          uint64_t pages) {
    for (const char *at = from; pages;) {
        struct pm_journal_entry *entry = add(j, PM_JOURNAL_PAGE, file, first);
        struct pm_journal_group *group = j->group;
        uint32_t room = j->most - group->pages;
        uint32_t count = pages < room ? (uint32_t)pages : room;
        size_t bytes = (size_t)count * PM_PAGE_SIZE;
        entry->pages = count;
        memcpy(contents(group) + (size_t)group->pages * PM_PAGE_SIZE, at, bytes);
        group->pages += count;
        at += bytes;
        first += count;
        pages -= count;
    }
}

void pm_journal_add_zeroes(struct pm_journal *j, unsigned file, uint64_t first, uint64_t pages) {
    add(j, PM_JOURNAL_ZERO, file, first)->pages = (uint32_t)pages; // a shard has 2^28 pages
}

void pm_journal_add_length(struct pm_journal *j, unsigned file, uint64_t bytes) {
    add(j, PM_JOURNAL_LENGTH, file, bytes);
}

bool pm_journal_end(struct pm_journal *j) {
    write_group(j, true);
    errno = j->failed ? j->error : errno;
    return !j->failed;
}

// ---- reading ------------------------------------------------------------------------------------

static bool entry_fits(const struct pm_journal_entry *e) {
    const uint64_t most = PM_SHARD_RANGE / PM_PAGE_SIZE;
    bool whole = e->member == PM_JOURNAL_SUPER || e->member == PM_JOURNAL_ROOTS;
    if (e->member < PM_JOURNAL_SUPER || e->member >= PM_JOURNAL_MEMBERS || e->shard >= PM_SHARDS ||
        (whole && e->shard))
        return false;
    if (e->kind == PM_JOURNAL_LENGTH)
        return e->first <= PM_SHARD_RANGE && e->pages == 0;
    return (e->kind == PM_JOURNAL_PAGE || e->kind == PM_JOURNAL_ZERO) && e->first < most &&
           e->pages <= most - e->first;
}

static bool entries_fit(const struct pm_journal_group *group) {
    uint64_t pages = 0;
    for (uint32_t i = 0; i < group->entries; i++) {
        if (!entry_fits(&group->entry[i]))
            return false;
        if (group->entry[i].kind == PM_JOURNAL_PAGE)
            pages += group->entry[i].pages;
    }
    return pages == group->pages;
}

// Reads the group at `at`. False: it is torn, or not group `number` of this epoch.
static bool read_group(const struct pm_journal_io *io, struct pm_journal_group *group, uint64_t at,
                       uint64_t epoch, uint32_t number) {
    return io->read(PM_JOURNAL_SELF, group, sizeof *group, at) &&
           group->magic == PM_JOURNAL_MAGIC && group->epoch == epoch && group->number == number &&
           group->entries <= PM_JOURNAL_ENTRIES && group->pages <= PM_JOURNAL_PAGES &&
           (group->pages == 0 ||
            io->read(PM_JOURNAL_SELF, contents(group), group_bytes(group) - sizeof *group,
                     at + sizeof *group)) &&
           group->crc == group_crc(group) && entries_fit(group);
}

bool pm_journal_look(const struct pm_journal_io *io, void *buffer, const uint8_t uuid[16],
                     struct pm_journal_found *found) {
    struct pm_journal_group *group = buffer;
    *found = (struct pm_journal_found){0};
    if (!io->read(PM_JOURNAL_SELF, group, sizeof *group, 0))
        return false;
    found->epoch = group->epoch;
    found->time = group->time;
    for (uint32_t number = 0;; number++) {
        if (!read_group(io, group, found->bytes, found->epoch, number) ||
            memcmp(group->uuid, uuid, sizeof group->uuid) != 0)
            return false;
        found->groups++;
        found->pages += group->pages;
        found->bytes += group_bytes(group);
        found->held = group->held;
        found->forced = group->last == PM_JOURNAL_LAST_FORCED;
        if (group->last)
            return true;
    }
}

bool pm_journal_retire(const struct pm_journal_io *io) {
    return io->set_length(PM_JOURNAL_SELF, 0) && io->sync(PM_JOURNAL_SELF);
}

bool pm_journal_recover(const struct pm_journal_io *io, void *buffer, const uint8_t uuid[16],
                        struct pm_journal_found *found) {
    bool whole = pm_journal_look(io, buffer, uuid, found);
    if (!whole)
        found->groups = 0;
    // A killed process may have left a whole commit that is not durable yet. Without this sync a
    // cut could leave a part of it applied and the journal torn.
    return (!whole || (io->sync(PM_JOURNAL_SELF) && pm_journal_apply(io, buffer, found, true))) &&
           pm_journal_retire(io);
}

bool pm_journal_each(const struct pm_journal_io *io, void *buffer,
                     const struct pm_journal_found *found, pm_journal_fn *fn, void *arg) {
    struct pm_journal_group *group = buffer;
    uint64_t at = 0;
    for (uint32_t number = 0; number < found->groups; number++) {
        if (!read_group(io, group, at, found->epoch, number)) {
            errno = EIO; // it was whole when it was found
            return false;
        }
        const char *from = contents(group);
        for (uint32_t i = 0; i < group->entries; i++) {
            const struct pm_journal_entry *e = &group->entry[i];
            if (!fn(io, e, from, arg))
                return false;
            if (e->kind == PM_JOURNAL_PAGE)
                from += (size_t)e->pages * PM_PAGE_SIZE;
        }
        at += group_bytes(group);
    }
    return true;
}

struct applying {
    bool lengths;
    bool touched[PM_SHARDS * PM_JOURNAL_MEMBERS];
};

static bool apply_entry(const struct pm_journal_io *io, const struct pm_journal_entry *e,
                        const char *from, void *arg) {
    struct applying *a = arg;
    unsigned file = pm_journal_file(e->member, e->shard);
    uint64_t at = e->first * PM_PAGE_SIZE, bytes = (uint64_t)e->pages * PM_PAGE_SIZE;
    a->touched[file] = true; // a length must be durable, too, before the journal says another one
    if (e->kind == PM_JOURNAL_LENGTH && !a->lengths)
        return true;
    switch ((enum pm_journal_kind)e->kind) {
    case PM_JOURNAL_PAGE:
        return io->write(file, from, bytes, at);
    case PM_JOURNAL_ZERO:
        return io->zero(file, at, bytes);
    case PM_JOURNAL_LENGTH:
        return io->set_length(file, e->first);
    }
    return false;
}

bool pm_journal_apply(const struct pm_journal_io *io, void *buffer,
                      const struct pm_journal_found *found, bool lengths) {
    struct applying a = {.lengths = lengths};
    bool good = pm_journal_each(io, buffer, found, apply_entry, &a);
    for (unsigned file = 0; file < PM_SHARDS * PM_JOURNAL_MEMBERS && good; file++)
        good = !a.touched[file] || io->sync(file);
    return good;
}

static bool same_entry(const struct pm_journal_io *io, const struct pm_journal_entry *e,
                       const char *from, void *arg) {
    static const char zeroes[PM_PAGE_SIZE];
    char *page = arg;
    unsigned file = pm_journal_file(e->member, e->shard);
    for (uint64_t i = 0; i < e->pages; i++) {
        const char *wanted = e->kind == PM_JOURNAL_PAGE ? from + i * PM_PAGE_SIZE : zeroes;
        if (!io->read(file, page, PM_PAGE_SIZE, (e->first + i) * PM_PAGE_SIZE) ||
            memcmp(page, wanted, PM_PAGE_SIZE) != 0)
            return false;
    }
    return true;
}

bool pm_journal_applied(const struct pm_journal_io *io, void *buffer,
                        const struct pm_journal_found *found) {
    char page[PM_PAGE_SIZE];
    return pm_journal_each(io, buffer, found, same_entry, page);
}
