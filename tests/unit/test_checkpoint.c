// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// When a checkpoint pays: what it costs against what it costs to keep copies without one.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/os.h"
#include "check.h"
#include "media/journal/checkpoint.h"

enum { SYNC_MS = 20, KEPT = 200, COMPARE_NS = 500, SHARE = 20 }; // as in checkpoint.c

static unsigned char file[64 * PM_PAGE_SIZE];
static unsigned syncs; // of the data file
static struct pm_journal journal;
static const uint8_t uuid[16] = "checkpoint";

static void wait_ms(unsigned ms) {
    const struct timespec t = {.tv_nsec = ms * 1000000L};
    nanosleep(&t, NULL);
}

static bool write_file(unsigned of, const void *from, size_t len, uint64_t at) {
    if (of == PM_JOURNAL_SELF) {
        CHECK(at + len <= sizeof file);
        memcpy(file + at, from, len);
    }
    return true;
}

static bool read_file(unsigned of, void *to, size_t len, uint64_t at) {
    CHECK_EQ(of, PM_JOURNAL_SELF);
    CHECK(at + len <= sizeof file);
    memcpy(to, file + at, len);
    return true;
}

static bool zero_file(unsigned of, uint64_t at, uint64_t len) {
    (void)of, (void)at, (void)len;
    return true;
}

static bool set_length(unsigned of, uint64_t bytes) {
    (void)of, (void)bytes;
    return true;
}

static bool sync_file(unsigned of) {
    if (of == pm_journal_file(PM_JOURNAL_DATA, 0)) {
        syncs++;
        wait_ms(SYNC_MS);
    }
    return true;
}

static const struct pm_journal_io io = {.read = read_file,
                                        .write = write_file,
                                        .zero = zero_file,
                                        .set_length = set_length,
                                        .sync = sync_file};

static void commit(void) {
    static uint64_t epoch;
    CHECK(pm_checkpoint_prepare(&journal));
    pm_journal_begin(&journal, uuid, ++epoch, 1000);
    pm_journal_add_zeroes(&journal, pm_journal_file(PM_JOURNAL_DATA, 0), epoch, 1);
    CHECK(pm_journal_end(&journal));
    pm_journal_count(&journal);
    struct pm_journal_found all = pm_journal_found_lap(&journal);
    CHECK(pm_checkpoint_write_through(&journal, &all));
}

static void checkpoint(void) {
    unsigned before = syncs;
    pm_checkpoint_hurry(&journal);
    commit();
    CHECK_EQ(syncs, before + 1);
}

// Of some copies each comparison costs. A sync of this medium costs as much as many of them.
static void test_comparisons(void) {
    uint64_t least = (uint64_t)SYNC_MS * 1000000 / COMPARE_NS / KEPT, some = 1;
    checkpoint();
    for (; !pm_checkpoint_pays(KEPT); some++)
        pm_checkpoint_compared(KEPT);
    CHECK(some >= least);
    CHECK(!pm_checkpoint_pays(PM_CHECKPOINT_FEW));
    CHECK(pm_checkpoint_pays(PM_CHECKPOINT_FEW + 1));
    checkpoint();
    CHECK(!pm_checkpoint_pays(KEPT));
}

// Many copies do not stay for long, whatever a comparison costs.
static void test_memory(void) {
    uint64_t began = pm_os_now_ns();
    checkpoint();
    bool pays = pm_checkpoint_pays(2 * KEPT);
    CHECK(!pays || pm_os_now_ns() - began > SHARE * SYNC_MS * 1000000ull);
    while (!pm_checkpoint_pays(2 * KEPT)) // ends, or the test runs out of its time
        wait_ms(SYNC_MS);
    CHECK(!pm_checkpoint_pays(KEPT));
}

int main(void) {
    journal = (struct pm_journal){.io = &io, .most = PM_JOURNAL_PAGES, .room = PM_JOURNAL_BUFFER};
    journal.first = malloc(PM_JOURNAL_BUFFER);
    CHECK(journal.first != NULL);
    pm_checkpoint_begin(&journal, 0);
    commit();
    RUN(comparisons);
    RUN(memory);
    free(journal.first);
    return CHECK_DONE();
}
