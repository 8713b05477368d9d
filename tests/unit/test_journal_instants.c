// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What a commit says of the instants at which its process has taken commits: in the journal, and in
// the superblock once the journal is gone.
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "check.h"
#include "media/journal/instants.h"
#include "media/journal/journal.h"
#include "media/journal/pauses.h"

#define GROUPS 4u
#define SUPER_BYTES (sizeof(struct pm_super_file))

static unsigned char file[GROUPS * (1 + 2) * PM_PAGE_SIZE], super[SUPER_BYTES];
static size_t size;
static bool synced;     // the superblock
static bool in_memory;  // the journal
static unsigned writes; // to the journal

static bool write_file(unsigned of, const void *from, size_t len, uint64_t at) {
    bool own = of == PM_JOURNAL_SELF;
    CHECK(at + len <= (own ? sizeof file : sizeof super));
    memcpy((own ? file : super) + at, from, len);
    size = own && at + len > size ? at + len : size;
    writes += own;
    return true;
}

static bool read_file(unsigned of, void *to, size_t len, uint64_t at) {
    CHECK_EQ(of, PM_JOURNAL_SELF);
    if (at + len > size) {
        errno = PM_JOURNAL_ENDS;
        return false;
    }
    memcpy(to, file + at, len);
    return true;
}

static bool zero_file(unsigned of, uint64_t at, uint64_t len) {
    (void)of, (void)at, (void)len;
    return true;
}

static bool set_length(unsigned of, uint64_t bytes) {
    CHECK_EQ(of, PM_JOURNAL_SELF);
    size = bytes;
    return true;
}

static bool sync_file(unsigned of) {
    synced |= of == pm_journal_file(PM_JOURNAL_SUPER, 0);
    return true;
}

static bool is_in_memory(unsigned of) {
    CHECK_EQ(of, PM_JOURNAL_SELF);
    return in_memory;
}

static const struct pm_journal_io io = {.read = read_file,
                                        .write = write_file,
                                        .zero = zero_file,
                                        .set_length = set_length,
                                        .sync = sync_file,
                                        .in_memory = is_in_memory};
static const uint8_t uuid[16] = "journal of test";
static const struct pm_instants given = {
    .between = 71,
    .waited = 3,
    .any = 2,
    .time = 1234,
    .lock = 0x5000,
    .thread = 17,
    .unseen = 4,
    .name = {'s', 'i', 'x', 't', 'e', 'e', 'n', ' ', 'l', 'e', 't', 't', 'e', 'r', 's', '.'}};
static const struct pm_pauses pauses = {.of = {1, 2, 3, [PM_PAUSE_BOUNDS] = 4},
                                        .held_ns = 5,
                                        .longest_ns = 6,
                                        .round = {7},
                                        .instant = 8};
static struct pm_journal journal;
static char *buffer;

static void commit(uint64_t epoch, unsigned entries) {
    pm_journal_begin(&journal, uuid, epoch, 1000 + epoch);
    for (unsigned i = 0; i < entries; i++)
        pm_journal_add_zeroes(&journal, pm_journal_file(PM_JOURNAL_DATA, 0), 2 * i, 1);
    CHECK(pm_journal_end(&journal));
    pm_journal_count(&journal);
}

static struct pm_journal_found found(void) {
    struct pm_journal_found f;
    CHECK_EQ(pm_journal_find(&io, buffer, uuid, &f), 0);
    return f;
}

static bool count_entry(const struct pm_journal_io *of, const struct pm_journal_entry *e,
                        const char *from, void *arg) {
    (void)of, (void)from;
    CHECK_EQ(e->first, 2 * (*(unsigned *)arg)++);
    return true;
}

static void begin(bool counted) {
    journal.lap = (struct pm_journal_lap){0};
    journal.counted = counted;
    journal.instants = given;
    journal.pauses = pauses;
    memset(file, 0, size = sizeof file);
}

// Where the entries end, or would have ended, they are not written over.
static void test_entries_beside_them(void) {
    static const unsigned counts[] = {1,
                                      PM_JOURNAL_ENTRIES_NOW,
                                      PM_JOURNAL_ENTRIES_NOW + 1,
                                      PM_JOURNAL_AT_INSTANTS,
                                      PM_JOURNAL_ENTRIES,
                                      2 * PM_JOURNAL_ENTRIES};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        unsigned seen = 0;
        begin(true);
        commit(1, counts[i]);
        struct pm_journal_found f = found();
        CHECK(f.counted && memcmp(&f.instants, &given, sizeof given) == 0);
        CHECK(memcmp(&f.pauses, &pauses, sizeof pauses) == 0);
        CHECK(pm_journal_each(&io, buffer, &f, count_entry, &seen));
        CHECK_EQ(seen, counts[i]);
    }
}

// An older build had entries where pauses are now, and instants behind them.
static void test_pauses_of_an_older_build(void) {
    struct pm_journal_group *group = (void *)file;
    for (unsigned used = PM_JOURNAL_AT_PAUSES; used <= PM_JOURNAL_AT_INSTANTS + 1; used++) {
        struct pm_journal_found f;
        begin(true);
        commit(1, 1);
        for (unsigned i = group->entries; i < used; i++)
            group->entry[i] = (struct pm_journal_entry){
                .kind = PM_JOURNAL_ZERO, .member = PM_JOURNAL_DATA, .first = i, .pages = 1};
        group->entries = used;
        group->crc = 0;
        group->crc = pm_crc32c(0, group, sizeof *group);
        f = found();
        CHECK_EQ(f.groups, 1);
        CHECK(f.counted == (used <= PM_JOURNAL_AT_INSTANTS));
        CHECK_EQ(pm_pauses_count(&f.pauses), used == PM_JOURNAL_AT_PAUSES ? 10 : 0);
    }
}

static void test_those_of_the_last_commit(void) {
    begin(true);
    commit(1, 1);
    journal.instants.between++;
    commit(2, 1);
    CHECK_EQ(found().instants.between, given.between + 1);
    journal.counted = false;
    commit(3, 1);
    CHECK(found().epoch == 3 && !found().counted);
}

static void recover(bool counted) {
    begin(counted);
    commit(1, 1);
    struct pm_journal_found f = found();
    memset(super, 0, sizeof super);
    synced = false;
    CHECK(pm_journal_recover(&io, buffer, &f) && synced && size == 0);
}

// What a killed process left on a medium may not be durable. In memory there is nothing to write.
static void test_written_once_more_on_a_medium(void) {
    for (int memory = 0; memory < 2; memory++) {
        in_memory = memory;
        begin(true);
        commit(1, 1);
        struct pm_journal_found f = found();
        writes = 0;
        CHECK(pm_journal_recover(&io, buffer, &f));
        CHECK_EQ(writes, memory ? 1 : 2); // one of them ends the lap
    }
    in_memory = false;
}

static void test_on_record_when_the_journal_is_gone(void) {
    struct pm_state *state = &((struct pm_super_file *)(void *)super)->state;
    struct pm_instants of;
    uint64_t time;
    recover(false);
    CHECK(!pm_instants_read(state, &of, &time));
    recover(true);
    CHECK(pm_instants_read(state, &of, &time) && time == 1001);
    CHECK_EQ(memcmp(&of, &given, sizeof of), 0);
    for (size_t at = 0; at < sizeof(struct pm_instants_state); at++) { // none as it was written
        super[pm_instants_at() + at] ^= 1;
        CHECK(!pm_instants_read(state, &of, &time));
        super[pm_instants_at() + at] ^= 1;
    }
    CHECK(pm_instants_read(state, &of, &time));
}

int main(void) {
    journal = (struct pm_journal){.io = &io, .most = PM_JOURNAL_PAGES, .room = PM_JOURNAL_BUFFER};
    journal.first = malloc(PM_JOURNAL_BUFFER);
    buffer = malloc(PM_JOURNAL_BUFFER);
    CHECK(journal.first && buffer);
    RUN(entries_beside_them);
    RUN(pauses_of_an_older_build);
    RUN(those_of_the_last_commit);
    RUN(written_once_more_on_a_medium);
    RUN(on_record_when_the_journal_is_gone);
    free(buffer);
    free(journal.first);
    return CHECK_DONE();
}
