// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "backup_live.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"
#include "commit_follow.h"
#include "media/backing/fixed.h"
#include "media/commit/doubt.h"
#include "media/commit/journal_files.h"
#include "media/heap.h"
#include "media/open/heap_open.h"
#include "owner_maps.h"
#include "tools/common/program_status.h"
#include "tools/watch/between.h"
#include "tools/watch/standstill.h"
#include "tools/watch/trace_rights.h"
#include "written.h"

enum {
    TRIES = 100,
    INSTANT_TRIES = 500, // where processors are scarce, commits fill nearly all of the time
    TRY_NS = 5000000,
    PATIENT_TRIES = 10,
    ANEW = 8,         // how often all is read once more because commits were missed
    ROUNDS = 8,       // looks at what was written meanwhile, at most
    FEW_BLOCKS = 256, // so few changed blocks are left for the pause
    CHUNK_BLOCKS = 256,
    SMALL_BYTES = 1 << 20 // so short a file is compared as a whole
};

static struct live {
    struct source *source;
    struct image image;
    struct owner_maps maps;
    struct written written;
    struct between between;
    unsigned char program[16];       // of the owner: it may execute another one on the heap
    unsigned undecided;              // instants at which a commit was being written
    unsigned unread;                 // and at which its journal could not be read, in a row
    unsigned anew;                   // how often all was read because commits were missed
    bool commits;                    // the owner is in commit mode,
    bool followed[PM_HEAP_FILES];    // and its journal says what changes in these
    uint64_t watched[PM_HEAP_FILES]; // bytes from the beginning to which stores are recorded
    pm_progress *progress;
    uint64_t seen, total; // blocks looked at
    struct pm_error err;
    int status; // of the instant
} live;

static void pause_for(long ns) {
    const struct timespec time = {.tv_nsec = ns};
    nanosleep(&time, NULL);
}

// ---- opening ------------------------------------------------------------------------------------

// Its owner may be about to replace what is being read.
static int open_beside_owner(const char *heap, struct pm_error *err) {
    int status = PM_OK;
    for (unsigned i = 0; i < TRIES; i++) {
        status = pm_heap_open(heap, PM_OPEN_LOOK, false, err);
        if (status == PM_OK || err->why == PM_WHY_FOREIGN)
            break;
        pause_for(TRY_NS);
    }
    return status;
}

// A fixed medium has the owner's flock, so there it is a lock of fcntl(2), and wants a descriptor
// that may write. It is held until the tool ends.
static int open_lock(const struct source *s) {
    return pm_fixed_is_open() ? open(pm_heap.dir, O_RDWR | O_NOFOLLOW | O_CLOEXEC)
                              : fcntl(s->file[PM_ROW_roots].fd, F_DUPFD_CLOEXEC, 0);
}

static bool lock(int fd, const struct source *s) {
    struct flock first = {
        .l_type = F_WRLCK, .l_start = (off_t)s->file[PM_ROW_roots].at, .l_len = 1};
    return pm_fixed_is_open() ? fcntl(fd, F_OFD_SETLK, &first) == 0
                              : flock(fd, LOCK_EX | LOCK_NB) == 0;
}

// The records of two backups would disturb each other.
static int lock_out_others(const struct source *s, struct pm_error *err) {
    int fd = open_lock(s);
    // Another one that was killed may not be quite gone.
    for (unsigned i = 0; fd >= 0 && i < TRIES; i++, pause_for(TRY_NS / 5)) {
        if (lock(fd, s))
            return PM_OK;
        if (errno != EWOULDBLOCK)
            break;
    }
    if (errno != EWOULDBLOCK)
        return pm_fail(err, PM_OPERATIONAL, "%.300s/roots: %s", pm_heap.dir, pm_strerror(errno));
    return pm_fail(err, PM_OPERATIONAL,
                   "another pmalloc-backup is copying %.300s; wait for it to end", pm_heap.dir);
}

// Whether the heap is still this program's, and the files are the ones of that heap.
static bool still_owned(void) {
    const struct source *s = live.source;
    unsigned char program[sizeof live.program];
    return owner_maps_read(&live.maps, s->owner, s) && live.maps.super &&
           s->file[PM_ROW_super_file].ino == pm_heap.super_file.ino &&
           program_random(s->owner, program) && memcmp(program, live.program, sizeof program) == 0;
}

// Whether the process that has opened it can be looked at, and only lets go of it now: it ends,
// gives up its memory first, and its locks later. Or it executes a program, which has not mapped
// the heap yet.
static bool changes_hands(const struct source *s) {
    const struct pm_state *state = &pm_heap.super->state;
    pid_t pid = (pid_t)state->owner_pid;
    return pm_os_is_ending(pid) || flock(s->file[PM_ROW_super_file].fd, LOCK_SH | LOCK_NB) == 0 ||
           (state->owner_start == pm_os_start_time(pid) && owner_maps_read(&live.maps, pid, s));
}

static int find_owner(struct source *s, struct pm_error *err) {
    s->owner = owner_find(s, &live.maps);
    if (s->owner && !trace_allowed(s->owner, err))
        return err->status;
    if (s->owner)
        return program_random(s->owner, live.program) && still_owned() ? PM_OK : PM_NEEDS_RECOVERY;
    if (changes_hands(s))
        return PM_NEEDS_RECOVERY;
    return pm_fail(err, PM_OPERATIONAL,
                   "%.300s is in use by a process that cannot be looked at from here (process %d, "
                   "if that is right); run pmalloc-backup where that runs (in its container), as "
                   "the same user",
                   pm_heap.dir, (int)pm_heap.super->state.owner_pid);
}

// In commit mode the program has its files mapped private, and no store of its reaches them.
static bool commits(void) {
    for (size_t i = 0; i < live.maps.count; i++)
        if (live.maps.map[i].row == PM_ROW_super_file)
            return !live.maps.map[i].shared;
    return false;
}

// The part of a mapping that shows [from, to) of its file. False: it shows nothing of it.
static bool clip(const struct owner_map *m, uint64_t from, uint64_t to, uint64_t *start,
                 uint64_t *end) {
    uint64_t last = m->offset + (m->end - m->start);
    from = from > m->offset ? from : m->offset;
    to = to < last ? to : last;
    *start = m->start + (from - m->offset);
    *end = m->start + (to - m->offset);
    return from < to;
}

// From here on stores to the file are recorded, up to its present length. Not further: for what is
// watched the kernel makes page tables, and files are mapped far beyond their ends. The roots part
// of a fixed medium is mapped by two, and of a mapping that is gone nothing would tell.
static void watch(size_t row) {
    const struct source_file *f = &live.source->file[row];
    uint64_t from = live.watched[row], to = pm_backup_align(f->length), start, end;
    if (f->fd < 0 || f->length <= SMALL_BYTES || from >= to || (f->room && row == PM_ROW_roots))
        return;
    for (size_t i = 0; i < live.maps.count; i++) {
        const struct owner_map *m = &live.maps.map[i];
        if (m->row == row && clip(m, from, to, &start, &end) &&
            !(m->shared && written_watch(&live.written, start, end)))
            return;
    }
    live.watched[row] = to;
}

int live_open(const char *heap, struct source *s, struct pm_error *err) {
    live.source = s;
    int status = open_beside_owner(heap, err);
    if (status == PM_OK)
        follow_begin();
    if (status == PM_OK)
        status = source_open_files(s, err);
    if (status == PM_OK)
        status = lock_out_others(s, err);
    if (status == PM_OK)
        status = find_owner(s, err);
    if (status != PM_OK)
        return status;
    pm_doubt_say();
    live.written = (struct written){.faults = -1, .pagemap = -1};
    live.commits = s->of_commit = commits();
    if (!live.commits) {
        follow_end();
        if (!written_open(&live.written, s->owner))
            s->unrecorded = live.written.why;
    }
    for (size_t row = 0; row < PM_HEAP_FILES && live.commits; row++) {
        live.followed[row] = s->file[row].fd >= 0 && follow_covers(row);
        follow_file(row, kept_blocks(s->file[row].length));
    }
    for (size_t row = 0; row < PM_HEAP_FILES; row++)
        watch(row);
    return PM_OK;
}

// ---- looking ------------------------------------------------------------------------------------

static void see_blocks(size_t row, uint64_t block, uint64_t end) {
    static char chunk[CHUNK_BLOCKS * PM_BACKUP_BLOCK];
    uint64_t last = kept_blocks(live.source->file[row].length);
    for (uint64_t count; block < end && block < last && live.status == PM_OK; block += count) {
        count = end - block < CHUNK_BLOCKS ? end - block : CHUNK_BLOCKS;
        count = last - block < count ? last - block : count;
        live.status = source_read_blocks(live.source, row, block, count, chunk, &live.err);
        for (uint64_t i = 0; i < count && live.status == PM_OK; i++)
            image_block(&live.image, row, block + i, chunk + i * PM_BACKUP_BLOCK);
        live.seen += count;
        if (live.progress)
            live.progress("read", live.seen * PM_BACKUP_BLOCK, live.total);
    }
}

// Looks at all of the file; or, where stores to it are recorded, only at where it has holes.
static void see_file(size_t row, bool all) {
    const struct source_file *f = &live.source->file[row];
    uint64_t block = 0, done = 0, end, last = kept_blocks(f->length);
    while (block < last && source_next_data(f, &block, &end)) {
        image_hole(&live.image, row, done, block);
        if (all)
            see_blocks(row, block, end);
        done = block = end;
    }
    image_hole(&live.image, row, done, last);
}

static const struct owner_map *looked_at;

static void see_run(uint64_t start, uint64_t end, void *arg) {
    const struct owner_map *m = looked_at;
    uint64_t from = start - m->start + m->offset, to = end - m->start + m->offset;
    *(uint64_t *)arg += (to - from) / PM_BACKUP_BLOCK;
    see_blocks(m->row, from / PM_BACKUP_BLOCK, kept_blocks(to));
}

// What was stored to since the last look, and what is new. False: that is not known of all that is
// watched. It need not be mapped once, and may be mapped elsewhere since.
static bool see_written(size_t row, uint64_t *blocks) {
    uint64_t watched = live.watched[row], known = 0, start, end;
    bool good = watched != 0;
    for (size_t i = 0; i < live.maps.count && good; i++) {
        looked_at = &live.maps.map[i];
        if (looked_at->row != row || !clip(looked_at, 0, watched, &start, &end))
            continue;
        known += end - start;
        good = looked_at->shared && written_look(&live.written, start, end, see_run, blocks);
    }
    good = good && known >= watched;
    if (good)
        see_blocks(row, watched / PM_BACKUP_BLOCK, kept_blocks(live.source->file[row].length));
    return good;
}

// At the instant: what commits have written since the last look. False: some were missed, or the
// file is new.
static bool see_committed(size_t row, uint64_t *blocks) {
    if (!live.followed[row] || !follow_knows())
        return false;
    *blocks += follow_each(row, kept_blocks(live.source->file[row].length), true, see_blocks);
    return true;
}

// While the program runs. The files may be longer or shorter now.
static void see_commits(uint64_t *blocks) {
    live.status = source_open_files(live.source, &live.err);
    for (size_t row = 0; row < PM_HEAP_FILES && live.status == PM_OK; row++) {
        const struct source_file *f = &live.source->file[row];
        if (!live.followed[row] || f->fd < 0)
            continue;
        image_file(&live.image, row, true, f->length);
        follow_file(row, kept_blocks(f->length));
        *blocks += follow_each(row, kept_blocks(f->length), false, see_blocks);
    }
}

static void see_all(void) {
    const struct source *s = live.source;
    for (size_t row = 0; row < PM_HEAP_FILES && live.status == PM_OK; row++) {
        image_file(&live.image, row, s->file[row].fd >= 0, s->file[row].length);
        if (s->file[row].fd >= 0)
            see_file(row, true);
    }
}

// Commits were missed. Reading all once more takes time, but not the program's.
static bool may_begin_anew(void) { return live.commits && !follow_knows() && live.anew < ANEW; }

static void begin_anew(void) {
    live.anew++;
    live.undecided = 0;
    follow_again();
    live.status = source_open_files(live.source, &live.err);
    for (size_t row = 0; row < PM_HEAP_FILES; row++) {
        live.followed[row] = live.source->file[row].fd >= 0 && follow_covers(row);
        follow_file(row, kept_blocks(live.source->file[row].length));
    }
    see_all();
}

// While the program runs. A block that is seen may be torn; it is recorded as stored to, and seen
// again.
static void look_ahead(bool equal) {
    uint64_t before = UINT64_MAX;
    if (!equal)
        see_all();
    while (live.status == PM_OK && may_begin_anew())
        begin_anew();
    for (unsigned round = 0; round < ROUNDS && live.status == PM_OK; round++) {
        uint64_t blocks = 0;
        if (live.commits)
            see_commits(&blocks);
        for (size_t row = 0; row < PM_HEAP_FILES && !live.commits; row++)
            see_written(row, &blocks);
        if (blocks <= FEW_BLOCKS || blocks > before / 2)
            break;
        before = blocks;
    }
}

// ---- the instant --------------------------------------------------------------------------------

// In commit mode the files are as of the last commit, but for the moment in which the next one is
// written to them.
static bool between_commits(void) {
    if (!(pm_heap.super->super.incompat & PM_INCOMPAT_JOURNAL))
        return true;
    bool known = pm_journal_open_heap(true, &live.err) == PM_OK;
    live.unread = known ? 0 : live.unread + 1;
    if (live.unread > PATIENT_TRIES) // a disk that fails, not a program that goes on
        live.status = live.err.status;
    return known && pm_journal_opened.is != PM_JOURNAL_WHOLE;
}

// Commits make holes, too, and the journal has them. Other programs make them without a trace; the
// kernel finds them by looking at each page of the file.
static void see_at_instant(size_t row, uint64_t *blocks) {
    if (!live.commits)
        see_file(row, !see_written(row, blocks));
    else if (!see_committed(row, blocks))
        see_file(row, true);
}

// Called while no thread of the owner runs; and once more if one turns out to have run meanwhile.
// What the record of stores has told once it does not tell again, so a look that has failed stays
// failed.
static void see_instant(void *arg) {
    struct source *s = live.source;
    uint64_t blocks = 0;
    bool *again = arg;
    *again = false;
    if (live.status != PM_OK)
        return;
    live.status = source_open_files(s, &live.err);
    if (live.status == PM_OK && !still_owned())
        live.status = PM_NEEDS_RECOVERY;
    if (live.status != PM_OK)
        return;
    *again = !between_commits() || !between_reached(&live.between) ||
             (live.commits && !follow_instant(live.undecided++ < PATIENT_TRIES)) ||
             may_begin_anew();
    if (*again)
        return;
    live.progress = NULL;
    if (live.commits && !follow_knows())
        s->unrecorded = "its commits came too fast to be followed";
    for (size_t row = 0; row < PM_HEAP_FILES && live.status == PM_OK; row++) {
        const struct source_file *f = &s->file[row];
        image_file(&live.image, row, f->fd >= 0, f->length);
        if (f->fd >= 0)
            see_at_instant(row, &blocks);
    }
}

static int hold(struct source *s, struct pm_error *err) {
    bool again = true;
    for (unsigned i = 0; i < INSTANT_TRIES && again; i++) {
        between_approach(&live.between);
        enum standstill_result result =
            standstill(s->owner, see_instant, &again, &s->pause_ns, err);
        between_leave(&live.between);
        switch (result) {
        case STANDSTILL_DONE:
            break;
        case STANDSTILL_GONE:
            return PM_NEEDS_RECOVERY;
        case STANDSTILL_REFUSED:
        case STANDSTILL_RESTLESS:
            return err->status;
        }
        if (live.status != PM_OK)
            break;
        if (again && may_begin_anew())
            look_ahead(true);
        else if (again)
            pause_for(TRY_NS);
    }
    if (again && live.status == PM_OK)
        return pm_fail(
            err, PM_OPERATIONAL,
            "process %d commits all the time, and leaves no moment in between; try again "
            "or give it a longer PMALLOC_COMMIT",
            (int)s->owner);
    return live.status;
}

static int finish(struct source *s, int status, struct pm_error *err) {
    written_close(&live.written);
    s->amid = live.between.amid;
    between_end(&live.between);
    if (status == PM_NEEDS_RECOVERY && still_owned())
        status = pm_fail(err, PM_OPERATIONAL,
                         "process %d, which uses %.300s, could not be looked at; nothing was "
                         "changed: try again",
                         (int)s->owner, pm_heap.dir);
    if (status == PM_OK && live.image.failed)
        status = pm_fail(err, PM_OPERATIONAL, "no room for what has changed in %.300s: %s",
                         pm_heap.dir, pm_strerror(live.image.error));
    s->image = &live.image;
    return status;
}

int live_take(struct source *s, const struct kept *base, int dir, bool equal, pm_progress *progress,
              struct pm_error *err) {
    live.progress = progress;
    live.total = s->allocated;
    live.status = PM_OK;
    live.between = (struct between){.counts = false};
    if (!live.commits)
        between_begin(&live.between, s->owner);
    if (!image_begin(&live.image, base, dir, equal))
        return finish(s, PM_OK, err);
    look_ahead(equal);
    int status = live.status == PM_OK ? hold(s, err) : live.status;
    if (live.status != PM_OK && live.status == status && status != PM_NEEDS_RECOVERY)
        *err = live.err;
    return finish(s, status, err);
}
