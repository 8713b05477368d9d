// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "commit_rounds.h"

#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/options.h"
#include "base/os.h"
#include "commit_bound.h"
#include "commit_cost.h"
#include "commit_mode.h"
#include "kernel_stores.h"
#include "media/commit/commit.h"
#include "media/commit/rounds.h"
#include "media/journal/pauses_format.h"
#include "state/phase.h"

#define LITTLE 1024u // pages, which the instant copies in a millisecond or two
#define ROUNDS_MOST 12u
#define VAIN_MOST 2u
#define SOON_MS 20u   // in which little is copied: each page costs the program a fault
#define SOME 4096u    // pages, for which memory is made ready before the last round
#define TIMES_MOST 2u // pages of the first round, in the journal: it takes room on the medium

// Since an instant that is not longer ago, no more can have changed than one may look at while the
// threads stand still: PAGES_PER_MS as in commit_bound.c. Rounds would find most pages, and cost an
// answer that waits another scan of the heap.
#define RECENT_NS ((uint64_t)8000000)

#define CUTS_MOST 64u // before one instant; each time the rounds are 8 MiB further
#define PASS_MS 100u  // for a fork

// Such a commit is waited for by nobody.
static bool is_by_time(void) { return pm_commits_mode() == PM_COMMITS_TIME; }

// For others copied pages are counted only if there are many more: that takes milliseconds for 1
// GiB, and to ask for all private pages of the process takes none.
static void count_if_grown(void) {
    static uint64_t asked;
    uint64_t now = pm_os_now_ms();
    if (now - asked < SOON_MS || !pm_rounds_may_be_worth())
        return;
    asked = now;
    if (pm_commit_bound_grown(pm_options.commit_watch.number))
        pm_rounds_count();
}

bool pm_commit_rounds_worth(void) {
    if (!is_by_time())
        count_if_grown();
    return pm_rounds_worth(is_by_time());
}

// ---- who waits for them -------------------------------------------------------------------------

static _Atomic bool stopping;
static _Atomic unsigned cuts; // since rounds were last made to their end. With the commit lock

void pm_commit_rounds_stop(bool on) { atomic_store_explicit(&stopping, on, memory_order_relaxed); }

static bool is_wanted(void) {
    return atomic_load_explicit(&pm_commit_lock_awaited, memory_order_relaxed) != 0;
}

bool pm_commit_rounds_awaited(void) {
    return atomic_load_explicit(&stopping, memory_order_relaxed) ||
           (atomic_load_explicit(&cuts, memory_order_relaxed) < CUTS_MOST && is_wanted());
}

bool pm_commit_rounds_let_pass(void) {
    const struct timespec pause = {0, 200000};
    uint64_t until = pm_os_now_ms() + PASS_MS;
    do
        syscall(SYS_nanosleep, &pause, NULL);
    while (!atomic_load_explicit(&stopping, memory_order_relaxed) && pm_os_now_ms() < until &&
           (is_wanted() || atomic_load_explicit(&pm_commit_lock.word, memory_order_relaxed)));
    return !atomic_load_explicit(&stopping, memory_order_relaxed);
}

void pm_commit_rounds_make_way(void) {
    if (atomic_load_explicit(&cuts, memory_order_relaxed) && pm_commit_rounds_awaited())
        pm_commit_rounds_let_pass();
}

// ---- how many there are -------------------------------------------------------------------------

static uint64_t make_round(unsigned number, bool count) {
    uint64_t before = pm_commit_in_rounds(), looked = pm_commit_round(count);
    uint64_t after = pm_commit_in_rounds();
    pm_commit_round_was(number < PM_PAUSE_ROUNDS ? number : PM_PAUSE_ROUNDS - 1,
                        after > before ? after - before : 0);
    return looked;
}

// What the instant finds may be more than the last round: threads may have to be waited for. False:
// one was cut short.
static bool make_rounds(void) {
    bool count = is_by_time();
    if (!count)
        count_if_grown();
    uint64_t last = UINT64_MAX, most = UINT64_MAX, looked;
    for (unsigned i = 0, vain = 0; i < ROUNDS_MOST; i++, last = looked) {
        pm_kernel_stores_anew();
        looked = make_round(i, count);
        if (looked == PM_ROUNDS_CUT)
            return false;
        if (!looked)
            return true;
        vain += looked > last / 4 * 3;
        most = i ? most : TIMES_MOST * pm_commit_in_rounds() + LITTLE;
        bool over = looked < LITTLE || vain == VAIN_MOST || pm_commit_in_rounds() > most;
        bool ready = (over || looked < SOME) && pm_commit_ready(2 * looked + LITTLE);
        if (over && ready)
            return true;
    }
    return true;
}

bool pm_commit_rounds_needed(void) {
    uint64_t now = pm_commit_clock(),
             last = atomic_load_explicit(&pm_commit_time, memory_order_relaxed);
    return pm_commit_last.pages > LITTLE || now - last > RECENT_NS;
}

bool pm_commit_rounds(void) {
    bool whole = make_rounds();
    atomic_store_explicit(&cuts, whole ? 0 : cuts + 1, memory_order_relaxed);
    return whole;
}
