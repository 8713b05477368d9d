// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "commit_follow.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "media/heap.h"
#include "media/journal.h"
#include "media/journal_files.h"

enum { TRIES = 100, TRY_NS = 1000000 };
// Of a block: a commit that is in the files has written it, or the last commit.
enum { UNCHANGED, EARLIER, LAST };

static struct {
    bool begun;
    int fd; // the journal
    void *buffer;
    uint64_t epoch; // of the last commit that was seen
    bool lost;
    uint8_t *changed[PM_HEAP_FILES]; // by blocks
    uint64_t blocks[PM_HEAP_FILES];
} follow;

// Once lost, it is not found again.
static void lose(void) { follow.lost = true; }

// ---- the journal --------------------------------------------------------------------------------

static bool read_journal(unsigned file, void *to, size_t len, uint64_t at) {
    (void)file;
    return pread(follow.fd, to, len, (off_t)at) == (ssize_t)len;
}

static const struct pm_journal_io io = {.read = read_journal};

static size_t row_of(const struct pm_journal_entry *e) {
    const struct pm_file *file = pm_journal_heap_file(pm_journal_file(e->member, e->shard));
    size_t row = 0;
    while (row < PM_HEAP_FILES && pm_heap_files[row].file != file)
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

// What lies beyond a file's new length reads as zeroes when the file is longer again.
static bool note(const struct pm_journal_io *unused, const struct pm_journal_entry *e,
                 const char *from, void *arg) {
    (void)unused, (void)from, (void)arg;
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

// A commit is in the files, and they are synced, before the next one is written to the journal.
static void age(void) {
    for (size_t row = 0; row < PM_HEAP_FILES; row++)
        for (uint64_t b = 0; b < follow.blocks[row]; b++)
            if (follow.changed[row][b] == LAST)
                follow.changed[row][b] = EARLIER;
}

// False: the journal holds no whole commit now.
static bool note_commit(void) {
    struct pm_journal_found found;
    if (!pm_journal_look(&io, follow.buffer, pm_heap.super->super.uuid, &found))
        return false;
    age();
    if (!pm_journal_each(&io, follow.buffer, &found, note, NULL))
        lose(); // it was written over meanwhile, or there is no memory
    follow.epoch = found.epoch;
    return true;
}

void follow_look(void) {
    struct pm_journal_group head;
    if (!follow.begun || follow.lost)
        return;
    if (!read_journal(PM_JOURNAL_SELF, &head, offsetof(struct pm_journal_group, entry), 0) ||
        head.magic != PM_JOURNAL_MAGIC) {
        lose(); // a commit has failed, or the heap is being closed
        return;
    }
    uint64_t before = follow.epoch;
    if (head.epoch == before)
        return;
    if (head.epoch != before + 1)
        lose();
    else if (note_commit() && follow.epoch != before + 1)
        lose();
}

// A large journal is cut when its commit is in the files. So one that is not whole may be that, or
// one that is being written: it cannot be told.
bool follow_instant(bool patient) {
    struct pm_journal_group head;
    follow_look();
    if (follow.lost)
        return true;
    bool known =
        read_journal(PM_JOURNAL_SELF, &head, offsetof(struct pm_journal_group, entry), 0) &&
        head.epoch == follow.epoch;
    if (!known && !patient)
        lose();
    return known || !patient;
}

// ---- from outside -------------------------------------------------------------------------------

// A commit that is being written counts in a moment.
void follow_begin(void) {
    const struct timespec pause = {.tv_nsec = TRY_NS};
    follow.begun = true;
    follow.fd = openat(pm_heap.dir_fd, pm_heap.journal.name,
                       O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    follow.buffer = malloc(PM_JOURNAL_BUFFER);
    if (follow.fd < 0 || !follow.buffer) {
        lose();
        return;
    }
    for (unsigned i = 0; !note_commit(); i++) {
        if (i == TRIES) {
            lose();
            return;
        }
        nanosleep(&pause, NULL);
    }
}

void follow_end(void) { follow.begun = false; }

bool follow_knows(void) { return follow.begun && !follow.lost; }

void follow_file(size_t row, uint64_t blocks) {
    if (follow.begun && !reach(row, blocks))
        lose();
}

bool follow_covers(size_t row) {
    const struct pm_file *file = pm_heap_files[row].file;
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
