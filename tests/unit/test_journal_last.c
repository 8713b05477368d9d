// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Of each page the last contents: after a sync that has failed, what a lap has is written once
// more. A file that was cut and is longer again has zeroes where it was cut, on the medium, too: a
// cut may be lost like anything else. What was cut off and is not there again stays away.
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "media/journal/journal.h"

#define PAGES 8u // of the data file, at most
#define LEFT 'm' // what a medium has whose writes were lost

static unsigned char lap[32 * PM_PAGE_SIZE], data[PAGES * PM_PAGE_SIZE];
static size_t lap_size, data_size;
static const uint8_t uuid[16] = "journal of test";
static unsigned data_file;
static char *buffer;

static unsigned char *bytes_of(unsigned of, size_t **size, size_t *room) {
    CHECK(of == PM_JOURNAL_SELF || of == data_file);
    *size = of == data_file ? &data_size : &lap_size;
    *room = of == data_file ? sizeof data : sizeof lap;
    return of == data_file ? data : lap;
}

static bool write_file(unsigned of, const void *from, size_t len, uint64_t at) {
    size_t *size, room;
    unsigned char *bytes = bytes_of(of, &size, &room);
    CHECK(at + len <= room);
    memcpy(bytes + at, from, len);
    *size = at + len > *size ? at + len : *size;
    return true;
}

static bool read_file(unsigned of, void *to, size_t len, uint64_t at) {
    size_t *size, room;
    const unsigned char *bytes = bytes_of(of, &size, &room);
    errno = PM_JOURNAL_ENDS;
    if (at + len > *size)
        return false;
    memcpy(to, bytes + at, len);
    return true;
}

// A hole: it makes no file longer.
static bool zero_file(unsigned of, uint64_t at, uint64_t len) {
    size_t *size, room;
    unsigned char *bytes = bytes_of(of, &size, &room);
    CHECK(at + len <= room);
    memset(bytes + at, 0, len);
    return true;
}

static const struct pm_journal_io io = {.read = read_file, .write = write_file, .zero = zero_file};
static struct pm_journal journal;

static void begin(void) {
    static uint64_t epoch;
    epoch++;
    pm_journal_begin(&journal, uuid, epoch, 1000 + epoch);
}

static void end(void) {
    CHECK(pm_journal_end(&journal));
    pm_journal_count(&journal);
}

static void add(unsigned first, unsigned pages, int byte) {
    static char page[PAGES * PM_PAGE_SIZE];
    memset(page, byte, sizeof page);
    pm_journal_add_pages(&journal, data_file, first, page, pages);
}

static bool page_is(unsigned page, int byte) {
    bool same = true;
    for (unsigned i = 0; i < PM_PAGE_SIZE; i++)
        same &= data[page * PM_PAGE_SIZE + i] == byte;
    return same;
}

// Four pages, which are given back at once. Then the file has three pages again, and one of them
// contents.
static void make_lap(void) {
    journal.lap = (struct pm_journal_lap){0};
    lap_size = 0;
    begin();
    add(0, 4, 'a');
    end();
    begin();
    pm_journal_add_zeroes(&journal, data_file, 0, 4);
    pm_journal_add_length(&journal, data_file, 0);
    end();
    begin();
    add(1, 1, 'b');
    pm_journal_add_length(&journal, data_file, 3 * PM_PAGE_SIZE);
    end();
    memset(data, LEFT, sizeof data);
    data_size = 3 * PM_PAGE_SIZE;
}

static void test_written_once_more(void) {
    struct pm_journal_touched touched = {0};
    make_lap();
    struct pm_journal_found all = pm_journal_found_lap(&journal);
    CHECK(pm_journal_write_again(&io, buffer, &all, &touched));
    CHECK(touched.file[data_file]);
    CHECK(page_is(0, 0) && page_is(1, 'b') && page_is(2, 0));
    CHECK(page_is(PAGES - 1, LEFT)); // no commit names it
    CHECK_EQ(data_size, 3 * PM_PAGE_SIZE);
}

// Zeroes behind the last length of a file are no difference. Each other page that is not there is.
static void test_whether_the_files_have_it(void) {
    make_lap();
    struct pm_journal_found all = pm_journal_found_lap(&journal);
    CHECK_EQ(pm_journal_applied(&io, buffer, &all), 0);
    memset(data, 0, sizeof data);
    memset(data + PM_PAGE_SIZE, 'b', PM_PAGE_SIZE);
    CHECK_EQ(pm_journal_applied(&io, buffer, &all), 1);
    data_size = 2 * PM_PAGE_SIZE;
    CHECK_EQ(pm_journal_applied(&io, buffer, &all), 0);
    data_size = 3 * PM_PAGE_SIZE;
    data[2 * PM_PAGE_SIZE] = 1;
    CHECK_EQ(pm_journal_applied(&io, buffer, &all), 0);
}

int main(void) {
    data_file = pm_journal_file(PM_JOURNAL_DATA, 0);
    journal = (struct pm_journal){.io = &io, .most = PM_JOURNAL_PAGES, .room = PM_JOURNAL_BUFFER};
    journal.first = malloc(PM_JOURNAL_BUFFER);
    buffer = malloc(PM_JOURNAL_BUFFER);
    CHECK(journal.first != NULL && buffer != NULL);
    RUN(written_once_more);
    RUN(whether_the_files_have_it);
    free(journal.first);
    free(buffer);
    return CHECK_DONE();
}
