// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "rounds.h"

#include <stdatomic.h>

#include "base/options.h"
#include "base/os.h"
#include "base/proc.h"
#include "instant_copy.h"
#include "journal_files.h"
#include "media/backing/marks.h"
#include "media/journal/checkpoint.h"
#include "media/journal/page_sums.h"
#include "media/own_pages.h"
#include "stored_pages.h"

static struct {
    struct pm_journal *journal;
    const uint64_t *length; // of the files, under the last commit
    // What differs from the last commit, and is not in the journal, is in the kernel's record. It
    // has all copied pages of a file that was not looked at yet.
    bool watched, failed;
    uint64_t drop_at[PM_JOURNAL_FILES]; // where pages are given back next
    uint64_t copied;                    // by the last commit
    uint64_t own, counted, count_after; // copied pages; when they were counted, or 0; until when
    uint64_t unseen, rest;              // when there were such pages; how long it rests, or 0
} rounds;

void pm_rounds_use(struct pm_journal *journal, const uint64_t *length) {
    rounds.journal = journal;
    rounds.length = length;
}

uint64_t pm_rounds_length(unsigned file) {
    const struct pm_shard *s = &pm_heap.shard[file / PM_JOURNAL_MEMBERS];
    const struct pm_file *f = pm_journal_heap_file(file);
    return f == &s->data ? s->frontier : f->size;
}

void pm_rounds_each_file(void (*fn)(unsigned file)) {
    fn(pm_journal_file(PM_JOURNAL_SUPER, 0));
    fn(pm_journal_file(PM_JOURNAL_ROOTS, 0));
    for (unsigned i = 0; i < pm_heap.shards; i++)
        for (unsigned member = PM_JOURNAL_DATA; member < PM_JOURNAL_MEMBERS; member++)
            if (pm_journal_heap_file(pm_journal_file(member, i))->map)
                fn(pm_journal_file(member, i));
}

typedef void look_fn(unsigned file, char *at, uint64_t length);

// Of each file that is mapped: all but the roots', whose images lie elsewhere.
static look_fn *mapped_fn;
static void call_mapped(unsigned file) {
    const struct pm_file *f = pm_journal_heap_file(file);
    if (f != &pm_heap.roots)
        mapped_fn(file, f->map, pm_rounds_length(file));
}

static void each_mapped(look_fn *fn) {
    mapped_fn = fn;
    pm_rounds_each_file(call_mapped);
}

// ---- copied pages -------------------------------------------------------------------------------

static uint64_t copied;
static int pagemap;

static void count_pages(char *at, size_t len, void *arg) {
    (void)at, (void)arg;
    copied += len / PM_PAGE_SIZE;
}

// A file becomes longer or shorter meanwhile; its addresses stay.
static void count_file(unsigned file, char *at, uint64_t length) {
    uint64_t some;
    (void)file;
    if (pm_stored_count(at, length, pagemap, &some))
        copied += some;
    else
        pm_own_pages_by(pagemap, at, length, count_pages, NULL);
}

uint64_t pm_rounds_copied(void) {
    copied = 0;
    pagemap = pm_own_open();
    each_mapped(count_file);
    pm_own_close(pagemap);
    return copied;
}

// ---- the kernel's record of stores --------------------------------------------------------------

bool (*pm_rounds_unseen)(void);

// It takes as long as to find what was stored to, ten times over, and it is only roughly so: it may
// take that part of the time. So a small heap that grows fast is counted for each commit. Most
// often it is done in a round.
#define COUNT_PART 128u
#define COUNT_AFTER ((uint64_t)1000000000)

static void count_own(void) {
    uint64_t now = pm_os_now_ns();
    if (rounds.counted && now - rounds.counted < rounds.count_after)
        return;
    rounds.own = pm_rounds_copied();
    rounds.counted = now;
    rounds.count_after = COUNT_PART * (pm_os_now_ns() - now);
    rounds.count_after = rounds.count_after < COUNT_AFTER ? rounds.count_after : COUNT_AFTER;
}

uint64_t pm_rounds_own(void) { return rounds.own; }

// Calls `fn` for each data file, with its length now. Other threads may run.
static void each_data(look_fn *fn) {
    for (unsigned i = 0; i < pm_heap.shards; i++) {
        struct pm_shard *s = &pm_heap.shard[i];
        pm_lock_raw(&s->lock);
        uint64_t length = s->frontier;
        pm_unlock_raw(&s->lock);
        fn(pm_journal_file(PM_JOURNAL_DATA, i), s->data.map, length);
    }
}

static uint64_t long_now;
static void add_length(unsigned file, char *at, uint64_t length) {
    (void)file, (void)at;
    long_now += length / PM_PAGE_SIZE;
}

static bool is_long(uint64_t most) {
    long_now = 0;
    each_data(add_length);
    return long_now >= most;
}

// Where the program has mapped something over its blocks, what is the heap's page there is not what
// the record is about.
static bool can_watch(void) {
    bool rests = rounds.rest && pm_os_now_ns() - rounds.unseen < rounds.rest;
    return !rests && !pm_marks_any() && pm_stored_can();
}

static uint64_t known_copied(void) {
    return rounds.counted && rounds.own > rounds.copied ? rounds.own : rounds.copied;
}

// Whether it is worth it.
static bool is_watching(bool count) {
    uint64_t from = pm_options.commit_watch.number;
    if (!from)
        return false;
    if (count && rounds.copied < from && is_long(from))
        count_own();
    return known_copied() >= (rounds.watched ? from / 4 : from) && can_watch();
}

static void forget_file(unsigned file) { rounds.failed |= !pm_stored_forget(file); }

void pm_rounds_forget(void) {
    if (!rounds.watched)
        return;
    rounds.watched = rounds.failed = false;
    pm_rounds_each_file(forget_file);
    if (rounds.failed) // the program has mapped something odd over its blocks
        pm_stored_end();
}

bool pm_rounds_lend(const _Atomic uint32_t *alive) { return pm_stored_lend(rounds.watched, alive); }

static bool begins_anew;
static void find_in(unsigned file, char *at, uint64_t length) {
    rounds.failed |= !pm_changed_find_stored(file, at, length, begins_anew);
}

// ---- when it begins anew ------------------------------------------------------------------------

// Until it does, the same pages are found again, and compared in vain. To begin takes a fault for
// each page that is stored to again, and a question about all descriptors (misses_nothing()). So
// small commits go on with it for a while.
#define FAULT_NS 1000
static struct {
    uint64_t in_vain, changed; // pages: since it began; by the last commit
    uint64_t asked_ns;         // what the question takes
} anew;

uint64_t pm_rounds_compared(const struct pm_commit_cost *cost) {
    uint64_t changed = cost->pages - cost->before;
    uint64_t in_vain = cost->compared > changed ? cost->compared - changed : 0;
    anew.in_vain += in_vain;
    anew.changed = changed;
    return in_vain;
}

static bool pays_to_begin(void) {
    return PM_COMPARE_NS * anew.in_vain >= anew.asked_ns + FAULT_NS * anew.changed;
}

// The answer may be known already, and the next time it is not.
static bool ask_for_unseen(void) {
    uint64_t since = pm_os_now_ns();
    bool unseen = pm_rounds_unseen && pm_rounds_unseen();
    uint64_t took = pm_os_now_ns() - since;
    anew.asked_ns = took > anew.asked_ns / 2 ? took : anew.asked_ns / 2;
    anew.in_vain = 0;
    return unseen;
}

// A program that gives pages to the kernel does so again and again. Meanwhile all copied pages are
// looked at. Nanoseconds.
#define REST ((uint64_t)1000000000)
#define REST_MOST (64 * REST)

// After each has begun its record anew. A page that the kernel had pinned before that, and stores
// to later, will not be in it: so who may have such pages is asked now. Whoever pins a page later
// is in the record.
static bool misses_nothing(void) {
    if (!ask_for_unseen()) {
        rounds.rest = 0;
        return true;
    }
    pm_rounds_forget();
    rounds.unseen = pm_os_now_ns();
    rounds.rest = rounds.rest ? 2 * rounds.rest : REST;
    rounds.rest = rounds.rest < REST_MOST ? rounds.rest : REST_MOST;
    return false;
}

// ---- rounds before the instant ------------------------------------------------------------------

bool (*pm_rounds_awaited)(void);

// Pages between two looks at that. The first ones are always looked at, so each round gets on.
#define BATCH ((uint64_t)2048)
static uint64_t batch;

static void look_at_batch(unsigned file, char *at, uint64_t length) {
    (void)length;
    pm_changed_look_stored(file, at, rounds.length[file], batch, batch + BATCH);
}

// False: it was cut short.
static bool look_by_record(void) {
    for (batch = 0; batch < pm_stored_pages(); batch += BATCH) {
        if (batch && pm_rounds_awaited && pm_rounds_awaited()) {
            pm_stored_owe(batch);
            return false;
        }
        each_data(look_at_batch);
    }
    return true;
}

static bool may_make_rounds(void) {
    return !pm_heap.journal.length && // which stays as large as it is
           !atomic_load_explicit(&pm_proc_no_detour, memory_order_relaxed);
}

bool pm_rounds_may_be_worth(void) {
    uint64_t from = pm_options.commit_watch.number;
    return known_copied() < from && is_long(from) && may_make_rounds();
}

void pm_rounds_count(void) {
    rounds.counted = 0;
    if (can_watch())
        count_own();
}

bool pm_rounds_worth(bool count) { return may_make_rounds() && is_watching(count); }

// Looks begin with the questions for all files.
static void begin_look(bool begins) {
    begins_anew = begins;
    rounds.watched = true;
    rounds.failed = false;
    pm_stored_none();
}

uint64_t pm_rounds_make(void) {
    struct pm_commit_cost cost = {0};
    count_own();
    begin_look(true);
    pm_changed_begin(rounds.journal, PM_CHANGED_ROUND, &cost);
    each_data(find_in);
    bool told = !rounds.failed && misses_nothing();
    bool whole = !told || look_by_record();
    if (!pm_changed_end() || !told)
        pm_rounds_forget();
    return whole ? cost.copied : PM_ROUNDS_CUT;
}

// What is beyond the end of a file that was cut since is released space, so zeroes follow it in the
// journal. But a mapping that has come to lie over blocks may have been looked at.
bool pm_rounds_hold(void) { return !pm_marks_any(); }

// ---- the instant --------------------------------------------------------------------------------

static void look_at_file(unsigned file, char *at, uint64_t length) {
    pm_changed_look(file, at, length, 0, rounds.length[file]);
}

// Begins with the file that comes next: first those from there on, then those before it.
static struct {
    uint64_t until;
    unsigned first, next;
    bool again;
} drops;

// What was not stored to since the last look is as the last commit left it, or in this one. It is
// given back before the record begins anew: then it would not name what is copied now.
static void drop_rest_of(unsigned file, char *at, uint64_t length) {
    uint64_t *from = &rounds.drop_at[file];
    if ((file < drops.first) != drops.again || pm_os_now_ns() >= drops.until)
        return;
    *from = pm_changed_drop_rest(file, at, *from < length ? *from : 0, length, drops.until);
    drops.next = *from < length ? file : file + 1;
}

// The threads are held meanwhile. A long lap keeps more from being given back.
#define DROP_NS ((uint64_t)100000)

static void drop_rest(void) {
    uint64_t laps = pm_checkpoint_worth();
    drops.until = pm_os_now_ns() + DROP_NS * (laps ? laps : 1);
    drops.first = drops.next;
    for (unsigned i = 0; i < 2; i++) {
        drops.again = i;
        each_mapped(drop_rest_of);
    }
}

static bool find_in_all(void) {
    if (!is_watching(false))
        return false;
    drop_rest();
    begin_look(!rounds.watched || pm_stored_is_lent() || pays_to_begin());
    each_mapped(find_in);
    return !rounds.failed && (!begins_anew || misses_nothing());
}

static void look_at_all(struct pm_commit_cost *cost) {
    pm_rounds_forget();
    cost->copied = 0;
    each_mapped(look_at_file);
    rounds.own = cost->copied;
    rounds.counted = pm_os_now_ns();
}

// ---- copies -------------------------------------------------------------------------------------

static struct {
    uint64_t room, pages;
    const char *next; // to be looked at
} copies;

static void copy_pages_of(unsigned file, char *at, uint64_t length) {
    (void)at, (void)length;
    pm_stored_part(file, 0, copies.room, pm_instant_copy, NULL);
}

// What is left for the journal has room for a group, and for what is added at the instant.
static void copy_found(void) {
    struct pm_journal *j = rounds.journal;
    size_t bytes = j->room > PM_ROUNDS_JOURNAL ? j->room - PM_ROUNDS_JOURNAL : 0;
    uint64_t most = bytes / PM_PAGE_SIZE, found = pm_stored_pages();
    copies.room = found < most ? found : most;
    j->room -= copies.room * PM_PAGE_SIZE;
    copies.next = (char *)j->first + j->room;
    pm_instant_copy_begin((char *)j->first + j->room, copies.room);
    each_mapped(copy_pages_of);
    copies.pages = pm_instant_copy_end();
}

static const uint64_t *length_before;

// Of a file that has come since the instant nothing was found.
static void look_at_copies(unsigned file) {
    char *start = pm_journal_heap_file(file)->map;
    pm_changed_look_copied(file, start, length_before[file], &copies.next, copies.pages);
}

void pm_rounds_look_at_copies(struct pm_commit_cost *cost, const uint64_t *length) {
    if (copies.pages) {
        length_before = length;
        pm_changed_begin(rounds.journal, PM_CHANGED_AFTER, cost);
        pm_rounds_each_file(look_at_copies);
        pm_changed_end();
    }
    rounds.journal->room += copies.room * PM_PAGE_SIZE;
    copies.room = copies.pages = 0;
}

static void look_at_rest(unsigned file, char *at, uint64_t length) {
    (void)length;
    pm_changed_look_stored(file, at, rounds.length[file], copies.pages, UINT64_MAX);
}

static void look_at_stored(struct pm_commit_cost *cost, bool later) {
    if (later)
        copy_found();
    else
        count_own(); // else a round has
    each_mapped(look_at_rest);
    cost->copied = rounds.own > cost->dropped ? rounds.own - cost->dropped : 0;
    rounds.own = cost->copied;
}

void pm_rounds_instant(struct pm_commit_cost *cost, enum pm_rounds_look look) {
    if (look != PM_ROUNDS_ALL && find_in_all())
        look_at_stored(cost, look == PM_ROUNDS_LATER);
    else
        look_at_all(cost);
    rounds.copied = cost->copied;
}
