// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "commit.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/options.h"
#include "base/os.h"
#include "base/os_file.h"
#include "base/own_memory.h"
#include "changed_pages.h"
#include "doubt.h"
#include "journal_files.h"
#include "media/backing/backing.h"
#include "media/backing/emptied.h"
#include "media/backing/file.h"
#include "media/backing/journal_part.h"
#include "media/backing/snapshot.h"
#include "media/backing/work_copy.h"
#include "media/core_dump.h"
#include "media/feature.h"
#include "media/journal/checkpoint.h"
#include "media/journal/instants.h"
#include "media/journal/page_sums.h"
#include "media/own_pages.h"
#include "media/persist.h"
#include "rounds.h"
#include "stored_pages.h"

_Atomic uint64_t pm_commit_time, pm_commit_count, pm_commit_forced;
struct pm_commit_cost pm_commit_last;

#define STRIDE 64u // pages of an image that are read at once

// Where all of a process's commits stand.
static struct commit {
    struct pm_journal journal;
    struct pm_journal_found written; // the last commit in the journal
    bool unapplied;                  // `written` is in force, and not in the files yet
    uint64_t epoch;
    uint64_t length[PM_JOURNAL_FILES]; // of the last commit
    char *buffer;                      // STRIDE pages
    bool force, amid;                  // the next one

    struct pm_changed_piece root[PM_ROOT_MAX];
    unsigned roots;

    // What pm_commit_whole_roots() has said, until a commit has it.
    struct {
        bool wanted;
        uint64_t offset, len;
    } whole_roots;

    bool begun;           // in rounds
    bool lengths_differ;  // from those of the last commit
    uint64_t undroppable; // until the lap ends there, because the caller did not allow to drop
    // Bytes of the journal's memory that may have been stored to: from its start; up to its end.
    size_t ready, ready_copies;
    uint64_t awaited; // copies at the instant, at most

    // The commit that is being made.
    struct {
        bool good, anything, forced, amid, again;
        bool rounds; // it has begun in them
        bool looked; // at all that is in it
        int error;
        uint64_t time;
        uint64_t lengths[PM_JOURNAL_FILES]; // before it
    } taken;
} commit;

void pm_commit_add_root(void *at, size_t len, uint64_t offset) {
    if (commit.roots < PM_ROOT_MAX) // there are no more parts of roots than that
        commit.root[commit.roots++] = (struct pm_changed_piece){at, len, offset};
}

void pm_commit_forget_roots(void) { commit.roots = 0; }

void pm_commit_whole_roots(uint64_t offset, uint64_t len) {
    commit.whole_roots.wanted = true;
    commit.whole_roots.offset = offset;
    commit.whole_roots.len = len;
}

// ---- memory for the journal ---------------------------------------------------------------------

// Huge pages cost few faults where much has changed. The first ones are small: they are enough for
// most programs, and for rounds.
#define FEW PM_ROUNDS_JOURNAL

static void reserve_journal(void) {
    struct pm_journal *j = &commit.journal;
    size_t wanted = pm_own_room(1, pm_options.commit_memory.number);
    for (j->room = wanted; j->room > PM_JOURNAL_BUFFER; j->room /= 2)
        if ((j->first = pm_own_reserve(j->room)) != NULL)
            break;
    if (!j->first)
        j->first = pm_own_reserve(j->room = PM_JOURNAL_BUFFER);
    if (j->first && j->room > FEW)
        madvise((char *)j->first + FEW, j->room - FEW, MADV_HUGEPAGE);
}

static size_t at_most(size_t bytes) {
    return bytes < commit.journal.room ? bytes : commit.journal.room;
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }
static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

// What twice as large a commit as the last one needs stays ready: pages from the start on, copies
// up to the end. When the commit is in the files, and not before: it may be read from that memory.
static void keep_ready(void) {
    struct pm_journal *j = &commit.journal;
    size_t pages = commit.taken.rounds ? 0 : j->pages;
    size_t copies = commit.taken.rounds ? commit.awaited : 0;
    size_t low = FEW + 2 * pages * PM_PAGE_SIZE, high = copies * PM_PAGE_SIZE;
    commit.ready = larger(commit.ready, j->reached);
    j->reached = 0;
    if ((!pages && !copies) || low + high >= j->room ||
        (commit.ready <= 2 * low && commit.ready_copies <= 2 * high))
        return;
    j->kept = false;
    madvise((char *)j->first + low, j->room - high - low, MADV_DONTNEED);
    commit.ready = smaller(commit.ready, low);
    commit.ready_copies = smaller(commit.ready_copies, high);
}

bool pm_commit_ready(uint64_t pages) {
    size_t room = commit.journal.room, most = room - at_most(FEW);
    commit.awaited = larger(commit.awaited, pages);
    size_t wanted = pages * PM_PAGE_SIZE < most ? pages * PM_PAGE_SIZE : most;
    volatile char *end = (char *)commit.journal.first + room;
    bool ready = wanted <= commit.ready_copies;
    for (; commit.ready_copies < wanted; commit.ready_copies += PM_PAGE_SIZE)
        end[-1 - (ptrdiff_t)commit.ready_copies] = 0;
    return ready;
}

// ---- the instant --------------------------------------------------------------------------------

static bool add_images(uint64_t at, uint64_t len) {
    const unsigned file = pm_journal_file(PM_JOURNAL_ROOTS, 0);
    bool good = true;
    for (uint64_t part; len && good; at += part, len -= part) {
        part = len < STRIDE * PM_PAGE_SIZE ? len : STRIDE * PM_PAGE_SIZE;
        good = pm_journal_files.read(file, commit.buffer, part, at);
        if (good)
            pm_journal_add_pages(&commit.journal, file, at / PM_PAGE_SIZE, commit.buffer,
                                 part / PM_PAGE_SIZE);
    }
    return good;
}

// To look at the pages between two roots takes less than another call.
#define NEAR (256 * (size_t)PM_PAGE_SIZE)
#define NEAR_MOST 16u // as each copied page is held against each of them

// How many roots, from this one on, lie near each other.
static unsigned roots_near(unsigned first) {
    unsigned i = first + 1;
    for (; i < commit.roots && i < first + NEAR_MOST; i++) {
        uintptr_t end = (uintptr_t)commit.root[i - 1].at + commit.root[i - 1].len;
        if ((uintptr_t)commit.root[i].at - end > NEAR) // before it, too
            break;
    }
    return i - first;
}

// False, with errno: an image that the commit must have cannot be read.
static bool look_at_roots(void) {
    const unsigned file = pm_journal_file(PM_JOURNAL_ROOTS, 0);
    bool good =
        !commit.whole_roots.wanted || add_images(commit.whole_roots.offset, commit.whole_roots.len);
    int error = errno;
    for (unsigned i = 0, more; i < commit.roots; i += more) {
        const struct pm_changed_piece *root = &commit.root[i];
        more = commit.whole_roots.wanted ? 1 : roots_near(i);
        if (commit.whole_roots.wanted)
            pm_journal_add_pages(&commit.journal, file, root->offset / PM_PAGE_SIZE, root->at,
                                 root->len / PM_PAGE_SIZE);
        else
            pm_changed_look_pieces(file, root, more, commit.length[file]);
    }
    errno = error;
    return good;
}

static void compare_length(unsigned file) {
    commit.lengths_differ |= commit.length[file] != pm_rounds_length(file);
}
static void add_length(unsigned file) {
    pm_journal_add_length(&commit.journal, file, pm_rounds_length(file));
}
static void note_length(unsigned file) { commit.length[file] = pm_rounds_length(file); }

uint64_t pm_commit_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void pm_commit_force(void) { commit.force = true; }
void pm_commit_amid(void) { commit.amid = true; }

// ---- rounds before the instant ------------------------------------------------------------------

static void begin(void) {
    commit.awaited = 0;
    pm_journal_begin(&commit.journal, pm_heap.super->super.uuid, ++commit.epoch, pm_commit_clock());
}

void pm_commit_abandon(void) {
    if (!commit.begun)
        return;
    commit.begun = false;
    commit.epoch--;
    pm_rounds_forget();
    pm_sums_undo();
}

uint64_t pm_commit_round(bool count) {
    if (commit.force || !pm_rounds_worth(count)) // memory is short: no time for more of it
        return 0;
    if (commit.begun && commit.journal.failed) // the medium is full: more of it is in vain
        return 0;
    if (!commit.begun)
        begin();
    commit.begun = true;
    pm_journal_files_trust(true);
    size_t room = commit.journal.room;
    commit.journal.room = at_most(FEW); // a round is in no hurry, and memory is less than a file
    uint64_t looked = pm_rounds_make();
    pm_journal_write_out(&commit.journal);
    commit.journal.room = room;
    pm_journal_files_trust(false);
    return looked;
}

uint64_t pm_commit_in_rounds(void) { return commit.begun ? commit.journal.pages : 0; }

// Goes on with what rounds have begun, or begins.
static void begin_at_instant(void) {
    if (commit.begun && !pm_rounds_hold())
        pm_commit_abandon();
    if (!commit.begun)
        begin();
    commit.taken.rounds = commit.begun;
    commit.begun = false;
    commit.taken.time = commit.journal.group->time = pm_commit_clock();
}

// ---- the instant itself -------------------------------------------------------------------------

// Copies that the last commit has kept although the files have the same.
static uint64_t kept_before(void) {
    const struct pm_commit_cost *last = &pm_commit_last;
    return last->copied > last->pages ? last->copied - last->pages : 0;
}

void pm_commit_instants(const struct pm_instants *instants, const struct pm_pauses *pauses) {
    commit.journal.instants = *instants;
    commit.journal.pauses = *pauses;
    commit.journal.counted = true;
}

void pm_commit_take(bool may_drop, struct pm_commit_cost *cost) {
    *cost = (struct pm_commit_cost){0};
    pm_journal_files_trust(true);
    // While a page is not durable in its file, the kernel may lose it: the process keeps its copy.
    bool durable = pm_checkpoint_is_durable();
    if (commit.force)
        pm_stored_lose();
    bool drop = may_drop && durable && !pm_stored_is_lent();
    if (durable)
        commit.undroppable = may_drop || kept_before() <= PM_CHECKPOINT_FEW
                                 ? 0
                                 : commit.journal.lap.end + PM_CHECKPOINT_LAP_LEAST;
    commit.taken.forced = commit.force;
    commit.taken.amid = commit.amid;
    commit.force = commit.amid = false;
    begin_at_instant();
    cost->before = commit.journal.pages;
    pm_changed_begin(&commit.journal, drop ? PM_CHANGED_INSTANT_DROP : PM_CHANGED_INSTANT, cost);
    if (pm_heap.super->state.applied != pm_checkpoint_applied)
        pm_heap.super->state.applied = pm_checkpoint_applied;
    if (pm_heap.super->state.lap != pm_checkpoint_mark)
        pm_heap.super->state.lap = pm_checkpoint_mark;
    commit.lengths_differ = false;
    pm_rounds_each_file(compare_length);
    size_t room = commit.journal.room;
    pm_rounds_instant(cost, commit.taken.forced   ? PM_ROUNDS_ALL
                            : commit.taken.rounds ? PM_ROUNDS_LATER
                                                  : PM_ROUNDS_NOW);
    commit.ready_copies = larger(commit.ready_copies, room - commit.journal.room);
    bool images = look_at_roots();
    int error = errno;
    pm_emptied_take(pm_changed_zeroes);
    pm_changed_end();
    memcpy(commit.taken.lengths, commit.length, sizeof commit.length);
    if (commit.lengths_differ) {
        pm_rounds_each_file(add_length);
        pm_rounds_each_file(note_length);
    }
    cost->held_us = (pm_commit_clock() - commit.taken.time) / 1000;
    commit.journal.held = cost->held_us < UINT32_MAX ? (uint32_t)cost->held_us : UINT32_MAX;
    commit.journal.forced = commit.taken.forced;
    commit.journal.amid = commit.taken.amid;
    commit.taken.good = images;
    commit.taken.error = error;
    commit.taken.looked = false;
    pm_journal_files_trust(false);
    if (drop)
        pm_emptied_map_idle();
    cost->pages = commit.journal.pages;
    pm_commit_last = *cost;
}

void pm_commit_look(struct pm_commit_cost *cost) {
    if (commit.taken.looked)
        return;
    commit.taken.looked = true;
    pm_journal_files_trust(true);
    pm_rounds_look_at_copies(cost, commit.taken.lengths);
    pm_journal_files_trust(false);
    commit.taken.anything = commit.lengths_differ || pm_journal_has_any(&commit.journal);
    commit.taken.good |= !commit.taken.anything;
    if (!commit.taken.anything)
        commit.epoch--; // who follows the journal sees no gap
    cost->pages = commit.journal.pages;
    pm_commit_last = *cost;
}

// ---- after it -----------------------------------------------------------------------------------

// Data files are cut only where nothing was allocated meanwhile, and not while another process has
// them mapped private: that would lose the pages that it has copied.
void pm_commit_cut(void) {
    for (unsigned i = 0; i < pm_heap.shards && !commit.unapplied; i++) {
        struct pm_shard *s = &pm_heap.shard[i];
        uint64_t least = commit.length[pm_journal_file(PM_JOURNAL_DATA, i)];
        pm_lock(&s->lock);
        pm_shard_cut(s, s->frontier > least ? s->frontier : least);
        pm_unlock(&s->lock);
    }
}

static bool keep_entry(const struct pm_journal_io *io, const struct pm_journal_entry *e,
                       const char *from, void *arg) {
    (void)io, (void)from;
    if (e->member == PM_JOURNAL_DATA && e->kind != PM_JOURNAL_LENGTH)
        pm_snapshot_keep(arg, e->shard, e->first, e->pages);
    return true;
}

// The files stay as they are until all is kept.
static bool keep_snapshot(void) {
    struct pm_written known = {0};
    return !pm_snapshot ||
           pm_journal_each_last_of(&commit.journal, &commit.written, keep_entry, &known);
}

static bool apply(void) {
    pm_journal_files_trust(true);
    commit.unapplied =
        !keep_snapshot() || !pm_checkpoint_write_through(&commit.journal, &commit.written);
    pm_journal_files_trust(false);
    return !commit.unapplied;
}

// To have the files durable sooner is of no use where copies may not be dropped even then: a thread
// sleeps in a call whose result the kernel may store into the heap.
static bool keeps_too_much(void) {
    uint64_t kept = kept_before(), bound = pm_options.commit_pages.number; // they count for it
    bool pays = pm_checkpoint_pays(kept) || (bound && kept > larger(bound / 8, PM_CHECKPOINT_FEW));
    return commit.force || (pays && commit.journal.lap.end >= commit.undroppable);
}

static bool bring(void) {
    if (!commit.unapplied)
        return true;
    if (!apply())
        return false;
    keep_ready();
    pm_checkpoint_compared(pm_rounds_compared(&pm_commit_last));
    pm_checkpoint_cut(&commit.journal);
    return true;
}

void pm_commit_bring(void) { bring(); }

// Rounds of one commit find each page some times over.
#define TIMES_MOST 4u

static bool has_missed_many_instants(void) {
    return commit.journal.pages > TIMES_MOST * pm_rounds_own() + FEW / PM_PAGE_SIZE;
}

bool pm_commit_prepare(void) {
    pm_stored_is_lent(); // asked so that what a marker has left that was killed ends
    if (commit.begun && has_missed_many_instants())
        pm_commit_abandon();
    if (commit.begun)
        return true;
    if (!bring())
        return false;
    if (keeps_too_much())
        pm_checkpoint_hurry(&commit.journal);
    return pm_checkpoint_prepare(&commit.journal);
}

static bool become_durable(void) {
    if (!commit.taken.good) {
        errno = commit.taken.error;
        return false;
    }
    if (!pm_journal_end(&commit.journal))
        return false;
    commit.written = pm_journal_found_last(&commit.journal);
    pm_checkpoint_make_room(&commit.journal);
    return pm_journal_back_with_space(&commit.journal, &commit.written) &&
           pm_journal_files.sync(PM_JOURNAL_SELF);
}

bool pm_commit_lacks_room(int error) {
    return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

bool pm_commit_again(int error) {
    bool again = commit.taken.again;
    commit.taken.again = false;
    return again && pm_commit_lacks_room(error);
}

bool pm_commit_enforce(void) {
    pm_commit_look(&pm_commit_last);
    pm_journal_files_trust(true);
    bool durable = !commit.taken.anything || become_durable();
    pm_journal_files_trust(false);
    if (!durable) {
        int saved = errno;
        pm_rounds_forget();
        pm_sums_undo();
        memcpy(commit.length, commit.taken.lengths, sizeof commit.length);
        pm_emptied_taken(false);
        // Where the files hold all, the journal's space may be what the next commit lacks. Without
        // rounds it takes less.
        bool more = commit.journal.lap.commits != 0 || commit.taken.rounds;
        commit.taken.again = pm_checkpoint_retire(&commit.journal) && more;
        errno = saved;
        return false;
    }
    commit.written.time = commit.taken.time;
    atomic_store_explicit(&pm_commit_time, commit.written.time, memory_order_relaxed);
    atomic_fetch_add_explicit(&pm_commit_count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&pm_commit_forced, commit.taken.forced, memory_order_relaxed);
    pm_emptied_taken(true);
    commit.whole_roots.wanted = false;
    if (!commit.taken.anything)
        return true;
    commit.unapplied = true;
    pm_journal_count(&commit.journal);
    return true;
}

bool pm_commit_finish(void) {
    bool good = pm_commit_enforce();
    if (good)
        pm_commit_bring();
    return good;
}

// ---- into the state and out of it ---------------------------------------------------------------

static bool map_private(const struct pm_file *file, size_t len) {
    return mmap(file->map, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
                pm_work_fd(file), (off_t)pm_work_offset(file, 0)) != MAP_FAILED;
}

static bool map_all_private(void) {
    bool good = map_private(&pm_heap.super_file, pm_heap.super_file.reach);
    for (size_t i = 0; i < pm_heap_file_count() && good; i++) {
        const struct pm_file *file = pm_heap_file(&pm_heap_files[i]);
        if (pm_heap_files[i].share || pm_heap_files[i].holds == PM_FILE_DATA)
            good = !file->map || map_private(file, file->reach);
    }
    return good;
}

static bool make_copies(void) {
    bool good = true;
    for (unsigned i = 0; i < pm_heap.shards && good; i++)
        good = pm_work_make(&pm_heap.shard[i]);
    return good;
}

int pm_commit_first(struct pm_error *err) {
    struct pm_state *state = &pm_heap.super->state;
    pm_feature_set(PM_INCOMPAT_JOURNAL);
    // A backup may count commits of a journal that it does not have.
    state->applied = 0;
    state->lap = pm_journal_mark(pm_commit_clock() ^ (uint64_t)getpid());
    pm_make_durable(&state->lap, sizeof state->lap);
    if (pm_doubt_settle(err) != PM_OK)
        return err->status;
    pm_make_durable(&state->doubt, sizeof state->doubt);
    if (!pm_journal_open())
        return pm_fail(err, PM_OPERATIONAL, "%s/journal: %s", pm_heap.dir, pm_strerror(errno));
    return PM_OK;
}

int pm_heap_journal(struct pm_error *err) {
    if (pm_journal_part_check(err) != PM_OK)
        return err->status;
    commit.journal.io = &pm_journal_files;
    commit.journal.most = PM_JOURNAL_PAGES;
    pm_rounds_use(&commit.journal, commit.length);
    reserve_journal();
    commit.buffer = pm_own_reserve(STRIDE * PM_PAGE_SIZE);
    if (!commit.journal.first || !commit.buffer || !pm_changed_prepare())
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: no memory for commits; see `ulimit -v` and `ulimit -d`", pm_heap.dir);
    if (pm_commit_first(err) != PM_OK)
        return err->status;
    pm_rounds_each_file(note_length);
    pm_stored_begin();
    pm_checkpoint_begin(&commit.journal, pm_heap.super->state.lap);
    if (!make_copies())
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: PMALLOC_COMMIT_DIR: its data cannot be copied to memory: %s (see "
                       "also `ulimit -f` and `free`)",
                       pm_heap.dir, pm_strerror(errno));
    if (!map_all_private())
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: PMALLOC_COMMIT: its files cannot be mapped private: %s (see also "
                       "vm.overcommit_memory)",
                       pm_heap.dir, pm_strerror(errno));
    pm_persist_journaled(true);
    pm_heap_become(PM_HEAP_JOURNALED);
    pm_heap_dump_used();
    return PM_OK;
}

// The kernel protects no page of it.
void pm_commit_forked(void) {
    pm_commit_abandon();
    pm_changed_prepare();
    pm_stored_begin();
}

bool pm_commit_write_roots(int fd) {
    for (unsigned i = 0; i < commit.roots; i++)
        if (!pm_os_write_all(fd, commit.root[i].at, commit.root[i].len, commit.root[i].offset))
            return false;
    return true;
}

int pm_commit_change_heap(struct pm_error *err) {
    pm_commit_abandon();
    pm_stored_lose();
    pm_emptied_forget();
    commit.unapplied = false;
    pm_rounds_each_file(note_length);
    if (pm_file_is_ours(&pm_heap.journal)) // the parent's
        close(pm_heap.journal.fd);
    if (!pm_journal_open())
        return pm_fail(err, PM_OPERATIONAL, "%s/journal: %s", pm_heap.dir, pm_strerror(errno));
    pm_checkpoint_begin(&commit.journal, pm_heap.super->state.lap);
    if (!pm_work_wanted)
        return PM_OK;
    bool good = make_copies();
    for (unsigned i = 0; i < pm_heap.shards && good; i++)
        good = map_private(&pm_heap.shard[i].data, pm_heap.shard[i].data.reach);
    return good ? PM_OK
                : pm_fail(err, PM_OPERATIONAL, "%s: its data cannot be copied to memory: %s",
                          pm_heap.dir, pm_strerror(errno));
}

bool pm_commit_share_metadata(void) {
    pm_commit_abandon();
    if (commit.unapplied || !pm_checkpoint_retire(&commit.journal))
        return false;
    pm_stored_end();
    pm_journal_remove();
    pm_persist_journaled(false);
    bool good = true;
    for (size_t i = 0; i < pm_heap_file_count() && good; i++) {
        struct pm_file *file = pm_heap_file(&pm_heap_files[i]);
        if (file->map && (pm_heap_files[i].share || file == &pm_heap.super_file))
            good = pm_file_map(file, file->map, file->reach, PROT_READ | PROT_WRITE,
                               MAP_FIXED | MAP_NORESERVE, 0) != MAP_FAILED;
    }
    if (good && commit.journal.counted)
        pm_instants_keep(&pm_heap.super->state, &commit.journal.instants, commit.written.time);
    return good;
}
