// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A process was killed when it had ended its lap, and before that was durable: the medium may still
// have the lap. A part of it must not stay, so recovery ends it again, durably, before it truncates
// the journal. A journal that cannot be read is not taken for an empty one.
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "media/journal/journal.h"

static size_t size;      // of the journal, which has zeroes
static int unreadable;   // the errno of reads, or 0
static char calls[8][8]; // what has changed the journal, or made it durable
static unsigned count;

static bool note(unsigned of, const char *call) {
    if (of == PM_JOURNAL_SELF && count < 8)
        strcpy(calls[count++], call);
    return true;
}

static bool read_file(unsigned of, void *to, size_t len, uint64_t at) {
    (void)of;
    memset(to, 0, len);
    errno = unreadable ? unreadable : PM_JOURNAL_ENDS;
    return !unreadable && at + len <= size;
}

static bool write_file(unsigned of, const void *from, size_t len, uint64_t at) {
    static const char zeroes[PM_JOURNAL_SECTOR];
    CHECK(of != PM_JOURNAL_SELF ||
          (at == 0 && len == sizeof zeroes && memcmp(from, zeroes, len) == 0));
    return note(of, "end");
}

static bool sync_file(unsigned of) { return note(of, "sync"); }

static bool set_length(unsigned of, uint64_t bytes) {
    CHECK_EQ(bytes, 0);
    return note(of, "cut");
}

static const struct pm_journal_io io = {
    .read = read_file, .write = write_file, .sync = sync_file, .set_length = set_length};

static void recover(void) {
    static char buffer[PM_JOURNAL_BUFFER];
    const struct pm_journal_found none = {0};
    count = 0;
    CHECK(pm_journal_recover(&io, buffer, &none));
}

static void check_ended(void) {
    recover();
    CHECK_EQ(count, 4);
    CHECK_STR(calls[0], "end");
    CHECK_STR(calls[1], "sync");
    CHECK_STR(calls[2], "cut");
    CHECK_STR(calls[3], "sync");
}

static void test_a_lap_that_has_ended(void) {
    size = 1 << 20;
    check_ended();
}

static void test_a_journal_that_cannot_be_read(void) {
    unreadable = EIO;
    check_ended();
    unreadable = 0;
}

static void test_an_empty_one(void) {
    size = 0;
    recover();
    CHECK_EQ(count, 2);
    CHECK_STR(calls[0], "cut");
}

int main(void) {
    RUN(a_lap_that_has_ended);
    RUN(a_journal_that_cannot_be_read);
    RUN(an_empty_one);
    return CHECK_DONE();
}
