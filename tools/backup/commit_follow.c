// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "commit_follow.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "media/backing/fixed.h"
#include "media/commit/journal_files.h"
#include "media/heap.h"
#include "media/journal/journal.h"

enum { TRIES = 100, TRY_NS = 1000000 };
// Of a block: a commit that is in the files has written it, or the last commit.
enum { UNCHANGED, EARLIER, LAST };

static struct {
    bool begun;
    int fd; // the journal
    void *buffer;
    struct pm_journal_found seen; // the last commit that was seen: its epoch and its end
    bool lost;
    uint8_t *changed[PM_HEAP_FILES]; // by blocks
    uint64_t blocks[PM_HEAP_FILES];
} follow;

static void lose(void) { follow.lost = true; }

// ---- the journal --------------------------------------------------------------------------------

// The part of a fixed medium ends where its length says, as a file does.
static ssize_t read_part(const struct pm_file *part, void *to, size_t len, uint64_t at) {
    uint64_t end = pm_fixed_length(part);
    if (at >= end)
        return 0;
    len = len < end - at ? len : end - at;
    memcpy(to, part->map + at, len);
    return (ssize_t)len;
}

static ssize_t read_some(void *to, size_t len, uint64_t at) {
    const struct pm_file *journal = &pm_heap.journal;
    return journal->length ? read_part(journal, to, len, at) : pread(follow.fd, to, len, (off_t)at);
}

static bool read_journal(unsigned file, void *to, size_t len, uint64_t at) {
    (void)file;
    ssize_t got = read_some(to, len, at);
    if (got >= 0 || errno == PM_JOURNAL_ENDS)
        errno = got >= 0 ? PM_JOURNAL_ENDS : EIO; // the latter: a disk's word for a bad block
    return got == (ssize_t)len;
}

static const struct pm_journal_io io = {.read = read_journal};

static size_t row_of(const struct pm_journal_entry *e) {
    const struct pm_file *file = pm_journal_heap_file(pm_journal_file(e->member, e->shard));
    size_t row = 0;
    while (row < PM_HEAP_FILES && pm_heap_file(&pm_heap_files[row]) != file)
        row++;
    return row;
}

static bool reach(size_t row, uint64_t blocks) {
    if (blocks <= follow.blocks[row])
        return true;
    uint64_t room = blocks + blocks / 4;
    uint8_t *more = realloc(follow.changed[row], room);
    if (!more)
        return false;
    memset(more + follow.blocks[row], 0, room - follow.blocks[row]);
    follow.changed[row] = more;
    follow.blocks[row] = room;
    return true;
}

// Bytes beyond a file's new length read as zeroes when the file is longer again.
static bool note(const struct pm_journal_entry *e) {
    size_t row = row_of(e);
    uint64_t block = e->first, end = e->first + e->pages;
    if (row == PM_HEAP_FILES)
        return false;
    if (e->kind == PM_JOURNAL_LENGTH) {
        block = e->first / PM_PAGE_SIZE;
        end = follow.blocks[row];
    }
    if (block < end && !reach(row, end))
        return false;
    if (block < end)
        memset(follow.changed[row] + block, LAST, end - block);
    return true;
}

// A commit is in the files before the next one is written to the journal.
static void age(void) {
    for (size_t row = 0; row < PM_HEAP_FILES; row++)
        for (uint64_t b = 0; b < follow.blocks[row]; b++)
            if (follow.changed[row][b] == LAST)
                follow.changed[row][b] = EARLIER;
}

static bool note_group(const struct pm_journal_group *group) {
    const struct pm_journal_entry *e = pm_journal_entries(group);
    for (uint32_t i = 0; i < group->entries; i++)
        if (!note(e + i))
            return false;
    return true;
}

// Notes the whole commits behind those that were seen. The blocks of a commit that is not whole yet
// may be noted, too, which does no harm. False: they cannot be read or noted.
static bool note_further(void) {
    struct pm_journal_found from = follow.seen;
    struct pm_journal_reading r = pm_journal_read_from(&io, follow.buffer, &from);
    while (pm_journal_read_next(&r)) {
        if (r.group->number == 0) {
            if (from.epoch && r.group->epoch != from.epoch + 1)
                return false;
            age();
        }
        if (!note_group(r.group))
            return false;
        from = (struct pm_journal_found){
            .epoch = r.group->epoch, .at = r.at, .lap = r.lap, .before = r.before};
        if (r.group->last)
            follow.seen = from;
    }
    return !r.error;
}

// The epoch of the last commit that was begun. Nothing overwrites it before the next one. A page of
// the heap may look like a header, too: then the answer is too large, and some commit seems missed.
// False: the journal cannot be read.
static bool newest_epoch(uint64_t *epoch) {
    const struct pm_superblock *super = &pm_heap.super->super;
    uint64_t newest = 0, at = 0;
    ssize_t got;
    while ((got = read_some(follow.buffer, PM_JOURNAL_BUFFER, at)) > 0) {
        const struct pm_journal_group *g = follow.buffer;
        for (uint64_t n = (uint64_t)got / sizeof *g; n--; g++)
            if (g->magic == PM_JOURNAL_MAGIC && g->epoch > newest &&
                memcmp(g->uuid, super->uuid, sizeof g->uuid) == 0)
                newest = g->epoch;
        at += (uint64_t)got;
    }
    *epoch = newest;
    return got == 0;
}

// In another lap the commits begin anew. The last commits of the lap before stay behind them until
// they are overwritten, and are read first: checksums and epochs tell whether all of it was still
// there. Between two laps the start of the journal is zeroes, and the files have all.
static bool look(struct pm_journal_group *head) {
    if (!read_journal(PM_JOURNAL_SELF, head, sizeof *head, 0))
        return false; // a commit has failed, or the heap is being closed
    if (follow.seen.lap && !note_further())
        return false;
    if (head->magic != PM_JOURNAL_MAGIC) {
        return follow.seen.epoch || newest_epoch(&follow.seen.epoch);
    }
    if (head->lap == follow.seen.lap)
        return true;
    follow.seen = (struct pm_journal_found){.epoch = follow.seen.epoch};
    return note_further();
}

void follow_look(void) {
    struct pm_journal_group head;
    if (follow.begun && !follow.lost && !look(&head))
        lose();
}

// A journal without a start has a lap that has ended, which need not be the one that was seen.
bool follow_instant(bool patient) {
    struct pm_journal_group head;
    if (!follow.begun || follow.lost || !look(&head)) {
        lose();
        return true;
    }
    uint64_t newest = 0;
    bool known = head.magic == PM_JOURNAL_MAGIC
                     ? head.lap == follow.seen.lap
                     : newest_epoch(&newest) && newest == follow.seen.epoch;
    if (!known && !patient)
        lose();
    return known || !patient;
}

// ---- from outside -------------------------------------------------------------------------------

static void forget_earlier(void) {
    for (size_t row = 0; row < PM_HEAP_FILES; row++)
        for (uint64_t b = 0; b < follow.blocks[row]; b++)
            if (follow.changed[row][b] == EARLIER)
                follow.changed[row][b] = UNCHANGED;
}

// A commit that is being written is in force in a moment.
static void find_last(void) {
    const struct timespec pause = {.tv_nsec = TRY_NS};
    for (unsigned i = 0; !follow.lost && !follow.seen.epoch; i++) {
        if (i > 0)
            nanosleep(&pause, NULL);
        if (i > TRIES)
            lose();
        follow_look();
    }
    forget_earlier();
}

void follow_begin(void) {
    follow.begun = true;
    follow.fd = pm_heap.journal.length ? pm_heap.journal.fd
                                       : openat(pm_heap.dir_fd, pm_heap.journal.name,
                                                O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    follow.buffer = malloc(PM_JOURNAL_BUFFER);
    if (follow.fd < 0 || !follow.buffer)
        lose();
    find_last();
}

void follow_again(void) {
    follow.lost = follow.fd < 0 || !follow.buffer;
    follow.seen = (struct pm_journal_found){0};
    for (size_t row = 0; row < PM_HEAP_FILES; row++)
        if (follow.blocks[row])
            memset(follow.changed[row], UNCHANGED, follow.blocks[row]);
    find_last();
}

void follow_end(void) { follow.begun = false; }

bool follow_knows(void) { return follow.begun && !follow.lost; }

void follow_file(size_t row, uint64_t blocks) {
    if (follow.begun && !reach(row, blocks))
        lose();
}

bool follow_covers(size_t row) {
    const struct pm_file *file = pm_heap_file(&pm_heap_files[row]);
    for (unsigned i = 1; i < PM_SHARDS * PM_JOURNAL_MEMBERS; i++)
        if (i % PM_JOURNAL_MEMBERS != PM_JOURNAL_SELF && pm_journal_heap_file(i) == file)
            return true;
    return false;
}

// fn() may see a commit, so the marks go first.
uint64_t follow_each(size_t row, uint64_t blocks, bool all, follow_fn *fn) {
    uint64_t count = 0;
    blocks = blocks < follow.blocks[row] ? blocks : follow.blocks[row];
    for (uint64_t block = 0, end; block < blocks; block = end) {
        uint8_t is = follow.changed[row][block];
        for (end = block; end < blocks && follow.changed[row][end] == is; end++) {
        }
        if (is == UNCHANGED || (is == LAST && !all))
            continue;
        if (is == EARLIER)
            memset(follow.changed[row] + block, UNCHANGED, end - block);
        count += end - block;
        fn(row, block, end);
    }
    return count;
}
