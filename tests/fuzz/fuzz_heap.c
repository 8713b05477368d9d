// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The target of libFuzzer. Under the name fuzz_medium it puts each heap on a fixed medium. Edited
// heaps go through opening, recovery, verification, and reading by the tools. What must hold for
// each:
//
//   looking    changes nothing, and its verdict is the verdict of the recovery
//   refused    the files stay as they were
//   accepted   recovery finds what looking found; the heap verifies and closes; a second look finds
//              the same, and the heap clean
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/options.h"
#include "blocks/arena.h"
#include "blocks/verify.h"
#include "edits.h"
#include "media/backing/fixed_format.h"
#include "medium.h"
#include "pages/extent_resize.h"
#include "pages/extent_take.h"
#include "recovery/close.h"
#include "recovery/offline.h"
#include "recovery/recover.h"
#include "reset.h"
#include "roots/root_table.h"
#include "seeds.h"
#include "tools/common/census.h"
#include "tools/common/info_print.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
// The first byte chooses the seed and how it is recovered. In its middle third it chooses one of
// the seeds of blocks of other kinds, so that inputs from before these keep their meaning.
static unsigned seed_of(uint8_t first) {
    bool of_kinds = first / (16 * PLAIN_SEEDS) == 1;
    return of_kinds ? PLAIN_SEEDS + first % (SEEDS - PLAIN_SEEDS) : first % PLAIN_SEEDS;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char root[64], directory[96], medium[96];
static const char *heap = directory; // or medium
static bool on_medium;

static int drop(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

// A child process removes the directory after this process has ended, in whatever way. It notices
// the end because the other end of the pipe closes.
static void clean_up_afterwards(void) {
    int ends[2];
    char byte;
    if (pipe2(ends, O_CLOEXEC) != 0 || fork() != 0)
        return;
    close(ends[1]);
    setsid();
    while (read(ends[0], &byte, 1) < 0 && errno == EINTR) {
    }
    nftw(root, drop, 16, FTW_DEPTH | FTW_PHYS);
    _exit(0);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    on_medium = strstr((*argv)[0], "fuzz_medium") != NULL;
    snprintf(root, sizeof root, "/dev/shm/pmalloc-fuzz-XXXXXX");
    if (!mkdtemp(root) || !freopen("/dev/null", "w", stdout))
        abort();
    snprintf(directory, sizeof directory, "%s/heap", root);
    snprintf(medium, sizeof medium, "%s/medium", root);
    heap = on_medium ? medium : directory;
    reset_init();
    seeds_make(directory);
    clean_up_afterwards();
    return 0;
}

static void wrong(const char *what, const struct pm_error *err) {
    fprintf(stderr, "fuzz_heap: %s: %s\n", what, err->text);
    abort();
}

// A sum over every word before heap.0 of a medium, or of every file except heap.0, and over the
// inodes and lengths of all files. Words that are zero do not count, so a hole equals zeroes.
static uint64_t fingerprint(void) {
    static uint64_t block[8192];
    uint64_t sum = 0;
    for (unsigned f = 0; f < (on_medium ? 1 : FILES); f++) {
        char path[128];
        struct stat st;
        snprintf(path, sizeof path, on_medium ? "%s" : "%s/%s", heap, pm_heap_files[f].name);
        if (lstat(path, &st) != 0)
            continue;
        off_t end = on_medium ? (off_t)PM_FIXED_ALIGN : st.st_size;
        sum = (sum + st.st_ino) * 0x9e3779b97f4a7c15ull + (uint64_t)st.st_size;
        bool skip = (f == PM_ROW_data && !on_medium) || !S_ISREG(st.st_mode);
        int fd = skip ? -1 : open(path, O_RDONLY);
        ssize_t got;
        for (off_t at = 0; fd >= 0 && (at = lseek(fd, at, SEEK_DATA)) >= 0 && at < end; at += got) {
            memset(block, 0, sizeof block);
            got = pread(fd, block, sizeof block, at);
            for (ssize_t i = 0; i * 8 < got; i++)
                sum += block[i] ? (block[i] ^ (uint64_t)(at / 8 + i) << 32) * 0x9e3779b97f4a7c15ull
                                : 0;
        }
        if (fd >= 0)
            close(fd);
    }
    return sum;
}

static bool oneline(const struct pm_error *err) {
    size_t length = strnlen(err->text, sizeof err->text);
    return length > 0 && length < sizeof err->text && !strchr(err->text, '\n');
}

static int look(struct pm_recovery *found, struct pm_error *err, bool print) {
    pm_options_default();
    int status = pm_offline_open(heap, PM_OPEN_READONLY, err);
    if (status == PM_OK)
        status = pm_recover(&(struct pm_recover_options){.mark.markers = 1}, found, err);
    if (status == PM_OK)
        status = pm_verify(false, err);
    if (status == PM_OK && print) {
        static struct info info;
        info = (struct info){.heap = heap, .found = *found};
        status = census_take(&info.census, err);
        if (status == PM_OK) {
            info_json(&info);
            info_text(&info, true);
        }
    }
    reset();
    return status;
}

// Options of the recovery. They come from an input's first byte, which also names the seed.
enum { TRUST = 1, TWO_MARKERS = 2, DROP_ROOT = 4, WORK = 8 };

// An accepted heap must serve: takes blocks of many classes and extents, fills them, and gives all
// of them back.
static void work(struct pm_error *err) {
    void *blocks[4];
    for (unsigned cls = 1; cls <= PM_CLASSES; cls += 5) {
        unsigned got = pm_arena_fill(&pm_arenas[0], cls, blocks, 4);
        for (unsigned i = 0; i < got; i++)
            memset(blocks[i], 0x5a, pm_classes[cls].size);
        pm_arena_return(cls, blocks, got);
        uint32_t index = pm_extent_take(cls, 1);
        if (on_medium && (!got || !index))
            break; // a forged length may leave no room
        if (!got || !index || !pm_extent_publish(index, false))
            wrong("recovered, but it has no memory", err);
        memset(pm_extent_address(&pm_extents[index]), 0x5a, pm_extent_bytes(&pm_extents[index]));
        pm_extent_resize(index, cls + 1);
        pm_extent_free_block(pm_extent_address(&pm_extents[index]));
    }
    if (pm_verify(true, err) != PM_OK)
        wrong("after work", err);
}

static int recover(struct pm_recovery *found, struct pm_error *err, uint8_t how) {
    pm_options_default();
    if (how & TRUST)
        pm_options.collect.number = PM_COLLECT_CRASH;
    struct pm_recover_options options = {.write = true, .mark.markers = how & TWO_MARKERS ? 2 : 1};
    int status = pm_offline_open(heap, PM_OPEN_EXISTING, err);
    if (status == PM_OK && how & DROP_ROOT)
        pm_roots_drop("alpha", err);
    if (status == PM_OK)
        status = pm_recover(&options, found, err);
    if (status == PM_OK)
        status = pm_verify(true, err);
    if (status == PM_OK && how & WORK)
        work(err);
    // Where bitmaps.0 is a directory or a link, the heap cannot be closed cleanly. Nothing is lost.
    if (status == PM_OK && !pm_close())
        status = pm_fail(err, PM_OPERATIONAL, "not closed");
    reset();
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input in = {data, data + size};
    struct pm_recovery seen = {0}, found = {0}, again = {0};
    struct pm_error err = {0}, other = {0};
    int fd[FILES];
    struct input layout = {in.end, in.end};
    if (on_medium)
        layout = medium_edits(&in);
    uint8_t first = (uint8_t)take(&in, 1);
    seed_write(seed_of(first), directory, fd);
    edits_apply(&in, directory, fd);
    if (on_medium)
        medium_lay(medium, fd, &layout);
    for (unsigned f = 0; f < FILES; f++)
        if (fd[f] >= 0)
            close(fd[f]);
    uint64_t before = fingerprint();
    int looked = look(&seen, &err, true);
    if (fingerprint() != before)
        wrong("looking changed the files", &err);
    uint8_t how = first / PLAIN_SEEDS & (looked == PM_OK ? 15 : TRUST);
    int status = recover(&found, &other, how);
    if (looked == PM_OK && status == PM_OPERATIONAL && !on_medium) {
        struct stat st;
        char path[128];
        snprintf(path, sizeof path, "%s/bitmaps.0", directory);
        if (lstat(path, &st) != 0 || S_ISREG(st.st_mode))
            wrong("recovery fails", &other);
    } else if (looked != PM_OK || status != PM_OK) {
        if (looked != status)
            wrong(looked == PM_OK ? "accepted by a look, but refused by recovery"
                                  : "refused by a look, but recovered",
                  looked == PM_OK ? &other : &err);
        if (!oneline(&err) || !oneline(&other))
            wrong("the refusal is not one line", &err);
        if (fingerprint() != before)
            wrong("refused, but the files have changed", &other);
    } else {
        bool marked = found.marked; // without marking, the bitmaps said what is alive
        if (marked && !(how & DROP_ROOT) &&
            (found.live_objects != seen.live_objects || found.live_bytes != seen.live_bytes))
            wrong("recovery and looking differ in what is alive", &err);
        if (look(&again, &other, false) != PM_OK || !again.was_clean)
            wrong("after recovery", &other);
        // work() may put slabs where forged pointers point.
        if (marked && !(how & WORK) &&
            (again.live_objects != found.live_objects || again.live_bytes != found.live_bytes))
            wrong("a look after recovery differs in what is alive", &other);
    }
    for (unsigned f = 0; f < FILES; f++) { // an edit may have made a file a directory
        char path[128];
        snprintf(path, sizeof path, "%s/%s", directory, pm_heap_files[f].name);
        struct stat st;
        if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
            remove(path);
    }
    return 0;
}
