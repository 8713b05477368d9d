// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "doubt.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file_limit.h"
#include "base/inherited_filter.h"
#include "base/os.h"
#include "base/os_file.h"
#include "journal_files.h"
#include "media/backing/file.h"
#include "media/heap.h"
#include "media/persist.h"

// Any value but 0 and UNSURE means doubt: a damaged word costs time, and nothing else.
#define IN_DOUBT 0x7462756f642d6d70ull // "pm-doubt": a sync has failed
#define BEGUN 0x6e756765622d6d70ull    // "pm-begun": nobody knows
#define UNSURE 0x657275736e756d70ull   // "pmunsure": no sync has failed, but reports were relied on

static uint64_t *word(void) { return &pm_heap.super->state.doubt; }

// In commit mode the page is private, and the journal keeps what a sync has lost.
static bool may_store(void) {
    return pm_heap.super && !pm_heap.readonly &&
           (pm_heap_state() == PM_HEAP_SHARED || pm_heap_state() == PM_HEAP_PARTED);
}

void pm_doubt_raise(void) {
    int saved = errno;
    if (may_store()) {
        __atomic_store_n(word(), IN_DOUBT, __ATOMIC_RELEASE);
        syscall(SYS_msync, (uintptr_t)&pm_heap.super->state, PM_PAGE_SIZE, MS_SYNC); // or it fails
    }
    errno = saved;
}

static uint64_t raised(void) {
    uint64_t is = pm_heap.super ? __atomic_load_n(word(), __ATOMIC_RELAXED) : 0;
    return is == UNSURE ? 0 : is;
}

bool pm_doubt_is_raised(void) { return raised() != 0; }

const char *pm_doubt_why(void) {
    uint64_t is = raised();
    return is == 0       ? NULL
           : is == BEGUN ? "the last start was ended while it made sure that its medium has all"
                         : "an earlier run could not write to its medium";
}

void pm_doubt_say(void) {
    const char *why = pm_doubt_why();
    if (why)
        pm_event(
            PM_EV_DISK_IN_DOUBT,
            "%.300s: %s; it is only read here, and what memory does not have any more is as it "
            "was before: run pmalloc-recover, which writes all pages once more; if the program "
            "finds its data wrong, restore a backup",
            pm_heap.dir, why);
}

// ---- once more ----------------------------------------------------------------------------------

// A write around the page cache drops whole folios, and Linux has none larger than this: so what it
// drops beside the pages that it writes is in the same chunk, and is written after them.
#define CHUNK ((size_t)PM_HUGE_PAGE)

bool pm_doubt_thorough;

// Whether the page must be written: zeroes of a hole are there already. A page that is not zeroes
// must be, although the medium has a hole there: its block may be what was lost.
static bool counts(const struct pm_file *file, const char *page, uint64_t at, uint64_t *data) {
    static const char zeroes[PM_PAGE_SIZE];
    if (memcmp(page, zeroes, PM_PAGE_SIZE) != 0)
        return true;
    if (*data < at)
        *data = pm_file_next_data(file, at);
    return *data < at + PM_PAGE_SIZE;
}

typedef bool write_fn(int fd, const void *data, size_t len, uint64_t at);

// Of the chunk: pages that cannot be read. So no memory has them, and they are as the medium has
// them: whoever needs one is told that it cannot be read.
static bool unreadable[CHUNK / PM_PAGE_SIZE];

static bool read_chunk(const struct pm_file *file, char *chunk, size_t len, uint64_t at) {
    memset(unreadable, 0, sizeof unreadable);
    bool good = pm_os_read_all(file->fd, chunk, len, file->at + at);
    if (good || errno != EIO)
        return good;
    for (size_t i = 0; i < len; i += PM_PAGE_SIZE) {
        size_t part = len - i < PM_PAGE_SIZE ? len - i : PM_PAGE_SIZE;
        unreadable[i / PM_PAGE_SIZE] =
            !pm_os_read_all(file->fd, chunk + i, part, file->at + at + i);
        if (unreadable[i / PM_PAGE_SIZE] && errno != EIO)
            return false;
    }
    return true;
}

// Where the run of pages ends that begins at `from` in the chunk and must be written; `from`: there
// is none.
static size_t run_end(const struct pm_file *file, const char *chunk, size_t from, size_t len,
                      uint64_t at, uint64_t *data) {
    while (from < len && !unreadable[from / PM_PAGE_SIZE] &&
           (len - from < PM_PAGE_SIZE || counts(file, chunk + from, at + from, data)))
        from += len - from < PM_PAGE_SIZE ? len - from : PM_PAGE_SIZE;
    return from;
}

// Where a write around the page cache has failed, what else it has dropped of the chunk is put back
// into memory: nothing else may have it.
static bool write_chunk(const struct pm_file *file, const char *chunk, size_t len, uint64_t at,
                        uint64_t *data) {
    write_fn *write = pm_os_write_anew;
    int error = 0;
    for (size_t i = 0, end; i<len; i = end> i ? end : i + PM_PAGE_SIZE) {
        end = run_end(file, chunk, i, len, at, data);
        if (end == i || write(file->fd, chunk + i, end - i, file->at + at + i))
            continue;
        error = error ? error : errno;
        pm_doubt_raise(); // what is put back now may be lost, as any other write
        write = pm_os_write_all;
    }
    errno = error ? error : errno;
    return error == 0;
}

// What memory does not have is as the medium has it. Not known: it counts as there.
static bool is_in_memory(const struct pm_file *file, size_t len, uint64_t at) {
    unsigned char there[CHUNK / PM_PAGE_SIZE];
    if (pm_inherited_ends(PM_INHERITED_MINCORE))
        return true;
    void *map = mmap(NULL, len, PROT_READ, MAP_SHARED, file->fd, (off_t)(file->at + at));
    bool found = map == MAP_FAILED || mincore(map, len, there) != 0;
    for (size_t i = 0; i * PM_PAGE_SIZE < len && !found; i++)
        found = there[i] & 1;
    if (map != MAP_FAILED)
        munmap(map, len);
    return found;
}

static bool write_pages(struct pm_file *file, char *chunk, bool all) {
    struct pm_file_room room = pm_file_room(file->length ? 0 : file->size);
    bool good = pm_file_ready(file) && room.good;
    uint64_t data = good ? pm_file_next_data(file, 0) : 0;
    for (uint64_t at = 0; at < file->size && good; at += CHUNK) {
        size_t len = file->size - at < CHUNK ? (size_t)(file->size - at) : CHUNK;
        if (!all && !is_in_memory(file, len, at))
            continue;
        good = read_chunk(file, chunk, len, at) && write_chunk(file, chunk, len, at, &data);
    }
    pm_file_room_end(room);
    return good;
}

static bool write_all(struct pm_file *file, char *chunk) { return write_pages(file, chunk, true); }

static bool write_cached(struct pm_file *file, char *chunk) {
    return write_pages(file, chunk, false);
}

static const char *failed; // the name of the file where it did

typedef bool file_fn(struct pm_file *file, char *chunk);

static bool each_held(file_fn *fn, char *chunk) {
    for (size_t i = 0; i < pm_heap_file_count(); i++) {
        struct pm_file *file = pm_heap_file(&pm_heap_files[i]);
        if (!pm_heap_holds(&pm_heap_files[i]) || fn(file, chunk))
            continue;
        failed = file->name;
        return false;
    }
    return true;
}

static bool write_again(file_fn *write) {
    int saved;
    char *chunk = pm_os_reserve(CHUNK);
    bool good = chunk && each_held(write, chunk);
    saved = errno;
    if (chunk)
        munmap(chunk, CHUNK);
    errno = saved;
    return good;
}

static bool sync_one(struct pm_file *file, char *unused) {
    (void)unused;
    return pm_file_sync(file);
}

// Takes the reports of what has failed before. Each file has one of its own; left there, each would
// stop a start of its own, on a medium that works again.
static void take_reports(void) {
    for (size_t i = 0; i < pm_heap_file_count(); i++)
        if (pm_heap_holds(&pm_heap_files[i]))
            pm_file_sync(pm_heap_file(&pm_heap_files[i]));
}

// ---- settling -----------------------------------------------------------------------------------

// A report may have been taken by another program's sync of a file of this heap, after its program
// was killed. In commit mode the journal has what was lost. A start that relies on reports says so
// in the word, since a later one may not.
static bool may_be_taken(void) {
    return __atomic_load_n(word(), __ATOMIC_RELAXED) == UNSURE ||
           (!pm_heap.settled && !pm_heap.created && pm_journal_opened.is == PM_JOURNAL_NONE);
}

// `again` writes what is not trusted; NULL: all is.
static bool settle(file_fn *again, bool unsure) {
    failed = pm_heap.super_file.name;
    if (again == write_all)
        take_reports();
    if ((again && !write_again(again)) || !each_held(sync_one, NULL))
        return false;
    pm_heap.settled = true;
    __atomic_store_n(word(), unsure && !again ? UNSURE : 0, __ATOMIC_RELEASE);
    return true;
}

int pm_doubt_settle(struct pm_error *err) {
    const char *why = pm_doubt_why();
    bool failed_before = raised() != BEGUN, unsure = may_be_taken();
    if (!why) {
        __atomic_store_n(word(), BEGUN, __ATOMIC_RELEASE);
        pm_make_durable(word(), sizeof *word());
    }
    bool good = settle(why ? write_all : unsure && pm_doubt_thorough ? write_cached : NULL, unsure);
    if (!good && errno == ENOMEM)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: no memory to write back what is stored there; nothing was changed; see "
                       "`ulimit -v` and `ulimit -d`",
                       pm_heap.dir);
    if (!good)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s/%s: what is stored there cannot be written back to the medium: %s; "
                       "nothing else was changed; when the medium works again, the next start or "
                       "pmalloc-recover writes once more all that memory still has",
                       pm_heap.dir, failed, pm_strerror(errno));
    if (why)
        pm_event(PM_EV_DISK_IN_DOUBT, "%s: %s; all pages are written once more now%s", pm_heap.dir,
                 why,
                 failed_before ? "; what memory did not have any more is as it was before: if the "
                                 "program finds its data wrong, restore a backup"
                               : "");
    return PM_OK;
}

bool pm_doubt_settle_end(void) {
    return settle(pm_doubt_is_raised() ? write_all : NULL, may_be_taken());
}
