// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "moved.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/lock.h"
#include "base/options.h"
#include "commit/commits.h"
#include "in_child.h"
#include "media/heap.h"
#include "media/open/heap_dir.h"
#include "media/persist.h"
#include "moved/hold_place.h"
#include "moved/keep_free.h"
#include "moved/late_words.h"
#include "moved/rewrite.h"
#include "moved/verdict.h"
#include "roots/objects_record.h"
#include "roots/root_table.h"
#include "state/phase.h"

static struct look {
    bool of_program;
    struct pm_rewritten done;
} found;
static bool moved;       // `found` says what was to be done about it, and that is done
static bool out_of_date; // the record has places of which no word is in use any more

static bool wants(int how) { return pm_options.rebase.number == (uint64_t)how; }

// Another program, which has not the heap's roots, changes nothing: it is refused later, as ever.
static int rewrite(void *result, struct pm_error *err) {
    struct look *look = result;
    look->of_program = pm_roots_prepare(err) == PM_OK;
    bool dry = pm_heap.readonly || wants(PM_REBASE_LOOK);
    return look->of_program ? pm_rewrite(dry, &look->done, err) : PM_OK;
}

static int make_copies(void *result, struct pm_error *err) {
    struct look *look = result;
    int status = pm_roots_prepare(err);
    return status == PM_OK ? pm_copies_make(&look->done.copies, err) : status;
}

// A process that borrows the heap cannot change it, and needs words that are right.
static int refuse_to_borrow(struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL,
                   "%.300s: %lu words lead into the program or its libraries, which are another "
                   "build or lie elsewhere, and PMALLOC_OPEN=private cannot change them: start the "
                   "program once without it",
                   pm_heap.dir, (unsigned long)found.done.changed);
}

static bool is_reached(void) { return pm_heap_has_roots() && !pm_heap_roots_are_dropped(); }

int pm_moved_look(bool *again, struct pm_error *err) {
    *again = false;
    int status = pm_record_check(false, err);
    if (status != PM_OK || pm_heap.created || wants(PM_REBASE_REPORT) || !is_reached() ||
        !pm_record_read() || !pm_verdicts_moved())
        return status;
    status = pm_in_child(rewrite, &found, sizeof found, err);
    if (status == PM_OK && pm_heap.readonly && found.done.changed && !wants(PM_REBASE_LOOK))
        return refuse_to_borrow(err);
    bool changes =
        status == PM_OK && found.of_program && !pm_heap.readonly && !wants(PM_REBASE_LOOK);
    if (changes && pm_rewrite_lacks_copies(&found.done)) {
        *again = true;
        return pm_in_child(make_copies, &found, sizeof found, err);
    }
    moved = changes;
    *again = moved && found.done.changed;
    out_of_date = moved && !found.done.changed;
    return status;
}

bool pm_moved_was(void) { return moved; }

static bool is_rewritten(void) { return moved && found.done.changed; }

static void say_led(const char *lead, uint64_t words) {
    if (!words)
        return;
    pm_event(PM_EV_REBASED,
             "%.200s: %lu word%s of it%s into the program or its libraries, which %s; each %s to "
             "the same thing%s",
             pm_heap.dir, (unsigned long)words, words == 1 ? "" : "s", lead,
             found.done.other_build ? "are another build" : "lie elsewhere",
             is_rewritten() ? "leads" : "can be made to lead", is_rewritten() ? " now" : "");
}

static void say(const char *lead) {
    const struct pm_rewritten *done = &found.done;
    say_led(lead, done->changed - done->stale);
    if (done->stale)
        pm_event(PM_EV_REBASED,
                 "%.200s: %lu word%s more, as listed, %s: PMALLOC_REBASE_TRUST=stale", pm_heap.dir,
                 (unsigned long)done->stale, done->stale == 1 ? "" : "s",
                 !is_rewritten()    ? "can be made 0"
                 : done->stale == 1 ? "is 0 now"
                                    : "are 0 now");
    if (found.done.copies.count)
        pm_event(PM_EV_REBASED, "%.200s: %u string%s that this build lacks %s copied into it",
                 pm_heap.dir, found.done.copies.count, found.done.copies.count == 1 ? "" : "s",
                 !is_rewritten()                ? "can be"
                 : found.done.copies.count == 1 ? "was"
                                                : "were");
    if (found.done.waits)
        pm_event(PM_EV_REBASED, "%.200s: %lu word%s more lead to libraries that are not loaded yet",
                 pm_heap.dir, (unsigned long)found.done.waits, found.done.waits == 1 ? "" : "s");
}

void pm_moved_say(void) {
    if (!is_rewritten())
        return;
    pm_record_drop_other();
    say(" led");
}

void pm_moved_end_if_asked(void) {
    if (!wants(PM_REBASE_LOOK) && !wants(PM_REBASE_ONLY))
        return;
    if (pm_heap.created) {
        pm_heap_remove();
        pm_refuse(PM_EV_START_REFUSED, "%.300s: there was no heap, so nothing leads anywhere",
                  pm_heap.dir);
    }
    if (found.done.changed || found.done.waits)
        say(is_rewritten() ? " led" : found.done.changed == 1 ? " leads" : " lead");
    else
        pm_event(PM_EV_REBASED, "%.300s: no word of it is to be changed for this program",
                 pm_heap.dir);
    syscall(SYS_exit_group, 0);
}

// Roots that are named may be captured later.
static bool may_be_reached(void) {
    return pm_heap_on_media() && (is_reached() || pm_options.roots.text[0]);
}

#define A_WHILE 100 // milliseconds

// A thread within dlopen() may have the loader's lock, and a fork both: so it is not waited for
// long, and what is missing is noted with the next library.
static bool lock_for_a_while(struct pm_lock *lock, unsigned ms) {
    const struct timespec pause = {0, 100000};
    for (unsigned i = 0; i < 10 * ms; i++) {
        if (pm_trylock_raw(lock))
            return true;
        nanosleep(&pause, NULL);
    }
    return false;
}

static void note(bool wanted) {
    if (!pm_heap_on_media() || !wanted || !lock_for_a_while(&pm_process_lock, A_WHILE))
        return;
    if (out_of_date && pm_record_renew(pm_verdicts_kept()))
        pm_record_drop_other();
    out_of_date = false;
    pm_record_note(pm_persist_syncs());
    pm_unlock_raw(&pm_process_lock);
}

static void note_uncancelled(bool wanted) {
    int saved = errno;
    struct pm_cancel held = pm_cancel_hold();
    note(wanted);
    pm_cancel_release(held);
    errno = saved;
}

void pm_moved_note(void) { note_uncancelled(may_be_reached()); }

void pm_moved_note_first(void) {
    if (pm_heap_on_media() && !pm_record_generation() && !pm_nested())
        note_uncancelled(true);
}

// ---- libraries that come later ------------------------------------------------------------------

static void say_late(const struct pm_late_words *late) {
    if (late->changed)
        pm_event(
            PM_EV_REBASED,
            "%.200s: %lu word%s of it led into a library that lies elsewhere now; each leads to "
            "the same thing now",
            pm_heap.dir, (unsigned long)late->changed, late->changed == 1 ? "" : "s");
    if (late->unsure)
        pm_event(
            PM_EV_REBASE_LEFT,
            "%.200s: %lu word%s of it led into a library to what cannot be found in it now, and "
            "stay%s as they are: %.200s; go on with the library that it was",
            pm_heap.dir, (unsigned long)late->unsure, late->unsure == 1 ? "" : "s",
            late->unsure == 1 ? "s" : "", late->why);
}

static _Atomic bool holding;

void pm_moved_keep_free(void) {
    if (pm_record_read())
        pm_places_keep_free();
}

static void keep_free_again(void) {
    if (!pm_heap_on_media() || !pm_record_generation() ||
        !lock_for_a_while(&pm_process_lock, A_WHILE))
        return;
    pm_moved_keep_free();
    pm_unlock_raw(&pm_process_lock);
}

bool pm_moved_hold_place(const char *file) {
    int saved = errno;
    bool held = pm_heap_on_media() && pm_record_generation() && !atomic_exchange(&holding, true);
    if (held && !pm_place_hold(file)) {
        atomic_store(&holding, false);
        held = false;
    }
    errno = saved;
    return held;
}

static void release_place(bool loaded) {
    pm_place_release();
    if (!loaded)
        keep_free_again();
    atomic_store(&holding, false);
}

// What has to be changed waits longer: until it is, the program uses words that are wrong.
#define LONG 10000

static bool is_elsewhere(void) {
    bool locked = lock_for_a_while(&pm_process_lock, LONG);
    bool elsewhere = locked && pm_verdicts_moved();
    if (locked)
        pm_unlock_raw(&pm_process_lock);
    return elsewhere;
}

// No commit comes between the words and the record. The record before is needed until one has.
static bool change_words(struct pm_late_words *late) {
    static bool uncommitted;
    if (uncommitted || !lock_for_a_while(&pm_commit_lock, LONG))
        return false;
    bool good = lock_for_a_while(&pm_process_lock, LONG);
    if (good) {
        pm_late_words(late);
        pm_unlock_raw(&pm_process_lock);
    }
    pm_unlock_raw(&pm_commit_lock);
    uncommitted = good && late->changed && pm_heap_is_journaled() && pm_commits_make() != 0;
    return good;
}

static void note_library(void) {
    static struct pm_late_words late;
    int saved = errno;
    struct pm_cancel held = pm_cancel_hold();
    bool wanted = !wants(PM_REBASE_REPORT) && !wants(PM_REBASE_REFUSE);
    note(may_be_reached());
    if (pm_heap_on_media() && pm_record_generation() && wanted && is_elsewhere() &&
        change_words(&late))
        say_late(&late);
    keep_free_again();
    pm_cancel_release(held);
    errno = saved;
}

void pm_moved_loaded(bool held, bool loaded) {
    if (held)
        release_place(loaded);
    if (loaded)
        note_library();
}
