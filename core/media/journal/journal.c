// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "journal.h"

#include <errno.h>
#include <string.h>

#include "base/crc.h"
#include "instants.h"
#include "page_sums.h"

static char *contents(struct pm_journal_group *group) { return (char *)(group + 1); }

static size_t group_bytes(const struct pm_journal_group *group) {
    return (1 + (size_t)group->pages) * PM_PAGE_SIZE;
}

// The crc is the last word of the header before the entries, and is taken as 0.
static uint32_t group_crc(const struct pm_journal_group *group) {
    const uint32_t none = 0;
    size_t before = offsetof(struct pm_journal_group, crc), after = before + sizeof none;
    uint32_t crc = pm_crc32c(0, group, before);
    crc = pm_crc32c(crc, &none, sizeof none);
    return pm_crc32c(crc, (const char *)group + after, group_bytes(group) - after);
}

// ---- writing ------------------------------------------------------------------------------------

void pm_journal_begin(struct pm_journal *j, const uint8_t uuid[16], uint64_t epoch, uint64_t time) {
    struct pm_journal_group *group = j->group = j->first;
    j->groups = j->pages = j->held = 0;
    j->at = j->lap.end;
    j->before = j->lap.before;
    j->any = j->kept = j->failed = j->forced = j->amid = false;
    memset(group, 0, sizeof *group);
    group->magic = PM_JOURNAL_MAGIC;
    memcpy(group->uuid, uuid, sizeof group->uuid);
    group->epoch = epoch;
    group->time = time;
    group->lap = j->lap.id ? j->lap.id : time + epoch; // no other lap has both
    group->follows = j->follows;
}

static struct pm_journal_group *behind(struct pm_journal_group *group) {
    return (struct pm_journal_group *)(void *)((char *)group + group_bytes(group));
}

static size_t bytes_up_to(const struct pm_journal *j, const struct pm_journal_group *group) {
    return (size_t)((const char *)group - (const char *)j->first);
}

static void write_groups(struct pm_journal *j) {
    struct pm_journal_group *end = behind(j->group);
    size_t bytes = bytes_up_to(j, end);
    j->reached = bytes > j->reached ? bytes : j->reached;
    for (struct pm_journal_group *g = j->first; g != end; g = behind(g)) {
        g->before = j->before;
        j->before = g->crc = group_crc(g);
    }
    if (!j->failed && !j->io->write(PM_JOURNAL_SELF, j->first, bytes, j->at)) {
        j->failed = true;
        j->error = errno;
    }
    j->at += bytes;
}

static void begin_group(struct pm_journal *j, struct pm_journal_group *next) {
    const struct pm_journal_group *last = j->group;
    if (next != last)
        *next = *last;
    memset(next->entry, 0, sizeof next->entry);
    next->number++;
    next->entries = next->pages = 0;
    j->group = next;
    j->groups++;
}

static void next_group(struct pm_journal *j) {
    struct pm_journal_group *next = behind(j->group);
    if (bytes_up_to(j, next) + PM_JOURNAL_BUFFER > j->room) {
        write_groups(j);
        next = j->first;
    }
    begin_group(j, next);
}

// Only the first group in memory may have no entry yet.
void pm_journal_write_out(struct pm_journal *j) {
    if (!j->group->entries)
        return;
    write_groups(j);
    begin_group(j, j->first);
}

static struct pm_journal_entry *add(struct pm_journal *j, enum pm_journal_kind kind, unsigned file,
                                    uint64_t first) {
    struct pm_journal_group *group = j->group;
    if (group->entries == PM_JOURNAL_ENTRIES_NOW || group->pages == j->most)
        next_group(j);
    group = j->group;
    j->any = true;
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
        j->pages += count;
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

bool pm_journal_has_any(const struct pm_journal *j) { return j->any; }

bool pm_journal_end(struct pm_journal *j) {
    struct pm_journal_group *group = j->group;
    group->last = PM_JOURNAL_LAST | (j->forced ? PM_JOURNAL_LAST_FORCED : 0u) |
                  (j->amid ? PM_JOURNAL_LAST_AMID : 0u) |
                  (j->counted ? PM_JOURNAL_LAST_INSTANTS : 0u);
    group->held = j->held;
    if (j->counted) {
        memcpy(&group->entry[PM_JOURNAL_AT_INSTANTS], &j->instants, sizeof j->instants);
        memcpy(&group->entry[PM_JOURNAL_AT_PAUSES], &j->pauses, sizeof j->pauses);
    }
    j->groups++;
    j->kept = j->at == j->lap.end; // nothing was written earlier
    write_groups(j);
    j->next = (struct pm_journal_lap){.id = group->lap,
                                      .commits = j->lap.commits + 1,
                                      .groups = j->lap.groups + j->groups,
                                      .end = j->at,
                                      .before = j->before};
    errno = j->failed ? j->error : errno;
    return !j->failed;
}

void pm_journal_count(struct pm_journal *j) { j->lap = j->next; }

// A part of several commits would undo the last ones. A part of one, or of what is written over it,
// may have a commit behind it that came to nothing, and look like a damaged journal.
static bool end_lap(const struct pm_journal_io *io, bool has_commits) {
    static const char zeroes[PM_JOURNAL_SECTOR];
    return !has_commits ||
           (io->write(PM_JOURNAL_SELF, zeroes, sizeof zeroes, 0) && io->sync(PM_JOURNAL_SELF));
}

bool pm_journal_end_lap(struct pm_journal *j) {
    if (!end_lap(j->io, j->lap.commits != 0))
        return false;
    j->lap = (struct pm_journal_lap){0};
    return true;
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
    const struct pm_journal_entry *e = pm_journal_entries(group);
    uint64_t pages = 0;
    for (uint32_t i = 0; i < group->entries; i++) {
        if (!entry_fits(&e[i]))
            return false;
        if (e[i].kind == PM_JOURNAL_PAGE)
            pages += e[i].pages;
    }
    return pages == group->pages;
}

// Whether the group, which may be torn, says that it comes next.
static bool continues(const struct pm_journal_reading *r) {
    const struct pm_journal_group *group = r->group;
    return group->magic == PM_JOURNAL_MAGIC && group->number == r->number &&
           group->entries <= PM_JOURNAL_ENTRIES && group->pages <= PM_JOURNAL_PAGES &&
           (r->number ? group->epoch == r->epoch : group->epoch > r->epoch) &&
           group->before == r->before && (r->at == 0 || group->lap == r->lap);
}

struct pm_journal_reading pm_journal_read_from(const struct pm_journal_io *io, void *buffer,
                                               const struct pm_journal_found *found) {
    return (struct pm_journal_reading){
        .io = io, .group = buffer, .at = found->at, .lap = found->lap, .before = found->before};
}

static bool read_at(struct pm_journal_reading *r, void *to, size_t len, uint64_t at) {
    if (r->io->read(PM_JOURNAL_SELF, to, len, at))
        return true;
    r->error = errno == PM_JOURNAL_ENDS ? 0 : errno;
    return false;
}

// The rest of a group whose header was read.
static bool is_whole(struct pm_journal_reading *r, uint64_t at) {
    struct pm_journal_group *group = r->group;
    return group->pages <= PM_JOURNAL_PAGES && group->entries <= PM_JOURNAL_ENTRIES &&
           (!group->pages ||
            read_at(r, contents(group), group_bytes(group) - sizeof *group, at + sizeof *group)) &&
           group->crc == group_crc(group) && entries_fit(group);
}

bool pm_journal_read_next(struct pm_journal_reading *r) {
    struct pm_journal_group *group = r->group;
    if (!read_at(r, group, sizeof *group, r->at) || !continues(r) || !is_whole(r, r->at))
        return false;
    r->at += group_bytes(group);
    r->epoch = group->epoch;
    r->lap = group->lap;
    r->before = group->crc;
    r->number = group->last ? 0 : group->number + 1;
    return true;
}

// What tells a damaged group from a torn one: the lap that it is of, and the least epoch of the
// commits that follow. At the start of the journal only its own header says so, which may be a part
// of the damage, or torn: sectors of a new header among those of an old one. Then a group that
// continues it says the same.
struct bounds {
    uint64_t lap[2], epoch[2];
};

static struct bounds bounds_of(struct pm_journal_reading *r) {
    struct pm_journal_group *group = r->group;
    struct bounds b = {{r->lap, r->lap}, {r->epoch + 1, r->epoch + 1}};
    if (r->at)
        return b;
    b = (struct bounds){{0, 0}, {0, 0}};
    if (!read_at(r, group, sizeof *group, 0) || group->magic != PM_JOURNAL_MAGIC)
        return b;
    uint64_t next = group_bytes(group);
    uint32_t crc = group->crc;
    b.lap[0] = group->lap;
    b.epoch[0] = group->epoch + 1;
    if (group->pages <= PM_JOURNAL_PAGES && read_at(r, group, sizeof *group, next) &&
        group->magic == PM_JOURNAL_MAGIC && group->before == crc && is_whole(r, next)) {
        b.lap[1] = group->lap;
        b.epoch[1] = group->epoch;
    }
    return b;
}

static bool is_within(const struct bounds *b, const struct pm_journal_group *group) {
    return (b->lap[0] && group->lap == b->lap[0] && group->epoch >= b->epoch[0]) ||
           (b->lap[1] && group->lap == b->lap[1] && group->epoch >= b->epoch[1]);
}

// Whether a later commit of the lap begins with a whole group, behind the one that is not whole.
static bool is_damaged(struct pm_journal_reading *r, const uint8_t uuid[16]) {
    struct pm_journal_group *group = r->group;
    struct bounds b = bounds_of(r);
    for (uint64_t at = r->at + sizeof *group; !r->error && (b.lap[0] || b.lap[1]);
         at += sizeof *group) {
        if (!read_at(r, group, sizeof *group, at))
            return false;
        if (group->magic == PM_JOURNAL_MAGIC && group->number == 0 && is_within(&b, group) &&
            memcmp(group->uuid, uuid, sizeof group->uuid) == 0 && is_whole(r, at))
            return true;
    }
    return false;
}

// An older build may have used all entries of a group; that one does not say that it has instants.
// Or those where pauses are now.
static void note_instants(const struct pm_journal_group *group, struct pm_journal_found *found) {
    const struct pm_journal_entry *e = pm_journal_entries(group);
    found->counted =
        (group->last & PM_JOURNAL_LAST_INSTANTS) && group->entries <= PM_JOURNAL_AT_INSTANTS;
    if (found->counted)
        memcpy(&found->instants, e + PM_JOURNAL_AT_INSTANTS, sizeof found->instants);
    if (found->counted && group->entries <= PM_JOURNAL_AT_PAUSES)
        memcpy(&found->pauses, e + PM_JOURNAL_AT_PAUSES, sizeof found->pauses);
}

// A commit is found when its last group is. `end`: what follows it is read from there.
static int find(const struct pm_journal_io *io, void *buffer, const uint8_t uuid[16],
                struct pm_journal_found *found, struct pm_journal_reading *end) {
    struct pm_journal_group *group = buffer;
    uint64_t groups = 0, pages = 0;
    *found = (struct pm_journal_found){0};
    struct pm_journal_reading r = pm_journal_read_from(io, buffer, found);
    *end = r;
    while (pm_journal_read_next(&r) && memcmp(group->uuid, uuid, sizeof group->uuid) == 0) {
        groups++;
        pages = group->number ? pages + group->pages : group->pages;
        if (!group->last)
            continue;
        *found = (struct pm_journal_found){.epoch = group->epoch,
                                           .time = group->time,
                                           .pages = pages,
                                           .held = group->held,
                                           .forced = group->last & PM_JOURNAL_LAST_FORCED,
                                           .amid = group->last & PM_JOURNAL_LAST_AMID,
                                           .commits = found->commits + 1,
                                           .groups = groups,
                                           .bytes = r.at,
                                           .follows = group->follows,
                                           .id = group->lap};
        note_instants(group, found);
        *end = r;
    }
    return r.error;
}

int pm_journal_find(const struct pm_journal_io *io, void *buffer, const uint8_t uuid[16],
                    struct pm_journal_found *found) {
    struct pm_journal_group *first = buffer;
    struct pm_journal_reading end;
    int error = find(io, buffer, uuid, found, &end);
    // Where another lap begins meanwhile, the last commits of this one may be overwritten.
    if (found->groups &&
        (!read_at(&end, first, sizeof *first, 0) || first->magic != PM_JOURNAL_MAGIC ||
         first->lap != found->id || first->epoch > found->epoch))
        *found = (struct pm_journal_found){0};
    return error ? error : end.error;
}

int pm_journal_look(const struct pm_journal_io *io, void *buffer, const uint8_t uuid[16],
                    struct pm_journal_found *found) {
    struct pm_journal_reading end;
    int error = find(io, buffer, uuid, found, &end);
    if (error)
        return error;
    bool damaged = is_damaged(&end, uuid);
    return end.error ? end.error : damaged ? PM_JOURNAL_DAMAGED : 0;
}

struct pm_journal_found pm_journal_found_last(const struct pm_journal *j) {
    return (struct pm_journal_found){.epoch = j->group->epoch,
                                     .time = j->group->time,
                                     .pages = j->pages,
                                     .held = j->held,
                                     .forced = j->forced,
                                     .amid = j->amid,
                                     .commits = 1,
                                     .groups = j->groups,
                                     .bytes = j->at,
                                     .at = j->lap.end,
                                     .lap = j->lap.id,
                                     .before = j->lap.before};
}

struct pm_journal_found pm_journal_found_lap(const struct pm_journal *j) {
    return (struct pm_journal_found){
        .commits = j->lap.commits, .groups = j->lap.groups, .bytes = j->lap.end};
}

bool pm_journal_retire(const struct pm_journal_io *io, bool has_commits) {
    return end_lap(io, has_commits) && io->set_length(PM_JOURNAL_SELF, 0) &&
           io->sync(PM_JOURNAL_SELF);
}

// A killed process may have left whole commits that are not durable, although a sync succeeds now:
// an earlier one may have failed to write them. So they are written once more.
static bool make_durable(const struct pm_journal_io *io, void *buffer,
                         const struct pm_journal_found *found) {
    struct pm_journal_reading r = pm_journal_read_from(io, buffer, found);
    if (io->in_memory && io->in_memory(PM_JOURNAL_SELF))
        return true;
    for (uint64_t n = 0, at = r.at; n < found->groups; n++, at = r.at) {
        if (!pm_journal_read_next(&r)) {
            errno = r.error ? r.error : EIO; // it was whole when it was found
            return false;
        }
        if (!pm_journal_anew(io, PM_JOURNAL_SELF, r.group, group_bytes(r.group), at))
            return false;
    }
    return io->sync(PM_JOURNAL_SELF);
}

// The files have these commits, and the journal will be gone.
static bool keep_instants(const struct pm_journal_io *io, const struct pm_journal_found *found,
                          struct pm_journal_touched *touched) {
    struct pm_instants_state record = pm_instants_record(&found->instants, found->time);
    if (!found->counted)
        return true;
    touched->file[pm_journal_file(PM_JOURNAL_SUPER, 0)] = true;
    return io->write(pm_journal_file(PM_JOURNAL_SUPER, 0), &record, sizeof record,
                     pm_instants_at());
}

static bool bring_into_files(const struct pm_journal_io *io, void *buffer,
                             const struct pm_journal_found *found) {
    struct pm_journal_touched touched = {0};
    return (!found->groups || pm_journal_write_through(io, buffer, found, true, &touched)) &&
           keep_instants(io, found, &touched) && pm_journal_note_held(io, found->id, &touched) &&
           pm_journal_sync_touched(io, &touched);
}

static bool is_empty(const struct pm_journal_io *io) {
    char sector[PM_JOURNAL_SECTOR];
    return !io->read(PM_JOURNAL_SELF, sector, sizeof sector, 0) &&
           (errno == PM_JOURNAL_ENDS || errno == ENOENT);
}

// Before its commits are durable, none may be in the files: a cut could leave a part of one there,
// and the journal torn. A sync may report an earlier run's error, so all is written once more after
// that. A killed process may have ended its lap, but not durably: the medium still has its commits,
// and a part of them must not stay.
bool pm_journal_recover(const struct pm_journal_io *io, void *buffer,
                        const struct pm_journal_found *found) {
    return (!found->groups || make_durable(io, buffer, found) || make_durable(io, buffer, found)) &&
           (bring_into_files(io, buffer, found) || bring_into_files(io, buffer, found)) &&
           pm_journal_retire(io, found->groups || !is_empty(io));
}

static bool each_entry(const struct pm_journal_io *io, struct pm_journal_group *group,
                       pm_journal_fn *fn, void *arg) {
    const char *from = contents(group);
    const struct pm_journal_entry *e = pm_journal_entries(group);
    for (uint32_t i = 0; i < group->entries; i++) {
        if (!fn(io, &e[i], from, arg))
            return false;
        if (e[i].kind == PM_JOURNAL_PAGE)
            from += (size_t)e[i].pages * PM_PAGE_SIZE;
    }
    return true;
}

bool pm_journal_each(const struct pm_journal_io *io, void *buffer,
                     const struct pm_journal_found *found, pm_journal_fn *fn, void *arg) {
    struct pm_journal_reading r = pm_journal_read_from(io, buffer, found);
    for (uint64_t n = 0; n < found->groups; n++) {
        if (!pm_journal_read_next(&r)) {
            errno = r.error ? r.error : EIO; // it was whole when it was found
            return false;
        }
        if (!each_entry(io, r.group, fn, arg))
            return false;
    }
    return true;
}

bool pm_journal_each_last_of(struct pm_journal *j, const struct pm_journal_found *last,
                             pm_journal_fn *fn, void *arg) {
    bool good = true;
    if (!j->kept)
        return pm_journal_each(j->io, j->group, last, fn, arg);
    for (struct pm_journal_group *g = j->first; g != behind(j->group) && good; g = behind(g))
        good = each_entry(j->io, g, fn, arg);
    return good;
}

struct applying {
    bool lengths; // false: the heap is open, and its lap goes on
    struct pm_journal_touched *touched;
};

static bool apply_entry(const struct pm_journal_io *io, const struct pm_journal_entry *e,
                        const char *from, void *arg) {
    struct applying *a = arg;
    unsigned file = pm_journal_file(e->member, e->shard);
    uint64_t at = e->first * PM_PAGE_SIZE, bytes = (uint64_t)e->pages * PM_PAGE_SIZE;
    a->touched->file[file] = true; // a length must be durable, too, before the lap ends
    if (e->kind == PM_JOURNAL_LENGTH && !a->lengths)
        return true;
    if (!a->lengths)
        pm_sums_note(file, e->first, e->pages, e->kind == PM_JOURNAL_PAGE ? from : NULL);
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

bool pm_journal_write_through(const struct pm_journal_io *io, void *buffer,
                              const struct pm_journal_found *found, bool lengths,
                              struct pm_journal_touched *touched) {
    struct applying a = {lengths, touched};
    return pm_journal_each(io, buffer, found, apply_entry, &a);
}

bool pm_journal_write_last(struct pm_journal *j, const struct pm_journal_found *last,
                           struct pm_journal_touched *touched) {
    struct applying a = {false, touched};
    return pm_journal_each_last_of(j, last, apply_entry, &a);
}

bool pm_journal_sync_touched(const struct pm_journal_io *io, struct pm_journal_touched *touched) {
    int error = 0;
    for (unsigned file = 0; file < PM_JOURNAL_FILES; file++) {
        if (touched->file[file] && !io->sync(file)) {
            error = error ? error : errno;
            continue;
        }
        touched->file[file] = false;
    }
    errno = error ? error : errno;
    return !error;
}

uint32_t pm_journal_mark(uint64_t lap) {
    uint32_t mark = pm_crc32c(0, &lap, sizeof lap);
    return mark ? mark : 1;
}

uint64_t pm_journal_applied_word(uint64_t commits) {
    return pm_seal((uint32_t)commits, PM_SALT_APPLIED);
}

bool pm_journal_note_applied(const struct pm_journal_io *io, uint64_t commits,
                             struct pm_journal_touched *touched) {
    uint64_t word = pm_journal_applied_word(commits);
    touched->file[pm_journal_file(PM_JOURNAL_SUPER, 0)] = true;
    return io->write(pm_journal_file(PM_JOURNAL_SUPER, 0), &word, sizeof word,
                     offsetof(struct pm_super_file, state.applied));
}

bool pm_journal_note_held(const struct pm_journal_io *io, uint64_t lap,
                          struct pm_journal_touched *touched) {
    uint32_t mark = pm_journal_mark(lap);
    return (!lap || io->write(pm_journal_file(PM_JOURNAL_SUPER, 0), &mark, sizeof mark,
                              offsetof(struct pm_super_file, state.lap))) &&
           pm_journal_note_applied(io, 0, touched);
}
